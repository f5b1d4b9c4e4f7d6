"""Finding rows by key: a join of the input's keys with the table's, by DuckDB and in bounded memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.duckdb_errors import is_broken, is_out_of_room, is_unreadable
from sparkport.catalog.plain_values import is_moment, value_text
from sparkport.errors import (
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    ResourceExhausted,
    SparkportError,
    Unavailable,
)
from sparkport.filters.expressions import Between, Column, Expression, In, Literal, conjunction
from sparkport.filters.types import arrow_sql_type

__all__ = ["InputKeys", "Matches", "Scratch"]

_HELD_ROWS = 1_000_000
_HELD_BYTES = 32 * 1024 * 1024
_MOST_LISTED = 256
_LONGEST_SHOWN = 100
_MEMORY = "1GB"
_WIDE = pa.string()
"""How decimals are compared that have more digits than DuckDB's: all of one column are written in the same way."""

_INFINITE = 2**63 - 1
"""DuckDB's infinity in timestamps of any unit; the negative of it is the other one."""

_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

Numbers = NDArray[np.int64]


class Scratch:
    """The DuckDB in which keys are compared; one for all statements of a catalog, so that its limit holds for all.

    What has no room in memory goes into ``folder``; where there is none, it is refused.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of one's own with its own temporary tables, to be closed by the caller."""
        with self._lock:
            if self._database is None:
                self._database = self._open()
            return self._database.cursor()

    def replace(self) -> None:
        """An internal error has ruined the instance for everybody: the next cursor is one of a new one."""
        with self._lock:
            self._database = None

    def _open(self) -> duckdb.DuckDBPyConnection:
        folder = "" if self.folder is None else str(self.folder / "keys")
        config: dict[str, str | bool | int | float | list[str]] = {"memory_limit": _MEMORY, "temp_directory": folder}
        database = duckdb.connect(":memory:", config=config)
        for setting in (
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "python_enable_replacements = false",
            "GLOBAL TimeZone = 'UTC'",
            # The input's keys are what a hash table is made of, and the table's go by it.
            "disabled_optimizers = 'join_order,build_side_probe_side'",
        ):
            database.execute(f"SET {setting}")
        return database


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Pairs of a row of the input, by its number, and the id of a row in the table that has its key."""

    numbers: Numbers
    row_ids: Numbers

    @classmethod
    def none(cls) -> Matches:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))


class InputKeys:
    """The keys of the rows of one statement, numbered as they come. One thread uses it; always ``close`` it."""

    def __init__(self, scratch: Scratch, columns: Sequence[pa.Field], *, most_held: int = _HELD_ROWS) -> None:
        """``most_held`` is how many rows wait in memory until they go to the database."""
        self._scratch = scratch
        self._columns = columns
        self._most_held = most_held
        self._names = [f"k{place}" for place in range(len(columns))]
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self.rows = 0
        self._cursor: duckdb.DuckDBPyConnection | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """A batch with the columns of the key, by name."""
        columns = [comparable(batch.column(column.name)) for column in self._columns]
        numbers = pa.array(np.arange(self.rows, self.rows + batch.num_rows))
        part = pa.RecordBatch.from_arrays([numbers, *columns], names=["number", *self._names])
        self.rows += batch.num_rows
        self._held.append(part)
        self._held_rows += part.num_rows
        self._held_bytes += part.nbytes
        if self._held_rows >= self._most_held or self._held_bytes >= _HELD_BYTES:
            self._flush()

    def require_distinct(self) -> None:
        """Raise InvalidArgument where two rows of the input have the same key; NULL is no key."""
        names, known = ", ".join(self._names), " AND ".join(f"{name} IS NOT NULL" for name in self._names)
        twice = self._table(f"SELECT {names} FROM keys WHERE {known} GROUP BY ALL HAVING count(*) > 1 LIMIT 1")
        if twice.num_rows:
            raise InvalidArgument(f"the input has more than one row with the key {self._named(twice)}")

    def filter(self) -> Expression | None:
        """What a scan may be limited to: keys like those of the input."""
        parts: list[Expression] = []
        for column, name in zip(self._columns, self._names, strict=True):
            sql_type = arrow_sql_type(column.type)
            if sql_type is None or not _is_ordered_alike(column.type):
                continue
            child, few = Column(column.name, sql_type), self.rows <= _MOST_LISTED
            chosen = f"DISTINCT {name}" if few else f"unnest([min({name}), max({name})])"
            values = self._table(f"SELECT {chosen} AS v FROM keys WHERE {name} IS NOT NULL").column("v")
            plain = _plain(values, column.type)
            if plain is None:
                continue
            literals = [Literal(value, sql_type) for value in plain]
            if few and literals:
                parts.append(In(child, tuple(literals)))
            elif literals:
                parts.append(Between(child, literals[0], literals[-1]))
        return conjunction(parts)

    def matches(self, target: Iterable[pa.RecordBatch], row_id: str) -> Matches:
        """Join with the rows of a table: batches with the columns of the key and the row id."""
        fields = [
            pa.field(name, _plain_type(column.type)) for name, column in zip(self._names, self._columns, strict=True)
        ]
        schema = pa.schema([*fields, pa.field("row_id", pa.int64())])
        errors: list[SparkportError] = []

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                for batch in target:
                    columns = [comparable(batch.column(column.name)) for column in self._columns]
                    yield pa.RecordBatch.from_arrays([*columns, batch.column(row_id).cast(pa.int64())], schema=schema)
            except SparkportError as exc:
                errors.append(exc)  # of which DuckDB would leave the text only
                raise

        self._flush()
        same = " AND ".join(f"t.{name} = k.{name}" for name in self._names)
        reader = pa.RecordBatchReader.from_batches(schema, rows())
        try:
            with self._using() as cursor:
                cursor.register("target", reader)
                try:
                    found = cursor.execute(
                        f"SELECT k.number, t.row_id FROM target t JOIN keys k ON {same}"
                    ).fetchnumpy()
                finally:
                    cursor.unregister("target")
        except SparkportError as exc:
            raise (errors[0] if errors else exc) from exc
        numbers, row_ids = np.asarray(found["number"], np.int64), np.asarray(found["row_id"], np.int64)
        order = np.argsort(numbers, kind="stable")
        return Matches(numbers[order], row_ids[order])

    def require_unambiguous(self, matches: Matches) -> None:
        """Raise FailedPrecondition where a key of the input is that of several rows of the table."""
        again = np.flatnonzero(matches.numbers[1:] == matches.numbers[:-1])
        if len(again):
            number, names = int(matches.numbers[again[0]]), ", ".join(self._names)
            key = self._table(f"SELECT {names} FROM keys WHERE number = {number}")
            raise FailedPrecondition(f"the table has more than one row with the key {self._named(key)}")

    def close(self) -> None:
        """Safe to repeat."""
        self._held = []
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    # DuckDB

    @contextlib.contextmanager
    def _using(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with _translated(self._scratch):
            if self._cursor is None:
                self._cursor = self._scratch.cursor()
            yield self._cursor

    def _flush(self) -> None:
        """All keys that have come so far into the table ``keys``."""
        is_new = self._cursor is None
        if not is_new and not self._held:
            return
        held, self._held, self._held_rows, self._held_bytes = self._held, [], 0, 0
        fields = [
            pa.field(name, _plain_type(column.type)) for name, column in zip(self._names, self._columns, strict=True)
        ]
        schema = pa.schema([pa.field("number", pa.int64()), *fields])
        with self._using() as cursor:
            cursor.register("held", pa.Table.from_batches(held, schema))
            cursor.execute("CREATE TEMP TABLE keys AS FROM held" if is_new else "INSERT INTO keys FROM held")
            cursor.unregister("held")

    def _table(self, query: str) -> pa.Table:
        self._flush()
        with self._using() as cursor:
            return cursor.sql(query).to_arrow_table()

    def _named(self, keys: pa.Table) -> str:
        """The first of these."""
        pairs = zip(keys.columns, self._columns, strict=True)
        values = ", ".join(_shown(values.combine_chunks(), column.type) for values, column in pairs)
        return f"({', '.join(column.name for column in self._columns)}) = ({values})"


def comparable(column: pa.Array) -> pa.Array:
    """A column as DuckDB compares it by value: what an extension makes of its bytes is of no concern.

    Moments are compared as the numbers that they are stored as: not all have a place in DuckDB's own types.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if is_moment(column.type):
        return column.view(_number(column.type))
    return column.cast(_WIDE) if pa.types.is_decimal256(column.type) else column


