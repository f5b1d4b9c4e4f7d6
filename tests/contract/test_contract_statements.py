"""The contract's smaller decisions: ids of statements, versions, and what a listing's version counts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, change, open_exchange, refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.contract.own_tables import Inserts
from tests.support.flight_rpc import Connection

from sparkport.auth.identity import Identity
from sparkport.auth.model import Authenticator, Peer
from sparkport.auth.secret import Secret
from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import ScanRequest
from sparkport.catalog.table import DMLOptions, DMLResult
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

HEADERS = ["x-statement-id", "airport-trace-id"]
TABLE = "analytics.events"
CHANGES = pa.table({"name": ["x"], "rowid": pa.array([1], pa.int64())})
IDS = pa.table({"rowid": pa.array([1, 2], pa.int64())})


@pytest.mark.tier("fast")
@pytest.mark.parametrize("header", HEADERS)
def test_a_repeat_of_a_committed_statement_gets_the_recorded_count(lake: Lake, header: str) -> None:
    client = lake.json.with_header(header, "s1")
    assert [client.insert(TABLE, events(10, 11)).affected_rows for _ in range(3)] == [2, 2, 2]
    assert [client.update(TABLE, [1], events(1)).affected_rows for _ in range(3)] == [1, 1, 1]
    assert [client.delete(TABLE, [2]).affected_rows for _ in range(3)] == [1, 1, 1]
    assert len(lake.rows()) == 6


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize(
    ("operation", "rows", "count"), [("insert", events(10), 1), ("update", CHANGES, 1), ("delete", IDS, 2)]
)
def test_a_repeat_from_duckdb_gets_the_recorded_count(
    lake: Lake, header: str, operation: str, rows: pa.Table, count: int
) -> None:
    for _ in range(3):
        assert change(lake.connection, operation, TABLE, rows, headers=[(header, "s1")])[0] == count
    assert len(lake.rows()) == {"insert": 6, "update": 5, "delete": 3}[operation]


def test_a_repeat_gets_its_count_by_names_in_other_letters_and_when_the_table_has_gone(lake: Lake) -> None:
    client = lake.json.with_header("x-statement-id", "s1")
    assert client.insert("Analytics.EVENTS", events(10)).affected_rows == 1
    assert client.insert("Analytics.EVENTS", events(10)).affected_rows == 1
    assert len(lake.rows()) == 6
    dropped = {"type": "table", "catalog_name": "lake", "schema_name": "analytics", "name": "events"}
    lake.duckdb().action("drop_table", {**dropped, "ignore_not_found": False})
    assert client.insert("Analytics.EVENTS", events(10)).affected_rows == 1


def test_with_returning_a_repeat_already_exists(lake: Lake) -> None:
    message = "statement 's1' has been committed: its rows cannot be returned again"
    client = lake.json.with_header("x-statement-id", "s1")
    client.insert(TABLE, events(10), returning=True)
    with refused("ALREADY_EXISTS", message):
        client.insert(TABLE, events(10), returning=True)
    with refused("ALREADY_EXISTS", message):
        change(lake.connection, "insert", TABLE, events(10), returning=True, headers=[("airport-trace-id", "s1")])
    assert len(lake.rows()) == 6


def test_the_statement_id_comes_before_the_trace_id(lake: Lake) -> None:
    for trace in ("t1", "t2"):
        lake.json.with_header("x-statement-id", "s1").with_header("airport-trace-id", trace).insert(TABLE, events(10))
    assert len(lake.rows()) == 6


def test_a_statement_that_failed_can_be_sent_again(lake: Lake) -> None:
    client = lake.json.with_header("x-statement-id", "s1")
    with refused("NOT_FOUND", "row_id 99 not found in table"):
        client.delete(TABLE, [99])
    assert client.delete(TABLE, [1]).affected_rows == 1


@pytest.mark.parametrize(("deferred", "returning"), [(False, True), (True, False), (True, True)])
def test_a_row_to_be_deleted_that_is_not_there_is_not_found(lake: Lake, returning: bool, deferred: bool) -> None:
    client = lake.json.inside(lake.json.begin(auto_commit=False)) if deferred else lake.json
    with refused("NOT_FOUND", "row_id 99 not found in table"):
        client.delete(TABLE, [1, 99], returning=returning)
    assert len(lake.rows()) == 5


def test_an_id_is_that_of_one_kind_of_statement_on_one_table(lake: Lake) -> None:
    client = lake.json.with_header("x-statement-id", "s1")
    client.insert(TABLE, events(10))
    assert client.insert("analytics.other", pa.table({"a": [1], "b": ["x"]})).affected_rows == 1
    assert client.delete(TABLE, [1, 2]).affected_rows == 2


def test_without_an_id_nothing_is_a_repeat(lake: Lake) -> None:
    for _ in range(2):
        lake.json.insert(TABLE, events(10))
    assert len(lake.rows()) == 7


def test_a_statement_of_a_deferred_transaction_is_part_of_that_one_only(lake: Lake) -> None:
    for _ in range(2):
        transaction = lake.json.begin(auto_commit=False)
        client = lake.json.inside(transaction).with_header("x-statement-id", "s1")
        assert client.insert(TABLE, events(10)).affected_rows == 1
        assert client.insert(TABLE, events(10)).affected_rows == 1
        lake.json.commit(transaction)
    assert len(lake.rows()) == 7


def test_a_repeat_gets_its_count_also_when_its_transaction_has_gone(lake: Lake) -> None:
    client = lake.json.inside(lake.json.begin()).with_header("x-statement-id", "s1")
    client.insert(TABLE, events(10))
    lake.clock.advance(minutes=30)
    assert client.insert(TABLE, events(10)).affected_rows == 1
    assert len(lake.rows()) == 6


def test_a_repeat_with_returning_does_not_abort_the_transaction(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    client = lake.json.inside(transaction).with_header("x-statement-id", "s1")
    client.insert(TABLE, events(10), returning=True)
    with refused("ALREADY_EXISTS", "statement 's1' has been committed: its rows cannot be returned again"):
        client.insert(TABLE, events(10), returning=True)
    assert lake.json.commit(transaction) == "committed"


def test_a_repeat_that_overtakes_the_first_is_aborted_and_does_no_harm(lake: Lake) -> None:
    transaction = lake.json.begin()
    headers = [("airport-trace-id", "s1"), ("airport-transaction-id", transaction)]
    with open_exchange(lake.connection, "insert", TABLE, EVENTS, headers=headers) as exchange:
        exchange.write(events(10).to_batches()[0])
        with refused("UNAVAILABLE", "the same statement is still running: send it again for its outcome"):
            change(lake.connection, "insert", TABLE, events(10), headers=headers)
        exchange.done_writing()
        exchange.read_final_metadata()
    assert len(lake.rows()) == 6
    assert lake.json.status(transaction) == "committed"


class ByToken(Authenticator):
    """The token is the caller's name."""

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        return Identity("nobody" if token is None else token.reveal())


