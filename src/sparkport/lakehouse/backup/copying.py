"""Bytes from one place to another, counted and summed on the way; or not moved at all where a second name will do."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import InternalError, NotFound
from sparkport.lakehouse.files import FileSystem, local_path

__all__ = ["Sum", "copy", "in_parallel", "link_or_copy", "read_whole"]

_CHUNK = 4 << 20
_THREADS = 8

Sum = tuple[int, str]
"""A file's size, and its SHA-256 in hexadecimal digits."""

T = TypeVar("T")


def copy(fs: FileSystem, source: str, target: str, *, expected: Sum | None = None) -> Sum:
    """``expected``: what it must be, else InternalError and nothing is there."""
    size, digest = 0, hashlib.sha256()
    with fs.open(source) as file, fs.create(target) as copied:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
            copied.write(chunk)
        found = (size, digest.hexdigest())
        if expected is not None:
            _require(source, found, expected)
    return found


def link_or_copy(fs: FileSystem, source: str, target: str) -> Sum:
    """A second name for the same file on one file system, else a copy. Only for files that nobody ever writes to."""
    here, there = local_path(source), local_path(target)
    try:
        if here is not None and there is not None and _linked(Path(os.path.realpath(here)), there):
            return _summed(there)
    except FileNotFoundError as exc:
        raise NotFound(f"file '{source}' not found") from exc
    except OSError as exc:
        raise disk_error(exc, f"file '{target}'") from exc
    return copy(fs, source, target)


def _linked(source: Path, target: Path) -> bool:
    """False where the file system, or the owner of the file, wants it to be copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    try:
        os.link(source, target)
    except OSError as exc:
        if exc.errno in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            return False
        raise
    return True


def _summed(path: Path) -> Sum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return file.tell(), digest


def read_whole(fs: FileSystem, source: str, expected: Sum) -> bytes:
    data = fs.read_bytes(source)
    _require(source, (len(data), hashlib.sha256(data).hexdigest()), expected)
    return data


def _require(source: str, found: Sum, expected: Sum) -> None:
    if found != expected:
        raise InternalError(
            f"'{source}' is damaged: it has {found[0]:,} bytes, SHA-256 {found[1][:16]}…, and should have "
            f"{expected[0]:,}, {expected[1][:16]}…"
        )


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """All of them, some at a time. The first failure is raised; what has not begun by then is left out."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="copying") as pool:
        futures = [pool.submit(work, item) for item in items]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()
