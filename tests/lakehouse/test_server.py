"""The lakehouse over the wire: DuckDB's client, its recordings, several endpoints, and a Spark that is not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.integration import test_golden_rows as golden
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.support import golden_catalog as shop
from tests.support.duckdb_client import AirportError, Attached, DuckDBClient
from tests.support.filters import Node, compare, conjunction, filter_json, is_not_null
from tests.support.golden import Recorded, replay
from tests.support.lakehouse import Lake, lakehouse
from tests.support.listing import raw, unpack
from tests.support.spark import shared_spark

from sparkport.app import Server
from sparkport.catalog import CallContext, Catalog
from sparkport.catalog.ddl import AddColumn, ChangeType, DropColumn, MutableSchema, OnConflict, TableDefinition
from sparkport.client import Client, connect
from sparkport.errors import AlreadyExists, Unavailable
from sparkport.handlers.builtin import RESERVED_SCHEMAS
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.scan.limits import Ways
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")


@pytest.fixture(scope="module")
def server(lake: Lake) -> Iterator[Server]:
    # The client gives up on a server that says nothing for too long: let Spark start and warm up before.
    shared_spark().wait_ready(300)
    create(lake, "warm", PEOPLE.slice(0, 1))
    with serving(lake.opened.catalog) as running:
        yield running


@pytest.fixture
def duck(server: Server) -> Iterator[Attached]:
    with DuckDBClient(server.location) as client:
        yield client.attach("lake")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as opened:
        yield opened


PEOPLE = pa.table(
    {"id": pa.array(range(100), pa.int64()), "name": [None if i % 9 == 0 else f"n{i}" for i in range(100)]}
)


# A table's life


@pytest.mark.tier("fast")
def test_a_table_lives_from_create_to_drop(client: Client, server: Server) -> None:
    client.create_table("public.life", PEOPLE.schema)
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        assert duck.insert("public.life", PEOPLE).count == 100
        back = duck.insert("public.life", PEOPLE.slice(0, 3), returning=True)
        assert back.rows is not None
        assert (back.count, back.rows.select(["id", "name"]).to_pylist()) == (3, PEOPLE.slice(0, 3).to_pylist())
        ids = duck.scan("public.life", ["id", "rowid"]).rows.to_pydict()
        changes = pa.table({"name": ["first", "second"], "rowid": pa.array(ids["rowid"][:2], pa.int64())})
        updated = duck.update("public.life", changes, returning=True)
        assert updated.rows is not None
        assert updated.rows.to_pydict()["name"] == ["first", "second"]
        deleted = duck.delete("public.life", ids["rowid"][2:4], returning=True)
        assert deleted.rows is not None
        assert (deleted.count, deleted.rows["id"].to_pylist()) == (2, [2, 3])
        assert duck.scan("public.life", ()).full.num_rows == 101
    client.add_column("public.life", pa.field("extra", pa.int32()))
    client.rename_column("public.life", "name", "label")
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        assert duck.table("public.life").columns == ["id", "label", "extra"]
        assert duck.scan("public.life", at=("VERSION", "1")).rows.to_pylist() == PEOPLE.to_pylist()
        assert duck.scan("public.life", at=("VERSION", "0")).rows.num_rows == 0
        assert {"first", "second"} < set(duck.scan("public.life", ["label"]).rows["label"].to_pylist())
        statistics = duck.column_statistics("public.life", "id")
        assert (statistics["min"], statistics["max"]) == (0, 99)
    client.drop_table("public.life")
    assert main_of_server(server, "life") is None


def main_of_server(server: Server, name: str) -> object:
    with DuckDBClient(server.location) as process:
        entries = process.attach("lake").schemas["public"].entries
    return next((entry for entry in entries if entry.name == name), None)


@pytest.mark.tier("fast")
def test_create_table_as_in_one_transaction_sees_its_own_table(duck: Attached, lake: Lake) -> None:
    """The client sends its transaction with the rows, and not with CREATE TABLE."""
    with duck.transaction():
        body = {
            "catalog_name": "lake",
            "schema_name": "public",
            "table_name": "made_as",
            "arrow_schema": PEOPLE.schema.serialize().to_pybytes(),
            "on_conflict": "error",
            **{key: [] for key in _CONSTRAINTS},
        }
        duck.action("create_table", body)
        duck.list_schemas()
        assert duck.insert("public.made_as", PEOPLE).count == 100
    assert len(Handle(lake, "made_as").agreed()) == 100


_CONSTRAINTS = (
    "not_null_constraints",
    "unique_constraints",
    "check_constraints",
    "primary_key_columns",
    "unique_columns",
    "multi_key_primary_keys",
    "extra_constraints",
)


FILTERS: dict[str, tuple[list[Node], str]] = {
    "equal": ([compare("id", "=", 17)], "id = 17"),
    "range": ([compare("id", ">=", 10), compare("id", "<", 20)], "id >= 10 AND id < 20"),
    "text": ([compare("name", ">", "n5", kind="VARCHAR")], "name > 'n5'"),
    "not null": ([is_not_null("name", kind="VARCHAR")], "name IS NOT NULL"),
    "either": ([conjunction(compare("id", "<", 3), compare("id", ">", 97), any_of=True)], "id < 3 OR id > 97"),
    "none": ([compare("id", ">", 1000)], "id > 1000"),
}


def test_pushed_filters_give_at_least_the_rows_of_duckdb(lake: Lake, server: Server) -> None:
    table = create(lake, "filtered", PEOPLE.slice(0, 50))
    table.insert(PEOPLE.slice(50))
    table.delete([table.ids()[17], table.ids()[98]])
    rows = PEOPLE.filter(pa.array([i not in (17, 98) for i in range(100)]))
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        for name, (filters, sql) in FILTERS.items():
            found = duck.scan("public.filtered", ["id", "name"], filters=filters).rows
            assert (name, selected(found, sql)) == (name, selected(rows, sql))
            assert found.num_rows < 98, f"{name}: nothing was filtered here"


def selected(rows: pa.Table, condition: str) -> list[dict[str, Any]]:
    """The rows that DuckDB itself chooses."""
    found: list[dict[str, Any]] = duckdb.from_arrow(rows).filter(condition).order("id").to_arrow_table().to_pylist()
    return found


def test_a_ticket_reads_what_it_was_planned_for_while_others_write(
    lake: Lake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lake, "planned", PEOPLE.slice(0, 40))
    for start in (40, 60, 80):
        table.insert(PEOPLE.slice(start, 20))
    monkeypatch.setattr(lake.opened.reader, "ways", Ways(part_bytes=500))
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        entry = duck.table("public.planned")
        tickets = tickets_of(duck, "public.planned", [0])
        assert len(tickets) > 1
        table.delete(list(table.ids().values())[:50])
        table.insert(PEOPLE)
        options = "map('rewrite-all', 'true')"
        table.sql(f"CALL lake.system.rewrite_data_files(table => 'public.planned', options => {options})")
        streams = [duck.read_ticket(ticket, entry.schema, duck.headers()) for ticket in tickets]
        ids = [value for stream in streams for batch in stream.batches for value in batch.column(0).to_pylist()]
    assert ids == list(range(100))


def test_a_ticket_has_the_columns_that_it_was_planned_with(lake: Lake, server: Server) -> None:
    table = create(lake, "altered_later", pa.table({"id": pa.array([1], pa.int32()), "gone": ["x"]}))
    with DuckDBClient(server.location) as process, pf.connect(server.location) as flight:
        duck = process.attach("lake")
        (ticket,) = tickets_of(duck, "public.altered_later", [0, 1])
        table.alter(DropColumn("gone"), ChangeType("id", pa.int64()), AddColumn(pa.field("new", pa.int8())))
        found = flight.do_get(ticket.ticket).read_all()
    assert found.select(["id", "gone"]).to_pylist() == [{"id": 1, "gone": "x"}]
    assert found.schema.field("id").type == pa.int32()


def tickets_of(duck: Attached, table: str, columns: list[int]) -> list[pf.FlightEndpoint]:
    entry = duck.table(table)
    parameters = {
        "json_filters": filter_json(entry.schema.names[:1]),
        "column_ids": columns,
        "table_function_parameters": "",
        "table_function_input_schema": "",
        "at_unit": "",
        "at_value": "",
    }
    body = {"descriptor": entry.descriptor.serialize(), "parameters": parameters}
    answer = unpack(duck.action("endpoints", body, *duck.flight_headers(entry)))
    return [pf.FlightEndpoint.deserialize(raw(item)) for item in answer]


# The recordings


def refilled(lake: Lake, tables: dict[str, pa.Table], schema: str) -> None:
    """The recordings' tables as they presuppose them, with row ids from 0 on."""
    catalog = lake.opened.catalog
    if catalog.schema(NOBODY, schema) is None:
        catalog.create_schema(NOBODY, schema)
    found = catalog.schema(NOBODY, schema)
    assert isinstance(found, MutableSchema)
    for name, rows in tables.items():
        definition = TableDefinition(name=name, columns=rows.schema)
        table = found.create_table(NOBODY, definition, OnConflict.REPLACE)
        if rows.num_rows:
            table.insert(NOBODY, pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))  # type: ignore[attr-defined]


