"""Others change a table's columns while rows wait in the journal: a walk of changes beside a model of the rows.

By Iceberg's rules each row keeps what it has, goes by the ids of fields, and has ``initial-default`` in what came after
it. After each step sparkport shows just that; after a flush plain Spark does, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from tests.lakehouse.handles import Handle, create
from tests.support.lakehouse import Lake

from sparkport.catalog.ddl import AddColumn, AddField, Alteration, ChangeType, DropColumn, DropField, RenameColumn
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.iceberg.edits import evolve_schema

__all__ = ["SchemaWalk", "alter_as_stranger", "schema_walks", "walk"]

_START = pa.schema([("id", pa.int64()), ("number", pa.int32()), ("part", pa.struct([("a", pa.int32())]))])
_KINDS: Sequence[tuple[pa.DataType, str, Any]] = (
    (pa.int32(), "7", 7),
    (pa.string(), "'it''s'", "it's"),
    (pa.float64(), "0.5", 0.5),
    (pa.bool_(), "true", True),
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaWalk:
    """``steps`` changes of rows and columns, as the number decides."""

    number: int
    steps: int = 14

    def __str__(self) -> str:
        return f"others change columns while rows wait, walk {self.number}"


def schema_walks(seed: int) -> list[SchemaWalk]:
    return [SchemaWalk(1_000 * seed + number, steps=30) for number in range(20)]


def alter_as_stranger(table: Handle, alteration: Alteration) -> None:
    """As an engine that knows neither the journal nor what sparkport notes beside the schema."""
    current = table.current
    columns = current.columns.altered(alteration)
    after = evolve_schema(current.json, list(columns.fields), last_column_id=columns.last_id, previous=current.location)
    table.lake.pointers.commit([Edit(current.table, current.json, after, current.location)])


def walk(item: SchemaWalk, lake: Lake) -> None:
    """``lake`` journals new tables, and flushes when it is told to. AssertionError where a row is not as it must be."""
    _Walk(lake, item).run()


@dataclass(slots=True)
class _Walk:
    lake: Lake
    item: SchemaWalk
    choose: random.Random = field(init=False)
    table: Handle = field(init=False)
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    names: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.choose = random.Random(self.item.number)
        self.table = create(self.lake, f"walk{self.item.number}", _START.empty_table())

    def run(self) -> None:
        changes: list[Callable[[], str]] = [self.insert, self.insert, self.update, self.delete]
        alterations = [self.add_column, self.add_field, self.drop, self.rename, self.widen]
        self.log.append(self.insert())
        for _ in range(self.item.steps):
            self.log.append(self.choose.choice([*changes, *alterations, self.flush])())
            self.compare(self.table.sparkport())
        # At the end always: rows that wait, a column and a nested field that come after them, and a flush.
        for step in (self.insert, self.update, self.add_column, self.add_field, self.flush):
            self.log.append(step())
            self.compare(self.table.sparkport())
        self.compare(self.table.spark())

    def compare(self, found: dict[int, Row]) -> None:
        shown = {row["id"]: {key: value for key, value in row.items() if key != "rowid"} for row in found.values()}
        assert shown == self.rows, f"{self.item}: {self.log}"

    # Rows

    def insert(self) -> str:
        start = len(self.log) * 10
        new = {start + at: {**self.values(), "id": start + at} for at in range(self.choose.randint(1, 3))}
        self.table.insert(pa.Table.from_pylist(list(new.values()), self.schema))
        self.rows |= new
        return f"insert {sorted(new)}"

    def update(self) -> str:
        if not self.rows:
            return "nothing to update"
        key = self.choose.choice(sorted(self.rows))
        name = self.choose.choice([name for name in self.schema.names if name != "id"])
        value = self.values()[name]
        sent = pa.Table.from_pylist([{name: value}], pa.schema([self.schema.field(name)]))
        assert self.table.update([self.table.ids()[key]], sent).affected_rows == 1
        self.rows[key] = {**self.rows[key], name: value}
        return f"update {key}: {name} = {value}"

    def delete(self) -> str:
        if len(self.rows) < 2:
            return "nothing to delete"
        key = self.choose.choice(sorted(self.rows))
        self.table.delete([self.table.ids()[key]])
        del self.rows[key]
        return f"delete {key}"

    @property
    def schema(self) -> pa.Schema:
        """What the table shows, without the row ids."""
        schema = self.table.current.columns.declared
        return pa.schema([column.with_metadata(None) for column in schema])

    def values(self) -> Row:
        return {column.name: self.value(column) for column in self.schema}

    def value(self, column: pa.Field) -> Any:
        if column.nullable and self.choose.random() < 0.2:
            return None
        if pa.types.is_struct(column.type):
            return {inner.name: self.value(inner) for inner in column.type}
        number = self.choose.randint(0, 1_000)
        if pa.types.is_boolean(column.type):
            return number % 2 == 0
        return f"v{number}" if pa.types.is_string(column.type) else number

    # Columns, by others

    def add_column(self) -> str:
        name, (kind, default, value) = f"c{next(self.names)}", self.choose.choice(_KINDS)
        has_default, nullable = self.choose.random() < 0.7, self.choose.random() < 0.5
        metadata = {"default": default} if has_default else None
        added = pa.field(name, kind, nullable=nullable or not has_default, metadata=metadata)
        alter_as_stranger(self.table, AddColumn(added))
        self.rows = {key: {**row, name: value if has_default else None} for key, row in self.rows.items()}
        return f"add {added} default {default if has_default else None}"

    def add_field(self) -> str:
        name, (kind, default, value) = f"f{next(self.names)}", self.choose.choice(_KINDS)
        alter_as_stranger(self.table, AddField(("part",), pa.field(name, kind, metadata={"default": default})))
        for row in self.rows.values():
            if row["part"] is not None:
                row["part"] = {**row["part"], name: value}
        return f"add part.{name} default {default}"

    def drop(self) -> str:
        inner = [item.name for item in self.schema.field("part").type]
        if len(inner) > 2 and self.choose.random() < 0.5:
            name = self.choose.choice(inner)
            alter_as_stranger(self.table, DropField(("part", name)))
            for row in self.rows.values():
                if row["part"] is not None:
                    row["part"] = {key: value for key, value in row["part"].items() if key != name}
            return f"drop part.{name}"
        names = [name for name in self.schema.names if name.startswith("c")]
        if not names:
            return "nothing to drop"
        name = self.choose.choice(names)
        alter_as_stranger(self.table, DropColumn(name))
        self.rows = {k: {key: value for key, value in row.items() if key != name} for k, row in self.rows.items()}
        return f"drop {name}"

    def rename(self) -> str:
        names = [name for name in self.schema.names if name.startswith("c")]
        if not names:
            return "nothing to rename"
        old, new = self.choose.choice(names), f"c{next(self.names)}"
        alter_as_stranger(self.table, RenameColumn(old, new))
        self.rows = {k: {new if key == old else key: v for key, v in row.items()} for k, row in self.rows.items()}
        return f"rename {old} to {new}"

    def widen(self) -> str:
        alter_as_stranger(self.table, ChangeType("number", pa.int64()))
        return "widen number"

    def flush(self) -> str:
        return f"flush {self.lake.opened.journal.flush(120).rows}"
