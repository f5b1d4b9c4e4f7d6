"""``sparkport demo``: have a running server make tables to try, and say what to try."""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.hints import SET_OPTIMIZER
from sparkport.cli.progress import Progress
from sparkport.cli.remote import Remote, connected

__all__ = ["demo"]


def demo(remote: Remote, *, items: int | None, replace: bool, out: TextIO) -> int:
    body = {"replace": replace, **({} if items is None else {"items": items})}
    statements: list[str] = []
    with connected(remote) as session, Progress("demo") as progress:
        for answer in session.act("demo", **body):
            statements += answer.get("statements", [])
            if "progress" in answer:
                with progress.aside():
                    print(answer["progress"], file=out, flush=True)
    print("Try, in DuckDB:", SET_OPTIMIZER, *statements, sep="\n  ", file=out)
    return 0
