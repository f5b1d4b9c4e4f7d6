"""Row changes driven without a socket: lock-step, one commit at the end, and nothing after an early end."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack
import pyarrow as pa
import pytest

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import ScanRequest
from sparkport.errors import Cancelled, DeadlineExceeded, InvalidArgument
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import Handlers
from sparkport.memory import MemoryCatalog, MemoryTable
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.streams import BatchMessage, MetadataMessage, Outgoing, SchemaMessage

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
PATH = FlightDescriptor(path=("lake", "public", "table", "t"), command=None)
OPERATIONS = ["insert", "update", "delete"]


class Pulled(list[pa.RecordBatch]):
    """Batches that count how many have been taken."""

    pulled = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in super().__iter__():
            self.pulled += 1
            yield batch


@dataclass(slots=True)
class ListUpload:
    """An upload made of a list, for driving handlers without a socket."""

    descriptor: FlightDescriptor
    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    preamble: list[bytes] = field(default_factory=list)
    last_metadata: bytes | None = None

    def read_schema(self) -> pa.Schema:
        return self.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


class Driven:
    """One exchange on a table of three rows."""

    def __init__(self, operation: str, *, returning: bool, transaction: bool = False) -> None:
        self.catalog = MemoryCatalog("lake")
        rows = pa.Table.from_pylist([{"id": n, "name": f"old{n}"} for n in range(3)], COLUMNS)
        self.table: MemoryTable = self.catalog.create_table("public.t", COLUMNS, rows=rows)
        manager = self.catalog.transactions
        assert manager is not None
        self.manager = manager
        headers = {"airport-operation": operation, "return-chunks": "1" if returning else "0"}
        self.ctx = CallContext(headers=headers)
        if transaction:
            self.ctx.transaction_id = manager.begin(self.ctx, auto_commit=False)
        self.batches = Pulled(_batch(operation, number) for number in range(3))
        upload = ListUpload(PATH, self.batches[0].schema, self.batches)
        handlers = Handlers(Directory([self.catalog]))
        self.messages = cast("Generator[Outgoing, None, None]", handlers.do_exchange(self.ctx, upload))

    def rows(self) -> list[dict[str, Any]]:
        scan = self.table.scan(CallContext(), ScanRequest(columns=("id", "name")))
        return [row for batch in scan for row in batch.to_pylist()]


def _batch(operation: str, number: int) -> pa.RecordBatch:
    row = {"id": 10 + number, "name": f"new{number}", "rowid": number}
    kinds = {
        "insert": COLUMNS,
        "update": pa.schema([("name", pa.string()), ("rowid", pa.int64())]),
        "delete": pa.schema([("rowid", pa.int64())]),
    }
    return pa.RecordBatch.from_pylist([row], kinds[operation])


OLD = [{"id": n, "name": f"old{n}"} for n in range(3)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_next_batch_is_never_pulled_before_the_answer_was_taken(operation: str) -> None:
    driven = Driven(operation, returning=True)
    assert isinstance(next(driven.messages), SchemaMessage)
    for number in range(3):
        assert driven.batches.pulled == number
        message = next(driven.messages)
        assert isinstance(message, BatchMessage)
        assert message.batch.num_rows == 1
        assert driven.batches.pulled == number + 1
        assert driven.rows() == OLD, "seen before the statement's end"
    last = next(driven.messages)
    assert isinstance(last, MetadataMessage)
    assert msgpack.unpackb(last.metadata) == {"total_changed": 3}
    assert next(driven.messages, None) is None
    assert driven.rows() != OLD


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_schema_goes_out_before_any_row_is_pulled_and_the_count_at_the_end(operation: str) -> None:
    driven = Driven(operation, returning=False)
    assert isinstance(next(driven.messages), SchemaMessage)
    assert driven.batches.pulled == 0
    (last,) = driven.messages
    assert isinstance(last, MetadataMessage)
    assert msgpack.unpackb(last.metadata) == {"total_changed": 3}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_when_the_count_is_told_the_change_is_there(operation: str) -> None:
    driven = Driven(operation, returning=False)
    next(driven.messages)
    next(driven.messages)
    assert driven.rows() != OLD


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["close", "cancel", "deadline"])
def test_an_early_end_after_any_answer_changes_nothing(operation: str, after: int, how: str) -> None:
    driven = Driven(operation, returning=True, transaction=True)
    for _ in range(1 + after):
        next(driven.messages)
    if how == "close":
        driven.messages.close()
    elif how == "cancel":
        driven.ctx.cancellation.set()
        with pytest.raises(Cancelled):
            next(driven.messages)
    else:
        driven.ctx.deadline = 0.0
        with pytest.raises(DeadlineExceeded):
            next(driven.messages)
    assert driven.rows() == OLD
    assert driven.manager.open_transactions() == []
    state = driven.manager.status(driven.ctx.transaction_id or "")
    assert state is not None
    assert state.value == "aborted"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("returning", [False, True])
def test_an_upload_that_breaks_at_any_batch_changes_nothing(operation: str, where: int, returning: bool) -> None:
    driven = Driven(operation, returning=returning)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from driven.batches[:where]
        raise InvalidArgument("cut short")

    upload = ListUpload(PATH, driven.batches[0].schema, broken())
    with pytest.raises(InvalidArgument, match="cut short"):
        list(Handlers(Directory([driven.catalog])).do_exchange(driven.ctx, upload))
    assert driven.rows() == OLD


def test_an_update_answers_with_the_schema_that_was_sent() -> None:
    driven = Driven("update", returning=True)
    message = next(driven.messages)
    assert isinstance(message, SchemaMessage)
    assert message.schema.equals(driven.batches[0].schema)


@pytest.mark.parametrize("operation", ["insert", "delete"])
def test_an_insert_or_delete_answers_with_the_tables_schema(operation: str) -> None:
    message = next(Driven(operation, returning=True).messages)
    assert isinstance(message, SchemaMessage)
    assert message.schema.names == ["id", "name", "rowid"]


def test_what_is_wrong_with_the_schema_is_told_before_any_row_is_pulled() -> None:
    driven = Driven("delete", returning=False)
    upload = ListUpload(PATH, COLUMNS, driven.batches)
    with pytest.raises(InvalidArgument, match="DELETE requires rowid column"):
        next(Handlers(Directory([driven.catalog])).do_exchange(driven.ctx, upload))
    assert driven.batches.pulled == 0
