"""The jars that Spark needs beyond its own: resolved by Spark itself the first time, then kept and used offline."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from sparkport.errors import FailedPrecondition

__all__ = ["GUARD", "JarCache", "cache_home"]

GUARD = "sparkport-guard-"
"""How the names of jars begin that are made of our own source; which of them fits is not for a folder to say."""


def cache_home() -> Path:
    """Where what can be made again is kept between runs."""
    return Path(os.environ.get("SPARKPORT_CACHE") or Path.home() / ".cache" / "sparkport")


class JarCache:
    """``folder`` is for sites without a way to a repository: all jars in it are used, and nothing is resolved."""

    def __init__(self, packages: Sequence[str], folder: Path | None = None) -> None:
        self._packages = tuple(packages)
        self._folder = folder
        digest = hashlib.sha256(" ".join(self._packages).encode()).hexdigest()[:12]
        self._ivy = cache_home() / "jars" / digest
        self._list = self._ivy / "resolved.json"

    def resolved(self) -> bool:
        return self._folder is not None or bool(self._kept())

    def arguments(self, *own: Path) -> list[str]:
        """The arguments for spark-submit, with jars of our own."""
        given = [str(path) for path in own]
        if self._folder is not None:
            jars = sorted(path for path in self._folder.glob("*.jar") if not path.name.startswith(GUARD))
            if not jars:
                raise FailedPrecondition(f"there is no jar in {self._folder}; needed are {', '.join(self._packages)}")
            return ["--jars", ",".join([*(str(path.resolve()) for path in jars), *given])]
        kept = self._kept()
        if kept:
            return ["--jars", ",".join([*kept, *given])]
        self._ivy.mkdir(parents=True, exist_ok=True)
        resolve = ["--packages", ",".join(self._packages), "--conf", f"spark.jars.ivy={self._ivy}"]
        return [*(["--jars", ",".join(given)] if given else []), *resolve]

    def remember(self) -> None:
        """Spark has started, so what it resolved is whole."""
        if self.resolved():
            return
        jars = sorted(str(path) for path in (self._ivy / "jars").glob("*.jar"))
        if jars:
            temporary = self._list.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(jars))
            temporary.replace(self._list)

    def _kept(self) -> list[str]:
        try:
            jars: list[str] = json.loads(self._list.read_text())
        except (OSError, ValueError):
            return []
        return jars if all(Path(path).exists() for path in jars) else []
