"""A small client of the JSON contract over real gRPC, for tests that need many clients and exact status codes.

Rows are read by the ``endpoints`` action and DoGet, as DuckDB does; changed by DoPut and the action ``delete``, which
refuse unknown row ids, or by DoExchange, which skips them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
from tests.support.flight_rpc import (
    AirportError,
    BatchReader,
    Connection,
    batch_messages,
    decode,
    schema_message,
)
from tests.support.lockstep import Exchange

from sparkport.errors import Code

__all__ = ["CallFailed", "ContractClient", "rows_of"]


class CallFailed(Exception):
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code


def rows_of(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: list(values) for name, values in columns.items()})


class ContractClient:
    """All tables are in one schema. ``transaction`` is an id, or None for a call without one. Threads MAY share it."""

    def __init__(self, location: str, *, schema: str = "public", timeout: float = 60.0) -> None:
        self._connection = Connection(location, timeout=timeout)
        self._schema = schema
        self._schemas: dict[str, pa.Schema] = {}

    def close(self) -> None:
        self._connection.close()

    # Transactions

    def begin(self, *, auto_commit: bool = True, isolation: str = "snapshot") -> str:
        answer = self._json_action("create_transaction", {"auto_commit": auto_commit, "isolation": isolation})
        return str(answer["transaction_id"])

    def commit(self, transaction: str) -> None:
        self._json_action("commit_transaction", {"transaction_id": transaction})

    def rollback(self, transaction: str) -> None:
        self._json_action("rollback_transaction", {"transaction_id": transaction})

    def status(self, transaction: str) -> str:
        answer = self._json_action("get_transaction_status", {"transaction_id": transaction})
        return str(answer["transaction_status"])

    # Rows

    def read(self, table: str, transaction: str | None = None, *, version: int | None = None) -> pa.Table:
        """All columns and all rows, the row id too."""
        schema = self._schema_of(table)
        parameters = {
            "json_filters": None,
            "column_ids": list(range(len(schema))),
            "table_function_parameters": "",
            "at_unit": "" if version is None else "VERSION",
            "at_value": "" if version is None else str(version),
        }
        body = msgpack.packb({"descriptor": self._descriptor(table), "parameters": parameters})
        headers = _headers(transaction)
        batches: list[pa.RecordBatch] = []
        for endpoint in msgpack.unpackb(self._action("endpoints", body, transaction)[0]):
            ticket = pf.FlightEndpoint.deserialize(endpoint).ticket.ticket
            reader = BatchReader()
            try:
                for message in self._connection.do_get(ticket, headers):
                    batch = reader.take(message)
                    if batch is not None:
                        batches.append(batch)
            except AirportError as exc:
                raise _failed(exc) from exc
        return pa.Table.from_batches(batches, schema)

    def insert(self, table: str, rows: pa.RecordBatch, transaction: str | None = None) -> list[int]:
        """The new row ids."""
        answer = self._put("insert", table, rows, transaction, returning=True, returning_columns=["rowid"])
        with pa.ipc.open_stream(answer["returning_data"]) as reader:
            ids: list[int] = reader.read_all().column("rowid").to_pylist()
        return ids

    def add(self, table: str, rows: pa.RecordBatch, transaction: str | None = None) -> int:
        """An insert that asks for nothing back but the number of rows."""
        return int(self._put("insert", table, rows, transaction)["affected_rows"])

    def update(self, table: str, row_ids: Sequence[int], rows: pa.RecordBatch, transaction: str | None = None) -> int:
        return int(self._put("update", table, rows, transaction, row_ids=list(row_ids))["affected_rows"])

    def delete(
        self, table: str, row_ids: Sequence[int], transaction: str | None = None, *, returning: bool = False
    ) -> int:
        body = {**self._names(table), "row_ids": list(row_ids), "returning": returning}
        answer = self._json_action("delete", body, transaction)
        if returning:
            with pa.ipc.open_stream(base64.b64decode(answer["returning_data"])) as reader:
                assert reader.read_all().num_rows == answer["affected_rows"]
        return int(answer["affected_rows"])

    def exchange(
        self,
        operation: str,
        table: str,
        rows: pa.RecordBatch,
        transaction: str | None = None,
        *,
        returning: bool = False,
    ) -> int:
        """``rows`` of an UPDATE or DELETE carry a column ``rowid``."""
        headers = [("airport-operation", operation), ("return-chunks", "1" if returning else "0")]
        try:
            with Exchange(
                self._connection,
                [*headers, *_headers(transaction)],
                descriptor=self._descriptor(table),
                schema=rows.schema,
            ) as exchange:
                exchange.write(rows)
                if returning:
                    assert exchange.read().num_rows == rows.num_rows
                exchange.done_writing()
                return int(msgpack.unpackb(exchange.read_final_metadata())["total_changed"])
        except AirportError as exc:
            raise _failed(exc) from exc

    def _put(
        self, operation: str, table: str, rows: pa.RecordBatch, transaction: str | None, **more: Any
    ) -> dict[str, Any]:
        command = json.dumps({"operation": operation, **self._names(table), **more}).encode()
        descriptor = pf.FlightDescriptor.for_command(command).serialize()
        messages = [schema_message(rows.schema, descriptor), *batch_messages(rows)]
        try:
            answers = list(self._connection.stream_stream("DoPut", messages, _headers(transaction)))
        except grpc.RpcError as exc:
            raise _failed(AirportError.from_grpc(exc)) from exc
        answer: dict[str, Any] = msgpack.unpackb(decode("Result", answers[0]).body)
        return answer

    def _schema_of(self, table: str) -> pa.Schema:
        """Asked once: no test that uses this client changes a table's columns."""
        if table not in self._schemas:
            body = msgpack.packb({"descriptor": self._descriptor(table), "at_unit": "", "at_value": ""})
            self._schemas[table] = pf.FlightInfo.deserialize(self._action("flight_info", body)[0]).schema
        return self._schemas[table]

    def _names(self, table: str) -> dict[str, str]:
        return {"schema_name": self._schema, "table_name": table}

    def _descriptor(self, table: str) -> bytes:
        data: bytes = pf.FlightDescriptor.for_path(self._schema, table).serialize()
        return data

    def _json_action(self, name: str, body: dict[str, Any], transaction: str | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._action(name, json.dumps(body).encode(), transaction)[0])
        return answer

    def _action(self, name: str, body: bytes, transaction: str | None = None) -> list[bytes]:
        try:
            return self._connection.do_action(name, body, _headers(transaction))
        except AirportError as exc:
            raise _failed(exc) from exc


def _headers(transaction: str | None) -> list[tuple[str, str]]:
    return [] if transaction is None else [("x-transaction-id", transaction)]


def _failed(error: AirportError) -> CallFailed:
    return CallFailed(Code[error.code.name], error.message)
