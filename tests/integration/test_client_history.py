"""History through the Python client: versions, changes, and following a table while it changes."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.support.ports import free_port

from sparkport import Server
from sparkport.catalog.static import ArrowTable
from sparkport.cli.changes import print_changes
from sparkport.cli.remote import Remote
from sparkport.client import Client, connect
from sparkport.client.follow import Follower
from sparkport.errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


@pytest.fixture
def catalog() -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.users", SCHEMA, rows=rows(1, 2))
    return catalog


@pytest.fixture
def client(catalog: MemoryCatalog) -> Iterator[Client]:
    with serving(catalog) as server, connect(server.location) as connected:
        yield connected


def told(table: pa.Table) -> list[tuple[str, int, int]]:
    return [(row["kind"], row["version"], row["id"]) for row in table.to_pylist()]


def test_versions_and_changes_are_read(client: Client) -> None:
    (row_id, _) = client.scan("users", row_id=True).read_all()["rowid"].to_pylist()
    client.update("users", pa.table({"name": ["x"]}), row_ids=[row_id])
    assert client.snapshots("users")["updated"].to_pylist() == [None, 0, 1]
    assert told(client.changes("users", 1).read_all()) == [("update_before", 2, 1), ("update_after", 2, 1)]
    assert told(client.changes("public.users", 0, 1).read_all()) == [("insert", 1, 1), ("insert", 1, 2)]
    assert client.changes(("public", "users"), 2).read_all().num_rows == 0


def test_an_enum_is_told_as_its_values(client: Client, catalog: MemoryCatalog) -> None:
    moods = pa.table({"mood": pa.array(["sad", "ok"]).dictionary_encode()})
    catalog.create_table("public.moods", moods.schema, rows=moods)
    told = client.changes("moods", 0).read_all()["mood"]
    assert (told.type, told.to_pylist()) == (pa.string(), ["sad", "ok"])


def test_a_table_that_has_no_history_says_so(client: Client, catalog: MemoryCatalog) -> None:
    catalog.add("public", ArrowTable("fixed", rows(1)))
    with pytest.raises(Unsupported, match="history"):
        client.changes("fixed", 0)
    with pytest.raises(NotFound, match="nobody"):
        client.snapshots("nobody")


def test_following_gives_each_version_once_as_it_comes(client: Client) -> None:
    with client.follow("users", 0, poll_seconds=0.01) as follower:
        first = next(follower)
        assert (first.version, first.num_rows) == (1, 2)
        assert told(first.read_all()) == [("insert", 1, 1), ("insert", 1, 2)]
        assert told(first.read_all()) == told(first.read_all())
        later: list[int] = []
        both = threading.Event()

        def read() -> None:
            for changes in follower:
                later.append(changes.version)
                if len(later) == 2:
                    both.set()

        reading = threading.Thread(target=read)
        reading.start()
        client.insert("users", rows(3))
        client.insert("users", rows(4))
        assert both.wait(30)
        follower.close()
        reading.join(30)
        assert not reading.is_alive()
        assert later == [2, 3]


def test_following_begins_now_unless_a_version_is_named(client: Client) -> None:
    with client.follow("users", poll_seconds=0.01) as follower:
        assert follower.version == 1
        client.insert("users", rows(3))
        assert next(follower).read_all()["id"].to_pylist() == [3]


def test_who_goes_on_from_the_last_version_misses_and_repeats_nothing(client: Client) -> None:
    seen: list[int] = []
    version, table_id = 0, None
    for number in range(5):
        client.insert("users", rows(10 + number))
        with client.follow("users", version, table_id=table_id, poll_seconds=0.01) as follower:
            for _ in range(2 if number == 0 else 1):
                changes = next(follower)
                seen += changes.read_all()["id"].to_pylist()
                version, table_id = changes.version, changes.table_id
    assert seen == [1, 2, 10, 11, 12, 13, 14]


def test_each_version_has_its_own_columns(client: Client) -> None:
    client.add_column("users", pa.field("age", pa.int32()))
    client.insert("users", pa.table({"id": [3], "name": ["c"], "age": pa.array([7], pa.int32())}))
    with client.follow("users", 0, poll_seconds=0.01) as follower:
        first, altered, third = next(follower), next(follower), next(follower)
    assert first.schema.names == ["kind", "row_id", "version", "id", "name"]
    assert (altered.version, altered.num_rows) == (2, 0)
    assert third.read_all()["age"].to_pylist() == [7]


def test_a_server_that_comes_back_is_waited_for(catalog: MemoryCatalog) -> None:
    port = free_port()
    with Server(catalog, port=port) as server:
        location = server.location
        client = connect(location)
        follower = client.follow("users", 0, poll_seconds=0.01)
        assert next(follower).version == 1
    arrived: list[int] = []
    waiting = threading.Thread(target=lambda: arrived.append(next(follower).version))
    waiting.start()
    with Server(catalog, port=port), connect(location) as writer:
        writer.insert("users", rows(3))
        waiting.join(60)
    assert arrived == [2]
    client.close()


def test_another_table_of_the_same_name_is_not_followed(client: Client, catalog: MemoryCatalog) -> None:
    with client.follow("users", 0, poll_seconds=0.01) as follower:
        first = next(follower)
        catalog.drop_table("public.users")
        catalog.create_table("public.users", SCHEMA, rows=rows(7))
        client.insert("users", rows(8))
        with pytest.raises(FailedPrecondition, match="another"):
            next(follower)
    with pytest.raises(FailedPrecondition, match="another"):
        client.follow("users", first.version, table_id=first.table_id)


def test_nonsense_is_refused_before_anything_is_followed(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="counted from 0"):
        client.follow("users", -1)
    with pytest.raises(InvalidArgument, match="above 0"):
        client.follow("users", poll_seconds=0)
    with pytest.raises(NotFound):
        client.follow("nobody")
    with pytest.raises(NotFound, match="the newest is 1"):
        client.follow("users", 2)


def test_a_version_that_is_gone_ends_the_following_with_a_clear_error() -> None:
    def changes(first: int, last: int, of: str) -> None:
        raise NotFound(f"version {first} has expired")

    follower = Follower(lambda: ("id", 9), changes, from_version=3, table_id=None, poll_seconds=1)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="version 3 has expired"):
        next(follower)


def test_the_command_prints_changes_as_lines_of_json(client: Client) -> None:
    client.insert("users", rows(3))
    remote, out = Remote(location=client.location), io.StringIO()
    assert print_changes(remote, "public.users", "1", last=None, follow=False, out=out) == 0
    (line,) = out.getvalue().splitlines()
    assert json.loads(line) == {"kind": "insert", "row_id": 2, "version": 2, "id": 3, "name": "n3"}
    out = io.StringIO()
    print_changes(remote, "users", "0", last="1", follow=False, out=out)
    assert [json.loads(line)["id"] for line in out.getvalue().splitlines()] == [1, 2]
    with pytest.raises(InvalidArgument, match="--follow"):
        print_changes(remote, "users", "2026-01-01", last=None, follow=True, out=out)
    with pytest.raises(NotFound):
        print_changes(remote, "users", "2000-01-01 00:00:00", last=None, follow=False, out=out)
