"""Rows on their way to Spark: Parquet files in a folder that Spark can read, gone when their statement is over.

A server's folder is locked while it lives, so that the next server knows what dead ones have left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import InternalError, SparkportError
from sparkport.lakehouse.file_modes import FileMode

__all__ = ["Noted", "StagedRows", "Staging", "disk_errors"]

logger = logging.getLogger(__name__)

_READ_ROWS = 65_536
_READ_BYTES = 8 << 20


class StagedRows:
    """A Parquet file in the making. Rows are gathered into large groups, in bounded memory.

    A group is written by a thread of its own while the next one comes in.
    """

    is_for_spark = True
    """Whether somebody else has to put the rows into a table."""

    group_rows, group_bytes = 1_000_000, 64 << 20
    """How many rows are gathered at most, whichever comes first."""

    loose_batches = 1_000
    """In how many batches some of them are at most."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self.nbytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._opened: list[Path] = []
        self._held: list[pa.RecordBatch] = []
        self._loose = 0
        self._held_rows = 0
        self._held_bytes = 0
        self._most_bytes_of_a_row = 1.0
        self._encoder: ThreadPoolExecutor | None = None
        self._encoding: Future[None] | None = None
        self._finished = False

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self._loose += 1
        if self._held_rows >= self.group_rows or self._held_bytes >= self.group_bytes:
            with disk_errors():
                self._flush()
        elif self._loose >= self.loose_batches:
            self._join_loose()

    def finish(self) -> None:
        """All rows on disk."""
        if self._finished:
            return
        with disk_errors():
            self._wait()
            if self._held or self._writer is None:
                self._write(self._taken())
            self._close()
        self._finished = True
        self._end_encoder()

    @property
    def paths(self) -> Sequence[Path]:
        """The files, which are whole when it is finished."""
        return [self.path]

    def batches(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows again, for this process, or some of their columns. Few of them have never been on disk."""
        if self._writer is None:
            yield from self._held if names is None else [batch.select(names) for batch in self._held]
            return
        self.finish()
        schema = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        rows = max(1, min(int(_READ_BYTES / self._most_bytes_of_a_row), _READ_ROWS))
        for path in self.paths:
            with _reading(path) as file:
                yield from self._read(file, schema, rows)

    def discard(self) -> None:
        """Safe to repeat."""
        self._held = []
        with contextlib.suppress(Exception):  # whatever was wrong with them: they are not wanted any more
            self._wait()
        self._end_encoder()
        if self._writer is not None and not self._finished:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._finished = True
        for path in self._opened:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._opened = []

    def _read(self, file: pq.ParquetFile, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
        """The columns of ``schema``, so many rows at a time."""
        for batch in file.iter_batches(rows, columns=schema.names):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)

    def _open(self, first: pa.Table) -> None:
        """Read once and soon: what costs time to write, and none to read, is left out."""
        self._opened.append(self.path)
        self._writer = pq.ParquetWriter(
            self.path, self.schema, compression="lz4", use_dictionary=False, write_statistics=False
        )

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._open(rows)
        assert self._writer is not None
        self._writer.write_table(rows, row_group_size=self.group_rows)

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()

    def _flush(self) -> None:
        """Have what is held written, when what was held before is."""
        self._wait()
        table = self._taken()
        if self._writer is None:
            self._open(table)
        if self._encoder is None:
            self._encoder = ThreadPoolExecutor(1, thread_name_prefix="sparkport-staging")
        self._encoding = self._encoder.submit(self._write, table)

    def _join_loose(self) -> None:
        """The last batches as one: many small ones take far more memory than what is in them."""
        loose = pa.Table.from_batches(self._held[-self._loose :], self.schema)
        self._held[-self._loose :] = loose.combine_chunks().to_batches()
        self._loose = 0

    def _taken(self) -> pa.Table:
        """What is held, and is not any more."""
        table = pa.Table.from_batches(self._held, self.schema)
        self._most_bytes_of_a_row = max(self._most_bytes_of_a_row, self._held_bytes / max(self._held_rows, 1))
        self._held, self._loose, self._held_rows, self._held_bytes = [], 0, 0, 0
        return table

    def _wait(self) -> None:
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _end_encoder(self) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.shutdown()


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, "the staging folder") from exc


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[pq.ParquetFile]:
    """A file that was written here: one that is none any more was damaged by somebody else."""
    try:
        with disk_errors(), pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as exc:
        raise InternalError(f"a staged file cannot be read again: {exc}") from exc


_OWN = re.compile(r"[0-9a-f]{32}")
_NOTES = "metadata.jsonl"
_OLD_NOTES = "metadata.txt"
"""What earlier versions wrote, one address in a line: it cannot be told from a name with a line's end in it, so that
nothing is done by it. Files that such a server left are removed by maintenance."""
_CATALOG = "catalog.txt"
_OWNER = "owner.lock"
_NOTE_LINES = 4_096
_NOTES_KEPT = 512


@dataclass(frozen=True, slots=True)
class Noted:
    """A metadata file that a server has begun to write, and whether it saw a catalog point to it."""

    location: str
    published: bool


class Staging:
    """The folder of one server, made at its start and removed at its end.

    It also holds notes of the metadata files that the server has begun to write: after a crash the next server
    knows by them which of these nobody points to. Only the last few can be in doubt, so few notes are kept.
    """

    def __init__(
        self, root: str, *, catalog: str = "", mode: FileMode = FileMode.PRIVATE, makes_data_files: bool = True
    ) -> None:
        """``catalog`` separates catalogs that share a folder: only a server of the same one can judge its files.

        ``makes_data_files``: whether new rows are written as the data files that their tables will have.
        """
        self.makes_data_files = makes_data_files
        self._root = Path(root)
        self._catalog = catalog
        self.folder = self._root / uuid.uuid4().hex
        self._notes_lock = threading.Lock()
        self._note_lines: list[str] = []
        with disk_errors():
            mode.make_folder(self._root)
            with self._alone():
                mode.make_folder(self.folder)
                (self.folder / _CATALOG).write_text(catalog)
                self._lock: IO[str] = (self.folder / _OWNER).open("w")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock.write(str(os.getpid()))
                self._lock.flush()

    def new(self, schema: pa.Schema) -> StagedRows:
        return StagedRows(self.new_path(), schema)

    def new_path(self) -> Path:
        return self.folder / f"{uuid.uuid4().hex}.parquet"

    def let_go(self) -> None:
        """As the end of the process does: nobody owns the folder any more, and what is in it stays."""
        self._lock.close()

    def close(self) -> None:
        self.let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, location: str) -> None:
        """A metadata file is about to be written there, or a branch made of the table that it describes."""
        self._write(json.dumps(location))

    def note_published(self, location: str) -> None:
        """A catalog points to that metadata file, or did."""
        self._write(json.dumps({"published": location}))

    def _write(self, text: str) -> None:
        notes = self.folder / _NOTES
        with self._notes_lock, disk_errors():
            line = f"{text}\n"
            self._note_lines.append(line)
            if len(self._note_lines) > _NOTE_LINES:
                del self._note_lines[:-_NOTES_KEPT]
                aside = notes.with_suffix(".new")
                aside.write_text("".join(self._note_lines))
                aside.replace(notes)
                return
            with notes.open("a") as file:
                file.write(line)

    @property
    def server(self) -> str:
        """A name that no other server has or had."""
        return self.folder.name

    def clean(self, forget: Callable[[str, list[Noted]], None]) -> None:
        """Remove what dead servers of the same catalog have left.

        ``forget`` is given their names and what they noted last. What it fails for is left for the next time. It may
        take its time: other servers start meanwhile, and take a folder that is looked at for one with an owner.
        """
        with disk_errors():
            for other, lock in self._claimed():
                with lock:
                    logger.info("removing what a dead server staged in %s", other)
                    try:
                        forget(other.name, _noted(other / _NOTES))
                    except SparkportError as exc:
                        logger.warning("what a dead server has left is not removed yet: %s", exc)
                        continue
                    _remove(other)

    def _claimed(self) -> list[tuple[Path, IO[str]]]:
        """The folders of dead servers, with their locks, which we hold from now on."""
        claimed: list[tuple[Path, IO[str]]] = []
        with self._alone():
            for other in sorted(self._root.iterdir()):
                if other == self.folder or not _OWN.fullmatch(other.name) or not self._is_of_same_catalog(other):
                    continue
                lock = _owned(other)
                if lock is not None:
                    claimed.append((other, lock))
        return claimed

    def _is_of_same_catalog(self, folder: Path) -> bool:
        try:
            return (folder / _CATALOG).read_text() == self._catalog
        except FileNotFoundError:  # it died before it did anything at all
            return not any((folder / name).exists() for name in (_NOTES, _OLD_NOTES))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One server at a time, so that a folder without an owner is a dead one's and not one in the making."""
        with (self._root / "servers.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


def _noted(notes: Path) -> list[Noted]:
    """What notes have in lines that are whole: the last one may have been cut off."""
    if not notes.exists():
        return []
    published_by_location: dict[str, bool] = {}
    for line in notes.read_text(errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            match json.loads(line):
                case str() as location:
                    published_by_location.setdefault(location, False)
                case {"published": str() as location}:
                    published_by_location[location] = True
    return [Noted(location, published) for location, published in published_by_location.items()]


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
