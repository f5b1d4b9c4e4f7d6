"""One caller cannot take all the deferred transactions that there are."""

from __future__ import annotations

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS
from tests.contract.clients import JsonClient
from tests.support.duckdb_client import DuckDBClient
from tests.support.flight_rpc import AirportError, Connection

from sparkport.memory import MemoryCatalog
from sparkport.testing import serving
from sparkport.transactions.manager import TransactionSettings

pytestmark = pytest.mark.tier("fast")

SETTINGS = TransactionSettings(max_deferred=5, max_deferred_per_subject=3)


def test_a_caller_at_its_quota_is_refused_and_others_are_not() -> None:
    catalog = MemoryCatalog("lake", settings=SETTINGS)
    catalog.create_table("public.t", pa.schema([("n", pa.int64())]))
    with serving(catalog, authenticator=TOKENS) as server:
        connection = Connection(server.location)
        reader, other = (
            JsonClient(connection, [("authorization", f"Bearer {name}-token")]) for name in ("reader", "other")
        )
        begun = [reader.begin(auto_commit=False) for _ in range(3)]
        with pytest.raises(AirportError) as failure:
            reader.begin(auto_commit=False)
        assert failure.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert failure.value.message == "'reader' has 3 open deferred transactions, the limit for one"
        with DuckDBClient(server.location, token="reader-token") as client:
            duckdb = client.attach("lake")
            with duckdb.transaction(), pytest.raises(AirportError, match="the limit for one"):
                duckdb.call_scalar("tx.begin", rows=1)
        other.begin(auto_commit=False)
        reader.rollback(begun[0])
        reader.begin(auto_commit=False)
        connection.close()


def test_where_callers_cannot_be_told_apart_there_is_one_limit_for_all() -> None:
    with serving(MemoryCatalog("lake", settings=SETTINGS)) as server:
        connection = Connection(server.location)
        client = JsonClient(connection)
        for _ in range(5):
            client.begin(auto_commit=False)
        with pytest.raises(AirportError, match="there are 5 open deferred transactions"):
            client.begin(auto_commit=False)
        connection.close()
