"""Rows that a user hands in, whatever they are held in, as a schema and batches; and whether they can be had twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from sparkport.catalog.row_ids import ROW_ID, data_schema, find_row_id_column, row_id_field
from sparkport.errors import InvalidArgument

__all__ = ["BatchRows", "Input", "RowIds", "Rows", "as_input", "as_row_id_input", "table_batches", "with_row_ids"]

BatchRows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]"
Rows: TypeAlias = "BatchRows | Sequence[Mapping[str, Any]] | Any"
"""Arrow rows, a list of dicts, or a data frame: anything that has ``__arrow_c_stream__``."""
RowIds: TypeAlias = (
    "Iterable[int] | pa.Array | pa.ChunkedArray | pa.Table | pa.RecordBatch | pa.RecordBatchReader | Any"
)
"""Numbers, a column of them, or rows with a row-id column, such as a scan with ``row_id=True``."""

_BATCH_ROWS = 65_536
_ARROW = "an Arrow table, a batch, a reader, or batches"
_MORE = ", a list of dicts or a data frame"


@dataclass(frozen=True, slots=True)
class Input:
    """``open`` starts the batches from the first one; a second time only if they are ``repeatable``."""

    schema: pa.Schema
    open: Callable[[], Iterator[pa.RecordBatch]]
    repeatable: bool


def as_input(rows: Rows, columns: Callable[[], pa.Schema] | None = None) -> Input:
    """``columns`` gives the schema of the table that the rows are for: dicts have no types of their own."""
    if isinstance(rows, pa.Table):
        return Input(rows.schema, lambda: iter(table_batches(rows)), True)
    if isinstance(rows, pa.RecordBatch):
        return Input(rows.schema, lambda: iter([rows]), True)
    if isinstance(rows, pa.RecordBatchReader):
        return Input(rows.schema, lambda: iter(rows), False)
    if hasattr(rows, "__arrow_c_stream__"):
        return _from_stream(rows)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidArgument(f"rows must be {_ARROW}{_MORE}")
    if isinstance(rows, Sequence):
        if columns is not None and all(isinstance(row, Mapping) for row in rows):
            return as_input(_from_dicts(rows, columns()))
        return _from_batches(rows, iter(rows), columns)
    return _from_batches(None, iter(rows), columns)


def as_row_id_input(row_ids: RowIds) -> Input:
    """Row ids alone, as a DELETE sends them."""
    if hasattr(row_ids, "__arrow_c_stream__") and not isinstance(row_ids, pa.ChunkedArray):
        try:
            return _only_row_ids(as_input(row_ids))
        except (pa.ArrowException, TypeError, ValueError):  # a stream of plain values: the ids themselves
            pass
    elif isinstance(row_ids, pa.RecordBatch):
        return _only_row_ids(as_input(row_ids))
    return as_input(pa.table([_ids(row_ids)], schema=pa.schema([row_id_field()])))


def with_row_ids(rows: Input, row_ids: RowIds) -> Input:
    """Rows with the ids next to them, as an UPDATE sends them. A count that differs shows at the end of the rows."""
    if find_row_id_column(rows.schema) is not None:
        raise InvalidArgument("row_ids are given, and the rows have a rowid column too")
    ids = _ids(row_ids)

    def batches() -> Iterator[pa.RecordBatch]:
        used = 0
        for batch in rows.open():
            part = ids.slice(used, batch.num_rows)
            used += batch.num_rows
            if len(part) == batch.num_rows:
                yield batch.append_column(row_id_field(), part)
        if used != len(ids):
            raise InvalidArgument(f"row_ids count ({len(ids)}) does not match input rows ({used})")

    return Input(rows.schema.append(row_id_field()), batches, rows.repeatable)


def table_batches(table: pa.Table) -> list[pa.RecordBatch]:
    if table.num_columns:
        return [batch for batch in table.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows]
    # Arrow makes no batches of a table that has rows and no columns.
    whole = pa.record_batch({"none": pa.nulls(table.num_rows)}).select([])
    return [whole.slice(start, _BATCH_ROWS) for start in range(0, table.num_rows, _BATCH_ROWS)]


def _from_stream(rows: Any) -> Input:
    """Frames have a length and give their rows any number of times; streams do neither."""
    first = [pa.RecordBatchReader.from_stream(rows)]

    def batches() -> Iterator[pa.RecordBatch]:
        return iter(first.pop() if first else pa.RecordBatchReader.from_stream(rows))

    return Input(first[0].schema, batches, hasattr(rows, "__len__"))


def _from_batches(again: Sequence[Any] | None, rows: Iterator[Any], columns: Callable[[], pa.Schema] | None) -> Input:
    first = next(rows, None)
    if first is None and columns is not None:
        return as_input(data_schema(columns()).empty_table())
    if not isinstance(first, pa.RecordBatch):
        raise InvalidArgument(f"rows must be {_ARROW}{_MORE if columns is not None else ', at least one'}")
    if again is not None:
        return Input(first.schema, lambda: _alike(first.schema, again), True)
    return Input(first.schema, lambda: _alike(first.schema, chain([first], rows)), False)


def _alike(schema: pa.Schema, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Batches of a stream have one schema: columns that one of them lacks would silently be null."""
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema):
            raise InvalidArgument("the batches must all have the schema of the first one")
        yield batch


def _from_dicts(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> pa.Table:
    """In the table's types. A key that only some rows have is null in the others; one that none has is left out."""
    known = {name.casefold(): columns.field(name) for name in columns.names}
    known.setdefault(ROW_ID, row_id_field())
    names = list(dict.fromkeys(key for row in rows for key in row)) if rows else data_schema(columns).names
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for name in names:
        column = known.get(name.casefold()) if isinstance(name, str) else None
        if column is None:
            raise InvalidArgument(f"the rows have '{name}', which is not a column of the table")
        try:
            arrays.append(pa.array([row.get(name) for row in rows], column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgument(f"column '{name}' cannot be {column.type}: {exc}") from exc
        # Nullable, so that the server reports a null where none may be.
        fields.append(pa.field(name, column.type, metadata=column.metadata))
    return pa.table(arrays, schema=pa.schema(fields))


def _only_row_ids(rows: Input) -> Input:
    index = find_row_id_column(rows.schema)
    if index is None:
        raise InvalidArgument("the rows to delete by have no rowid column: scan with row_id=True")
    return Input(
        pa.schema([rows.schema.field(index)]), lambda: (b.select([index]) for b in rows.open()), rows.repeatable
    )


def _ids(row_ids: Any) -> pa.Array:
    try:
        if not isinstance(row_ids, pa.Array | pa.ChunkedArray):
            row_ids = pa.array(list(row_ids) if isinstance(row_ids, set | frozenset | range | Iterator) else row_ids)
        if isinstance(row_ids, pa.ChunkedArray):
            row_ids = row_ids.combine_chunks()
        if not (pa.types.is_integer(row_ids.type) or pa.types.is_null(row_ids.type)):
            raise InvalidArgument(f"row ids must be whole numbers, not {row_ids.type}")
        return row_ids.cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgument(f"row ids must be whole numbers: {exc}") from exc
