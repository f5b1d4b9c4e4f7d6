"""What clients are told about a server's catalogs: listings, versions, who sees what."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as pf
import pytest
from tests.support.duckdb_client import AirportError, Attached, DuckDBClient
from tests.support.listing import raw

from sparkport.app import Server
from sparkport.auth.model import Operation
from sparkport.auth.rules import Rule, RuleAuthorizer
from sparkport.auth.secret import Secret
from sparkport.auth.tokens import StaticTokens
from sparkport.catalog import CatalogBuilder, Parameter, Stability, StaticCatalog
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", None]})


def shop(name: str = "shop", *, fixed: bool = False) -> StaticCatalog:
    return (
        CatalogBuilder(name, fixed=fixed)
        .schema("public", comment="all there is", tags={"owner": "ann", "cost": "low"})
        .table("users", USERS, comment="who buys")
        .scalar_function(
            "double",
            lambda ctx, args: pc.multiply(args["x"], 2),
            [Parameter("x", pa.int64())],
            pa.int64(),
            stability=Stability.VOLATILE,
            comment="twice as much",
        )
        .schema("attic")
        .table("dust", pa.table({"grain": [1.5]}))
        .build()
    )


def lake(*tables: str) -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    for table in tables or ("users",):
        catalog.create_table(f"public.{table}", USERS.schema, rows=USERS)
    return catalog


def listing_bytes(attached: Attached) -> bytes:
    return attached.action("list_schemas", {"catalog_name": attached.catalog})


# The listing


def test_a_listing_shows_schemas_with_their_comments_tags_and_which_is_the_default() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("shop")
    public, attic = attached.schemas["public"], attached.schemas["attic"]
    assert (public.description, public.tags, public.is_default) == (
        "all there is",
        {"owner": "ann", "cost": "low"},
        True,
    )
    assert (attic.description, attic.tags, attic.is_default) == ("", {}, False)
    assert attached.table("users").metadata["comment"] == "who buys"


def test_a_listing_shows_functions_with_their_parameters_comment_and_stability() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        function = client.attach("shop").entry("double", "scalar_function")
    assert function.schema.types == [pa.int64()]
    assert function.input_schema.names == ["x"]
    assert function.metadata["description"] == "twice as much"
    assert msgpack.unpackb(raw(function.metadata["extra_data"])) == {"stability": "volatile"}


def test_equal_contents_are_told_in_equal_bytes() -> None:
    with (
        serving(shop()) as one,
        serving(shop()) as other,
        DuckDBClient(one.location) as first,
        DuckDBClient(other.location) as second,
    ):
        assert listing_bytes(first.attach("shop")) == listing_bytes(second.attach("shop"))


def test_a_table_with_row_ids_has_them_marked_and_last() -> None:
    with serving(lake(), shop()) as server, DuckDBClient(server.location) as client:
        kept, static = client.attach("lake").table("users"), client.attach("shop").table("users")
    assert kept.row_id == kept.schema.names[-1] == "rowid"
    assert kept.columns == ["id", "name"]
    assert static.row_id is None


def test_a_client_lists_again_only_when_the_version_has_changed() -> None:
    catalog = lake()
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        attached.scan("users")
        attached.scan("users")
        assert attached.listings == 1
        catalog.create_table("public.orders", USERS.schema)
        attached.scan("users")
        assert attached.listings == 2
        assert attached.scan("orders").rows.num_rows == 0
        catalog.drop_table("public.orders")
        attached.begin()
        assert [entry.name for entry in attached.schemas["public"].entries] == ["users"]


def test_rows_do_not_change_the_listing() -> None:
    catalog = lake()
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        before = attached.version, listing_bytes(attached)
        attached.insert("users", USERS)
        assert (attached.catalog_version(), listing_bytes(attached)) == before


def test_an_unchanged_schema_keeps_its_hash_when_another_changes() -> None:
    catalog = lake()
    catalog.new_schema("quiet")
    catalog.create_table("quiet.still", USERS.schema)
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        quiet, public = attached.schemas["quiet"].sha256, attached.schemas["public"].sha256
        catalog.create_table("public.orders", USERS.schema)
        attached.begin()
        assert attached.schemas["quiet"].sha256 == quiet
        assert attached.schemas["public"].sha256 != public


def test_the_version_of_a_fixed_catalog_is_asked_for_once() -> None:
    with serving(shop(fixed=True)) as server, DuckDBClient(server.location) as client:
        attached = client.attach("shop")
        attached.scan("users")
        attached.scan("users")
        assert client.attempts.count("catalog_version") == 1


def test_a_catalog_with_transactions_gives_each_query_an_id_of_its_own() -> None:
    with serving(lake(), shop()) as server, DuckDBClient(server.location) as client:
        kept = client.attach("lake")
        with kept.transaction() as first:
            assert first
        with kept.transaction() as second:
            assert second not in (None, first)
        with client.attach("shop").transaction() as none:
            assert none is None


# Several catalogs


def test_the_catalog_is_chosen_by_its_name_whatever_its_case() -> None:
    with serving(lake(), shop()) as server, DuckDBClient(server.location) as client:
        assert "attic" in client.attach("shop").schemas
        assert "attic" in client.attach("SHOP").schemas
        assert "attic" not in client.attach("lake").schemas


def test_an_empty_name_means_the_only_catalog() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("")
        assert attached.scan("public.users").rows.equals(USERS)


def test_an_empty_name_among_several_catalogs_is_not_found() -> None:
    with serving(shop(), lake()) as server, DuckDBClient(server.location) as client:
        with pytest.raises(AirportError, match="'shop', 'lake'") as caught:
            client.attach("")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_an_unknown_catalog_is_not_found_and_the_known_ones_are_named() -> None:
    with serving(shop(), lake()) as server, DuckDBClient(server.location) as client:
        with pytest.raises(AirportError, match="catalog 'nope' not found; known catalogs: 'shop', 'lake'") as caught:
            client.attach("nope")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        assert client.attempts == ["catalog_version"]


def test_catalogs_come_and_go_while_the_server_runs() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        server.add_catalog(lake())
        attached = client.attach("lake")
        assert attached.scan("users").rows.num_rows == 3
        server.remove_catalog("lake")
        with pytest.raises(AirportError, match="catalog 'lake' not found") as caught:
            attached.scan("users")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        server.add_catalog(lake("orders"))
        assert client.attach("lake").scan("orders").rows.num_rows == 3


# ListFlights, flight_info and the stock client


def test_list_flights_is_narrowed_down_by_its_headers() -> None:
    with serving(shop(), lake()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("shop")
        assert [entry.name for entry in attached.list_flights()] == ["users", "double", "dust"]
        assert [entry.name for entry in attached.list_flights(schema="attic")] == ["dust"]
        with pytest.raises(AirportError, match="schema 'cellar' not found"):
            attached.list_flights(schema="cellar")


def test_the_stock_client_lists_describes_and_reads() -> None:
    with serving(shop()) as server, pf.connect(server.location) as client:
        (users,) = [info for info in client.list_flights() if info.descriptor.path[-1] == b"users"]
        assert users.total_records == 3
        assert client.get_schema(users.descriptor).schema.names == ["id", "name"]
        info = client.get_flight_info(pf.FlightDescriptor.for_path("public", "users"))
        (endpoint,) = info.endpoints
        assert client.do_get(endpoint.ticket).read_all().equals(USERS)
        assert {"list_schemas", "endpoints", "flight_info"} <= {action.type for action in client.list_actions()}


def test_flight_info_tells_the_schema_of_a_version() -> None:
    with serving(lake()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        assert attached.flight_info("users", at=("VERSION", "1")).columns == ["id", "name"]
        assert attached.flight_info("users").total_records == 3
        with pytest.raises(AirportError, match="oldest is 0") as caught:
            attached.flight_info("users", at=("VERSION", "77"))
        assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_version_of_a_table_without_versions_is_unimplemented() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        with pytest.raises(AirportError, match="keeps no versions") as caught:
            client.attach("shop").flight_info("users", at=("VERSION", "1"))
        assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("at", [("MOMENT", "1"), ("VERSION", ""), ("VERSION", "one")])
def test_a_version_that_makes_no_sense_is_an_invalid_argument(at: tuple[str, str]) -> None:
    with serving(lake()) as server, DuckDBClient(server.location) as client:
        with pytest.raises(AirportError) as caught:
            client.attach("lake").flight_info("users", at=at)
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.exception_type == "InvalidInputException"


def test_an_unknown_action_is_unimplemented_and_not_tried_again() -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("shop")
        with pytest.raises(AirportError, match="action 'fly' is not implemented") as caught:
            attached.action("fly", {})
        assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
        assert client.attempts.count("fly") == 1


@pytest.mark.parametrize("body", [[1, 2], 7, {"catalog": "shop"}, {"catalog_name": 5}])
def test_a_broken_body_is_an_invalid_argument_or_means_the_default(body: object) -> None:
    with serving(shop()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("shop")
        try:
            answer = attached.action("catalog_version", body)
        except AirportError as exc:
            assert exc.code is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - either outcome is right
        else:
            assert msgpack.unpackb(answer)["catalog_version"] == attached.version


# Who sees what

TOKENS = {Secret("a-token"): "ann", Secret("b-token"): "bob", Secret("c-token"): "cid"}
RULES = [
    Rule(("ann",), frozenset(Operation), ("shop",)),
    Rule(("bob",), frozenset({Operation.READ}), ("shop.attic",)),
    Rule(("cid",), frozenset({Operation.CALL}), ("shop.public",)),
]


@pytest.fixture
def guarded() -> Iterator[Server]:
    with serving(shop(), authenticator=StaticTokens(TOKENS), authorizer=RuleAuthorizer(RULES)) as server:
        yield server


def test_what_a_caller_may_not_see_is_not_listed(guarded: Server) -> None:
    with DuckDBClient(guarded.location, token="a-token") as ann, DuckDBClient(guarded.location, token="b-token") as bob:
        assert set(ann.attach("shop").schemas) == {"public", "attic"}
        assert set(bob.attach("shop").schemas) == {"attic"}
        assert set(ann.attach("shop").schemas) == {"public", "attic"}


def test_what_a_caller_may_not_see_is_not_found(guarded: Server) -> None:
    with DuckDBClient(guarded.location, token="a-token") as ann, DuckDBClient(guarded.location, token="b-token") as bob:
        known, blind = ann.attach("shop"), bob.attach("shop")
        blind.schemas = known.schemas
        with pytest.raises(AirportError, match="schema 'public' not found") as caught:
            blind.scan("public.users")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_what_a_caller_sees_but_may_not_use_is_denied_as_duckdb_understands_it(guarded: Server) -> None:
    with DuckDBClient(guarded.location, token="c-token") as cid:
        attached = cid.attach("shop")
        assert attached.call_scalar("double", pa.array([4])).to_pylist() == [8]
        with pytest.raises(AirportError, match="'cid' may not read") as caught:
            attached.scan("users")
        assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.exception_type == "PermissionException"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_caller_without_a_good_token_learns_nothing(guarded: Server, token: str | None) -> None:
    with DuckDBClient(guarded.location, token=token) as client:
        with pytest.raises(AirportError) as caught:
            client.attach("shop")
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.exception_type == "PermissionException"
        assert "shop" not in caught.value.message
