"""Named points in the way of a write at which a test can make the process die or fail. Off unless it is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

__all__ = ["POINTS", "fault", "on_fault"]

POINTS = (
    "stage.before",
    "stage.after",
    "apply.before",
    "apply.after",
    "publish.before",
    "publish.after",
)

_ENV = "SPARKPORT_FAULT"
_hooks: dict[str, Callable[[], None]] = {}


def on_fault(point: str, action: Callable[[], None] | None) -> None:
    """Run ``action`` when ``point`` is reached; None takes it away. For tests in process."""
    if point not in POINTS:
        raise ValueError(point)
    if action is None:
        _hooks.pop(point, None)
    else:
        _hooks[point] = action


def fault(point: str) -> None:
    """``SPARKPORT_FAULT=point`` kills the process at that point, as a crash would."""
    hook = _hooks.get(point)
    if hook is not None:
        hook()
    if os.environ.get(_ENV) == point:
        os.kill(os.getpid(), signal.SIGKILL)
