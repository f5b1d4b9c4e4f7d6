"""Named points in the way of a change at which a test can make something die or fail. Off unless it is asked for.

``SPARKPORT_FAULT=publish.before`` kills the server when it first gets there, as a crash would. The whole form is
``point#n=action:seconds``: at the n-th time; ``server``, ``spark`` or ``both`` are killed, so many seconds later if
told, ``error`` raises, ``lost`` raises as if what was just done had been done without an answer, ``pause`` waits.
``SPARKPORT_FAULT=@file`` takes the plan from a file and removes it when it is carried out, so that a server that runs
can be told where to die next. A file may have several lines: each is due when the one before has been carried out.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparkport.errors import InternalError, Unavailable

__all__ = ["ACTIONS", "Fault", "POINTS", "fault", "on_fault", "on_kill_spark"]

POINTS = (
    "stage.before",  # the first rows of a statement are here
    "stage.after",  # all rows are here, and go to Spark through the staging folder, or into the journal
    "defer.after",  # a statement is in its transaction's file, nothing else has happened
    "commit.decided",  # a transaction has no conflict with the tables as they are
    "shadow.before",  # a shadow's metadata is written, its row is not
    "shadow.after",  # both are there
    "append.listed",  # the list of new files is there, or the manifest in it; the files are not
    "append.placed",  # one more of them is
    "apply.before",  # Spark is about to get the statement, or new files their places
    "apply.between",  # new rows are staged, changed ones are not
    "apply.after",  # there is a snapshot that nobody sees
    "publish.before",  # the snapshot is found to be right
    "metadata.before",  # a metadata file is about to be written, for a row change or for DDL
    "metadata.after",  # it is there, and nobody points to it
    "pointer.before",  # the catalog's database has taken the change and not committed it
    "pointer.after",  # committed
    "settle.before",  # a commit was not answered, and the catalog is about to be asked what became of it
    "publish.after",  # the statement is done, its answer not sent
)

ACTIONS = ("server", "spark", "both", "error", "lost", "pause")

_ENV = "SPARKPORT_FAULT"
_FORM = re.compile(r"(?P<point>[a-z.]+)(?:#(?P<time>\d+))?(?:=(?P<action>[a-z]+))?(?::(?P<seconds>[\d.]+))?")

_hooks: dict[str, Callable[[], None]] = {}
_seen: Counter[str] = Counter()
_lock = threading.Lock()
_kill_spark: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    point: str
    action: str = "server"
    seconds: float = 0.0
    time: int = 1

    @classmethod
    def parse(cls, text: str) -> Fault:
        match = _FORM.fullmatch(text.strip())
        if match is None or match["point"] not in POINTS or (match["action"] or "server") not in ACTIONS:
            raise ValueError(f"no such fault: {text!r}")
        return cls(match["point"], match["action"] or "server", float(match["seconds"] or 0.0), int(match["time"] or 1))

    def __str__(self) -> str:
        return f"{self.point}#{self.time}={self.action}:{self.seconds:g}"


def on_fault(point: str, action: Callable[[], None] | None) -> None:
    """Run ``action`` when ``point`` is reached; None takes it away. For tests in process."""
    if point not in POINTS:
        raise ValueError(point)
    if action is None:
        _hooks.pop(point, None)
    else:
        _hooks[point] = action


def on_kill_spark(kill: Callable[[], None] | None) -> Callable[[], None] | None:
    """How to kill the Spark of this server; what it was before."""
    global _kill_spark
    before, _kill_spark = _kill_spark, kill
    return before


def fault(point: str) -> None:
    """A point is reached."""
    if _hooks and (hook := _hooks.get(point)) is not None:
        hook()
    plan = os.environ.get(_ENV)
    if plan:
        _carry_out(point, plan)


def _carry_out(point: str, plan: str) -> None:
    with _lock:
        path = Path(plan[1:]) if plan.startswith("@") else None
        try:
            first, *rest = [plan] if path is None else path.read_text().splitlines()
        except FileNotFoundError:
            return
        chosen = Fault.parse(first)
        if chosen.point != point:
            return
        _seen[str(chosen)] += 1
        if _seen[str(chosen)] != chosen.time:
            return
        if path is not None:
            _seen.clear()
            if rest:
                path.write_text("\n".join(rest))
            else:
                path.unlink(missing_ok=True)
    if chosen.action == "error":
        raise InternalError(f"a fault at {point}, as was asked for")
    if chosen.action == "lost":
        raise Unavailable(f"the answer at {point} is lost, as was asked for")
    if chosen.action == "pause":
        time.sleep(chosen.seconds)
    elif chosen.seconds:
        threading.Timer(chosen.seconds, _kill, [chosen.action]).start()
    else:
        _kill(chosen.action)


def _kill(victim: str) -> None:
    if victim in ("spark", "both") and _kill_spark is not None:
        _kill_spark()
    if victim in ("server", "both"):
        os.kill(os.getpid(), signal.SIGKILL)
