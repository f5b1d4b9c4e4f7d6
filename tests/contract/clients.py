"""The contract's two kinds of clients, by hand: JSON over DoPut and DoAction, and DuckDB's DoExchange."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.support.flight_rpc import AirportError, Connection, Headers, batch_messages, schema_message
from tests.support.listing import unpack
from tests.support.lockstep import Exchange, MessageExchange

__all__ = ["Answer", "JsonClient", "batches_of", "change", "command", "open_exchange", "refused"]


@contextmanager
def refused(code: str, message: str) -> Iterator[None]:
    """The block fails with exactly this code and message."""
    with pytest.raises(AirportError) as failure:
        yield
    assert (failure.value.code, failure.value.message) == (grpc.StatusCode[code], message)


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    affected_rows: int
    rows: pa.Table | None


def _table(data: bytes | None) -> pa.Table | None:
    if data is None:
        return None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def batches_of(rows: pa.Table | pa.RecordBatch | Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    return list(rows.to_batches() if isinstance(rows, pa.Table) else rows)


class JsonClient:
    """``headers`` go out with every call; each method returns what the server said, decoded."""

    def __init__(self, connection: Connection, headers: Headers = ()) -> None:
        self.connection = connection
        self.headers = list(headers)

    def inside(self, transaction_id: str, *, header: str = "x-transaction-id") -> JsonClient:
        return self.with_header(header, transaction_id)

    def with_header(self, name: str, value: str) -> JsonClient:
        return JsonClient(self.connection, [*self.headers, (name, value)])

    # Row changes

    def insert(self, table: str, rows: Any, **more: Any) -> Answer:
        return self._put("insert", table, rows, more)

    def update(self, table: str, row_ids: Any, rows: Any, **more: Any) -> Answer:
        return self._put("update", table, rows, {"row_ids": row_ids, **more})

    def delete(self, table: str, row_ids: Any, **more: Any) -> Answer:
        schema_name, table_name = table.split(".")
        answer = self.action(
            "delete", {"schema_name": schema_name, "table_name": table_name, "row_ids": row_ids, **more}
        )
        data = answer.get("returning_data")
        return Answer(
            answer["status"], answer["affected_rows"], _table(None if data is None else base64.b64decode(data))
        )

    def _put(self, operation: str, table: str, rows: Any, more: dict[str, Any]) -> Answer:
        schema_name, table_name = table.split(".")
        command = {"operation": operation, "schema_name": schema_name, "table_name": table_name, **more}
        answer = self.put(json.dumps(command).encode(), rows.schema, batches_of(rows))
        return Answer(answer["status"], answer["affected_rows"], _table(answer["returning_data"]))

    def open_put(self, command: bytes, schema: pa.Schema) -> MessageExchange:
        """A DoPut that has its descriptor and its schema, and waits for batches."""
        descriptor = pf.FlightDescriptor.for_command(command).serialize()
        call = MessageExchange(self.connection, "DoPut", self.headers)
        call.send(schema_message(schema, descriptor))
        return call

    def put(self, command: bytes, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """One PutResult, and no more, decoded."""
        with self.open_put(command, schema) as call:
            for batch in batches:
                for message in batch_messages(batch):
                    call.send(message)
            call.done_writing()
            result = call.receive()
            assert result is not None
            assert call.receive() is None
        # PutResult has one field of bytes, app_metadata = 1: the same on the wire as a Ticket's.
        metadata = pf.Ticket.deserialize(result).ticket
        answer: dict[str, Any] = msgpack.unpackb(metadata, raw=False)
        return answer

    # Actions

    def action(self, name: str, body: Any = None) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        (result,) = self.connection.do_action(name, data, self.headers)
        answer: dict[str, Any] = json.loads(result)
        return answer

    def begin(self, **body: Any) -> str:
        answer = self.action("create_transaction", body)
        assert answer["status"] == "success"
        return str(answer["transaction_id"])

    def commit(self, transaction_id: str) -> str:
        return str(self.action("commit_transaction", {"transaction_id": transaction_id})["transaction_status"])

    def rollback(self, transaction_id: str) -> str:
        return str(self.action("rollback_transaction", {"transaction_id": transaction_id})["transaction_status"])

    def status(self, transaction_id: str) -> str:
        return str(self.action("get_transaction_status", {"transaction_id": transaction_id})["transaction_status"])


def open_exchange(
    connection: Connection,
    operation: str,
    table: str,
    schema: pa.Schema,
    *,
    returning: bool = False,
    headers: Headers = (),
    catalog: str = "lake",
) -> Exchange:
    """DuckDB's way: the descriptor, the schema, and the server's schema has been read."""
    schema_name, table_name = table.split(".")
    return Exchange(
        connection,
        [("airport-operation", operation), ("return-chunks", "1" if returning else "0"), *headers],
        descriptor=pf.FlightDescriptor.for_path(catalog, schema_name, "table", table_name).serialize(),
        schema=schema,
    )


def change(
    connection: Connection,
    operation: str,
    table: str,
    rows: Any,
    *,
    returning: bool = False,
    headers: Headers = (),
    catalog: str = "lake",
) -> tuple[int, pa.Table | None]:
    """One whole statement in lock-step: the count, and the rows that came back."""
    with open_exchange(
        connection, operation, table, rows.schema, returning=returning, headers=headers, catalog=catalog
    ) as exchange:
        back: list[pa.RecordBatch] = []
        for batch in batches_of(rows):
            exchange.write(batch)
            if returning:
                back.append(exchange.read())
                assert back[-1].num_rows == batch.num_rows
        exchange.done_writing()
        final = unpack(exchange.read_final_metadata())
        table_back = pa.Table.from_batches(back, exchange.server_schema) if returning else None
    return final["total_changed"], table_back


def command(operation: str, table: str, **more: Any) -> bytes:
    schema_name, table_name = table.split(".")
    return json.dumps({"operation": operation, "schema_name": schema_name, "table_name": table_name, **more}).encode()
