"""Rows on their way to Spark: Parquet files in a folder that Spark can read, gone when their statement is over.

A server's folder is locked while it lives, so that whoever starts next can tell what the dead have left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import PermissionDenied, ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.modes import FileMode

__all__ = ["Noted", "StagedRows", "Staging"]

logger = logging.getLogger(__name__)

_GROUP_ROWS = 1_000_000
_GROUP_BYTES = 64 * 1024 * 1024
_READ_ROWS = 65_536


class StagedRows:
    """One Parquet file in the making. Rows are gathered into large groups, in bounded memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._held_rows >= _GROUP_ROWS or self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> Path:
        """All rows on disk."""
        with _disk_errors():
            self._flush()
            if self._writer is None:
                self._writer = self._open()
            self._writer.close()
        return self.path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows again, for this process. Few of them have never been on disk."""
        if self._writer is None:
            yield from self._held
            return
        path = self.finish()
        with _disk_errors(), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_READ_ROWS):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def discard(self) -> None:
        """Safe to repeat."""
        self._held = []
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _open(self) -> pq.ParquetWriter:
        """Read once and soon: what costs time to write, and none to read, is left out."""
        return pq.ParquetWriter(self.path, self.schema, compression="lz4", use_dictionary=False, write_statistics=False)

    def _flush(self) -> None:
        if not self._held:
            return
        with _disk_errors():
            if self._writer is None:
                self._writer = self._open()
            table = pa.Table.from_batches(self._held, self.schema)
            self._held, self._held_rows, self._held_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)


class _disk_errors:  # noqa: N801 - reads as a word of the with statement
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(exc, OSError):
            if exc.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(exc):
                raise ResourceExhausted("the staging folder's disk is full") from exc
            if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise PermissionDenied(f"the staging folder cannot be written: {exc.strerror or exc}") from exc
            raise Unavailable(f"the staging folder cannot be written: {exc.strerror or exc}") from exc


_OWN = re.compile(r"[0-9a-f]{32}")
_JOURNAL = "metadata.jsonl"
_OLD_JOURNAL = "metadata.txt"
"""What earlier versions wrote, one address in a line: it cannot be told from a name with a line's end in it, so that
nothing is done by it. Files that such a server left are removed by maintenance."""
_CATALOG = "catalog.txt"
_OWNER = "owner.lock"
_JOURNAL_LINES = 4_096
_JOURNAL_KEPT = 512


@dataclass(frozen=True, slots=True)
class Noted:
    """A metadata file that a server has begun to write, and whether it saw a catalog point to it."""

    location: str
    published: bool


class Staging:
    """The folder of one server, made at its start and removed at its end.

    It also holds a journal of the metadata files that the server has begun to write: after a crash those that nobody
    points to can be told from all others. Only the last few can be in doubt, so the journal is kept short.
    """

    def __init__(self, root: str, *, catalog: str = "", mode: FileMode = FileMode.PRIVATE) -> None:
        """``catalog`` tells catalogs apart that share a folder: only who has the same one can judge of its files."""
        self._root = Path(root)
        self._catalog = catalog
        self.folder = self._root / uuid.uuid4().hex
        self._journal_lock = threading.Lock()
        self._journal_lines: list[str] = []
        with _disk_errors():
            mode.make_folder(self._root)
            with self._alone():
                mode.make_folder(self.folder)
                (self.folder / _CATALOG).write_text(catalog)
                self._lock: IO[str] = (self.folder / _OWNER).open("w")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock.write(str(os.getpid()))
                self._lock.flush()

    def new(self, schema: pa.Schema) -> StagedRows:
        return StagedRows(self.folder / f"{uuid.uuid4().hex}.parquet", schema)

    def close(self) -> None:
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, location: str) -> None:
        """A metadata file is about to be written there, or a branch made of the table that it describes."""
        self._write(json.dumps(location))

    def note_published(self, location: str) -> None:
        """A catalog points to that metadata file, or did."""
        self._write(json.dumps({"published": location}))

    def _write(self, text: str) -> None:
        journal = self.folder / _JOURNAL
        with self._journal_lock, _disk_errors():
            line = f"{text}\n"
            self._journal_lines.append(line)
            if len(self._journal_lines) > _JOURNAL_LINES:
                del self._journal_lines[:-_JOURNAL_KEPT]
                aside = journal.with_suffix(".new")
                aside.write_text("".join(self._journal_lines))
                aside.replace(journal)
                return
            with journal.open("a") as file:
                file.write(line)

    @property
    def server(self) -> str:
        """A name that no other server has or had."""
        return self.folder.name

    def clean(self, forget: Callable[[str, list[Noted]], None]) -> None:
        """Remove what servers of the same catalog that are no more have left.

        ``forget`` is given their names and what they noted last. What it fails for is left for the next time. It may
        take its time: other servers start meanwhile, and take a folder that is looked at for one with an owner.
        """
        with _disk_errors():
            for other, lock in self._claimed():
                with lock:
                    logger.info("removing what a dead server staged in %s", other)
                    try:
                        forget(other.name, _noted(other / _JOURNAL))
                    except SparkportError as exc:
                        logger.warning("what a dead server has left is not removed yet: %s", exc)
                        continue
                    _remove(other)

    def _claimed(self) -> list[tuple[Path, IO[str]]]:
        """The folders of dead servers, with their locks, which we hold from now on."""
        found: list[tuple[Path, IO[str]]] = []
        with self._alone():
            for other in sorted(self._root.iterdir()):
                if other == self.folder or not _OWN.fullmatch(other.name) or not self._is_of_same_catalog(other):
                    continue
                lock = _owned(other)
                if lock is not None:
                    found.append((other, lock))
        return found

    def _is_of_same_catalog(self, folder: Path) -> bool:
        try:
            return (folder / _CATALOG).read_text() == self._catalog
        except FileNotFoundError:  # it died before it did anything at all
            return not any((folder / name).exists() for name in (_JOURNAL, _OLD_JOURNAL))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One server at a time, so that a folder without an owner is a dead one's and not one in the making."""
        with (self._root / "servers.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


def _noted(journal: Path) -> list[Noted]:
    """What a journal has in lines that are whole: the last one may have been cut off."""
    if not journal.exists():
        return []
    found: dict[str, bool] = {}
    for line in journal.read_text(errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            match json.loads(line):
                case str() as location:
                    found.setdefault(location, False)
                case {"published": str() as location}:
                    found[location] = True
    return [Noted(location, published) for location, published in found.items()]


def _owned(folder: Path) -> IO[str] | None:
    """The lock of a folder that has no owner, and is ours now; None if there is one."""
    try:
        lock = (folder / _OWNER).open("a")
    except OSError:  # gone already
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _remove(folder: Path) -> None:
    """The lock at the end: until then it is not taken for a folder without an owner."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _OWNER:
                path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
