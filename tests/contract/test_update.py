"""UPDATE by JSON: the operation, its answer and its table of errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, command, refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.support.flight_rpc import Connection

from sparkport.catalog.builder import CatalogBuilder
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")


def test_rows_are_matched_by_position(lake: Lake) -> None:
    answer = lake.json.update("analytics.events", [3, 1], events(33, 11))
    assert (answer.status, answer.affected_rows, answer.rows) == ("success", 2, None)
    assert lake.names() == {0: "old0", 1: "new11", 2: "old2", 3: "new33", 4: "old4"}


def test_the_answer_has_exactly_the_documented_keys(lake: Lake) -> None:
    answer = lake.json.put(command("update", "analytics.events", row_ids=[1]), EVENTS, events(10).to_batches())
    assert answer == {"status": "success", "affected_rows": 1, "returning_data": None}


def test_row_ids_go_on_over_batches(lake: Lake) -> None:
    batches = [*events(20, 21).to_batches(), *events(22).to_batches()]
    answer = lake.json.put(command("update", "analytics.events", row_ids=[0, 1, 2]), EVENTS, batches)
    assert answer["affected_rows"] == 3
    assert [lake.names()[row_id] for row_id in (0, 1, 2)] == ["new20", "new21", "new22"]


@pytest.mark.tier("fast")
def test_returning_gives_the_new_values_back(lake: Lake) -> None:
    answer = lake.json.update("analytics.events", [4, 2], events(44, 22), returning=True)
    assert answer.rows is not None
    assert answer.rows.to_pylist() == events(44, 22).to_pylist()


@pytest.mark.parametrize("row_ids", [[], None])
def test_empty_row_ids(lake: Lake, row_ids: Any) -> None:
    with refused("INVALID_ARGUMENT", "row_ids cannot be empty for UPDATE"):
        lake.json.update("analytics.events", row_ids, events(10))


def test_absent_row_ids(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "row_ids cannot be empty for UPDATE"):
        lake.json.put(command("update", "analytics.events"), EVENTS, events(10).to_batches())


@pytest.mark.parametrize(("row_ids", "rows"), [(4, 3), (3, 4), (1, 0), (1, 5)])
def test_row_count_mismatch(lake: Lake, row_ids: int, rows: int) -> None:
    before = lake.rows()
    with refused("INVALID_ARGUMENT", f"row_ids count ({row_ids}) does not match input rows ({rows})"):
        lake.json.update("analytics.events", list(range(row_ids)), events(*range(rows)))
    assert lake.rows() == before


def test_no_rowid_support() -> None:
    catalog = CatalogBuilder("lake").schema("analytics").table("events", events(1)).build()
    with serving(catalog) as server:
        connection = Connection(server.location)
        with refused("FAILED_PRECONDITION", "table 'events' does not support UPDATE (no rowid)"):
            JsonClient(connection).update("analytics.events", [1], events(10))
        connection.close()


@pytest.mark.tier("fast")
@pytest.mark.parametrize("missing", [99, 5, -1, 2**63 - 1, -(2**63)])
def test_row_not_found_changes_nothing(lake: Lake, missing: int) -> None:
    before = lake.rows()
    with refused("NOT_FOUND", f"row_id {missing} not found in table"):
        lake.json.update("analytics.events", [1, missing], events(11, 12))
    assert lake.rows() == before


def test_schema_and_table_not_found(lake: Lake) -> None:
    with refused("NOT_FOUND", "schema 'nothing' not found"):
        lake.json.update("nothing.events", [1], events(10))
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        lake.json.update("analytics.nothing", [1], events(10))


def test_an_update_carries_all_columns(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "column mismatch: table has 5 columns, input has 2"):
        lake.json.update("analytics.events", [1], events(10).select(["id", "name"]))


def test_the_rowid_is_no_column_of_the_input(lake: Lake) -> None:
    rows = events(10).append_column("rowid", pa.array([1]))
    with refused("INVALID_ARGUMENT", "column mismatch: table has 5 columns, input has 6"):
        lake.json.update("analytics.events", [1], rows)


def test_null_into_a_not_null_column_names_the_column(lake: Lake) -> None:
    loose = pa.schema([column.with_nullable(True) for column in EVENTS])
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: events.id"):
        lake.json.update("analytics.events", [1], pa.Table.from_pylist([{"id": None}], loose))


@pytest.mark.parametrize("row_ids", ["1", {"1": 1}, [1.0], ["1"], [True], [None], [[1]], 7])
def test_row_ids_of_the_wrong_type_are_named(lake: Lake, row_ids: Any) -> None:
    with refused("INVALID_ARGUMENT", "descriptor key 'row_ids' must be a list of integers"):
        lake.json.update("analytics.events", row_ids, events(10))


@pytest.mark.parametrize("row_id", [2**63, -(2**63) - 1, 10**30])
def test_row_ids_beyond_int64_are_refused(lake: Lake, row_id: int) -> None:
    with refused("INVALID_ARGUMENT", f"row_ids has {row_id}, which is out of range"):
        lake.json.update("analytics.events", [row_id], events(10))


def test_of_ids_given_twice_the_last_value_wins_and_counts_once(lake: Lake) -> None:
    answer = lake.json.update("analytics.events", [1, 2, 1], events(11, 22, 111))
    assert answer.affected_rows == 2
    assert (lake.names()[1], lake.names()[2]) == ("new111", "new22")
