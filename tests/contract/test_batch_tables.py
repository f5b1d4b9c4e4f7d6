"""Which method of a user's table is called, with what, and how the row-id column is found."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import change, refused
from tests.contract.conftest import Lake
from tests.contract.own_tables import (
    Deletes,
    DeletesBatches,
    Inserts,
    OwnTable,
    Updates,
    UpdatesBatches,
    own_table,
    served,
)

from sparkport.catalog.row_ids import find_row_id_column
from sparkport.catalog.table import DMLOptions

pytestmark = pytest.mark.tier("fast")

ALL = (Inserts, Updates, UpdatesBatches, Deletes, DeletesBatches)
SUBSETS = list(chain.from_iterable(combinations(ALL, size) for size in range(len(ALL) + 1)))
NAMES = {Inserts: "I", Updates: "U", UpdatesBatches: "UB", Deletes: "D", DeletesBatches: "DB"}

ROWS = pa.table({"id": pa.array([10, 11], pa.int64()), "name": ["a", "b"]})
CHANGES = pa.table({"name": ["x", "y"], "rowid": pa.array([3, 1], pa.int64())})
IDS = pa.table({"rowid": pa.array([3, 1], pa.int64())})


def expected_method(abilities: tuple[type[OwnTable], ...], operation: str) -> str | None:
    """The compatibility matrix of §10."""
    preferred: dict[str, list[tuple[type[OwnTable], str]]] = {
        "insert": [(Inserts, "insert")],
        "update": [(UpdatesBatches, "update_batches"), (Updates, "update")],
        "delete": [(DeletesBatches, "delete_batches"), (Deletes, "delete")],
    }
    return next((method for ability, method in preferred[operation] if ability in abilities), None)


@pytest.mark.parametrize("abilities", SUBSETS, ids=lambda chosen: "+".join(NAMES[item] for item in chosen) or "none")
def test_the_compatibility_matrix(abilities: tuple[type[OwnTable], ...]) -> None:
    refusals = {"insert": "INSERT operations", "update": "UPDATE (no rowid)", "delete": "DELETE (no rowid)"}
    for operation, rows in (("insert", ROWS), ("update", CHANGES), ("delete", IDS)):
        method = expected_method(abilities, operation)
        with served(own_table(abilities)) as own:
            if method is None:
                with refused("FAILED_PRECONDITION", f"table 'own' does not support {refusals[operation]}"):
                    change(own.connection, operation, "public.own", rows)
                assert own.calls == []
                continue
            count, _ = change(own.connection, operation, "public.own", rows)
            assert count == 2
            assert [call.method for call in own.calls] == [method]


@pytest.mark.parametrize("abilities", SUBSETS, ids=lambda chosen: "+".join(NAMES[item] for item in chosen) or "none")
def test_the_compatibility_matrix_by_json(abilities: tuple[type[OwnTable], ...]) -> None:
    refusals = {"insert": "INSERT operations", "update": "UPDATE (no rowid)", "delete": "DELETE (no rowid)"}
    calls: dict[str, Any] = {
        "insert": lambda own: own.json.insert("public.own", ROWS),
        "update": lambda own: own.json.update("public.own", [3, 1], ROWS),
        "delete": lambda own: own.json.delete("public.own", [3, 1]),
    }
    for operation, call in calls.items():
        method = expected_method(abilities, operation)
        with served(own_table(abilities)) as own:
            if method is None:
                with refused("FAILED_PRECONDITION", f"table 'own' does not support {refusals[operation]}"):
                    call(own)
                continue
            assert call(own).affected_rows == 2
            assert [made.method for made in own.calls] == [method]


def test_a_batch_update_gets_rows_with_the_row_id_column() -> None:
    with served(own_table([UpdatesBatches, Updates])) as own:
        change(own.connection, "update", "public.own", CHANGES)
        (call,) = own.calls
        assert call.rows == [{"name": "x", "rowid": 3}, {"name": "y", "rowid": 1}]
        assert own.table.rows[3]["name"] == "x"


def test_a_legacy_update_gets_ids_and_stripped_rows() -> None:
    with served(own_table([Updates])) as own:
        change(own.connection, "update", "public.own", CHANGES)
        (call,) = own.calls
        assert (call.ids, call.rows) == ([3, 1], [{"name": "x"}, {"name": "y"}])
        assert own.table.rows[1]["name"] == "y"


def test_a_batch_delete_gets_the_row_id_column() -> None:
    with served(own_table([DeletesBatches, Deletes])) as own:
        change(own.connection, "delete", "public.own", IDS)
        assert own.calls[0].rows == [{"rowid": 3}, {"rowid": 1}]
        assert sorted(own.table.rows) == [0, 2, 4]


def test_a_legacy_delete_gets_ids() -> None:
    with served(own_table([Deletes])) as own:
        change(own.connection, "delete", "public.own", IDS)
        assert own.calls[0].ids == [3, 1]


def test_by_json_the_server_adds_the_row_id_column_for_batch_tables() -> None:
    with served(own_table([UpdatesBatches, DeletesBatches])) as own:
        own.json.update("public.own", [3, 1], ROWS)
        own.json.delete("public.own", [0])
        assert [row["rowid"] for row in own.calls[0].rows] == [3, 1]
        assert own.calls[1].rows == [{"rowid": 0}]


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64()])
@pytest.mark.parametrize("ability", [Updates, UpdatesBatches])
def test_ids_are_taken_from_any_position_and_type(position: int, kind: pa.DataType, ability: type[OwnTable]) -> None:
    columns = [("id", pa.array([7, 8])), ("name", pa.array(["x", "y"]))]
    columns.insert(position, ("rowid", pa.array([4, 2], kind)))
    with served(own_table([ability])) as own:
        assert change(own.connection, "update", "public.own", pa.table(dict(columns)))[0] == 2
        assert own.table.rows[4] == {"id": 7, "name": "x"}
        assert own.table.rows[2] == {"id": 8, "name": "y"}


@pytest.mark.parametrize("ability", [Updates, UpdatesBatches])
def test_a_marked_column_is_the_row_id_whatever_its_name(ability: type[OwnTable]) -> None:
    marked = pa.field("key", pa.int64(), metadata={"is_rowid": "true"})
    rows = pa.table([pa.array([2]), pa.array(["x"])], schema=pa.schema([marked, ("name", pa.string())]))
    with served(own_table([ability], row_id="key")) as own:
        count, back = change(own.connection, "update", "public.own", rows, returning=True)
        assert count == 1
        assert back is not None
        assert back.to_pylist() == [{"key": 2, "name": "x"}]


def test_the_row_id_column_is_found() -> None:
    plain, other = pa.field("a", pa.int64()), pa.field("b", pa.int64())
    assert find_row_id_column(pa.schema([plain, other])) is None
    assert find_row_id_column(pa.schema([])) is None
    assert find_row_id_column(pa.schema([plain, pa.field("rowid", pa.int64()), other])) == 1
    assert find_row_id_column(pa.schema([pa.field("ROWID", pa.int64())])) is None
    assert find_row_id_column(pa.schema([plain, other.with_metadata({"is_rowid": "true"})])) == 1
    assert find_row_id_column(pa.schema([plain, other.with_metadata({"is_rowid": ""})])) is None


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_a_missing_row_id_column(lake: Lake, operation: str) -> None:
    with refused("INVALID_ARGUMENT", f"{operation.upper()} requires rowid column"):
        change(lake.connection, operation, "analytics.events", pa.table({"name": ["x"]}))


@pytest.mark.parametrize("operation", ["update", "delete"])
@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.int16(), pa.uint32(), pa.decimal128(5, 0)])
def test_a_row_id_column_of_another_type(lake: Lake, operation: str, kind: pa.DataType) -> None:
    rows = pa.schema([("name", pa.string()), ("rowid", kind)]).empty_table()
    with refused("INVALID_ARGUMENT", "rowid must be integer type"):
        change(lake.connection, operation, "analytics.events", rows)


def test_no_options_are_default_options() -> None:
    with served(own_table([Inserts])) as own:
        change(own.connection, "insert", "public.own", ROWS)
        assert own.calls[0].options == DMLOptions(returning=False, returning_columns=())


def test_a_table_is_called_once_for_a_whole_stream() -> None:
    with served(own_table(ALL)) as own:
        change(own.connection, "insert", "public.own", _Chunks(ROWS, 3))
        change(own.connection, "delete", "public.own", _Chunks(pa.table({"rowid": [0]}), 1))
        assert [(call.method, len(call.rows)) for call in own.calls] == [("insert", 6), ("delete_batches", 1)]


class _Chunks(list[pa.RecordBatch]):
    """The same rows several times over, as batches that know their schema."""

    def __init__(self, rows: pa.Table, times: int) -> None:
        super().__init__(rows.to_batches() * times)
        self.schema = rows.schema


def test_a_table_that_leaves_rows_unread_ends_well() -> None:
    class Lazy(Inserts):
        def insert(self, ctx: Any, rows: pa.RecordBatchReader, options: Any = None) -> Any:
            rows.read_next_batch()
            return super().insert(ctx, pa.table({"id": [1], "name": ["x"]}).to_reader(), options)

    with served(Lazy()) as own:
        assert change(own.connection, "insert", "public.own", _Chunks(ROWS, 5))[0] == 1


def test_the_readers_of_a_table_are_closed() -> None:
    kept: list[pa.RecordBatchReader] = []

    class Keeping(Inserts):
        def insert(self, ctx: Any, rows: pa.RecordBatchReader, options: Any = None) -> Any:
            kept.append(rows)
            return super().insert(ctx, rows, options)

    with served(Keeping()) as own:
        change(own.connection, "insert", "public.own", ROWS)
    with pytest.raises((OSError, pa.ArrowInvalid, StopIteration)):
        kept[0].read_next_batch()