def test_an_id_of_one_caller_is_not_that_of_another_and_tables_know_who_calls() -> None:
    callers: list[str] = []

    class Knowing(Inserts):
        def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
            callers.append(ctx.identity.subject)
            return super().insert(ctx, rows, options)

    catalog = CatalogBuilder("lake").schema("public").add(Knowing()).build()
    rows = pa.table({"id": [1], "name": ["x"]})
    with serving(catalog, authenticator=ByToken()) as server:
        connection = Connection(server.location)
        for caller in ("ann", "bob", "ann"):
            client = JsonClient(connection, [("authorization", f"Bearer {caller}"), ("x-statement-id", "s1")])
            assert client.insert("public.own", rows).affected_rows == 1
        connection.close()
    assert callers == ["ann", "bob"]


# Versions


@pytest.mark.journal_gap("what is published counts: a flush is one version")
def test_every_commit_to_a_table_counts_one_version(lake: Lake) -> None:
    lake.json.insert(TABLE, events(10))
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).insert(TABLE, events(11))
    lake.json.inside(transaction).delete(TABLE, [0])
    lake.json.insert("analytics.other", pa.table({"a": [1], "b": ["x"]}))
    lake.json.commit(transaction)
    duckdb = lake.duckdb()
    counts = [duckdb.scan(TABLE, ["id"], at=("VERSION", str(n))).rows.num_rows for n in range(4)]
    assert counts == [0, 5, 6, 6]
    assert duckdb.scan("analytics.other", ["a"], at=("VERSION", "1")).rows.num_rows == 1


@pytest.mark.parametrize("version", ["4", "-1"])
def test_an_unknown_version_names_the_oldest_that_is_left(lake: Lake, version: str) -> None:
    with refused("NOT_FOUND", f"table 'events' has no version {version}; the oldest is 0"):
        lake.duckdb().scan(TABLE, at=("VERSION", version))


def test_a_statement_that_changed_nothing_is_no_version(lake: Lake) -> None:
    change(lake.connection, "delete", TABLE, pa.table({"rowid": pa.array([99], pa.int64())}))
    lake.json.insert(TABLE, EVENTS.empty_table())
    with refused("NOT_FOUND", "table 'events' has no version 2; the oldest is 0"):
        lake.duckdb().scan(TABLE, at=("VERSION", "2"))


@pytest.mark.memory_only("commits of the lakehouse have the time of the machine")
def test_a_timestamp_means_the_last_commit_not_after_it(lake: Lake) -> None:
    created = lake.clock.now
    lake.clock.advance(minutes=1)
    lake.json.insert(TABLE, events(10))
    changed = lake.clock.now
    duckdb = lake.duckdb()
    assert duckdb.scan(TABLE, ["id"], at=("TIMESTAMP", created.isoformat(" "))).rows.num_rows == 5
    assert duckdb.scan(TABLE, ["id"], at=("TIMESTAMP", changed.isoformat(" "))).rows.num_rows == 6
    message = f"table 'events' has no version at 2020-01-01 00:00:00; the oldest is of {created}"
    with refused("NOT_FOUND", message):
        duckdb.scan(TABLE, at=("TIMESTAMP", "2020-01-01 00:00:00"))


def test_the_version_of_the_catalog_changes_with_names_and_not_with_rows(lake: Lake) -> None:
    before = lake.catalog.version(CallContext())
    lake.json.insert(TABLE, events(10))
    assert lake.catalog.version(CallContext()) == before
    lake.create_table("analytics.more", EVENTS)
    assert lake.catalog.version(CallContext()) != before


def test_without_a_transaction_a_scan_reads_what_it_was_planned_for(lake: Lake) -> None:
    (planned,) = lake.events.plan(CallContext(), ScanRequest())
    lake.json.insert(TABLE, events(10))
    assert sum(batch.num_rows for batch in lake.events.scan(CallContext(), planned)) == 5
    assert len(lake.rows()) == 6
