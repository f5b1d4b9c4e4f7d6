"""DDL as it comes over the wire: every action, what it answers, what it refuses, and when a repeat is a success."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from tests.contract.clients import refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.support.duckdb_client import Attached
from tests.support.listing import Entry, create_table_body

from sparkport.auth.identity import Identity
from sparkport.auth.model import Authorizer, Operation, Resource
from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import data_schema
from sparkport.handlers.ddl import ALTERATIONS, Ddl
from sparkport.handlers.directory import Directory
from sparkport.memory import MemoryCatalog
from sparkport.protocol.maps import MapReader, pack

pytestmark = pytest.mark.tier("fast")

KEYED = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("the name", pa.string()),
        ("f", pa.float64()),
        ("s", pa.struct([("a", pa.int32())])),
    ]
)
COLUMNS = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int32())]))])


def encoded(*columns: pa.Field) -> bytes:
    data: bytes = pa.schema(columns).serialize().to_pybytes()
    return data


def new_table(name: str, columns: pa.Schema = COLUMNS, **more: Any) -> dict[str, Any]:
    return {**create_table_body("analytics", name, encoded(*columns)), **more}


def altered(table: str, **more: Any) -> dict[str, Any]:
    return {"catalog": "lake", "schema": "analytics", "name": table, "ignore_not_found": False, **more}


def dropped(name: str, kind: str = "table", **more: Any) -> dict[str, Any]:
    schema = "" if kind == "schema" else "analytics"
    return {
        "type": kind,
        "catalog_name": "lake",
        "schema_name": schema,
        "name": name,
        "ignore_not_found": False,
        **more,
    }


def columns(duckdb: Attached, table: str) -> list[str]:
    duckdb.list_schemas()
    return duckdb.table(f"analytics.{table}").columns


@pytest.fixture
def duckdb(lake: Lake) -> Attached:
    attached = lake.duckdb()
    attached.action("create_table", new_table("t"))
    return attached


# Each action once


def test_create_schema_answers_with_its_contents_and_drop_schema_takes_all_with_it(lake: Lake) -> None:
    duckdb = lake.duckdb()
    body = {"catalog_name": "lake", "schema": "shop", "comment": "things", "tags": {"team": "x"}}
    answer = msgpack.unpackb(duckdb.action("create_schema", body))
    assert set(answer) == {"sha256", "url", "serialized"}
    duckdb.list_schemas()
    assert (duckdb.schemas["shop"].description, duckdb.schemas["shop"].tags) == ("things", {"team": "x"})
    duckdb.action("create_table", new_table("t", schema_name="shop"))
    assert duckdb.action("drop_schema", dropped("shop", "schema")) == b""
    duckdb.list_schemas()
    assert "shop" not in duckdb.schemas


def test_create_table_answers_with_the_table_and_its_constraints(lake: Lake) -> None:
    duckdb = lake.duckdb()
    body = new_table("t", not_null_constraints=[0], check_constraints=["(id > 0)"], comment="things")
    entry = Entry.decode(duckdb.action("create_table", body))
    assert (entry.name, entry.columns, entry.row_id) == ("t", ["id", "s"], "rowid")
    assert [entry.schema.field(name).nullable for name in entry.columns] == [False, True]
    assert msgpack.unpackb(entry.schema.metadata[b"check_constraints"]) == {"constraints": ["(id > 0)"]}
    assert entry.metadata["comment"] == "things"


ACTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "add_column": (
        {"column_schema": encoded(pa.field("n", pa.int8()))},
        ["id: int64", "s: struct<a: int32>", "n: int8"],
    ),
    "add_field": (
        {"column_path": ["s"], "column_schema": encoded(pa.field("b", pa.int8()))},
        ["id: int64", "s: struct<a: int32, b: int8>"],
    ),
    "change_column_type": (
        {"column_schema": encoded(pa.field("id", pa.int64())), "expression": "CAST(id AS BIGINT)"},
        ["id: int64", "s: struct<a: int32>"],
    ),
    "drop_not_null": ({"column_name": "id"}, ["id: int64", "s: struct<a: int32>"]),
    "remove_column": ({"removed_column": "s", "if_column_exists": False, "cascade": False}, ["id: int64"]),
    "remove_field": ({"column_path": ["s", "z"], "if_column_exists": True}, ["id: int64", "s: struct<a: int32>"]),
    "rename_column": ({"old_name": "id", "new_name": "key"}, ["key: int64", "s: struct<a: int32>"]),
    "rename_field": ({"column_path": ["s", "a"], "new_name": "z"}, ["id: int64", "s: struct<z: int32>"]),
    "set_comment": ({"comment": "keys", "column_name": "id"}, ["id: int64", "s: struct<a: int32>"]),
    "set_default": ({"column_name": "id", "expression": "5"}, ["id: int64", "s: struct<a: int32>"]),
    "set_not_null": ({"column_name": "id"}, ["id: int64 not null", "s: struct<a: int32>"]),
}


def test_the_list_has_every_alteration() -> None:
    assert set(ACTIONS) == set(ALTERATIONS)


def spelled(schema: pa.Schema) -> list[str]:
    return [f"{column.name}: {column.type}{'' if column.nullable else ' not null'}" for column in schema][:-1]


@pytest.mark.parametrize("action", ACTIONS)
def test_an_alteration_answers_with_the_table_as_it_is_then(duckdb: Attached, action: str) -> None:
    body, expected = ACTIONS[action]
    entry = Entry.decode(duckdb.action(action, altered("T", **body)))
    assert (entry.name, spelled(entry.schema)) == ("t", expected)
    duckdb.list_schemas()
    assert spelled(duckdb.table("analytics.t").schema) == expected


@pytest.mark.parametrize("action", ACTIONS)
def test_an_alteration_of_a_table_that_is_not_there_is_not_found_unless_that_is_to_be_ignored(
    lake: Lake, action: str
) -> None:
    duckdb = lake.duckdb()
    body = altered("nothing", **ACTIONS[action][0])
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        duckdb.action(action, body)
    assert duckdb.action(action, {**body, "ignore_not_found": True}) == b""


@pytest.mark.parametrize(
    "action", [*ACTIONS, "create_table", "create_schema", "drop_table", "drop_schema", "rename_table"]
)
def test_a_body_that_lacks_something_or_has_it_in_another_type_is_refused(lake: Lake, action: str) -> None:
    duckdb = lake.duckdb()
    whole: dict[str, Any] = {
        "create_schema": {"catalog_name": "lake", "schema": "x"},
        "create_table": {
            key: new_table("t")[key] for key in ("catalog_name", "schema_name", "table_name", "arrow_schema")
        },
        "drop_schema": {"catalog_name": "lake", "name": "analytics"},
        "drop_table": {"catalog_name": "lake", "schema_name": "analytics", "name": "other"},
        "rename_table": {**altered("other"), "new_table_name": "x"},
    }.get(action) or altered("other", **ACTIONS[action][0])
    optional = {"ignore_not_found", "comment", "column_name", "expression", "cascade", "if_column_exists"}
    version = duckdb.catalog_version()
    for key in whole.keys() - (optional if action != "set_not_null" else {"ignore_not_found"}):
        for wrong in ({name: value for name, value in whole.items() if name != key}, {**whole, key: 3.5}):
            with pytest.raises(Exception, match=rf"'{key}'") as failure:
                duckdb.action(action, wrong)
            assert failure.value.code.name == "INVALID_ARGUMENT"  # type: ignore[attr-defined]
    assert duckdb.catalog_version() == version


# Refusals


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ({"primary_key_columns": ["id"]}, [("id", True)]),
        ({"unique_columns": ["ID", "n"]}, [("id", False), ("n", False)]),
        ({"unique_constraints": [0]}, [("id", False)]),
        ({"multi_key_primary_keys": ["the name", "id"]}, [("id, the name", True)]),
        (
            {"primary_key_columns": ["id"], "extra_constraints": ['UNIQUE(n, "the name")', "UNIQUE(id)"]},
            [("id", True), ("n, the name", False)],
        ),
    ],
)
def test_keys_are_kept_as_the_client_sends_them(lake: Lake, more: dict[str, Any], keys: list[tuple[str, bool]]) -> None:
    lake.duckdb().action("create_table", new_table("t", KEYED, **more))
    table = lake.table("analytics.t")
    assert [(", ".join(key.columns), key.primary) for key in table.keys] == keys
    required = {name for key in table.keys if key.primary for name in key.columns}
    assert {column.name for column in data_schema(table.schema) if not column.nullable} == required


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (
            {"extra_constraints": ["FOREIGN KEY (id)"]},
            "UNIMPLEMENTED",
            "FOREIGN KEY (id) cannot be enforced and is refused: a table can have NOT NULL, CHECK, PRIMARY KEY and "
            "UNIQUE",
        ),
        ({"primary_key_columns": ["x"]}, "INVALID_ARGUMENT", "column 'x' does not exist"),
        ({"primary_key_columns": ["id", "s"]}, "INVALID_ARGUMENT", "a table has at most one PRIMARY KEY"),
        (
            {"unique_columns": ["f"]},
            "INVALID_ARGUMENT",
            "column 'f' cannot be part of a key: values of type double do not compare",
        ),
        (
            {"primary_key_columns": ["s"]},
            "INVALID_ARGUMENT",
            "column 's' cannot be part of a key: values of type struct<a: int32> do not compare",
        ),
        ({"multi_key_primary_keys": ["id", "ID"]}, "INVALID_ARGUMENT", "PRIMARY KEY (id, id) has a column twice"),
        ({"unique_constraints": [9]}, "INVALID_ARGUMENT", "unique_constraints has 9, the table has 5 columns"),
    ],
)
def test_a_key_that_cannot_be_enforced_is_refused(lake: Lake, more: dict[str, Any], code: str, message: str) -> None:
    with refused(code, message):
        lake.duckdb().action("create_table", new_table("t", KEYED, **more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"on_conflict": "update"}, "body key 'on_conflict' must be error, ignore or replace, not 'update'"),
        ({"not_null_constraints": [2]}, "not_null_constraints has 2, the table has 2 columns"),
        ({"arrow_schema": b"nonsense"}, "arrow_schema is not an Arrow schema"),
        ({"arrow_schema": encoded()}, "a table needs at least one column"),
        ({"arrow_schema": encoded(pa.field("_pos", pa.int8()))}, "column name '_pos' is reserved"),
        ({"table_name": " "}, "a table has no name"),
        ({"check_constraints": [""]}, "a CHECK is empty: it cannot be evaluated"),
    ],
)
def test_bad_input_to_create_table_names_what_is_wrong(lake: Lake, more: dict[str, Any], message: str) -> None:
    with refused("INVALID_ARGUMENT", message):
        lake.duckdb().action("create_table", new_table("t", **more))


def test_a_default_that_cannot_be_used_is_refused(duckdb: Attached) -> None:
    with refused("INVALID_ARGUMENT", "column 'id': its default \"'x'\" cannot be used as int64"):
        duckdb.action("set_default", altered("t", column_name="id", expression="'x'"))


def test_the_reserved_schema_is_refused(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "schema name 'TX' is reserved"):
        lake.duckdb().action("create_schema", {"catalog_name": "lake", "schema": "TX", "comment": None, "tags": {}})


def test_a_type_that_cannot_be_promoted_says_what_can_and_using_is_no_promotion(duckdb: Attached) -> None:
    body = altered("t", column_schema=encoded(pa.field("id", pa.string())), expression='CAST("id" AS VARCHAR)')
    with refused(
        "UNIMPLEMENTED",
        "column 'id' cannot change from int64 to string; possible are integers to wider integers, FLOAT to DOUBLE, "
        "DECIMAL to more digits before the point",
    ):
        duckdb.action("change_column_type", body)
    with refused("UNIMPLEMENTED", "column 'id': a type is changed without USING, not by (id + 1)"):
        duckdb.action("change_column_type", {**body, "expression": "(id + 1)"})


def test_duckdbs_client_cannot_add_a_field_because_it_does_not_send_its_name(duckdb: Attached) -> None:
    with refused(
        "UNIMPLEMENTED",
        "DuckDB's client does not send the name of a field that is added to 's': add it with the Python client",
    ):
        duckdb.action("add_field", altered("t", column_path=["s"], column_schema=encoded(pa.field("s", pa.int8()))))


def test_a_catalog_that_cannot_be_changed_says_so(lake: Lake) -> None:
    fixed = CatalogBuilder("fixed").schema("analytics").table("t", pa.table({"id": [1]})).build()
    lake.server.add_catalog(fixed)
    duckdb = lake.duckdb()
    with refused("UNIMPLEMENTED", "catalog 'fixed' cannot be changed"):
        duckdb.action("create_table", new_table("t", catalog_name="fixed"))
    with refused("UNIMPLEMENTED", "table 't' cannot be altered"):
        duckdb.action("set_not_null", {**altered("t", column_name="id"), "catalog": "fixed"})


class NoDrops(Authorizer):
    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.DROP


def test_to_replace_a_table_one_must_be_allowed_to_drop_it() -> None:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("analytics")
    ddl = Ddl(Directory([catalog], NoDrops()))
    body = new_table("t", on_conflict="replace")
    ddl.create_table(CallContext(), MapReader.from_msgpack(pack(body)))
    with pytest.raises(Exception, match="drop"):
        ddl.create_table(CallContext(), MapReader.from_msgpack(pack(body)))


# Names


def test_names_are_found_without_regard_to_case_and_shown_as_they_were_given(lake: Lake) -> None:
    duckdb = lake.duckdb()
    duckdb.action("create_table", new_table("Mixed", schema_name="ANALYTICS"))
    with refused("ALREADY_EXISTS", "table 'analytics.Mixed' already exists"):
        duckdb.action("create_table", new_table("mIXED", pa.schema([("x", pa.int8())])))
    duckdb.action("rename_column", altered("MIXED", old_name="ID", new_name="Key"))
    assert columns(duckdb, "Mixed") == ["Key", "s"]
    duckdb.action("rename_table", altered("mixed", new_table_name="MIXED"))
    assert columns(duckdb, "MIXED") == ["Key", "s"]
    duckdb.action("drop_table", dropped("mixed"))


def test_on_conflict_ignore_keeps_the_table_and_replace_empties_it(lake: Lake) -> None:
    duckdb = lake.duckdb()
    kept = Entry.decode(duckdb.action("create_table", new_table("events", on_conflict="ignore")))
    assert kept.columns == EVENTS.names
    assert len(lake.rows()) == 5
    replaced = Entry.decode(duckdb.action("create_table", new_table("events", on_conflict="replace")))
    assert replaced.columns == ["id", "s"]
    duckdb.list_schemas()
    assert duckdb.scan("analytics.events").rows.num_rows == 0


# Repeats


@contextmanager
def handler() -> Iterator[tuple[Ddl, list[float]]]:
    catalog, now = MemoryCatalog("lake"), [0.0]
    catalog.new_schema("analytics")
    yield Ddl(Directory([catalog]), clock=lambda: now[0]), now


def body_of(value: dict[str, Any]) -> MapReader:
    return MapReader.from_msgpack(pack(value))


def test_a_repeat_by_the_same_session_within_a_minute_is_a_success(lake: Lake) -> None:
    duckdb = lake.duckdb()
    for action, body in (
        ("create_schema", {"catalog_name": "lake", "schema": "shop", "comment": None, "tags": {}}),
        ("create_table", new_table("t")),
        ("add_column", altered("t", column_schema=encoded(pa.field("n", pa.int8())))),
        ("rename_column", altered("t", old_name="n", new_name="m")),
        ("remove_column", altered("t", removed_column="m")),
        ("rename_field", altered("t", column_path=["s", "a"], new_name="z")),
        ("rename_table", altered("t", new_table_name="u")),
        ("drop_table", dropped("u")),
        ("drop_schema", dropped("shop", "schema")),
    ):
        first = duckdb.action(action, body)
        version = duckdb.catalog_version()
        assert duckdb.action(action, body) == first, action
        assert duckdb.catalog_version() == version, action


def test_a_repeat_by_another_session_is_an_error(lake: Lake) -> None:
    lake.duckdb().action("create_table", new_table("t"))
    with refused("ALREADY_EXISTS", "table 'analytics.t' already exists"):
        lake.duckdb().action("create_table", new_table("t"))


def test_another_table_of_the_name_is_no_repeat(duckdb: Attached) -> None:
    with refused("ALREADY_EXISTS", "table 'analytics.t' already exists"):
        duckdb.action("create_table", new_table("t", pa.schema([("other", pa.int8())])))


def test_after_a_minute_it_is_an_error_again() -> None:
    ctx = CallContext(session_id="one")
    with handler() as (ddl, now):
        ddl.create_table(ctx, body_of(new_table("t")))
        now[0] = 59.0
        ddl.create_table(ctx, body_of(new_table("t")))
        now[0] = 59.0 + 60.0
        with pytest.raises(Exception, match="already exists"):
            ddl.create_table(ctx, body_of(new_table("t")))


def test_what_was_undone_in_between_is_no_repeat(lake: Lake) -> None:
    duckdb = lake.duckdb()
    duckdb.action("create_table", new_table("t"))
    duckdb.action("set_not_null", altered("t", column_name="id"))
    duckdb.action("drop_not_null", altered("t", column_name="id"))
    duckdb.list_schemas()
    duckdb.insert("analytics.t", pa.table({"id": [None], "s": [None]}, COLUMNS))
    with refused("INVALID_ARGUMENT", "column 'id' has NULL values: it cannot be NOT NULL"):
        duckdb.action("set_not_null", altered("t", column_name="id"))


# Transactions


def test_ddl_inside_a_deferred_transaction_is_refused_and_leaves_it_open(lake: Lake) -> None:
    duckdb = lake.duckdb()
    transaction = lake.json.begin(auto_commit=False)
    header = ("x-transaction-id", transaction)
    message = "schemas and tables cannot be changed inside a deferred transaction"
    for action, body in (
        ("create_schema", {"catalog_name": "lake", "schema": "shop"}),
        ("drop_schema", dropped("analytics", "schema")),
        ("create_table", new_table("t")),
        ("drop_table", dropped("events")),
        ("rename_table", altered("events", new_table_name="x")),
        ("set_not_null", altered("events", column_name="name")),
    ):
        with refused("FAILED_PRECONDITION", message):
            duckdb.action(action, body, header)
    assert lake.json.status(transaction) == "active"


def test_a_statement_on_a_table_that_was_altered_since_its_transaction_began_is_aborted(lake: Lake) -> None:
    duckdb, other = lake.duckdb(), lake.duckdb()
    with duckdb.transaction():
        other.action("remove_column", altered("events", removed_column="score"))
        assert duckdb.scan("analytics.events", ["score"]).rows["score"].to_pylist() == [0.5] * 5
        with refused("ABORTED", "table 'events' has been altered; run the statement again"):
            duckdb.insert("analytics.events", events(9))
    assert len(lake.rows()) == 5


def test_a_statement_on_a_table_that_was_dropped_since_its_transaction_began_is_not_found(lake: Lake) -> None:
    duckdb, other = lake.duckdb(), lake.duckdb()
    with duckdb.transaction():
        other.action("drop_table", dropped("events"))
        assert duckdb.scan("analytics.events", ["id"]).rows.num_rows == 5
        with refused("NOT_FOUND", "table 'events' has been dropped"):
            duckdb.delete("analytics.events", [1])


@pytest.mark.parametrize(
    ("action", "code", "message"),
    [
        ("remove_column", "ABORTED", "table 'events' has been altered; run the statement again"),
        ("drop_table", "NOT_FOUND", "table 'events' has been dropped"),
    ],
)
def test_a_deferred_transaction_does_not_commit_into_a_table_that_is_not_the_same(
    lake: Lake, action: str, code: str, message: str
) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).insert("analytics.events", events(9))
    body = dropped("events") if action == "drop_table" else altered("events", removed_column="score")
    lake.duckdb().action(action, body)
    with refused(code, message):
        lake.json.commit(transaction)
    assert lake.json.status(transaction) == "aborted"


def test_a_comment_or_a_default_set_by_another_disturbs_no_statement(lake: Lake) -> None:
    duckdb, other = lake.duckdb(), lake.duckdb()
    with duckdb.transaction():
        other.action("set_comment", altered("events", comment="things"))
        other.action("set_default", altered("events", column_name="name", expression="'x'"))
        assert duckdb.insert("analytics.events", events(9)).count == 1


def test_a_session_alters_a_table_and_goes_on_in_the_same_transaction(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        assert duckdb.scan("analytics.events", ["id"]).rows.num_rows == 5
        duckdb.action("remove_column", altered("events", removed_column="tags"))
        duckdb.list_schemas()
        assert duckdb.insert("analytics.events", events(9).drop_columns(["tags"])).count == 1
        assert duckdb.scan("analytics.events").rows.num_rows == 6


# Constraints hold for every client


@pytest.fixture
def checked(lake: Lake) -> Lake:
    plain = pa.schema([("low", pa.int64()), pa.field("high", pa.int64(), metadata={"default": "10"})])
    body = new_table("t", plain, not_null_constraints=[0], check_constraints=["(low <= high)"])
    lake.duckdb().action("create_table", body)
    return lake


BROKEN = "CHECK constraint failed on table t with expression: (low <= high)"


def test_checks_hold_for_inserts_of_duckdb_and_of_the_json_contract(checked: Lake) -> None:
    rows = pa.table({"low": [11], "high": [10]})
    with refused("INVALID_ARGUMENT", BROKEN):
        checked.duckdb().insert("analytics.t", rows)
    with refused("INVALID_ARGUMENT", BROKEN):
        checked.json.insert("analytics.t", rows)


@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_checks_look_at_the_whole_row_of_an_update_of_one_column(checked: Lake) -> None:
    duckdb = checked.duckdb()
    duckdb.insert("analytics.t", pa.table({"low": [1, 2], "high": [5, 5]}))
    with refused("INVALID_ARGUMENT", BROKEN):
        duckdb.update("analytics.t", pa.table({"low": [6], "rowid": [0]}))
    with refused("INVALID_ARGUMENT", BROKEN):
        checked.json.update("analytics.t", [0], pa.table({"low": [6], "high": [5]}))
    assert duckdb.update("analytics.t", pa.table({"low": [5], "rowid": [0]})).count == 1


def test_defaults_are_filled_and_then_checked(checked: Lake) -> None:
    assert checked.json.insert("analytics.t", pa.table({"low": [10]})).affected_rows == 1
    with refused("INVALID_ARGUMENT", BROKEN):
        checked.json.insert("analytics.t", pa.table({"low": [11]}))


def test_not_null_holds_for_every_client(checked: Lake) -> None:
    rows = pa.table({"low": pa.array([None], pa.int64()), "high": [1]})
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: t.low"):
        checked.duckdb().insert("analytics.t", rows)
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: t.low"):
        checked.json.insert("analytics.t", rows)
