"""Calls whose envelopes are right and whose contents are not: what lies behind the outer decoders gets to see them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgpack
from tests.robustness.rig import valid_requests
from tests.robustness.test_fuzz_writes import SEEDS

from sparkport.errors import SparkportError
from sparkport.protocol.flight import Action, FlightDescriptor, Ticket
from sparkport.protocol.frames import flight_data
from sparkport.protocol.incoming import parse_flight_data

__all__ = ["Call", "calls", "mutated"]

Call = tuple[str, list[bytes], Sequence[tuple[str, str]]]

_TEXTS = [
    *(
        "",
        "lake",
        "public",
        "numbers",
        "name",
        "id",
        "ID",
        "rowid",
        "tx",
        "begin",
        "x" * 300,
        "x\ny",
        "\0",
        "..",
        "a/b",
    ),
    *(
        "²-³",
        "9" * 5_000,
        "\ud800",
        "\u202e",
        "'; SELECT 1; --",
        "1e999",
        "NaN",
        "0001-01-01",
        "9999-12-31T23:59+14:00",
    ),
    *("VERSION", "TIMESTAMP", "serializable", "insert", "SELECT 1", "random()", "(SELECT 1)", "{}", '{"filters": []}'),
]
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 255, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.0, float("nan"), float("inf")),
    *([], [0], [-1], [[]], ["name", "name"], {}, {"a": 1}, {"": ""}, b"", b"\xff", b"\x00" * 40, *_TEXTS),
]
_HEADERS = [
    *("airport-operation", "return-chunks", "x-transaction-id", "airport-transaction-id", "x-statement-id"),
    *("airport-trace-id", "airport-catalog", "airport-client-session-id"),
]


def calls() -> list[Call]:
    """Calls that work: what the mutated ones are made from."""
    return [(method, list(messages), tuple(headers)) for method, messages, headers in [*valid_requests(), *SEEDS]]


def mutated(dice: random.Random, seeds: Sequence[Call]) -> Call:
    method, messages, headers = dice.choice(seeds)
    changed = list(messages)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if not changed:
            break
        at = dice.randrange(len(changed))
        kind = dice.random()
        if kind < 0.75:
            changed[at] = _message(dice, method, changed[at])
        elif kind < 0.85:
            changed.insert(at, changed[dice.randrange(len(changed))])
        elif kind < 0.9:
            del changed[at]
        else:
            headers = _headers(dice, headers)
    return method, changed, headers


def _headers(dice: random.Random, headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    value = dice.choice(_TEXTS).encode("ascii", "ignore").decode().replace("\n", "").replace("\0", "")
    return (*headers, (dice.choice(_HEADERS), value))


def _message(dice: random.Random, method: str, message: bytes) -> bytes:
    try:
        match method:
            case "DoAction":
                action = Action.decode(message)
                return Action(action.type, _body(dice, action.body)).encode()
            case "DoGet":
                return Ticket(_body(dice, Ticket.decode(message).ticket)).encode()
            case "GetFlightInfo" | "GetSchema":
                return _descriptor(dice, message)
            case "DoPut" | "DoExchange":
                return _flight_data(dice, message)
    except (SparkportError, ValueError, TypeError, LookupError, OverflowError, msgpack.exceptions.UnpackException):
        pass
    return _bytes(dice, message)


def _body(dice: random.Random, body: bytes) -> bytes:
    """A map, packed as it was, with another value somewhere in it."""
    if body[:1] == b"{":
        changed = _value(dice, json.loads(body))
        return json.dumps(changed, default=lambda value: value.decode("latin-1")).encode("utf-8", "replace")
    changed = _value(dice, msgpack.unpackb(body, raw=True, strict_map_key=False))
    packed: bytes = msgpack.packb(changed, unicode_errors="surrogatepass")
    return packed


def _value(dice: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and dice.random() < 0.95:
        key = dice.choice(sorted(value, key=repr))
        if dice.random() < 0.1:
            return {other: item for other, item in value.items() if other != key}
        return {**value, key: _value(dice, value[key])}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], _value(dice, value[at]), *value[at + 1 :]]
    if isinstance(value, bytes) and value and dice.random() < 0.6:
        inner = dice.random()
        if inner < 0.3 and value[0] in (0x0A, 0x08):
            return _descriptor(dice, value)
        return _bytes(dice, value)
    if isinstance(value, str) and value and dice.random() < 0.3:
        at = dice.randrange(len(value))
        return value[:at] + dice.choice(_TEXTS) + value[at + 1 :]
    return dice.choice(_VALUES)


def _descriptor(dice: random.Random, data: bytes) -> bytes:
    descriptor = FlightDescriptor.decode(data)
    if descriptor.path is None:
        return FlightDescriptor(command=_body(dice, descriptor.command or b"{}")).encode()
    path = list(descriptor.path)
    text = dice.choice(_TEXTS).encode("utf-8", "replace").decode()
    match dice.randrange(3):
        case 0:
            path[dice.randrange(len(path))] = text
        case 1:
            path.append(text)
        case _:
            path.pop()
    return FlightDescriptor(path=tuple(path)).encode()


def _flight_data(dice: random.Random, message: bytes) -> bytes:
    """The parts of a message changed, with lengths that fit again."""
    data = parse_flight_data(message)
    header, body = bytes(data.header or b""), bytes(data.body)
    descriptor, metadata = data.descriptor, data.metadata
    match dice.randrange(6):
        case 0 if descriptor:
            descriptor = _descriptor(dice, descriptor)
        case 1 if metadata:
            metadata = _body(dice, metadata)
        case 2 if body:
            body = _numbers(dice, body)
        case _ if header:
            header = _numbers(dice, header)
    front = b"" if descriptor is None else b"\x0a" + _varint(len(descriptor)) + descriptor
    return front + flight_data(header, [body], body_length=len(body), metadata=metadata)


def _numbers(dice: random.Random, data: bytes) -> bytes:
    """One of the little-endian numbers that Arrow's metadata and buffers are made of is another."""
    width = dice.choice((1, 2, 4, 8))
    if len(data) < width:
        return data
    at = dice.randrange(len(data) // width) * width
    old = int.from_bytes(data[at : at + width], "little")
    new = dice.choice(
        (0, 1, old + 1, old - 1, old * 2, (1 << 8 * width) - 1, 1 << (8 * width - 1), dice.getrandbits(64))
    )
    return data[:at] + (new % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]


def _bytes(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    match dice.randrange(4):
        case 0:
            return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + dice.randrange(1, 17) :]
        case 2:
            return data[:at] + dice.randbytes(dice.randrange(1, 9)) + data[at:]
        case _:
            return _numbers(dice, data)


def _varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])
