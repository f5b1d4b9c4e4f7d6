"""Fitting what a client sends to the columns of a table: by name, in the table's types, NOT NULL kept.

The fit is worked out once, from the two schemas; a batch that needs nothing passes through as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa

from sparkport.catalog.casting import Converter, converter, converter_by_value
from sparkport.catalog.decimals import has_decimals, overlong_decimal
from sparkport.catalog.defaults import default_of, default_values
from sparkport.catalog.memory_sizes import expanded_bytes, expands, null_bytes, require_room
from sparkport.errors import ConstraintViolation, InvalidArgument, SchemaMismatch

__all__ = ["ColumnFit", "fit_all", "fit_new", "fit_some"]

_KEPT_BYTES = 64 * 1024
"""The size of the schemas of a fit that is remembered: clients can write any amount into their metadata."""


class ColumnFit:
    """Makes batches of ``source`` into batches of ``target``, whose columns all come from it or from defaults."""

    def __init__(
        self,
        table: str,
        source: pa.Schema,
        target: pa.Schema,
        places: Sequence[int | None],
        find_converter: Callable[[pa.DataType, pa.DataType], Converter | None] = converter,
    ) -> None:
        self.target = target
        self._table = table
        self._places = tuple(places)
        self._converters: list[Converter | None] = []
        differences: list[str] = []
        for column, place in zip(target, places, strict=True):
            convert = None if place is None else find_converter(source.field(place).type, column.type)
            if place is not None and convert is None:
                differences.append(f"column '{column.name}' is {column.type}, input has {source.field(place).type}")
            self._converters.append(convert)
        if differences:
            raise SchemaMismatch(f"schema mismatch: {'; '.join(differences)}")
        self._in_order = len(source) > 0 and list(places) == list(range(len(source))) and source.types == target.types
        self._identical = self._in_order and bool(source.equals(target, check_metadata=True))
        filled = [
            column.type
            for column, place in zip(target, places, strict=True)
            if place is None or pa.types.is_null(source.field(place).type)
        ]
        self._filled_bytes = sum(map(null_bytes, filled))
        self._expanding = [
            place
            for column, place in zip(target, places, strict=True)
            if place is not None and source.field(place).type != column.type and expands(source.field(place).type)
        ]
        self._required = [index for index, column in enumerate(target) if not column.nullable]
        self._decimals = [index for index, column in enumerate(target) if has_decimals(column.type)]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        fitted = batch if self._identical else self._fit(batch)
        for index in self._required:
            if _has_nulls(fitted.column(index)):
                name = self.target.field(index).name
                raise ConstraintViolation(f"NOT NULL constraint failed: {self._table}.{name}")
        for index in self._decimals:
            if (overlong := overlong_decimal(fitted.column(index))) is not None:
                name, (value, holder) = self.target.field(index).name, overlong
                raise InvalidArgument(
                    f"column '{name}': {value} has more than {holder.precision} digits, the most that {holder} holds; "
                    "in DuckDB, a HUGEINT column keeps its whole range if the table is created after "
                    "SET arrow_lossless_conversion = true"
                )
        return fitted

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._in_order:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.target)
        require_room(
            batch.num_rows * self._filled_bytes + sum(expanded_bytes(batch.column(place)) for place in self._expanding)
        )
        columns: list[pa.Array] = []
        for column, place, convert in zip(self.target, self._places, self._converters, strict=True):
            if place is None or convert is None:
                columns.append(default_values(column, batch.num_rows))
                continue
            try:
                columns.append(convert(batch.column(place)))
            except (pa.ArrowException, ValueError, OverflowError) as exc:
                raise InvalidArgument(f"column '{column.name}': {exc}") from exc
        # Not by schema: the check above names a NOT NULL column that has a null, Arrow would not.
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


def _has_nulls(column: pa.Array) -> bool:
    """A dictionary may hold the null among its values, where ``null_count`` does not see it."""
    if isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
        column = column.dictionary_decode()
    return bool(column.null_count)


def fit_all(table: str, source: pa.Schema, target: pa.Schema, *, defaults: bool = True) -> ColumnFit:
    """For statements that carry whole rows: every column must be there, or have a default."""
    # By their bytes: schemas compare equal whatever defaults their metadata hold.
    given, wanted = source.serialize().to_pybytes(), target.serialize().to_pybytes()
    fit = _fit_all if len(given) + len(wanted) <= _KEPT_BYTES else _fit_all.__wrapped__
    return fit(table, given, wanted, defaults)


@lru_cache(maxsize=256)
def _fit_all(table: str, source_bytes: bytes, target_bytes: bytes, defaults: bool) -> ColumnFit:
    """Small statements come again and again with the same schema, and a fit never changes."""
    source, target = pa.ipc.read_schema(pa.py_buffer(source_bytes)), pa.ipc.read_schema(pa.py_buffer(target_bytes))
    places, extra = _match(source, target)
    missing = [
        column.name
        for column, place in zip(target, places, strict=True)
        if place is None and not (defaults and default_of(column))
    ]
    if missing or extra:
        filled = sum(place is None for place in places) - len(missing)
        if len(source) != len(target) and len(source) + filled != len(target):
            raise SchemaMismatch(f"column mismatch: table has {len(target)} columns, input has {len(source)}")
        differences = [f"column '{name}' is missing" for name in missing]
        if extra:
            differences.append(_unknown(extra))
        raise SchemaMismatch(f"schema mismatch: {'; '.join(differences)}")
    return ColumnFit(table, source, target, places)


def fit_some(table: str, source: pa.Schema, target: pa.Schema, *, by_value: bool = False) -> ColumnFit:
    """For an UPDATE that carries only the columns it changes, in any order.

    ``by_value``: what the client has not cast to the table's types, as DuckDB does in an INSERT, is cast here.
    """
    places, extra = _match(source, target)
    if extra:
        raise SchemaMismatch(f"schema mismatch: {_unknown(extra)}")
    present = [index for index, place in enumerate(places) if place is not None]
    chosen = pa.schema([target.field(index) for index in present])
    find = converter_by_value if by_value else converter
    return ColumnFit(table, source, chosen, [places[index] for index in present], find)


def fit_new(table: str, source: pa.Schema, target: pa.Schema) -> ColumnFit:
    """For new rows of which some columns are given: the others get their default, or NULL."""
    places, _ = _match(source, target)
    return ColumnFit(table, source, target, places)


def _unknown(names: Sequence[str]) -> str:
    return "; ".join(f"column '{name}' is not in the table" for name in names)


def _match(source: pa.Schema, target: pa.Schema) -> tuple[list[int | None], list[str]]:
    """For each column of the table, where it is in the input; and what the input has beyond them."""
    exact = {name: index for index, name in enumerate(source.names)}
    folded: dict[str, list[int]] = {}
    for index, name in enumerate(source.names):
        folded.setdefault(name.casefold(), []).append(index)
    if len(exact) != len(source.names):
        raise SchemaMismatch("schema mismatch: a column is given twice")
    used: set[int] = set()
    places: list[int | None] = []
    for name in target.names:
        place = exact.get(name)
        candidates = folded.get(name.casefold(), [])
        if place is None and len(candidates) > 1:
            raise SchemaMismatch(f"schema mismatch: column '{name}' is ambiguous")
        if place is None and candidates:
            place = candidates[0]
        if place is not None:
            if place in used:
                raise SchemaMismatch(f"schema mismatch: column '{source.names[place]}' is ambiguous")
            used.add(place)
        places.append(place)
    return places, [name for index, name in enumerate(source.names) if index not in used]
