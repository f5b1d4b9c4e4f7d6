"""Large answers take turns: only so many of them are being made and sent at a moment.

gRPC has one thread for the events of all calls, and it waits for the thread of each call whose message has gone out.
With forty calls that send what they can, a small call of somebody else's is behind all of them, several times over.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

__all__ = ["BULK_BYTES", "Turn", "Turns"]

BULK_BYTES: Final = 4 << 20
"""What a call may send before it has to wait for turns."""
_AT_ONCE: Final = max(4, 2 * (os.cpu_count() or 1))
_SECONDS: Final = 0.1
"""How long a turn is at most: who waits for a slow reader is not in the way of others."""


class Turns:
    """Called from all threads."""

    def __init__(self, at_once: int = _AT_ONCE, seconds: float = _SECONDS) -> None:
        self._at_once = at_once
        self._seconds = seconds
        self._changed = threading.Condition()
        self._ends: dict[Turn, float] = {}

    def begin(self, turn: Turn) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                over = [taken for taken, end in self._ends.items() if end <= now]
                for taken in over:
                    del self._ends[taken]
                if len(self._ends) < self._at_once:
                    self._ends[turn] = now + self._seconds
                    return
                self._changed.wait(min(self._ends.values()) - now)

    def end(self, turn: Turn) -> None:
        with self._changed:
            if self._ends.pop(turn, None) is not None:
                self._changed.notify()


class Turn:
    """Of one call, again and again."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._taken = False

    def begin(self) -> None:
        self._turns.begin(self)
        self._taken = True

    def end(self) -> None:
        if self._taken:
            self._taken = False
            self._turns.end(self)
