"""Keys over columns that a caller does not see: what does not hold is refused, and not told."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, rules

from sparkport.app import Server
from sparkport.client import connect
from sparkport.errors import AlreadyExists
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ssn", pa.string()), ("slot", pa.int64())])
ROWS = pa.table({"id": [1, 2], "ssn": ["secret", "secret"], "slot": [1, 2]}, schema=SCHEMA)
PARTS = {
    "subjects": "nobody",
    "operations": ["list", "read", "insert", "update"],
    "resources": "lake.public.people",
    "columns": {"ssn": "hidden"},
}
TRANSACTIONS = {"subjects": "nobody", "operations": ["list", "call", "transaction"], "resources": ["lake", "lake.tx"]}


@pytest.fixture
def server() -> Iterator[Server]:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.people", SCHEMA, rows=ROWS, primary_key=["id"], unique=[["ssn", "slot"]])
    with serving(catalog, authenticator=TOKENS, authorizer=rules(PARTS, TRANSACTIONS)) as running:
        yield running


@pytest.mark.parametrize("in_sql", [False, True])
def test_a_statement_and_a_commit_do_not_tell_the_values_of_a_hidden_key(server: Server, in_sql: bool) -> None:
    with connect(server.location, token="nobody-token") as limited:
        first = limited.scan("people", row_id=True).read_all().to_pylist()[0]
        change = [{"rowid": first["rowid"], "slot": 2}]
        with pytest.raises(AlreadyExists, match=r"^a key of table 'people' does not hold for these rows$"):
            limited.update("people", change)
        transaction = limited.transaction()
        transaction.update("people", change)
        with pytest.raises(AlreadyExists, match=r"^a key of table 'people' does not hold for these rows$"):
            transaction.call("tx.commit", rows=1) if in_sql else transaction.commit()


def test_a_key_that_is_seen_is_named_at_the_commit(server: Server) -> None:
    with connect(server.location, token="nobody-token") as limited:
        first = limited.scan("people", row_id=True).read_all().to_pylist()[0]
        transaction = limited.transaction()
        transaction.update("people", [{"rowid": first["rowid"], "id": 2}])
        with pytest.raises(AlreadyExists, match=r"duplicate key \(id = 2\) violates PRIMARY KEY \(id\)"):
            transaction.commit()
