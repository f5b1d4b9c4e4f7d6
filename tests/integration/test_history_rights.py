"""Who may know a table's history, and who may change it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, rules

from sparkport.app import Server
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.table({"id": [1, 2], "ssn": ["111", "222"]})

CALLS = {"subjects": ["reader", "nobody"], "operations": ["list", "call", "read"], "resources": "lake.history"}
LIMITED = {"subjects": "nobody", "operations": "read", "resources": "lake.public.limited", "columns": {"ssn": "hidden"}}


@pytest.fixture
def server() -> Iterator[Server]:
    catalog = MemoryCatalog("lake")
    for name in ("users", "limited", "old", "secret.kept"):
        if "." in name:
            catalog.new_schema("secret")
        catalog.create_table(name if "." in name else f"public.{name}", USERS.schema, rows=USERS)
    catalog.drop_table("public.old")
    catalog.drop_table("secret.kept")
    with serving(catalog, authenticator=TOKENS, authorizer=rules(CALLS, LIMITED)) as running:
        yield running


def of(server: Server, name: str) -> Client:
    return connect(server.location, token=f"{name}-token")


def test_who_reads_a_table_reads_its_history(server: Server) -> None:
    with of(server, "reader") as reader:
        assert reader.changes("users", 0).read_all().num_rows == 2
        assert reader.snapshots("users").num_rows == 2


def test_who_sees_a_part_of_a_table_does_not_get_its_history(server: Server) -> None:
    with of(server, "nobody") as limited:
        assert limited.scan("limited").read_all().column_names == ["id"]
        for ask in (
            lambda: limited.changes("limited", 0),
            lambda: limited.snapshots("limited"),
            lambda: limited.follow("limited", 0),
            lambda: limited.call_table("history.tags", "public.limited").read_all(),
        ):
            with pytest.raises(PermissionDenied, match="only a part"):
                ask()


def test_a_table_that_is_not_the_callers_is_not_there(server: Server) -> None:
    with of(server, "reader") as reader, pytest.raises((NotFound, PermissionDenied)):
        reader.changes("secret.kept", 0)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("rollback", ("public.users", 0)),
        ("tag", ("public.users", "x", 1)),
        ("untag", ("public.users", "x")),
        ("branch", ("public.users", "x", 1)),
        ("drop_branch", ("public.users", "x")),
    ],
)
def test_only_who_may_alter_a_table_goes_back_or_names_versions(
    server: Server, function: str, arguments: tuple[object, ...]
) -> None:
    with of(server, "reader") as reader, pytest.raises(PermissionDenied):
        reader.call(f"history.{function}", *arguments)
    with of(server, "admin") as admin:
        if function == "untag":
            admin.call("history.tag", "public.users", "x", 1)
        if function == "drop_branch":
            admin.call("history.branch", "public.users", "x", 1)
        assert len(admin.call(f"history.{function}", *arguments)) == 1


def test_only_who_may_create_a_table_brings_it_back_and_names_stay_with_who_may_know_them(server: Server) -> None:
    with of(server, "reader") as reader:
        assert "kept" not in reader.scan("history.dropped").read_all()["name"].to_pylist()
        with pytest.raises(PermissionDenied):
            reader.call("history.restore", "public.old")
    with of(server, "admin") as admin:
        assert sorted(admin.scan("history.dropped").read_all()["name"].to_pylist()) == ["kept", "old"]
        assert admin.call("history.restore", "public.old").to_pylist() == ["public.old"]
        assert admin.scan("old").read_all().num_rows == 2


def test_a_table_is_restored_by_the_name_that_it_was_dropped_under_and_listed_once(server: Server) -> None:
    with of(server, "admin") as admin:
        admin.rename_table("public.users", "people")
        for _ in range(2):
            admin.drop_table("public.people")
            names = admin.scan("history.dropped").read_all()["name"].to_pylist()
            assert sorted(names) == ["kept", "old", "people"]
            with pytest.raises(NotFound):
                admin.call("history.restore", "public.users")
            admin.call("history.restore", "public.people")
        assert admin.scan("people").read_all().num_rows == 2


def test_nonsense_has_a_clear_answer(server: Server) -> None:
    with of(server, "admin") as admin:
        for name in ("", "a.b.c.d", 'public."users', "other.public.users"):
            with pytest.raises(InvalidArgument):
                admin.call_table("history.snapshots", name).read_all()
        for version in (None, 1.5, True, b"x"):
            with pytest.raises(InvalidArgument, match="version"):
                admin.call("history.rollback", "public.users", version)
        with pytest.raises(InvalidArgument, match="NULL"):
            admin.call("history.tag", "public.users", None, 1)
