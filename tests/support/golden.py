"""Recordings of the real DuckDB client, and how to play one of its calls to a server byte for byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
from tests.support.flight_rpc import BatchReader, Connection, FlightDataMessage, decode, encode
from tests.support.lockstep import MessageExchange

__all__ = ["Answer", "Recorded", "load", "replay"]

_FOLDER = Path(__file__).parent.parent / "golden"
_TRANSACTION = "airport-transaction-id"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call. ``messages`` are pairs of who (``client``, ``server`` or ``client-end``) and what."""

    number: int
    method: str
    headers: Mapping[str, str]
    messages: tuple[tuple[str, bytes], ...]
    status: str

    @property
    def action(self) -> str | None:
        return decode("Action", self.request).type if self.method == "DoAction" else None

    @property
    def request(self) -> bytes:
        return next(data for who, data in self.messages if who == "client")

    @property
    def body(self) -> Any:
        """An action's body, with text as bytes: much of it is not UTF-8."""
        return msgpack.unpackb(decode("Action", self.request).body, raw=True, strict_map_key=False)

    def sent_batches(self) -> Iterator[pa.RecordBatch]:
        reader = BatchReader()
        for who, data in self.messages:
            batch = reader.take(decode("FlightData", data)) if who == "client" else None
            if batch is not None:
                yield batch

    def steps(self) -> Iterator[tuple[str, bytes]]:
        """The messages in the order that the client insists on: it never waits before its schema is out.

        The proxy may have seen the server's schema first, where that server did not need the client's.
        """
        early: list[tuple[str, bytes]] = []
        schema_sent = False
        for who, data in self.messages:
            if who == "server" and not schema_sent:
                early.append((who, data))
                continue
            yield who, data
            if who == "client" and not schema_sent and decode("FlightData", data).header:
                schema_sent = True
                yield from early


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: results of an action, or the messages of a stream."""

    messages: tuple[bytes, ...]

    @property
    def result(self) -> bytes:
        (message,) = self.messages
        body: bytes = decode("Result", message).body
        return body

    def value(self) -> Any:
        return msgpack.unpackb(self.result, raw=False, strict_map_key=False, unicode_errors="surrogateescape")

    def flight_data(self) -> list[FlightDataMessage]:
        return [decode("FlightData", message) for message in self.messages]

    def table(self) -> pa.Table:
        reader = BatchReader()
        batches = [batch for message in self.flight_data() if (batch := reader.take(message)) is not None]
        return pa.Table.from_batches(batches, reader.schema)

    def marks(self) -> list[bytes]:
        """The app_metadata of all messages that have one."""
        return [message.app_metadata for message in self.flight_data() if message.app_metadata]


@cache
def load(name: str) -> Mapping[int, Recorded]:
    """A recording's calls by number."""
    calls: dict[int, Recorded] = {}
    for line in (_FOLDER / f"{name}.jsonl").read_text().splitlines():
        data = json.loads(line)
        messages = tuple((who, base64.b64decode(text or "")) for who, text in data["messages"])
        calls[data["call"]] = Recorded(data["call"], data["method"], data["headers"], messages, data["status"])
    return calls


def replay(
    connection: Connection, call: Recorded, *, transaction: str | None = None, ticket: bytes | None = None
) -> Answer:
    """Play a call. A transaction's id and a ticket are the server's own words: ours stand in for the recorded ones."""
    headers = [(key, value) for key, value in call.headers.items() if key != _TRANSACTION]
    if transaction is not None:
        headers.append((_TRANSACTION, transaction))
    if call.method != "DoExchange":
        request = call.request if ticket is None else encode("Ticket", ticket=ticket)
        return Answer(tuple(connection.unary_stream(call.method, request, headers)))
    return _replay_exchange(connection, call, headers)


def _replay_exchange(connection: Connection, call: Recorded, headers: list[tuple[str, str]]) -> Answer:
    received: list[bytes] = []
    with MessageExchange(connection, call.method, headers) as exchange:
        ended = False
        for who, data in call.steps():
            if who == "client":
                exchange.send(data)
            elif who == "client-end":
                exchange.done_writing()
                ended = True
            elif not ended:
                message = exchange.receive()
                assert message is not None, f"call {call.number}: the server ended where the client waits for a message"
                received.append(message)
        exchange.done_writing()
        while (message := exchange.receive()) is not None:
            received.append(message)
    return Answer(tuple(received))
