"""What the client says a server offers, and how things are named."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import ANY, Parameter
from sparkport.catalog.row_ids import row_id_field
from sparkport.catalog.scan import AsOf, ScanRequest
from sparkport.catalog.table import VersionedTable
from sparkport.client import Client, FunctionKind, connect
from sparkport.client.catalog import decode_listing
from sparkport.client.connection import Connection, open_channel
from sparkport.client.locations import parse_location
from sparkport.client.names import Name, parse_name
from sparkport.errors import InternalError, InvalidArgument, NotFound, SchemaNotFound, Unsupported, VersionNotFound
from sparkport.handlers.service import CustomAction
from sparkport.protocol.maps import pack
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "cid"]})
ITEMS = pa.Table.from_arrays(
    [pa.array([10, 20]), pa.array(["x", "y"])],
    schema=pa.schema([row_id_field(), pa.field("item", pa.string())], metadata={"owner": "me"}),
)


class Versions(VersionedTable):
    """Version 0 had one column, version 1 has two."""

    name = "versions"
    rows = (pa.table({"a": [1]}), pa.table({"a": [1, 2], "b": ["x", "y"]}))

    @property
    def schema(self) -> pa.Schema:
        return self.rows[-1].schema

    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        return self._at(at).schema

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        return self.rows[-1] if request.at is None else self._at(request.at)

    def _at(self, at: AsOf) -> pa.Table:
        known = {"0": 0, "1": 1, "2024-01-01 00:00:00": 0, "2025-01-01 12:00:00+00:00": 1}
        if at.value not in known:
            raise VersionNotFound(f"no {at}")
        return self.rows[known[at.value]]


def echo(ctx: CallContext, body: bytes) -> list[bytes]:
    return [body, body.upper()]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    catalog = (
        CatalogBuilder("shop")
        .schema("public", comment="the usual", tags={"tier": "gold"})
        .table("users", USERS, comment="people")
        .table("items", ITEMS)
        .add(Versions())
        .scalar_function(
            "double",
            lambda ctx, args: pc.multiply(args["x"], 2),
            [Parameter("x", pa.int64())],
            pa.int64(),
            comment="twice as much",
        )
        .table_function(
            "repeat",
            lambda ctx, args, request: USERS,
            [Parameter("n"), Parameter("loud", pa.bool_(), named=True)],
            USERS.schema,
        )
        .in_out_function(
            "pass",
            lambda ctx, args, schema: lambda batch: [batch],
            [Parameter("rows", table=True)],
            lambda args, schema: schema or USERS.schema,
        )
        .schema("odd.schema")
        .table('a "table"', USERS)
        .schema("empty")
        .build()
    )
    other = CatalogBuilder("other").schema("public").table("things", USERS).build()
    with (
        serving(catalog, other, actions=[CustomAction("echo", echo, "says it again")]) as server,
        connect(server.location, catalog="shop") as client,
    ):
        yield client


def test_schemas_come_with_comment_tags_and_which_is_the_default(client: Client) -> None:
    public, odd, empty = client.schemas()
    assert (public.name, public.comment, dict(public.tags), public.is_default) == (
        "public",
        "the usual",
        {"tier": "gold"},
        True,
    )
    assert (odd.name, odd.comment, odd.is_default) == ("odd.schema", None, False)
    assert empty.name == "empty"


def test_tables_are_listed_with_the_columns_that_a_scan_returns(client: Client) -> None:
    users, items, versions, odd = client.tables()
    assert (users.catalog, users.schema_name, users.name, users.comment) == ("shop", "public", "users", "people")
    assert users.schema.equals(USERS.schema, check_metadata=True)
    assert not users.row_id
    assert items.row_id
    assert items.schema.names == ["item"]
    assert items.schema.metadata == {b"owner": b"me"}
    assert versions.full_name == "shop.public.versions"
    assert odd.full_name == 'shop."odd.schema"."a ""table"""'


def test_tables_of_one_schema_are_found_without_regard_to_case(client: Client) -> None:
    assert [table.name for table in client.tables("PUBLIC")] == ["users", "items", "versions"]
    assert client.tables("empty") == []


def test_an_unknown_schema_is_an_error_and_not_an_empty_list(client: Client) -> None:
    with pytest.raises(SchemaNotFound, match="schema 'nowhere' not found"):
        client.tables("nowhere")
    with pytest.raises(SchemaNotFound):
        client.functions("nowhere")


def test_functions_are_listed_with_kind_and_parameters(client: Client) -> None:
    double, repeat, passing = client.functions("public")
    assert (double.kind, double.comment, double.stability) == (FunctionKind.SCALAR, "twice as much", "consistent")
    assert double.parameters == (Parameter("x", pa.int64()),)
    assert double.schema.types == [pa.int64()]
    assert repeat.kind is FunctionKind.TABLE
    assert repeat.parameters == (Parameter("n", ANY), Parameter("loud", pa.bool_(), named=True))
    assert passing.kind is FunctionKind.IN_OUT
    assert passing.parameters == (Parameter("rows", table=True),)
    assert passing.full_name == "shop.public.pass"


def test_describe_knows_the_number_of_rows(client: Client) -> None:
    table = client.describe("public.users")
    assert (table.total_records, table.comment, table.schema) == (3, "people", USERS.schema)
    assert client.describe("versions").total_records is None