def _number(moment: pa.DataType) -> pa.DataType:
    return pa.int32() if moment.bit_width == 32 else pa.int64()


def _value_type(data_type: pa.DataType) -> pa.DataType:
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    data_type = _value_type(data_type)
    if is_moment(data_type):
        return _number(data_type)
    return _WIDE if pa.types.is_decimal256(data_type) else data_type


def _is_ordered_alike(data_type: pa.DataType) -> bool:
    """Whether bounds of the column's values say the same to whoever prunes by them."""
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    is_moment = pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type)
    return bool(pa.types.is_integer(data_type) or is_text or is_moment)


def _plain(values: pa.ChunkedArray, data_type: pa.DataType) -> list[Any] | None:
    """As filters hold them: moments as whole units of their type, which are microseconds where there is a zone.

    None where they cannot be said so.
    """
    found = [value for value in values.to_pylist() if value is not None]
    if not pa.types.is_timestamp(data_type) or data_type.tz is None:
        return found
    micros = [_micros(value, data_type.unit) for value in found]
    return None if None in micros else micros


def _micros(number: int, unit: str) -> int | None:
    if abs(number) == _INFINITE:
        return number
    whole, rest = divmod(number * _NANOS[unit], 1_000)
    return None if rest or abs(whole) >= _INFINITE else whole


def _shown(values: pa.Array, data_type: pa.DataType) -> str:
    kind = _value_type(data_type)
    text = value_text((values.view(kind) if is_moment(kind) else values)[0])
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


@contextlib.contextmanager
def _translated(scratch: Scratch) -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as exc:
        if is_broken(exc):
            scratch.replace()
        if is_out_of_room(exc):
            raise ResourceExhausted("comparing the keys needs more room than there is") from exc
        if is_unreadable(exc):
            raise Unavailable(f"comparing the keys cannot go on: {exc}") from exc
        raise InternalError(f"comparing the keys failed: {exc}") from exc
