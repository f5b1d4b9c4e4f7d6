"""Rows that wait in the journal while others add columns: they have ``initial-default``, now and after the flush."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest
from tests.faults.schemas import SchemaWalk, alter_as_stranger, walk
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import ScanRequest, as_scan
from sparkport.catalog.ddl import AddColumn, AddField
from sparkport.filters.predicates import col
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()
PART = pa.struct([("a", pa.int32())])
PARTS = pa.list_(PART)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    settings = JournalSettings(new_tables=True, seconds=3_600.0)
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=settings) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    """Row 1 is published, and changed in the journal; 2 and 3 wait."""
    rows = [{"id": n, "part": {"a": n}, "parts": [{"a": n}, None]} for n in (1, 2)]
    schema = pa.schema([("id", pa.int64()), ("part", PART), ("parts", PARTS)])
    made = create(lake, f"t{next(_numbers)}", pa.Table.from_pylist(rows[:1], schema))
    lake.opened.journal.flush(60)
    made.insert(pa.Table.from_pylist([*rows[1:], {"id": 3, "part": None, "parts": None}], schema))
    made.update([made.ids()[1]], pa.Table.from_pylist([{"part": {"a": 10}}], schema.remove(2).remove(0)))
    return made


def column(name: str, kind: pa.DataType, default: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"default": default})


@pytest.mark.tier("fast")
@pytest.mark.parametrize("nullable", [True, False], ids=["optional", "required"])
def test_a_column_that_others_add_has_its_default_in_rows_that_wait(lake: Lake, table: Handle, nullable: bool) -> None:
    alter_as_stranger(table, AddColumn(column("level", pa.int32(), "7", nullable=nullable)))
    alter_as_stranger(table, AddColumn(column("word", pa.string(), "'NULL'", nullable=nullable)))
    expected = {1: (7, "NULL"), 2: (7, "NULL"), 3: (7, "NULL")}
    assert {row["id"]: (row["level"], row["word"]) for row in table.sparkport().values()} == expected
    found = as_scan(table.table().scan(NOBODY, ScanRequest(columns=("id",), filter=(col("level") == 7).expr)))
    assert sorted(pa.Table.from_batches(list(found)).column("id").to_pylist()) == [1, 2, 3]
    lake.opened.journal.flush(60)
    assert {row["id"]: (row["level"], row["word"]) for row in table.spark().values()} == expected
    assert table.sparkport() == table.spark()


def test_nested_fields_that_others_add_have_their_defaults_in_rows_that_wait(lake: Lake, table: Handle) -> None:
    alter_as_stranger(table, AddField(("part",), column("b", pa.string(), "'x'")))
    alter_as_stranger(table, AddField(("part",), column("day", pa.date32(), "DATE '2020-02-29'")))
    parts = {row["id"]: row["part"] and row["part"]["b"] for row in table.sparkport().values()}
    assert parts == {1: "x", 2: "x", 3: None}
    before = table.sparkport()
    lake.opened.journal.flush(60)
    assert [row for _, row in sorted(_by_key(table.spark()).items())] == [
        row for _, row in sorted(_by_key(before).items())
    ]


def test_a_row_that_is_written_after_the_column_came_keeps_its_null(lake: Lake, table: Handle) -> None:
    alter_as_stranger(table, AddColumn(column("level", pa.int32(), "7")))
    table.insert(
        pa.Table.from_pylist([{"id": 4}], table.table().schema.remove(table.table().schema.get_field_index("rowid")))
    )
    assert {key: row["level"] for key, row in _by_key(table.sparkport()).items()} == {1: 7, 2: 7, 3: 7, 4: None}
    lake.opened.journal.flush(60)
    assert {key: row["level"] for key, row in _by_key(table.spark()).items()} == {1: 7, 2: 7, 3: 7, 4: None}


@pytest.mark.parametrize("number", range(3))
def test_whatever_others_do_to_columns_rows_that_wait_are_as_iceberg_has_them(lake: Lake, number: int) -> None:
    """A slice of ``make test-faults``."""
    walk(SchemaWalk(number), lake)


def _by_key(rows: dict[int, dict[str, object]]) -> dict[object, dict[str, object]]:
    return {row["id"]: {key: value for key, value in row.items() if key != "rowid"} for row in rows.values()}
