"""Tokens, rules, keys and certificates are replaced while the server runs; this is the one place that notices it."""

from __future__ import annotations

import logging
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from sparkport.errors import InvalidArgument, SparkportError

__all__ = ["Reloaded", "read_file", "read_toml"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """A value made from files, made again when one of them changes.

    The first load fails loudly. Later a file that is gone or broken leaves the last good value in use and is logged
    once per change: a half-written file must not lock everybody out. Safe to call from several threads.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], T],
        *,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._checked = clock()
        # Taken before reading: a file that changes in between is then read once more, never missed.
        self._seen = _fingerprint(self._paths)
        self._value = load()

    def current(self) -> T:
        """The newest good value; looks at the files at most once per interval."""
        with self._lock:
            now = self._clock()
            if now - self._checked >= self._interval:
                self._checked = now
                self._look()
            return self._value

    def _look(self) -> None:
        fingerprint = _fingerprint(self._paths)
        if fingerprint == self._seen:
            return
        self._seen = fingerprint
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._load()
        except SparkportError as exc:
            logger.error("%s changed and cannot be used, what was read before stays in use: %s", names, exc.message)
        else:
            logger.info("%s changed and was read again", names)


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidArgument(f"{path} cannot be read: {exc.strerror or type(exc).__name__}") from exc


def read_toml(path: Path) -> dict[str, Any]:
    data = read_file(path)
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except tomllib.TOMLDecodeError as exc:
        reason = str(exc)
    # Not chained: the exceptions hold the file's content, and secrets may be in it.
    raise InvalidArgument(f"{path} is not TOML: {reason}")


def _fingerprint(paths: Sequence[Path]) -> Fingerprint:
    return tuple(_stat(path) for path in paths)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
