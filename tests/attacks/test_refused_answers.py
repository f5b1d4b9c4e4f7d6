"""An answer that there is no room for is refused before what it answers is committed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS
from tests.attacks.test_taking_memory import ipc_messages, put
from tests.robustness.rig import Answer, Raw, action

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, TableDefinition
from sparkport.catalog.keys import Key
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import ChangeableTable
from sparkport.protocol.targets import Kind, Target
from sparkport.testing import serving
from sparkport.wire.limits import Limits

pytestmark = pytest.mark.tier("fast")

OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
MANY, FEW = 100, 10
TEXT = "x" * 100_000
LIMITS = Limits(max_concurrent_calls=64, max_message_bytes=4 << 20, max_batch_bytes=256 << 10, max_held_bytes=24 << 20)
"""A caller may hold 18 MiB, of which 10 MB in an answer are more than there is room for, however they are sent."""


class Attacked:
    def __init__(self, catalog: MutableCatalog, raw: Raw) -> None:
        self._ctx = CallContext()
        self._raw = raw
        schema = catalog.schema(self._ctx, "public") or catalog.create_schema(self._ctx, "public")
        assert isinstance(schema, MutableSchema)
        self.name = f"t{uuid.uuid4().hex}"
        definition = TableDefinition(name=self.name, columns=COLUMNS, keys=(Key(("id",), True),))
        table = schema.create_table(self._ctx, definition)
        assert isinstance(table, ChangeableTable)
        table.insert(self._ctx, pa.RecordBatchReader.from_batches(COLUMNS, rows(range(MANY), TEXT)))
        self._catalog = catalog

    def contents(self) -> dict[int, tuple[int, int]]:
        """The row id of each row, and how long its text is, by its id."""
        schema = self._catalog.schema(self._ctx, "public")
        table = None if schema is None else schema.table(self._ctx, self.name)
        assert table is not None
        found = {}
        with closing(as_scan(table.scan(self._ctx, ScanRequest()))) as scan:
            for batch in scan:
                for row in batch.to_pylist():
                    found[row["id"]] = (row["rowid"], len(row["v"]))
        return found

    def delete(self, row_ids: Sequence[int], **more: object) -> Answer:
        body = {"schema_name": "public", "table_name": self.name, "row_ids": list(row_ids), "returning": True, **more}
        return self._raw.call("DoAction", action("delete", json.dumps(body).encode()))

    def put(self, operation: str, batches: list[pa.RecordBatch], **more: object) -> Answer:
        first, *rest = ipc_messages(batches)
        command = put(self.name, operation=operation, returning=True, **more)
        return self._raw.call("DoPut", command + first, *rest)

    def upsert(self, batches: list[pa.RecordBatch]) -> Answer:
        """By DoExchange, as DuckDB does it."""
        encoded = Target("lake", "public", Kind.TABLE, self.name).descriptor().encode()
        first, *rest = ipc_messages(batches)
        headers = (("airport-operation", "upsert"), ("return-chunks", "1"))
        return self._raw.call("DoExchange", b"\x0a" + bytes([len(encoded)]) + encoded + first, *rest, headers=headers)


def rows(ids: Sequence[int], text: str) -> list[pa.RecordBatch]:
    parts = [ids[start : start + 20] for start in range(0, len(ids), 20)]
    return [
        pa.RecordBatch.from_arrays([pa.array(part, pa.int64()), pa.array([text] * len(part))], schema=COLUMNS)
        for part in parts
    ]


@pytest.fixture
def attacked(catalog: MutableCatalog) -> Iterator[Attacked]:
    with (
        serving(catalog, authenticator=TOKENS, limits=LIMITS) as server,
        Raw(int(server.location.rpartition(":")[2]), token="admin-token") as raw,
    ):
        yield Attacked(catalog, raw)


def test_a_delete_whose_rows_are_too_many_to_be_returned_deletes_none(attacked: Attacked) -> None:
    before = attacked.contents()

    answer = attacked.delete([row_id for row_id, _ in before.values()])

    assert answer.code is EXHAUSTED
    assert attacked.contents() == before
    few = [before[number][0] for number in range(FEW)]
    answer = attacked.delete(few)
    assert answer.code is OK, answer.details
    assert len(answer.messages[0]) > FEW * len(TEXT)
    assert len(attacked.contents()) == MANY - FEW
    assert attacked.delete([before[number][0] for number in range(FEW, MANY)], returning=False).code is OK
    assert not attacked.contents()


@pytest.mark.parametrize("operation", ["insert", "upsert"])
def test_new_rows_that_are_too_many_to_be_returned_are_not_inserted(attacked: Attacked, operation: str) -> None:
    before = attacked.contents()

    assert attacked.put(operation, rows(range(MANY, 2 * MANY), TEXT)).code is EXHAUSTED
    assert attacked.contents() == before
    answer = attacked.put(operation, rows(range(MANY, MANY + FEW), TEXT))
    assert answer.code is OK, answer.details
    assert len(attacked.contents()) == MANY + FEW


def test_an_update_whose_rows_are_too_many_to_be_returned_changes_none(attacked: Attacked) -> None:
    before = attacked.contents()
    row_ids = [before[number][0] for number in range(MANY)]

    assert attacked.put("update", rows(range(MANY), "y" * 100_001), row_ids=row_ids).code is EXHAUSTED
    assert attacked.contents() == before


def test_what_has_been_committed_is_answered_though_the_caller_has_no_room_left(attacked: Attacked) -> None:
    answer = attacked.upsert(rows(range(MANY, 2 * MANY), TEXT))

    assert (answer.code is OK) == (len(attacked.contents()) == 2 * MANY), answer.details
