"""Versions of tables that Spark has written some day, without a Spark: what is none, or cannot be gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.lakehouse.small import small_lake

from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest, as_scan
from sparkport.errors import FailedPrecondition, InvalidArgument
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.tables.table import LakeTable

pytestmark = pytest.mark.tier("fast")

CTX = CallContext()


@contextmanager
def opened(warehouse: Path, name: str) -> Iterator[Callable[[], LakeTable]]:
    """The table as it is, each time that it is called."""
    lake = Lakehouse(small_lake(warehouse, (name,)))

    def table() -> LakeTable:
        schema = lake.catalog.schema(CTX, "public")
        found = None if schema is None else schema.table(CTX, name)
        assert isinstance(found, LakeTable)
        return found

    try:
        yield table
    finally:
        lake.stop()


def version(text: object) -> AsOf:
    return AsOf(AsOfUnit.VERSION, str(text))


def row_ids(table: LakeTable) -> list[int | None]:
    scan = as_scan(table.scan(CTX, ScanRequest(columns=(ROW_ID,))))
    return [number for batch in scan for number in batch.column(0).to_pylist()]


def test_rows_from_before_an_upgrade_have_no_ids_and_do_not_come_back(tmp_path: Path) -> None:
    with opened(tmp_path, "upgraded") as table:
        before = row_ids(table())
        for number in (1, 2, 3):
            with pytest.raises(FailedPrecondition, match="before the table was upgraded"):
                table().rollback(CTX, version(number))
        assert row_ids(table()) == before
        table().rollback(CTX, version(4))
        assert None not in row_ids(table())
        table().rollback(CTX, version(0))
        assert row_ids(table()) == []


def test_a_number_that_no_machine_counts_to_is_no_version(tmp_path: Path) -> None:
    with opened(tmp_path, "changes") as table:
        for point in (version("9" * 5_000), version("-" + "9" * 5_000)):
            with pytest.raises(InvalidArgument, match="is not a version"):
                table().changes(CTX, point, None, ScanRequest())
            with pytest.raises(InvalidArgument, match="is not a version"):
                table().rollback(CTX, point)
