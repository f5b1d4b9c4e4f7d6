"""``sparkport import`` and ``sparkport export``: files of rows into a table, and a table into files.

The files are read and written here, by the user who asks, and the rows go over Flight like those of any client: the
server opens no file because somebody names it, and the caller needs the same rights as for INSERT and SELECT. An import
is one statement, and so one commit, however many files it is.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from sparkport.cli.progress import Progress, counted
from sparkport.cli.remote import Remote
from sparkport.cli.row_files import FORMATS, RowFiles, find_files, format_of, open_files, write_file
from sparkport.client import Client, connect
from sparkport.client.errors import OutcomeUnknown
from sparkport.errors import AlreadyExists, InvalidArgument, NotFound, SparkportError

__all__ = ["export_table", "import_files"]

_ROWS_PER_FILE = 1_000_000


def import_files(
    remote: Remote, paths: Sequence[str], table: str, *, form: str | None, create: bool, out: TextIO
) -> int:
    """A table that is not there is made, if the files say clearly of which types, or ``create`` is given."""
    began = time.monotonic()
    files, form = find_files(paths, form)
    with _client(remote) as client, Progress("import") as progress:
        try:
            columns, missing = client.describe(table).schema, None
        except NotFound as exc:
            columns, missing = None, exc
        if missing is not None and form != "parquet" and not create:
            raise NotFound(
                f"{missing.message}; {form.upper()} says little of types: to have it made of those found, say --create"
            ) from missing
        progress.tell("reading")
        rows = open_files(files, form, columns)
        _require_known(rows.schema, columns, table)
        if missing is not None:
            client.create_table(table, rows.schema)
        inserted = _insert(client, table, rows, progress, made=missing is not None)
    new = ", a new table" if missing is not None else ""
    seconds = time.monotonic() - began
    print(f"{counted(inserted, 'row')} of {counted(len(files), 'file')} in {table}{new}; {seconds:.1f} s", file=out)
    return 0


def _require_known(found: pa.Schema, columns: pa.Schema | None, table: str) -> None:
    if columns is None:
        return
    known = {name.lower() for name in columns.names}
    if unknown := [name for name in found.names if name.lower() not in known]:
        raise InvalidArgument(f"the files have a column '{unknown[0]}', and {table} has none: it has {columns.names}")


def _insert(client: Client, table: str, rows: RowFiles, progress: Progress, *, made: bool) -> int:
    """A table that was made for it goes again if there are no rows to be in it."""
    try:
        return client.insert(table, pa.RecordBatchReader.from_batches(rows.schema, _counted(rows, progress))).count
    except OutcomeUnknown:
        raise
    except BaseException:
        if made:
            with contextlib.suppress(SparkportError):
                client.drop_table(table, if_exists=True)
        raise


def _counted(rows: RowFiles, progress: Progress) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in rows.batches():
        yield batch
        done += batch.num_rows
        progress.tell("rows sent", done, rows.rows)
    progress.tell("rows are sent, and being committed", 0, 0)


def export_table(remote: Remote, table: str, target: str, *, form: str | None, overwrite: bool, out: TextIO) -> int:
    """All rows of one instant. A folder gets files of up to a million rows each."""
    began = time.monotonic()
    path = Path(target)
    is_folder = target.endswith("/") or path.is_dir() or format_of(path.name) is None
    form = form or ("parquet" if is_folder else format_of(path.name)) or FORMATS[0]
    if is_folder and path.is_dir() and any(path.iterdir()):
        raise AlreadyExists(f"the folder '{path}' is not empty")
    if not is_folder and path.exists() and not overwrite:
        raise AlreadyExists(f"'{path}' is there already: say --overwrite to have it replaced")
    with _client(remote) as client, Progress("export") as progress:
        total = client.describe(table).total_records or 0
        with client.scan(table) as scanned:
            passing = _Counted(iter(scanned), progress, total)
            if is_folder:
                names = _write_folder(path, form, scanned.schema, passing)
            else:
                _write(path, form, scanned.schema, passing)
                names = [path]
    seconds = time.monotonic() - began
    print(
        f"{counted(passing.rows, 'row')} of {table} in {target}, {counted(len(names), 'file')}; {seconds:.1f} s",
        file=out,
    )
    return 0


class _Counted:
    def __init__(self, batches: Iterator[pa.RecordBatch], progress: Progress, total: int) -> None:
        self._batches = batches
        self._progress = progress
        self._total = total
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        self._progress.tell("rows written", self.rows, self._total)
        return batch


def _write_folder(folder: Path, form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    names: list[Path] = []
    for number in count():
        first = next(batches, None)
        if first is None and names:
            return names
        path = folder / f"part-{number:05d}.{form}"
        _write(path, form, schema, chain([] if first is None else [first], _some(batches, first)))
        names.append(path)
        if first is None:
            return names
    return names


def _some(batches: Iterator[pa.RecordBatch], first: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    taken = 0 if first is None else first.num_rows
    while taken < _ROWS_PER_FILE and (batch := next(batches, None)) is not None:
        taken += batch.num_rows
        yield batch


def _write(path: Path, form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Written aside: nobody finds half of it under its name."""
    aside = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        write_file(aside, form, schema, batches)
        os.replace(aside, path)
    except OSError as exc:
        raise InvalidArgument(f"'{path}' cannot be written: {exc.strerror or exc}") from exc
    finally:
        aside.unlink(missing_ok=True)


def _client(remote: Remote) -> Client:
    return connect(remote.location, token=remote.token, tls_root=remote.ca, timeout=remote.timeout)
