"""Schemas and tables through the Python client, on a real server over the memory engine."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparkport.auth.model import Operation
from sparkport.auth.rules import Rule, RuleAuthorizer
from sparkport.auth.secret import Secret
from sparkport.auth.tokens import StaticTokens
from sparkport.catalog import CallContext
from sparkport.client import Client, connect
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    ConstraintViolation,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unsupported,
)
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), metadata={"default": "'nobody'"}),
        pa.field("at", pa.struct([("city", pa.string()), ("zip", pa.string())])),
    ]
)


@pytest.fixture
def client() -> Iterator[Client]:
    with serving(MemoryCatalog("lake")) as server, connect(server.location) as client:
        client.create_table("public.users", COLUMNS)
        client.insert("public.users", [{"id": 1, "name": "ann", "at": {"city": "Rome", "zip": "1"}}])
        yield client


def rows(client: Client, table: str = "public.users") -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.scan(table).read_all().to_pylist()
    return found


def test_tags_of_tables_are_told_by_answers_descriptions_and_listings(client: Client) -> None:
    made = client.create_table("public.tagged", COLUMNS, tags={"team": "x", "kept": "yes"})
    assert made.tags == {"team": "x", "kept": "yes"}
    assert client.describe("public.tagged").tags == made.tags
    listed = {table.name: table.tags for table in client.tables()}
    assert (listed["users"], listed["tagged"]) == ({}, made.tags)
    with pytest.raises(InvalidArgument, match="at most 100 are taken"):
        client.create_table("public.more", COLUMNS, tags={str(number): "" for number in range(101)})


def test_a_check_goes_with_a_dropped_column_by_cascade_only(client: Client) -> None:
    client.create_table("public.t", COLUMNS, checks=["id > 0", "length(name) > 1", "\"at\".zip <> ''"])
    with pytest.raises(InvalidArgument, match="column 'name' is needed by CHECK length"):
        client.drop_column("public.t", "name")
    assert client.drop_column("public.t", "name", cascade=True).checks == ("id > 0", "\"at\".zip <> ''")
    with pytest.raises(InvalidArgument, match=r"field 'at.zip' is needed by CHECK "):
        client.drop_field("public.t", "at.zip")
    assert client.drop_field("public.t", "at.zip", cascade=True).checks == ("id > 0",)


def test_schemas_are_created_listed_and_dropped(client: Client) -> None:
    client.create_schema("shop", comment="things", tags={"team": "x"})
    client.create_schema(("lake", "odd name"))
    found = {schema.name: schema for schema in client.schemas()}
    assert (found["shop"].comment, found["shop"].tags) == ("things", {"team": "x"})
    assert "odd name" in found
    client.create_table("shop.items", COLUMNS)
    client.drop_schema("lake.shop")
    client.drop_schema("nowhere", if_exists=True)
    assert "shop" not in {schema.name for schema in client.schemas()}
    with pytest.raises(NotFound, match="schema 'nowhere' not found"):
        client.drop_schema("nowhere")
    with pytest.raises(InvalidArgument, match="one or two parts"):
        client.create_schema("a.b.c")


def test_a_schema_is_renamed_with_its_tables(client: Client) -> None:
    client.create_schema("main")
    client.create_table("main.items", COLUMNS.remove(2))
    client.insert("main.items", [{"id": 7, "name": "x"}])
    client.rename_schema("lake.main", "shop")
    assert [row["id"] for row in rows(client, "shop.items")] == [7]
    with pytest.raises(NotFound, match="schema 'main' not found"):
        client.scan("main.items").read_all()
    with pytest.raises(AlreadyExists, match="schema 'public' already exists, and is not empty"):
        client.rename_schema("shop", "public")
    with pytest.raises(InvalidArgument, match="'tx' is reserved"):
        client.rename_schema("shop", "tx")
    client.rename_schema("lake.main", "shop")  # again, as after a lost answer


def test_a_schema_that_duckdb_cannot_see_is_created_with_a_warning(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_schema("Main")
    assert "DuckDB's client cannot see the schema 'Main'; rename it: sparkport schema rename Main NEW" in caplog.text


def test_a_catalog_is_not_renamed_by_one_who_may_only_create(caplog: pytest.LogCaptureFixture) -> None:
    rules = [
        Rule(("owner",), frozenset(Operation), ("lake",)),
        Rule(("creator",), frozenset({Operation.LIST, Operation.READ, Operation.CREATE}), ("lake",)),
    ]
    tokens = StaticTokens({Secret("o-token"): "owner", Secret("c-token"): "creator"})
    catalog = MemoryCatalog("lake")
    catalog.new_schema("main")
    with serving(catalog, authenticator=tokens, authorizer=RuleAuthorizer(rules)) as server:
        with connect(server.location, token="c-token") as creator, pytest.raises(PermissionDenied):
            creator.rename_schema("main", "shop")
        with connect(server.location, token="o-token") as owner:
            owner.rename_schema("main", "shop")
    assert catalog.schema(CallContext(), "shop") is not None
    assert "cannot see the schema 'main'" in caplog.text


def test_a_created_table_is_described_with_all_that_was_said_about_it(client: Client) -> None:
    made = client.create_table("lake.public.goods", COLUMNS, checks=["id > 0", "name <> ''"], comment="things")
    for info in (made, client.describe("goods"), next(table for table in client.tables() if table.name == "goods")):
        assert info.schema.equals(COLUMNS, check_metadata=True)
        assert (info.checks, info.comment, info.row_id) == (("id > 0", "name <> ''"), "things", True)
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed on table goods"):
        client.insert("goods", [{"id": 0, "at": None}])
    assert client.insert("goods", [{"id": 1, "at": None}]).count == 1
    assert rows(client, "goods") == [{"id": 1, "name": "nobody", "at": None}]


def test_a_described_table_can_be_made_again_from_its_description(client: Client) -> None:
    first = client.create_table("public.one", COLUMNS, checks=["id > 0"])
    second = client.create_table("public.two", first.schema, checks=first.checks)
    assert second.schema.equals(first.schema, check_metadata=True)
    assert second.checks == first.checks


def test_a_name_that_is_taken_is_an_error_is_ignored_or_is_replaced(client: Client) -> None:
    other = pa.schema([("x", pa.int8())])
    with pytest.raises(AlreadyExists, match=r"table 'public\.users' already exists"):
        client.create_table("public.users", other)
    assert client.create_table("public.users", other, on_conflict="ignore").schema.names == COLUMNS.names
    assert client.create_table("public.users", other, on_conflict="replace").schema.names == ["x"]
    with pytest.raises(InvalidArgument, match="error, ignore or replace"):
        client.create_table("public.users", other, on_conflict="update")
    with pytest.raises(InvalidArgument, match="a list of conditions"):
        client.create_table("public.t", other, checks="x > 0")


def test_tables_are_renamed_and_dropped(client: Client) -> None:
    assert client.rename_table("users", "people").full_name == "public.people"
    assert len(rows(client, "people")) == 1
    client.drop_table("PEOPLE")
    client.drop_table("people")  # the same session, a moment ago: an answer that was lost is asked for so
    client.drop_table("nothing", if_exists=True)
    with pytest.raises(NotFound):
        client.describe("people")
    with pytest.raises(NotFound, match=r"table 'public\.nothing' not found"):
        client.drop_table("public.nothing")


def test_columns_are_added_renamed_widened_and_dropped(client: Client) -> None:
    client.add_column("users", pa.field("level", pa.int32()), default="3")
    client.add_column("users", pa.field("LEVEL", pa.string()), if_not_exists=True)
    client.rename_column("users", "level", "rank")
    assert client.change_type("users", "rank", pa.int64()).schema.field("rank").type == pa.int64()
    client.drop_column("users", "at")
    client.drop_column("users", "at", if_exists=True)
    assert rows(client) == [{"id": 1, "name": "ann", "rank": 3}]
    assert client.describe("users", as_of_version=1).schema.names == ["id", "name", "at"]
    with pytest.raises(Unsupported, match="possible are"):
        client.change_type("users", "rank", pa.string())
    with pytest.raises(AlreadyExists):
        client.add_column("users", pa.field("id", pa.int8()))


def test_not_null_and_defaults_are_set_and_dropped(client: Client) -> None:
    assert not client.set_not_null("users", "name").schema.field("name").nullable
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: users\.name"):
        client.insert("users", pa.table({"id": [2], "name": [None], "at": [None]}, COLUMNS))
    client.drop_not_null("users", "name")
    client.set_default("users", "name", "'some' || 'body'")
    client.insert("users", pa.table({"id": [2], "at": pa.nulls(1, COLUMNS.field("at").type)}))
    assert rows(client)[1]["name"] == "somebody"
    assert not client.set_default("users", "name", None).schema.field("name").metadata


def test_fields_of_structs_are_added_renamed_and_dropped(client: Client) -> None:
    client.add_field("users", "at", pa.field("at", pa.int8()))
    client.rename_field("users", "at.zip", "code")
    client.drop_field("users", ["at", "city"])
    client.drop_field("users", ("at", "city"), if_exists=True)
    assert rows(client)[0]["at"] == {"code": "1", "at": None}
    with pytest.raises(InvalidArgument, match="field 'zip' does not exist"):
        client.drop_field("users", "at.zip")


def test_comments_of_tables_and_columns_are_told(client: Client) -> None:
    before = client.version()
    assert client.set_comment("users", "people").comment == "people"
    described = client.set_comment("users", "the key", column="id")
    assert described.schema.field("id").metadata == {b"comment": b"the key"}
    assert client.version() != before
    assert client.set_comment("users", None).comment is None


def test_rows_do_not_change_the_version_of_the_listing(client: Client) -> None:
    before = client.version()
    client.insert("users", [{"id": 2, "at": None}, {"id": 3, "at": None}])
    assert client.version() == before


def test_a_transaction_is_not_the_place_for_it_and_sees_what_was_there(client: Client) -> None:
    tx = client.transaction()
    assert not hasattr(tx, "create_table")
    client.add_column("users", pa.field("late", pa.int8()))
    assert tx.describe("users").schema.names == COLUMNS.names
    client.drop_table("users")
    assert tx.scan("users").read_all().column_names == COLUMNS.names
    with pytest.raises(NotFound, match="has been dropped"):
        tx.insert("users", [{"id": 9, "at": None}])
    tx.rollback()
    assert client.tables("public") == []


def test_a_transaction_that_wrote_to_a_table_that_others_altered_is_not_committed(client: Client) -> None:
    tx = client.transaction()
    tx.insert("users", [{"id": 9, "at": None}])
    client.drop_column("users", "at")
    with pytest.raises(Conflict, match="has been altered"):
        tx.commit()
    assert len(rows(client)) == 1


def test_a_failed_commit_is_final(client: Client) -> None:
    tx = client.transaction()
    tx.insert("users", [{"id": 9, "at": None}])
    client.drop_table("users")
    with pytest.raises(NotFound):
        tx.commit()
    with pytest.raises(FailedPrecondition):
        tx.commit()
