"""PostgreSQL behind a catalog: stock settings, lost connections, and a database that stops answering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from tests.support.fault_proxy import FaultProxy
from tests.support.postgres import PostgresCluster

from sparkport.errors import Unavailable
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

THREADS = 256


@pytest.fixture
def database(postgres_uri: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase(postgres_uri)) as opened:
        with opened.transaction(write=True) as work:
            work.change("CREATE TABLE notes (id BIGINT PRIMARY KEY)")
        yield opened


def test_more_threads_than_a_stock_server_has_connections_all_get_their_turn(database: PostgresDatabase) -> None:
    together = threading.Barrier(THREADS)

    def note(number: int) -> None:
        together.wait()
        with database.transaction(write=True) as work:
            work.change("INSERT INTO notes VALUES (?)", [number])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(note, range(THREADS)))
    with database.transaction() as work:
        assert work.query(
            "SELECT count(*), (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()) FROM notes"
        )[0] == (THREADS, 16)


def test_no_call_fails_because_the_database_has_ended_its_connections(
    database: PostgresDatabase, postgres: PostgresCluster, postgres_uri: str
) -> None:
    for number in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self_check(database), range(8)))
        name = urlsplit(postgres_uri).path[1:]
        postgres.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")
        with database.transaction(write=True) as work:
            assert work.change("INSERT INTO notes VALUES (?)", [number]) == 1


def self_check(database: PostgresDatabase) -> None:
    with database.transaction() as work:
        assert work.query("SELECT 1") == [(1,)]


@pytest.mark.parametrize("fails", [FaultProxy.hold, FaultProxy.swallow], ids=["no answers", "nothing gets through"])
def test_a_database_that_falls_silent_is_given_up_and_found_again(
    postgres_uri: str, database: PostgresDatabase, fails: Callable[[FaultProxy], None]
) -> None:
    with FaultProxy(postgres_uri) as proxy:
        address = postgres_uri.replace(urlsplit(postgres_uri).netloc, f"sparkport@{urlsplit(proxy.location).netloc}")
        with closing(PostgresDatabase(address, patience=1)) as far:
            self_check(far)
            fails(proxy)
            began = time.monotonic()
            with pytest.raises(Unavailable), far.transaction(write=True) as work:
                work.change("INSERT INTO notes VALUES (1)")
            assert time.monotonic() - began < 30
            proxy.release()
            self_check(far)
    with database.transaction() as work:
        assert work.query("SELECT count(*) FROM notes") == [(0,)]


def test_whoever_falls_silent_in_a_transaction_does_not_keep_its_locks(
    postgres_uri: str, database: PostgresDatabase
) -> None:
    with database.transaction(write=True) as work:
        work.change("INSERT INTO notes VALUES (1)")

    def fall_silent(silent: PostgresDatabase) -> None:
        with silent.transaction(write=True) as held:
            held.change("UPDATE notes SET id = 2")
            with database.transaction(write=True) as work:  # waits until the server has ended the silent one
                assert work.change("UPDATE notes SET id = 3") == 1
            held.change("UPDATE notes SET id = 4")

    with closing(PostgresDatabase(postgres_uri, patience=0.5)) as silent:
        with pytest.raises(Unavailable):
            fall_silent(silent)
        self_check(silent)
    with database.transaction() as work:
        assert work.query("SELECT id FROM notes") == [(3,)]


def test_when_all_connections_are_in_use_the_next_call_is_told_so(postgres_uri: str) -> None:
    with closing(PostgresDatabase(postgres_uri, patience=0.2, connections=1)) as small, small.transaction() as work:
        assert work.query("SELECT 1") == [(1,)]
        with pytest.raises(Unavailable, match="all 1 connections"), small.transaction():
            raise AssertionError("a second connection was made")
