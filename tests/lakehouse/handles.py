"""A table of a lakehouse in the hands of a test: changed through sparkport, and read by all three that can read it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from tests.support.lakehouse import Lake

from sparkport.catalog import ROW_ID, AsOf, AsOfUnit, CallContext, DMLOptions, DMLResult, ScanRequest, as_scan
from sparkport.catalog.ddl import Alteration, MutableSchema, TableDefinition
from sparkport.lakehouse.iceberg.version_numbers import number_of
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.table import LakeTable

__all__ = ["Handle", "Rows", "create", "main_of", "version"]

Rows = dict[int, dict[str, Any]]
"""Rows by their row ids."""

NOBODY = CallContext()


def version(number: int) -> AsOf:
    return AsOf(AsOfUnit.VERSION, str(number))


def main_of(lake: Lake, ctx: CallContext = NOBODY) -> MutableSchema:
    schema = lake.opened.catalog.schema(ctx, "public")
    assert isinstance(schema, MutableSchema)
    return schema


def create(lake: Lake, name: str, rows: pa.Table, *, checks: tuple[str, ...] = ()) -> Handle:
    """A new table with these rows."""
    main_of(lake).create_table(NOBODY, TableDefinition(name=name, columns=rows.schema, checks=checks))
    handle = Handle(lake, name)
    if rows.num_rows:
        handle.insert(rows)
    return handle


class Handle:
    """``sparkport``, ``spark`` and ``pyiceberg`` are the same rows by three ways; ``agreed`` checks that they are."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake = lake
        self.name = name

    # Through sparkport

    def table(self, ctx: CallContext = NOBODY) -> LakeTable:
        table = main_of(self.lake, ctx).table(ctx, self.name)
        assert isinstance(table, LakeTable)
        return table

    def insert(self, rows: pa.Table, ctx: CallContext = NOBODY, options: DMLOptions | None = None) -> DMLResult:
        return self.table(ctx).insert(ctx, _reader(rows), options)

    def update(
        self, row_ids: Sequence[int], rows: pa.Table, ctx: CallContext = NOBODY, options: DMLOptions | None = None
    ) -> DMLResult:
        return self.table(ctx).update(ctx, row_ids, _reader(rows), options)

    def delete(self, row_ids: Sequence[int], ctx: CallContext = NOBODY, options: DMLOptions | None = None) -> DMLResult:
        return self.table(ctx).delete(ctx, row_ids, options)

    def alter(self, *alterations: Alteration) -> None:
        for alteration in alterations:
            self.table().alter(NOBODY, alteration)

    def read(self, ctx: CallContext = NOBODY, at: AsOf | None = None) -> pa.Table:
        table = self.table(ctx)
        schema = table.schema if at is None else table.schema_at(ctx, at)
        batches: list[pa.RecordBatch] = []
        for part in table.plan(ctx, ScanRequest(at=at)):
            scan = as_scan(table.scan(ctx, part))
            try:
                batches.extend(scan)
            finally:
                scan.close()
        return (
            pa.Table.from_batches([batch.select(schema.names) for batch in batches])
            if batches
            else schema.empty_table()
        )

    @property
    def current(self) -> TableVersion:
        """The newest version that is committed."""
        found = self.lake.opened.engine.versions.current(TableName("public", self.name))
        assert found is not None
        return found

    @property
    def number(self) -> int:
        """The number of the table's current version."""
        found = number_of(self.current.metadata)
        assert found is not None
        return found

    def sparkport(self, ctx: CallContext = NOBODY, at: AsOf | None = None) -> Rows:
        return _by_id(self.read(ctx, at))

    def ids(self, column: str = "id") -> dict[Any, int]:
        """Row ids by the values of a column that has each once."""
        return {row[column]: row_id for row_id, row in self.sparkport().items()}

    # Past sparkport

    @property
    def sql_name(self) -> str:
        return f"`{self.lake.catalog}`.`public`.`{self.name}`"

    def sql(self, *statements: str) -> None:
        """Run by plain Spark; ``{t}`` is the table."""
        with self.lake.spark() as spark:
            for statement in statements:
                spark.sql(statement.format(t=self.sql_name)).collect()

    def spark(self) -> Rows:
        with self.lake.spark() as spark:
            found = spark.sql(f"SELECT *, _row_id AS {ROW_ID} FROM {self.sql_name}").toArrow()
        return _by_id(found)

    def pyiceberg(self) -> list[dict[str, Any]]:
        """It hides the row ids."""
        from pyiceberg.catalog.sql import SqlCatalog

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = self.lake.opened.settings
            catalog = SqlCatalog(self.lake.catalog, uri=settings.database_uri, warehouse=settings.warehouse_path)
            try:
                rows: list[dict[str, Any]] = catalog.load_table(("public", self.name)).scan().to_arrow().to_pylist()
            finally:
                catalog.engine.dispose()
        return rows

    def agreed(self, *, pyiceberg: bool = True) -> Rows:
        """The rows, the same for everybody who reads them."""
        rows = self.sparkport()
        assert rows == self.spark()
        assert len(rows) == self.table().row_count(NOBODY)
        if pyiceberg:
            without = [{key: value for key, value in row.items() if key != ROW_ID} for row in rows.values()]
            assert sorted(map(repr, without)) == sorted(map(repr, self.pyiceberg()))
        return rows


def _reader(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())


def _by_id(rows: pa.Table) -> Rows:
    found = rows.to_pylist()
    by_id = {row[ROW_ID]: row for row in found}
    assert len(by_id) == len(found), "a row id is there twice"
    assert None not in by_id, "a row has no id"
    return by_id