CASES = [pytest.param(case, id=f"call_{case.number}") for case in (*golden.INSERTS, *golden.UPDATES, *golden.DELETES)]


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_change_does_here_what_it_does_in_memory(lake: Lake, server: Server, case: golden.RowsCase) -> None:
    before = case.before if case.table == "items" else shop.ITEMS
    whole = {"items": before, "pair": shop.PAIR, "nest": shop.NEST}
    refilled(lake, {case.table: whole[case.table]}, "shop")
    with DuckDBClient(server.location) as process:
        ours = played(process.attach("lake"), case)
    with golden.attached(golden.served(case)) as memory:
        theirs = played(memory, case)
    assert ours == theirs


def played(lake: Attached, case: golden.RowsCase) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]] | None]:
    answer, count = golden.play(lake, case)
    returned = golden.without_ids(answer.table().to_pylist()) if case.returning else None
    return count, sorted(golden.stored(lake, case.table), key=lambda row: str(row["rowid"])), returned


DDL = {
    "create_schema",
    "drop_schema",
    "create_table",
    "drop_table",
    "add_column",
    "remove_column",
    "rename_column",
    "rename_table",
    "change_column_type",
    "set_default",
    "set_not_null",
    "drop_not_null",
    "add_field",
    "rename_field",
    "remove_field",
}


