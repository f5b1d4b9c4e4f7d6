"""The contract's decisions about columns: matched by name, widened where nothing is lost, defaults, NOT NULL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, change, refused
from tests.contract.conftest import EVENTS, Lake, events, rows_in
from tests.support.flight_rpc import AirportError

from sparkport.errors import InvalidArgument
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("fast")

WIDENINGS = [
    (pa.int32(), pa.int64(), [1, None], [1, None]),
    (pa.uint32(), pa.int64(), [1, 2**32 - 1], [1, 2**32 - 1]),
    (pa.float32(), pa.float64(), [1.5, None], [1.5, None]),
    (pa.string(), pa.large_string(), ["a", None], ["a", None]),
    (pa.large_string(), pa.string(), ["a", None], ["a", None]),
    (pa.string_view(), pa.string(), ["a", None], ["a", None]),
    (pa.binary_view(), pa.binary(), [b"a", None], [b"a", None]),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", None], ["a", None]),
    (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), [7, None], [7, None]),
    (pa.decimal128(5, 1), pa.decimal128(9, 2), [Decimal("1.5")], [Decimal("1.50")]),
    (pa.timestamp("ms"), pa.timestamp("us"), [0, None], None),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1], None], [[1], None]),
    (pa.null(), pa.string(), [None, None], [None, None]),
]

NARROWINGS = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.float32()),
    (pa.string(), pa.int64()),
    (pa.timestamp("us"), pa.timestamp("ms")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.decimal128(9, 2), pa.decimal128(9, 1)),
]


@pytest.mark.parametrize(("sent", "kept", "values", "found"), WIDENINGS, ids=lambda item: str(item)[:24])
@pytest.mark.parametrize("way", ["json", "duckdb"])
def test_widening_that_loses_nothing(
    lake: Lake, sent: pa.DataType, kept: pa.DataType, values: list[Any], found: list[Any] | None, way: str
) -> None:
    table = lake.create_table("analytics.wide", pa.schema([("v", kept)]))
    rows = pa.table({"v": pa.array(values, sent)})
    if way == "json":
        lake.json.insert("analytics.wide", rows)
    else:
        change(lake.connection, "insert", "analytics.wide", rows)
    back = [row["v"] for row in lake.rows(table).values()]
    assert back == (rows.column("v").cast(kept).to_pylist() if found is None else found)


@pytest.mark.parametrize(("sent", "kept"), NARROWINGS, ids=str)
def test_what_could_lose_something_is_a_mismatch(lake: Lake, sent: pa.DataType, kept: pa.DataType) -> None:
    lake.create_table("analytics.narrow", pa.schema([("v", kept)]))
    with refused("INVALID_ARGUMENT", f"schema mismatch: column 'v' is {kept}, input has {sent}"):
        lake.json.insert("analytics.narrow", pa.schema([("v", sent)]).empty_table())


@pytest.mark.parametrize("way", ["json", "duckdb"])
def test_columns_are_matched_by_name_in_any_order_and_case(lake: Lake, way: str) -> None:
    rows = (
        events(10)
        .select(["tags", "score", "name", "kind", "id"])
        .rename_columns(["TAGS", "Score", "name", "kind", "ID"])
    )
    if way == "json":
        lake.json.insert("analytics.events", rows)
    else:
        change(lake.connection, "insert", "analytics.events", rows)
    assert lake.rows()[5] == events(10).to_pylist()[0]


def test_a_column_given_twice_is_refused(lake: Lake) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with refused("INVALID_ARGUMENT", "schema mismatch: a column is given twice"):
        lake.json.insert("analytics.other", rows)


def test_a_column_that_is_ambiguous_by_case_is_refused(lake: Lake) -> None:
    lake.create_table("analytics.mixed", pa.schema([("Ab", pa.int64()), ("c", pa.int64())]))
    rows = pa.table({"AB": [1], "ab": [2]})
    with refused("INVALID_ARGUMENT", "schema mismatch: column 'Ab' is ambiguous"):
        lake.json.insert("analytics.mixed", rows)


@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_schemas_and_tables_are_looked_up_without_regard_to_case(lake: Lake) -> None:
    assert lake.json.insert("ANALYTICS.Events", events(10)).affected_rows == 1
    assert lake.json.delete("Analytics.EVENTS", [5]).affected_rows == 1
    assert change(lake.connection, "insert", "Analytics.EVENTS", events(10))[0] == 1


# Defaults


@pytest.fixture
def with_defaults(lake: Lake) -> Lake:
    columns = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False, metadata={"default": "3 + 4"}),
        pa.field("name", pa.string(), metadata={"default": "'nobody'"}),
    ]
    lake.create_table("analytics.defaults", pa.schema(columns))
    return lake


def test_a_missing_column_that_has_a_default_is_filled(with_defaults: Lake) -> None:
    lake = with_defaults
    answer = lake.json.insert("analytics.defaults", pa.table({"id": [1, 2]}), returning=True)
    assert answer.rows is not None
    assert answer.rows.to_pylist() == [{"id": number, "kind": 7, "name": "nobody"} for number in (1, 2)]


def test_a_default_is_for_missing_columns_not_for_nulls(with_defaults: Lake) -> None:
    lake = with_defaults
    rows = pa.table({"id": [1], "name": pa.array([None], pa.string())})
    answer = lake.json.insert("analytics.defaults", rows, returning=True, returning_columns=["name"])
    assert answer.rows is not None
    assert answer.rows.to_pylist() == [{"name": None}]


def test_a_missing_column_without_default_stays_a_mismatch(with_defaults: Lake) -> None:
    with refused("INVALID_ARGUMENT", "column mismatch: table has 3 columns, input has 1"):
        with_defaults.json.insert("analytics.defaults", pa.table({"name": ["x"]}))


def test_an_update_by_json_carries_all_columns_defaults_or_not(with_defaults: Lake) -> None:
    lake = with_defaults
    lake.json.insert("analytics.defaults", pa.table({"id": [1]}))
    with refused("INVALID_ARGUMENT", "column mismatch: table has 3 columns, input has 1"):
        lake.json.update("analytics.defaults", [0], pa.table({"id": [1]}))


# NOT NULL


@pytest.mark.parametrize("operation", ["insert", "update"])
def test_null_into_a_not_null_column_is_told_as_duckdb_does(lake: Lake, operation: str) -> None:
    loose = pa.schema([column.with_nullable(True) for column in EVENTS])
    rows = pa.Table.from_pylist([{"id": None}], loose)
    if operation == "update":
        rows = pa.table({"id": pa.array([None], pa.int64()), "rowid": pa.array([1], pa.int64())})
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: events.id"):
        change(lake.connection, operation, "analytics.events", rows)
    assert lake.rows()[1]["id"] == 1


def test_duckdb_is_told_which_exception_to_raise(lake: Lake) -> None:
    null = pa.table({"id": pa.array([None], pa.int64()), "rowid": pa.array([1], pa.int64())})
    for rows, exception in ((null, "ConstraintException"), (pa.table({"x": [1]}), "InvalidInputException")):
        with pytest.raises(AirportError) as failure:
            change(lake.connection, "update", "analytics.events", rows)
        assert failure.value.exception_type == exception


def test_a_null_among_the_values_of_a_dictionary_is_a_null(lake: Lake) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    lake.create_table("analytics.enums", pa.schema([pa.field("v", kind, nullable=False)]))
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: enums.v"):
        lake.json.insert("analytics.enums", pa.table({"v": hidden}))


# Names at CREATE


@pytest.mark.parametrize(
    "name",
    [
        "rowid",
        "ROWID",
        "_row_id",
        "_file",
        "_pos",
        "_spec_id",
        "_partition",
        "_deleted",
        "_last_updated_sequence_number",
    ],
)
def test_reserved_column_names_are_refused_at_create(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"column name '{name}' is reserved"):
        MemoryCatalog().create_table("public.t", pa.schema([(name, pa.int64())]))


def test_columns_that_differ_by_case_only_are_refused_at_create() -> None:
    with pytest.raises(InvalidArgument, match="column 'A' is given twice"):
        MemoryCatalog().create_table("public.t", pa.schema([("a", pa.int64()), ("A", pa.int64())]))


def test_a_server_with_several_catalogs_needs_the_name(lake: Lake) -> None:
    second = MemoryCatalog("pond")
    second.new_schema("analytics")
    table = second.create_table("analytics.events", EVENTS)
    lake.server.add_catalog(second)
    assert lake.json.insert("analytics.events", events(1), catalog_name="pond").affected_rows == 1
    assert JsonClient(lake.connection, [("airport-catalog", "POND")]).delete("analytics.events", [0]).affected_rows == 1
    with refused("NOT_FOUND", "catalog '' not found; known catalogs: 'lake', 'pond'"):
        lake.json.insert("analytics.events", events(1))
    transaction = lake.json.begin(catalog_name="pond", auto_commit=False)
    lake.json.inside(transaction).insert("analytics.events", events(2), catalog_name="pond")
    assert rows_in(table) == {}
    assert lake.json.commit(transaction) == "committed"
    assert [row["id"] for row in rows_in(table).values()] == [2]
    with refused("NOT_FOUND", f"transaction '{transaction}' not found"):
        lake.json.inside(transaction).insert("analytics.events", events(3), catalog_name="lake")
