"""Scans by the client: what comes back, that it comes lazily, and that nothing stays open."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Sequence

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import row_id_field
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.table import Table
from sparkport.client import Client, ScanResult, col, connect
from sparkport.errors import Cancelled, Conflict, FailedPrecondition, InvalidArgument, Unsupported
from sparkport.filters.expressions import BOOLEAN, And, Cast, Column, Comparison, Function, Literal, SqlType
from sparkport.filters.predicates import Predicate, lit
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

WAIT = 20
USERS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, None], pa.int64()),
        "Name": ["ann", "bob", "cid", None, "eve"],
        "score": [1.5, float("nan"), -2.0, None, 0.0],
        "tags": [["x"], [], None, ["y", "z"], ["x"]],
    }
)
ITEMS = pa.Table.from_arrays(
    [pa.array([10, 20, 30]), pa.array(["x", "y", "z"])],
    schema=pa.schema([row_id_field(), pa.field("item", pa.string())]),
)
NUMBERS = pa.schema([("n", pa.int64())])


class Endless:
    """A scan without end that counts what is taken from it and tells when it is closed."""

    def __init__(self, rows: int = 10_000) -> None:
        self.rows = rows
        self.made = 0
        self.requests: list[ScanRequest] = []
        self.closed = threading.Event()

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        self.requests.append(request)
        return Scan(self._batches(), close=self.closed.set)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            self.made += 1
            yield pa.record_batch({"n": pa.array(range(self.rows), pa.int64())})


class Parts(Table):
    """Split into parts of ``batches`` batches each; each value is part * 1000 + batch."""

    name = "parts"

    def __init__(self, parts: int, batches: int, *, broken: int | None = None) -> None:
        self.parts, self.batches, self.broken = parts, batches, broken
        self.lock = threading.Lock()
        self.open = self.most = self.closed = 0
        self.all_closed = threading.Event()

    @property
    def schema(self) -> pa.Schema:
        return NUMBERS

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        return [request.with_part(str(part).encode()) for part in range(self.parts)]

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        once = threading.Lock()
        return Scan(self._rows(int(request.part)), close=lambda: self._close(once))

    def _rows(self, part: int) -> Iterator[pa.RecordBatch]:
        for batch in range(self.batches):
            if part == self.broken and batch == 1:
                raise Conflict(f"part {part} is gone")
            yield pa.record_batch({"n": pa.array([part * 1000 + batch], pa.int64())})

    def _close(self, once: threading.Lock) -> None:
        if not once.acquire(blocking=False):
            return
        with self.lock:
            self.open -= 1
            if self.open == 0:
                self.all_closed.set()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    catalog = CatalogBuilder().schema("public").table("users", USERS).table("items", ITEMS).build()
    with serving(catalog) as server, connect(server.location) as client:
        yield client


def test_a_scan_returns_the_table_as_it_is(client: Client) -> None:
    result = client.scan("public.users")
    assert result.schema.equals(USERS.schema, check_metadata=True)
    assert str(result.read_all().to_pylist()) == str(USERS.to_pylist())


def test_only_the_columns_asked_for_come_back_in_that_order(client: Client) -> None:
    found = client.scan("public.users", columns=["tags", "ID"]).read_all()
    assert found == USERS.select(["tags", "id"])


def test_a_scan_without_columns_still_counts(client: Client) -> None:
    assert client.scan("public.users", columns=[]).read_all().num_rows == 5
    assert client.scan("public.users", columns=[], filter=col("id") > 2).read_all().num_rows == 2
    always = Predicate(Literal(True, BOOLEAN))
    assert client.scan("public.users", columns=[], filter=always).read_all().num_rows == 5


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (col("id") > 2, [3, 4]),
        ((col("id") == 1) | (col("name") == "eve"), [1, None]),
        (~(col("id") < 3) & col("Name").is_not_null(), [3]),
        (col("id").isin([1, 4]), [1, 4]),
        (col("id").between(2, 3), [2, 3]),
        (col("name").like("%b%"), [2]),
        (col("name").ilike("A%"), [1]),
        (col("score") > 1, [1, 2]),
        (col("score").is_null(), [4]),
        (col("id") > 100, []),
    ],
)
def test_filters_keep_the_rows_that_duckdb_would_keep(client: Client, condition: Predicate, ids: list[int]) -> None:
    found = client.scan("users", columns=["id"], filter=condition).read_all()
    assert found.column_names == ["id"]
    assert found.column("id").to_pylist() == ids


def test_the_filter_is_pushed_down_and_applied_again_to_what_comes() -> None:
    asked: list[ScanRequest] = []

    def careless(ctx: CallContext, request: ScanRequest) -> pa.Table:
        asked.append(request)
        return pa.table({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]})

    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    catalog = CatalogBuilder().schema("public").scan_table("t", schema, careless).build()
    with serving(catalog) as server, connect(server.location) as client:
        found = client.scan("t", columns=["c"], filter=col("a") >= 2).read_all()
    assert found == pa.table({"c": [8, 9]})
    (request,) = asked
    assert request.columns == ("a", "c")
    assert str(request.filter) == '("a" >= BIGINT 2)'


def test_columns_that_arrow_cannot_filter_are_filtered_all_the_same() -> None:
    rows = pa.table({"a": [1, 2, 3, 4, 5], "v": pa.array(["p", "q", None, "s", "t"], pa.string_view())})
    catalog = CatalogBuilder().schema("public").scan_table("t", rows.schema, lambda ctx, request: rows).build()
    with serving(catalog) as server, connect(server.location) as client:
        some = client.scan("t", filter=col("a").isin([1, 3, 4])).read_all()
        none = client.scan("t", filter=col("a") > 5).read_all()
    assert some.to_pydict() == {"a": [1, 3, 4], "v": ["p", None, "s"]}
    assert (none.num_rows, none.schema) == (0, rows.schema)


def test_a_filter_that_cannot_be_applied_is_refused_and_never_ignored(client: Client) -> None:
    unknown = Function("no_such_function", (Column("id"),), BOOLEAN)
    with pytest.raises(Unsupported, match="cannot be applied exactly"):
        client.scan("users", filter=unknown)
    with pytest.raises(Unsupported, match="cannot be applied exactly"):
        client.scan("users", filter=(col("id") > 1) & Predicate(unknown))


def test_a_filter_that_fails_on_the_rows_is_refused_too(client: Client) -> None:
    number = Cast(Column("Name", SqlType("VARCHAR")), SqlType("BIGINT"))
    scan = client.scan("users", filter=And(((col("id") > 0).expr, Comparison(">", number, lit(5)))))
    with pytest.raises(Unsupported, match="cannot be applied exactly"):
        scan.read_all()


def test_row_ids_come_only_when_asked_for(client: Client) -> None:
    assert client.scan("items").read_all().to_pydict() == {"item": ["x", "y", "z"]}
    found = client.scan("items", row_id=True).read_all()
    assert found.to_pydict() == {"item": ["x", "y", "z"], "rowid": [10, 20, 30]}
    assert client.scan("items", columns=["rowid"]).read_all().to_pydict() == {"rowid": [10, 20, 30]}
    found = client.scan("items", columns=["item"], filter=col("rowid") > 10).read_all()
    assert found.to_pydict() == {"item": ["y", "z"]}
    with pytest.raises(InvalidArgument, match="has no row ids"):
        client.scan("users", row_id=True)


def test_wrong_columns_are_named(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="has no column 'nope'; it has: id, Name, score, tags"):
        client.scan("users", columns=["nope"])
    with pytest.raises(InvalidArgument, match="has no column 'nope'"):
        client.scan("users", filter=col("nope") == 1)
    with pytest.raises(InvalidArgument, match="twice"):
        client.scan("users", columns=["id", "ID"])
    with pytest.raises(InvalidArgument, match="not one text"):
        client.scan("users", columns="id")


def test_rows_go_to_pandas_polars_and_duckdb(client: Client) -> None:
    frame = client.scan("users", columns=["id", "Name"]).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["Name"])[:3] == ["ann", "bob", "cid"]
    polar = client.scan("users").to_polars()
    assert isinstance(polar, pl.DataFrame)
    assert polar["id"].to_list() == [1, 2, 3, 4, None]
    assert pl.DataFrame(client.scan("users", columns=["id"]))["id"].to_list() == [1, 2, 3, 4, None]
    scanned = client.scan("users")
    assert duckdb.from_arrow(scanned).sum("id").fetchall() == [(10,)]


def test_a_reader_streams_the_rows(client: Client) -> None:
    reader = client.scan("users", columns=["id"]).to_reader()
    assert reader.schema.names == ["id"]
    assert reader.read_all() == USERS.select(["id"])


@pytest.mark.parametrize(("library", "method"), [("pandas", "to_pandas"), ("polars", "to_polars")])
def test_a_library_that_is_not_installed_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, library: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unsupported, match=rf"{method}\(\) needs {library}"), client.scan("users") as scan:
        getattr(scan, method)()


def test_rows_can_be_read_once(client: Client) -> None:
    scan = client.scan("users")
    assert scan.read_all().num_rows == 5
    with pytest.raises(FailedPrecondition, match="read or closed already"):
        scan.read_all()
    with client.scan("users") as closed:
        pass
    with pytest.raises(FailedPrecondition, match="read or closed already"):
        iter(closed)
    assert repr(closed).startswith("ScanResult(id: int64, Name: string")


def test_a_table_that_changes_between_plan_and_read_is_noticed() -> None:
    class Changing(Table):
        name = "changing"
        kind = pa.int64()

        @property
        def schema(self) -> pa.Schema:
            return pa.schema([("n", self.kind)])

        def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
            return pa.table({"n": pa.array([], self.kind)})

    table = Changing()
    with serving(CatalogBuilder().schema("public").add(table).build()) as server, connect(server.location) as client:
        scan = client.scan("changing")
        table.kind = pa.string()
        with pytest.raises(FailedPrecondition, match="column 'n' has changed"):
            scan.read_all()


# Laziness, and what is left behind


@pytest.fixture
def endless() -> Iterator[tuple[Client, Endless]]:
    table = Endless()
    catalog = CatalogBuilder().schema("public").scan_table("endless", NUMBERS, table.scan).build()
    with serving(catalog) as server, connect(server.location) as client:
        yield client, table


def leave_loop(scan: ScanResult) -> None:
    for _ in scan:
        break


def close_it(scan: ScanResult) -> None:
    next(iter(scan))
    scan.close()


def use_with(scan: ScanResult) -> None:
    with scan:
        next(iter(scan))


def drop_reader(scan: ScanResult) -> None:
    reader = scan.to_reader()
    assert reader.read_next_batch().num_rows == 10_000
    del reader
    gc.collect()


@pytest.mark.parametrize("abandon", [leave_loop, close_it, use_with, drop_reader])
def test_an_abandoned_scan_is_closed_at_the_server(endless: tuple[Client, Endless], abandon: object) -> None:
    client, table = endless
    scan = client.scan("endless")
    assert callable(abandon)
    abandon(scan)
    assert table.closed.wait(WAIT)


def test_a_big_scan_is_not_read_ahead_of_need(endless: tuple[Client, Endless]) -> None:
    client, table = endless
    scan = client.scan("endless")
    assert table.requests == []
    batches = iter(scan)
    assert next(batches).num_rows == 10_000
    del batches
    assert table.closed.wait(WAIT)
    assert table.made < 2_000  # of 80 kB each: what gRPC's windows hold, and no more


def test_closing_the_client_ends_its_scans(endless: tuple[Client, Endless]) -> None:
    client, table = endless
    batches = iter(client.scan("endless"))
    next(batches)
    client.close()
    with pytest.raises(Cancelled):
        list(batches)
    assert table.closed.wait(WAIT)


def test_a_scan_closed_by_another_thread_does_not_look_complete(endless: tuple[Client, Endless]) -> None:
    client, table = endless
    scan = client.scan("endless")
    batches = iter(scan)
    next(batches)
    closer = threading.Thread(target=scan.close)
    closer.start()
    closer.join()
    with pytest.raises(Cancelled):
        list(batches)
    assert table.closed.wait(WAIT)


# Several endpoints


def test_parts_are_read_in_parallel_and_come_in_order() -> None:
    table = Parts(parts=11, batches=20)
    with serving(CatalogBuilder().schema("public").add(table).build()) as server, connect(server.location) as client:
        found = client.scan("parts").read_all().column("n").to_pylist()
        filtered = client.scan("parts", filter=col("n") >= 10_000).read_all().column("n").to_pylist()
    assert found == [part * 1000 + batch for part in range(11) for batch in range(20)]
    assert filtered == [10_000 + batch for batch in range(20)]
    assert 1 < table.most <= 4


def test_a_table_without_parts_has_no_rows() -> None:
    with (
        serving(CatalogBuilder().schema("public").add(Parts(0, 0)).build()) as server,
        connect(server.location) as client,
    ):
        assert client.scan("parts").read_all() == NUMBERS.empty_table()


def test_an_error_in_one_part_is_raised_after_the_rows_before_it_and_all_parts_are_closed() -> None:
    table = Parts(parts=6, batches=5, broken=1)
    with serving(CatalogBuilder().schema("public").add(table).build()) as server, connect(server.location) as client:
        batches = iter(client.scan("parts"))
        seen = [next(batches).column("n")[0].as_py() for _ in range(6)]
        with pytest.raises(Conflict, match=r"^part 1 is gone$"):
            next(batches)
        assert seen == [0, 1, 2, 3, 4, 1000]
        assert table.all_closed.wait(WAIT)


def test_abandoned_parts_are_all_closed_and_their_threads_end() -> None:
    table = Parts(parts=6, batches=100_000)
    with serving(CatalogBuilder().schema("public").add(table).build()) as server, connect(server.location) as client:
        for _ in client.scan("parts"):
            break
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("sparkport-scan-")]
        for worker in workers:
            worker.join(WAIT)
        assert not any(worker.is_alive() for worker in workers)
        assert table.all_closed.wait(WAIT)


def test_parts_closed_by_another_thread_do_not_look_complete() -> None:
    table = Parts(parts=3, batches=100_000)
    with serving(CatalogBuilder().schema("public").add(table).build()) as server, connect(server.location) as client:
        scan = client.scan("parts")
        batches = iter(scan)
        next(batches)
        scan.close()
        with pytest.raises(Cancelled):
            list(batches)