def test_the_whole_recorded_session_leaves_the_same_catalog_as_in_memory(tmp_path: Path) -> None:
    """In a lakehouse of its own: one that has seen these statements before would know them again."""
    memory = MemoryCatalog("lake")
    with serving(memory) as reference:
        expected = replayed(reference, memory)
    with lakehouse(tmp_path) as fresh, serving(fresh.catalog) as server:
        assert replayed(server, fresh.catalog) == expected


def replayed(server: Server, catalog: Catalog) -> tuple[list[object], dict[str, object]]:
    """What came of each change of schemas, tables and rows, and what is there at the end."""
    outcomes: list[object] = []
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        for call in golden.ROWS.values():
            if call.action in DDL or call.method == "DoExchange":
                outcomes.append((call.number, outcome(duck, call)))
    found: dict[str, object] = {}
    with DuckDBClient(server.location) as process:
        duck = process.attach("lake")
        for schema in duck.schemas.values():
            for entry in schema.entries:
                if schema.name in ("public", "k", *RESERVED_SCHEMAS) or entry.kind != "table":
                    continue
                rows = duck.scan(f"{schema.name}.{entry.name}").rows
                found[f"{schema.name}.{entry.name}"] = (rows.schema, sorted(map(repr, rows.to_pylist())))
    assert catalog.name == "lake"
    return outcomes, found


def outcome(duck: Attached, call: Recorded) -> object:
    try:
        if call.method != "DoExchange":
            replay(duck.client.connection, call)
            return "done"
        with duck.transaction() as transaction:
            answer = replay(duck.client.connection, call, transaction=transaction)
        if call.headers["airport-operation"] == "delete":
            return "done"  # by ids of the server that was recorded, of which each engine has others
        return msgpack.unpackb(answer.marks()[-1])["total_changed"]
    except AirportError as exc:
        return str(exc.code)


def test_a_recorded_value_of_every_type_comes_back_as_it_was_sent(lake: Lake, server: Server) -> None:
    """All types of a recording at once: a table each would be as many commits."""
    for recording in ("types", "types_lossless"):
        inserts = list(golden.typed_inserts(recording))
        refilled(lake, {name: schema.empty_table() for name, schema, _ in inserts}, "k")
        with DuckDBClient(server.location) as process:
            duck = process.attach("lake")
            for name, schema, call in inserts:
                replay(duck.client.connection, call)
                back = duck.scan(f"k.{name}").rows
                rows = pa.Table.from_batches(call.sent_batches())
                assert (name, back.schema.field(0).type) == (name, schema.field(0).type)
                assert (name, back.column(0).to_pylist()) == (name, rows.column(0).to_pylist())