def test_describe_and_scan_follow_the_version_asked_for(client: Client) -> None:
    assert client.describe("versions").schema.names == ["a", "b"]
    assert client.describe("versions", as_of_version=0).schema.names == ["a"]
    assert client.scan("versions", as_of_version=0).read_all() == Versions.rows[0]
    assert client.scan("versions", as_of_timestamp="2024-01-01 00:00:00").read_all() == Versions.rows[0]


def test_times_with_a_zone_are_sent_in_utc(client: Client) -> None:
    import datetime as dt

    zone = dt.timezone(dt.timedelta(hours=2))
    found = client.scan("versions", as_of_timestamp=dt.datetime(2025, 1, 1, 14, tzinfo=zone)).read_all()
    assert found == Versions.rows[1]
    assert client.scan("versions", as_of_timestamp=dt.datetime(2024, 1, 1)).read_all() == Versions.rows[0]


def test_versions_that_cannot_be_had_are_told_apart(client: Client) -> None:
    with pytest.raises(NotFound, match="no version 9"):
        client.scan("versions", as_of_version=9)
    with pytest.raises(Unsupported, match="keeps no versions"):
        client.describe("users", as_of_version=1)
    with pytest.raises(InvalidArgument, match="not both"):
        client.scan("versions", as_of_version=1, as_of_timestamp="2024-01-01")


def test_the_version_of_the_catalog_is_a_number(client: Client) -> None:
    first, second = client.version(), client.version()
    assert first == second
    assert first.version > 0
    assert not first.fixed


def test_actions_are_listed_and_called_with_plain_bytes(client: Client) -> None:
    found = {action.type: action.description for action in client.actions()}
    assert found["echo"] == "says it again"
    assert "list_schemas" in found
    assert client.action("echo", b"hello") == [b"hello", b"HELLO"]
    assert client.action("echo") == [b"", b""]


def test_an_unknown_action_is_unsupported_whatever_its_name(client: Client) -> None:
    with pytest.raises(Unsupported, match="action 'fly' is not implemented"):
        client.action("fly")
    with pytest.raises(Unsupported, match="action 'flügel\nx' is not implemented"):
        client.action("flügel\nx")


@pytest.mark.parametrize(
    "name",
    ["users", "public.users", "shop.public.users", "PUBLIC.Users", '"public"."users"', ("users",), ("public", "users")],
)
def test_a_table_is_found_under_each_of_its_names(client: Client, name: str | tuple[str, ...]) -> None:
    assert client.describe(name).name == "users"


@pytest.mark.parametrize("name", ['"odd.schema"."a ""table"""', ("odd.schema", 'a "table"')])
def test_names_with_dots_and_quotes_can_be_written(client: Client, name: str | tuple[str, ...]) -> None:
    assert client.scan(name).read_all() == USERS


def test_another_catalog_is_reached_by_its_name(client: Client) -> None:
    assert client.describe("other.public.things").catalog == "other"
    with pytest.raises(NotFound, match=r"table 'public\.things' not found"):
        client.describe("public.things")


def test_what_is_not_there_is_named_in_the_servers_own_words(client: Client) -> None:
    with pytest.raises(NotFound) as table:
        client.scan("public.nobody")
    assert str(table.value) == "table 'public.nobody' not found"
    with pytest.raises(NotFound, match=r"^schema 'nowhere' not found$"):
        client.describe("nowhere.users")
    with pytest.raises(NotFound, match="catalog 'mars' not found"):
        client.describe("mars.public.users")


@pytest.mark.parametrize(
    "name", ["", ".", "public.", ".users", "a.b.c.d", '"open', '"a"b', 'a"b', (), ("",), ("a",) * 4]
)
def test_a_name_that_is_none_is_refused(name: str | tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        parse_name(name)


@pytest.mark.parametrize("parts", [("", "", "x"), ("", "public", "x y"), ("c.d", 'q"q', "ü.1")])
def test_a_printed_name_reads_back(parts: tuple[str, str, str]) -> None:
    assert parse_name(str(Name(*parts))) == Name(*parts)


def compressed(value: object) -> bytes:
    data = pack(value)
    return pack([len(data), zstandard.compress(data)])


@pytest.mark.parametrize(
    "answer",
    [
        b"\xc1",
        pack({}),
        pack([1]),
        pack([5, b"not zstd"]),
        pack([2**40, zstandard.compress(b"x")]),
        pack([7, zstandard.compress(b"xyz")]),
        compressed([]),
        compressed({"schemas": 1}),
        compressed({"schemas": [1]}),
        compressed({"schemas": [{"name": "a"}]}),
        compressed({"schemas": [{"name": "a", "contents": {"serialized": compressed([b"\xff"])}}]}),
    ],
)
def test_a_broken_listing_is_refused(answer: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_listing(answer)


class Nonsense(Connection):
    def single_action(self, name: str, body: bytes) -> bytes:
        return b"\xc1"


def test_a_server_that_talks_nonsense_is_to_blame_not_the_caller() -> None:
    place = parse_location("grpc://127.0.0.1:50051")
    with Client(Nonsense(place, open_channel(place, None))) as client:
        with pytest.raises(InternalError, match="the server's catalog listing cannot be read"):
            client.schemas()
        with pytest.raises(InternalError, match="the server's description of a table cannot be read"):
            client.describe("users")
        with pytest.raises(InternalError, match="the server's catalog version cannot be read"):
            client.version()
