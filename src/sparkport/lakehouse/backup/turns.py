"""One backup at a time into one place: a second one could remove as unused what the first has just put there."""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import AlreadyExists, FailedPrecondition, NotFound, SparkportError
from sparkport.lakehouse.files import FileSystem, local_path

__all__ = ["turn"]

_BEAT_SECONDS = 5.0
_SILENT_SECONDS = 20.0


@contextlib.contextmanager
def turn(
    files: FileSystem, root: str, *, beat: float = _BEAT_SECONDS, silence: float = _SILENT_SECONDS
) -> Iterator[None]:
    """FailedPrecondition while another has it.

    A local file is locked, which ends with the process. A store has no locks: there an object is changed again and
    again, and one that does not change while one looks is of somebody who is no more. No clock has a part in it.
    """
    path = f"{root}/lock"
    local = local_path(path)
    with _locked(local) if local is not None else _beating(files, path, beat, silence):
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except FileExistsError as exc:
        raise FailedPrecondition(f"'{path.parent}' is no folder") from exc
    except OSError as exc:
        raise disk_error(exc, f"folder '{path.parent}'") from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise _taken(path) from exc
        except OSError as exc:
            raise disk_error(exc, f"file '{path}'") from exc
        yield


@contextlib.contextmanager
def _beating(files: FileSystem, path: str, beat: float, silence: float) -> Iterator[None]:
    _take(files, path, silence)
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(beat):
            with contextlib.suppress(SparkportError), files.create(path) as file:
                file.write(uuid.uuid4().bytes)

    thread = threading.Thread(target=go_on, name="backup-turn", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        files.delete(path)


def _take(files: FileSystem, path: str, silence: float) -> None:
    for _ in range(2):
        try:
            return files.write_new(path, uuid.uuid4().bytes)
        except AlreadyExists:
            _watch(files, path, silence)
    raise _taken(path)


def _watch(files: FileSystem, path: str, silence: float) -> None:
    """Remove it if nobody touches it for so long."""
    try:
        first = files.read_bytes(path)
        end = time.monotonic() + silence
        while time.monotonic() < end:
            time.sleep(min(1.0, silence / 10))
            if files.read_bytes(path) != first:
                raise _taken(path)
        files.delete(path)
    except NotFound:
        return  # it has just ended


def _taken(path: str | Path) -> FailedPrecondition:
    return FailedPrecondition(f"another backup into this place is under way: it has '{path}'")
