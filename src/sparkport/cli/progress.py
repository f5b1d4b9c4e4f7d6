"""How far long work has come, on one line of a terminal. Into a pipe or a file it writes nothing."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

__all__ = ["Progress", "counted", "in_words"]

_EVERY_SECONDS = 0.1
_TICK_SECONDS = 0.5
_BAR = 20


class Progress:
    """``with Progress("backup") as progress: progress.tell("copying files", 3, 10)``. Called from several threads.

    Work that tells nothing shows at least how long it has taken.
    """

    def __init__(self, title: str, out: TextIO | None = None) -> None:
        self._title = title
        self._out = sys.stderr if out is None else out
        self._shown = self._out.isatty()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._last = 0.0
        self._state = ("", 0, 0)
        self._ended = threading.Event()

    def tell(self, what: str, done: int = 0, total: int = 0) -> None:
        """``total`` 0: it is not known."""
        self._state = (what, done, total)
        if self._shown and time.monotonic() - self._last > _EVERY_SECONDS:
            self._draw()

    def _draw(self) -> None:
        what, done, total = self._state
        parts = [self._title]
        if total:
            filled = min(_BAR * done // total, _BAR)
            parts.append(f"[{'#' * filled}{'.' * (_BAR - filled)}] {100 * done // total:3d} %")
        if what:
            parts.append(f"{what} {done:,}/{total:,}" if total else f"{what} {done:,}" if done else what)
        parts.append(f"{time.monotonic() - self._began:.0f} s")
        line = "  ".join(parts)[: shutil.get_terminal_size().columns - 1]
        with self._lock:
            self._last = time.monotonic()
            if not self._ended.is_set():
                self._out.write(f"\r\x1b[K{line}")
                self._out.flush()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """The line is gone while something else is written to the terminal."""
        with self._lock:
            if self._shown:
                self._out.write("\r\x1b[K")
                self._out.flush()
            yield

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            self._draw()

    def __enter__(self) -> Progress:
        if self._shown:
            threading.Thread(target=self._tick, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended.set()
            if self._shown:
                self._out.write("\r\x1b[K")
                self._out.flush()


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def in_words(size: int) -> str:
    """A number of bytes, for people."""
    number, unit = float(size), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{size:,} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
