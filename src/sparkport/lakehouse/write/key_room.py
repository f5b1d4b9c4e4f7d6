"""How much memory the values of keys take while commits compare them: one budget for all keys of all commits.

What is taken for some values is given back when they are gone, whatever has become of the commit.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sparkport.catalog.key_values import KeyValues
from sparkport.errors import ResourceExhausted

__all__ = ["CommitRoom", "KeyRoom", "ROOM"]

_ALL_BYTES: Final = 512 << 20
_WAIT_SECONDS: Final = 60.0


class KeyRoom:
    """One for a process. Called from all threads."""

    def __init__(self, limit: int = _ALL_BYTES, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self.limit = limit
        self.taken = 0
        self._wait_seconds = wait_seconds
        # Values may be collected while this thread is in here.
        self._changed = threading.Condition(threading.RLock())

    def take(self, size: int, *, wait: bool) -> bool:
        """With ``wait`` until others have given enough back; False if there is not enough."""
        deadline = time.monotonic() + self._wait_seconds
        with self._changed:
            while self.taken and self.taken + size > self.limit and wait and size <= self.limit:
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            if self.taken + size > self.limit:
                return False
            self.taken += size
            return True

    def give_back(self, size: int) -> None:
        with self._changed:
            self.taken -= size
            self._changed.notify_all()


ROOM = KeyRoom()
"""That of this process."""


class CommitRoom:
    """What one commit takes of it. One that has nothing yet waits for others: who has would keep them waiting."""

    def __init__(self, room: KeyRoom | None = None) -> None:
        self._room = room or ROOM
        self._has_some = False
        self._left: list[weakref.finalize[..., KeyValues]] = []

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        """What an error leaves behind is given back at once: its traceback holds the values as long as it is there."""
        mark = len(self._left)
        try:
            yield
        except BaseException:
            for left in self._left[mark:]:
                left()
            del self._left[mark:]
            raise

    def take(self, size: int) -> None:
        """Raises ResourceExhausted."""
        if size and not self._room.take(size, wait=not self._has_some):
            raise ResourceExhausted(
                f"the values of keys that are committed take more than the {self._room.limit >> 20} MB there are to "
                "compare them in; change fewer rows in a statement, or try again later"
            )
        self._has_some = True

    def give_back(self, size: int) -> None:
        if size:
            self._room.give_back(size)

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def leave_to(self, values: KeyValues, size: int) -> None:
        """What was taken is given back when these values are gone, but for what they do not need."""
        kept = min(size, values.nbytes)
        self.give_back(size - kept)
        left = weakref.finalize(values, self._room.give_back, kept)
        left.atexit = False
        self._left.append(left)
