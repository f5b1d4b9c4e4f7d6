"""Limits hold at every moment: when rules change, in transactions, for repeats and for what waits in a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, attach, create
from tests.attacks.limited import MASK, PEOPLE, SEEN, limited, secrets_in
from tests.support.duckdb_client import AirportError

from sparkport.app import Server
from sparkport.auth import RuleAuthorizer
from sparkport.catalog.ddl import MutableCatalog
from sparkport.client import connect
from sparkport.errors import NotFound, PermissionDenied
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ADMIN = '[[rules]]\nsubjects = "admin"\noperations = "*"\nresources = "*"\n'


class Changing:
    """A server whose rules a test rewrites."""

    def __init__(self, file: Path, table: str) -> None:
        self._file = file
        self._table = table
        self._now = 0.0
        self.authorizer: RuleAuthorizer

    def clock(self) -> float:
        return self._now

    def rewrite(self, *limits: str, operations: str = "*") -> None:
        lines = [f'[[rules]]\nsubjects = "reader"\noperations = "{operations}"\nresources = "lake.{self._table}"\n']
        self._file.write_text(ADMIN + "".join([*lines, *(f"{line}\n" for line in limits)]))
        self._now += 5


LIMITS = ("rows = \"region = 'EU'\"", f'columns.ssn = "{MASK}"', 'columns.salary = "hidden"')


@contextmanager
def changing(catalog: MutableCatalog, tmp_path: Path) -> Iterator[tuple[Server, str, Changing]]:
    table = create(catalog, PEOPLE)
    rules = Changing(tmp_path / "rules.toml", table)
    rules.rewrite(*LIMITS)
    authorizer = RuleAuthorizer.from_file(tmp_path / "rules.toml", clock=rules.clock)
    with serving(catalog, authenticator=TOKENS, authorizer=authorizer) as server:
        yield server, table, rules


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


def test_a_ticket_of_before_shows_what_the_rules_of_now_show(catalog: MutableCatalog, tmp_path: Path) -> None:
    with changing(catalog, tmp_path) as (server, table, rules), attach(server, "reader") as caller:
        rules.rewrite()
        caller.duckdb.load()
        (whole,) = caller.tickets(table)
        assert len(caller.get(whole)) == 4
        rules.rewrite(*LIMITS[:2])
        caller.duckdb.load()
        assert [row["id"] for row in caller.get(whole)] == [1, 3]
        assert "123-45-6789" not in str(caller.get(whole))
        rules.rewrite(*LIMITS)
        caller.duckdb.load()
        with pytest.raises(AirportError, match="is not there"):
            caller.get(whole)
        rules.rewrite("rows = 'nothing = 1'")
        caller.duckdb.load()
        with pytest.raises(AirportError) as failure:
            caller.get(whole)
        assert failure.value.code is grpc.StatusCode.PERMISSION_DENIED


def test_a_transaction_is_held_to_the_rules_of_now(catalog: MutableCatalog, tmp_path: Path) -> None:
    with changing(catalog, tmp_path) as (server, table, rules):
        with connect(server.location, token="reader-token", catalog="lake") as client:
            rules.rewrite()
            ids = client.scan(table, columns=["id", "rowid"]).read_all().to_pylist()
            transaction = client.transaction()
            assert transaction.scan(table).read_all().num_rows == 4
            rules.rewrite(*LIMITS)
            assert rows_of(transaction.scan(table).read_all()) == SEEN
            assert transaction.delete(table, [row["rowid"] for row in ids]).count == 2
            transaction.commit()
        with attach(server, "admin") as admin:
            assert [row["id"] for row in rows_of(admin.duckdb.scan(table, ["id"]).rows)] == [2, 4]


def test_duckdb_must_list_again_before_it_gets_other_columns(catalog: MutableCatalog, tmp_path: Path) -> None:
    """It ends its process where the columns are not those that it has listed."""
    with changing(catalog, tmp_path) as (server, table, rules), attach(server, "reader") as caller:
        assert rows_of(caller.duckdb.scan(table).rows) == SEEN
        rules.rewrite(LIMITS[0], 'columns.region = "hidden"')
        with pytest.raises(AirportError, match="rules about rows and columns have changed") as failure:
            caller.tickets(table)
        assert failure.value.code is grpc.StatusCode.ABORTED
        caller.duckdb.list_schemas()
        assert caller.duckdb.scan(table).rows.column_names == ["id", "name", "ssn", "salary"]


def test_a_client_lists_again_when_the_rules_show_other_columns(catalog: MutableCatalog, tmp_path: Path) -> None:
    with changing(catalog, tmp_path) as (server, table, rules), attach(server, "reader") as caller:
        before = caller.duckdb.catalog_version()
        assert caller.duckdb.catalog_version() == before
        rules.rewrite()
        assert caller.duckdb.catalog_version() != before
        caller.duckdb.list_schemas()
        assert caller.duckdb.table(table).columns == PEOPLE.column_names


def test_rules_without_limits_disturb_nobody(tmp_path: Path) -> None:
    with (
        changing(MemoryCatalog("lake"), tmp_path) as (server, table, rules),
        connect(server.location, token="reader-token", catalog="lake") as client,
    ):
        rules.rewrite()
        client.scan(table).read_all()
        with client.transaction() as transaction:
            rules.rewrite(operations="read")
            assert transaction.scan(table).read_all().num_rows == 4
            rules.rewrite(operations="insert")
            with pytest.raises(PermissionDenied):
                transaction.scan(table).read_all()
            transaction.rollback()


def test_a_repeat_gives_nobody_elses_count(catalog: MutableCatalog) -> None:
    header = ("x-statement-id", "the-same-statement")
    with limited(catalog) as place:
        schema, name = place.table.split(".")
        ids = place.ids()
        body = f'{{"schema_name": "{schema}", "table_name": "{name}", "row_ids": [{ids[2]}]}}'.encode()
        with attach(place.server, "admin") as admin, attach(place.server, "reader") as reader:
            assert b'"affected_rows": 1' in admin.act("delete", body, header)[0]
            assert b'"affected_rows": 1' in admin.act("delete", body, header)[0]
            with pytest.raises(AirportError) as failure:
                reader.act("delete", body, header)
            assert failure.value.code is grpc.StatusCode.NOT_FOUND


def test_another_ones_transaction_is_of_no_use(catalog: MutableCatalog) -> None:
    with limited(catalog) as place, place.admin.transaction() as transaction:
        transaction.insert(place.table, PEOPLE)
        with attach(place.server, "reader") as reader:
            (ticket,) = reader.tickets(place.table)
            reader.headers.append(("x-transaction-id", transaction.id))
            with pytest.raises(AirportError) as failure:
                reader.get(ticket)
            assert failure.value.code is grpc.StatusCode.NOT_FOUND
        transaction.rollback()


def test_what_waits_in_the_journal_is_limited_too(attacked_lakehouse: Lakehouse) -> None:
    with limited(attacked_lakehouse.catalog, {"subjects": "reader", "operations": "read"}, rows=None) as unlimited:
        assert unlimited.reader.scan(unlimited.table).read_all().num_rows == 4
    with limited(attacked_lakehouse.catalog) as place:
        place.admin.call("tx.set_journal", place.table, True)
        place.admin.insert(place.table, PEOPLE.set_column(0, "id", pa.array([11, 12, 13, 14], pa.int64())))
        found = rows_of(place.reader.scan(place.table).read_all())
        assert [row["id"] for row in found] == [1, 3, 11, 13]
        assert secrets_in(found) == []
        ids = place.ids()
        changes = pa.table({"name": ["a", "b", "c"], "rowid": [ids[11], ids[12], ids[1]]})
        assert place.reader.update(place.table, changes).count == 2
        assert place.reader.delete(place.table, [ids[13], ids[14]]).count == 1
        with pytest.raises(PermissionDenied):
            place.reader.insert(place.table, pa.table({"id": [5], "region": ["US"], "name": ["x"], "ssn": ["y"]}))
        names = {row["id"]: row["name"] for row in place.all_rows()}
        assert (names[11], names[12], names[1], names[14]) == ("a", "bob-hidden", "c", "dora-hidden")
        assert 13 not in names
        with pytest.raises(NotFound):
            place.reader.scan("tx.journal").read_all()  # the rule is about one table
        place.admin.call("tx.flush", rows=1)
        assert [row["id"] for row in rows_of(place.reader.scan(place.table).read_all())] == [1, 3, 11]
