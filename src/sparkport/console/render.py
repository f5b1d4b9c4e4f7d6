"""Templates to bytes. Everything that goes into a page is escaped, unless it was made here as markup."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sparkport.console import formats
from sparkport.console.cells import shown
from sparkport.console.requests import link

__all__ = ["Renderer"]


class Renderer:
    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("sparkport.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        folder = files("sparkport.console").joinpath("templates")
        self._environment.globals.update(
            version=_version(),
            link=link,
            # Our own files, which are parts of the page.
            style=Markup(folder.joinpath("style.css").read_text(encoding="utf-8")),
            script=Markup(folder.joinpath("script.js").read_text(encoding="utf-8")),
        )
        self._environment.filters.update(
            shown=shown,
            age=formats.age,
            bytes=formats.bytes_text,
            count=formats.count,
            duration=formats.duration,
            moment=formats.moment,
            plural=formats.plural,
            report_text=formats.report_text,
            short=formats.short_count,
        )

    def render(self, template: str, values: dict[str, Any]) -> bytes:
        # A lone surrogate, which a name or a value may have, is nothing that a page can hold.
        return self._environment.get_template(template).render(values).encode("utf-8", "replace")


def _version() -> str:
    try:
        return version("sparkport")
    except PackageNotFoundError:
        return ""
