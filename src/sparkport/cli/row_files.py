"""Files of rows on the user's own machine, as a stream of Arrow batches: Parquet, CSV and JSON, read and written.

Parquet has types, and Arrow reads and writes it. CSV and JSON have few or none: DuckDB finds them out, or is told those
of the table. An empty value of a CSV file is NULL, and one in quotes an empty text, in both directions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import InvalidArgument, NotFound, SparkportError

__all__ = ["FORMATS", "RowFiles", "find_files", "format_of", "open_files", "write_file"]

_BATCH_ROWS = 65_536
_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
FORMATS = ("parquet", "csv", "json")


@dataclass(frozen=True, slots=True)
class RowFiles:
    """``rows`` is how many there are, 0 if that is not known before they are read."""

    schema: pa.Schema
    rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]


def format_of(path: str) -> str | None:
    """By the suffix, of compressed files too."""
    plain = Path(path.removesuffix(".gz").removesuffix(".zst"))
    return _SUFFIXES.get(plain.suffix.lower())


def find_files(paths: Sequence[str], given: str | None) -> tuple[list[Path], str]:
    """The files that are meant, those of folders too, and their format, which MUST be one."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            )
            formats = FORMATS if given is None else (given,)
            fitting = [file for file in inside if format_of(file.name) in formats]
            if not fitting:
                raise InvalidArgument(f"the folder '{path}' has no {given or 'Parquet, CSV or JSON'} file")
            files += fitting
        elif path.exists():
            files.append(path)
        else:
            raise NotFound(f"there is no file '{path}'")
    kinds = {given or format_of(file.name) for file in files}
    if None in kinds:
        unknown = next(file for file in files if format_of(file.name) is None)
        raise InvalidArgument(f"what is in '{unknown}' is not told by its name: say --format {'|'.join(FORMATS)}")
    if len(kinds) > 1:
        raise InvalidArgument(f"the files are {' and '.join(sorted(map(str, kinds)))}: import one format at a time")
    return files, str(kinds.pop())


def open_files(files: Sequence[Path], form: str, table: pa.Schema | None) -> RowFiles:
    """Rows as the columns of ``table`` want them, as far as it has them; without one, as the files have them."""
    with _told(files):
        return _open_parquet(files, table) if form == "parquet" else _open_texts(files, form, table)


@contextlib.contextmanager
def _told(files: Sequence[Path]) -> Iterator[None]:
    """What is wrong with a file is for the user to know."""
    try:
        yield
    except SparkportError:
        raise
    except (pa.ArrowException, duckdb.Error, OSError, UnicodeError) as exc:
        names = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        raise InvalidArgument(f"{names}: {_in_short(exc)}") from exc


def _in_short(exc: Exception) -> str:
    return " ".join(str(exc).split("\n\n")[0].splitlines()[:4]) or type(exc).__name__


# Parquet


def _open_parquet(files: Sequence[Path], table: pa.Schema | None) -> RowFiles:
    found = pq.read_schema(files[0])
    schema = _wanted(found, table)
    rows = 0
    for file in files:
        metadata = pq.read_metadata(file)
        rows += metadata.num_rows
        if sorted(metadata.schema.to_arrow_schema().names) != sorted(found.names):
            raise InvalidArgument(f"{file} has other columns than {files[0]}")

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with _told([file]), pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield _cast(batch, schema)

    return RowFiles(schema, rows, batches)


def _wanted(found: pa.Schema, table: pa.Schema | None) -> pa.Schema:
    """Columns as the files have them, with the types of the table's where it has one of that name."""
    types = {} if table is None else {field.name.lower(): field for field in table}
    fields = []
    for field in found:
        own = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        theirs = types.get(field.name.lower())
        if theirs is not None:
            fields.append(pa.field(theirs.name, theirs.type, theirs.nullable))
        else:
            fields.append(pa.field(field.name, own, field.nullable))
    return pa.schema(fields)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    by_name = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    columns = []
    for field in schema:
        column = by_name[field.name.lower()]
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as exc:
            raise InvalidArgument(f"column '{field.name}' does not fit the table's: {_in_short(exc)}") from exc
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# CSV and JSON


def _open_texts(files: Sequence[Path], form: str, table: pa.Schema | None) -> RowFiles:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    names = f"[{', '.join(_text(str(file.absolute())) for file in files)}]"
    common = "union_by_name = true, sample_size = -1"
    read = (
        f"read_csv({names}, {common}, allow_quoted_nulls = false" if form == "csv" else f"read_json({names}, {common}"
    )
    found: list[tuple[str, str]] = [row[:2] for row in connection.execute(f"DESCRIBE FROM {read})").fetchall()]
    types = _types(connection, table)
    chosen = {name: types.get(name.lower(), kind) for name, kind in found}
    told = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in chosen.items())
    query = f"SELECT * FROM {read}, {'types' if form == 'csv' else 'columns'} = {{{told}}})"
    schema = connection.sql(f"{query} LIMIT 0").to_arrow_reader(1).schema
    wanted = _wanted(schema, table)

    def batches() -> Iterator[pa.RecordBatch]:
        with _told(files):
            for batch in connection.cursor().sql(query).to_arrow_reader(_BATCH_ROWS):
                yield _cast(batch, wanted)

    return RowFiles(wanted, 0, batches)


def _types(connection: Any, table: pa.Schema | None) -> dict[str, str]:
    """What DuckDB calls the types of a table's columns."""
    if table is None:
        return {}
    plain = pa.schema([pa.field(field.name, field.type, metadata=field.metadata) for field in table])
    connection.register("wanted", plain.empty_table())
    return {name.lower(): kind for name, kind, *_ in connection.execute("DESCRIBE FROM wanted").fetchall()}


def _unpatterned(path: str) -> str:
    """With nothing left in it that DuckDB would take for a pattern."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def write_file(path: Path, form: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """``path`` is made anew, or what was there is lost. A failure of whoever gives the rows is raised as it is."""
    failed: list[BaseException] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as exc:
            failed.append(exc)
            raise

    try:
        with _told([path]):
            if form == "parquet":
                with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                    for batch in watched():
                        writer.write_batch(batch)
                return
            options = {"csv": "FORMAT csv, HEADER true", "json": "FORMAT json"}[form]
            packed = ", COMPRESSION gzip" if path.name.endswith(".gz") else ""
            with duckdb.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.register("rows", pa.RecordBatchReader.from_batches(schema, watched()))
                connection.execute(f"COPY (FROM rows) TO {_text(str(path))} ({options}{packed})")
    except Exception:
        if failed:
            raise failed[0] from None
        raise
