"""A client that goes before its input has ended has changed nothing by key, and left nothing behind."""

from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from tests.robustness.rig import IN_OUT_HEADERS, Raw, eventually, ipc_row
from tests.robustness.test_cancellation import WAYS, Caller

from sparkport.app import Limits
from sparkport.client import connect
from sparkport.memory import MemoryCatalog
from sparkport.protocol.frames import StreamWriter, flight_data
from sparkport.protocol.targets import Kind, Target
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["ann", "bob"]})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", ["upsert_by", "delete_matching_by"])
def test_a_client_that_goes_in_the_middle_has_changed_nothing(way: str, function: str) -> None:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.users", USERS.schema, rows=USERS)
    descriptor = Target("lake", "rows", Kind.TABLE_FUNCTION, function).descriptor().encode()
    parameters = msgpack.packb({"parameters": ipc_row(table_name="public.users", key=["id"])})
    rows = pa.RecordBatch.from_pydict({"id": pa.array([2, 3], pa.int64()), "name": ["x", "y"]})
    writer = StreamWriter(rows.schema)
    messages = [
        b"\x0a" + bytes([len(descriptor)]) + descriptor,
        flight_data(b"", [], body_length=0, metadata=parameters),
        writer.schema_message(),
        *writer.batch_messages(rows),
    ]
    with serving(catalog, limits=Limits(max_concurrent_calls=1)) as server:
        with Caller(server, way) as caller:
            caller.start("DoExchange", *messages, headers=IN_OUT_HEADERS, received=2)
            caller.go()

        def is_free() -> bool:
            with Raw(server.port) as raw:
                return bool(raw.call("ListActions", b"").code.name == "OK")

        eventually(is_free)
        with connect(server.location) as client:
            assert client.scan("public.users").read_all().equals(USERS)
    assert catalog.transactions is not None
    assert not catalog.transactions.open_transactions()