# Transactions and repeats


@pytest.mark.tier("fast")
def test_plain_sql_holds_statements_on_two_tables_together(duck: Attached, lake: Lake) -> None:
    one, other = create(lake, "held_one", PEOPLE.slice(0, 2)), create(lake, "held_other", PEOPLE.slice(0, 2))
    before = one.ids()
    with duck.transaction():
        duck.call_scalar("tx.begin", rows=1)
        duck.insert("public.held_one", PEOPLE.slice(10, 1))
        duck.delete("public.held_other", [before[0]])
        assert duck.scan("public.held_one", ["id"]).rows.num_rows == 3
        assert len(one.sparkport()) == len(other.sparkport()) == 2
        assert duck.call_scalar("tx.commit", rows=1).to_pylist() == ["committed"]
    assert len(one.agreed()) == 3
    assert len(other.agreed()) == 1


@pytest.mark.tier("fast")
def test_what_is_rolled_back_never_happened(duck: Attached, lake: Lake) -> None:
    table = create(lake, "never", PEOPLE.slice(0, 2))
    with duck.transaction():
        duck.call_scalar("tx.begin", rows=1)
        duck.insert("public.never", PEOPLE.slice(10, 1))
        assert duck.call_scalar("tx.rollback", rows=1).to_pylist() == ["aborted"]
    assert len(table.agreed()) == 2


def test_a_repeated_statement_is_recognised_by_a_server_that_was_started_anew(lake: Lake) -> None:
    table = create(lake, "repeated", PEOPLE.slice(0, 0))
    counts: list[int] = []
    for _ in range(2):
        with serving(lake.opened.catalog) as anew, DuckDBClient(anew.location) as process:
            duck = process.attach("lake")
            duck.flight_headers = lambda entry: [  # type: ignore[method-assign]
                ("airport-trace-id", "4a3f7d1e-0000-4000-8000-000000000001"),
                ("airport-flight-path", entry.path),
            ]
            counts.append(duck.insert("public.repeated", PEOPLE).count)
    assert counts == [100, 100]
    assert len(table.agreed()) == 100
    with serving(lake.opened.catalog) as anew, DuckDBClient(anew.location) as process:
        duck = process.attach("lake")
        duck.flight_headers = lambda entry: [  # type: ignore[method-assign]
            ("airport-trace-id", "4a3f7d1e-0000-4000-8000-000000000001"),
            ("airport-flight-path", entry.path),
        ]
        with pytest.raises(AirportError) as refused:
            duck.insert("public.repeated", PEOPLE, returning=True)
        assert refused.value.code.name == AlreadyExists.code.name


# Before Spark is there


@pytest.mark.tier("fast")
def test_reads_inserts_and_ddl_work_without_spark_and_other_writes_wait_for_their_deadline(lake: Lake) -> None:
    table = create(lake, "waiting", PEOPLE)
    settings = LakehouseSettings(warehouse=str(lake.warehouse), catalog_uri=lake.opened.settings.catalog_uri)
    cold = Lakehouse(settings)  # never started
    try:
        with serving(cold.catalog) as server, connect(server.location) as client:
            assert client.scan("public.waiting").read_all().num_rows == 100
            client.create_table("public.cold", PEOPLE.schema)
            client.add_column("public.cold", pa.field("extra", pa.int32()))
            assert client.scan("public.cold").read_all().num_rows == 0
            assert client.insert("public.waiting", PEOPLE).count == 100
        schema = cold.catalog.schema(NOBODY, "public")
        assert schema is not None
        found: Any = schema.table(NOBODY, "waiting")
        with pytest.raises(Unavailable, match="not ready"):
            found.delete(CallContext(deadline=time.monotonic() + 0.3), [0])
        assert not list((lake.warehouse / ".staging").rglob("*.parquet"))
    finally:
        cold.stop()
    assert len(table.agreed()) == 200
    main_of(lake).drop_table(NOBODY, "cold")
