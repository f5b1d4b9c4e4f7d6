"""Reading msgpack and JSON bodies of clients: every key is fetched by kind, and a wrong one is named in the error.

DuckDB packs binary values as msgpack *str* that is not UTF-8, so msgpack is decoded raw and text is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from sparkport.errors import InvalidArgument, ResourceExhausted

__all__ = ["MAX_BODY_ITEMS", "MAX_JSON_BYTES", "MapReader", "is_json", "pack", "unpack"]

MAX_BODY_ITEMS = 1_000_000
MAX_JSON_BYTES = 32 << 20

_JSON_MARKS = (b",", b"[", b"{")  # there are no more values than these

_MISSING = object()


def pack(value: object) -> bytes:
    """msgpack as the DuckDB client reads it."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


class _Items:
    """Counts what a body is made of: an empty list takes one byte in it and 64 in memory."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._left = MAX_BODY_ITEMS

    def count(self, items: Any) -> Any:
        self._left -= len(items) + 1
        if self._left < 0:
            raise ResourceExhausted(f"{self._what} has more than {MAX_BODY_ITEMS} items")
        return items


def unpack(data: bytes, *, what: str = "body") -> Any:
    """Any msgpack value, strings as bytes. Maps have texts for keys.

    Numbers and times have hashes that a client can choose, and a map of equal ones takes the square of its length.
    """
    items = _Items(what)
    try:
        return msgpack.unpackb(
            data,
            raw=True,
            strict_map_key=True,
            # Space is made for as many items as are announced, so they must at least fit into what was sent.
            max_array_len=min(MAX_BODY_ITEMS, len(data)),
            max_map_len=min(MAX_BODY_ITEMS, len(data)),
            list_hook=items.count,
            object_hook=items.count,
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as exc:
        raise InvalidArgument(f"{what} is not valid msgpack") from exc


def is_json(body: bytes) -> bool:
    """Whether an action's body is of the JSON contract: empty, or an object. A msgpack map starts at 0x80 or above."""
    return not body or body.lstrip()[:1] == b"{"


class MapReader:
    """A client's map. Keys not asked for are ignored; keys asked for must be there, unless optional."""

    def __init__(self, values: Mapping[str, Any], *, what: str = "body") -> None:
        self._values = values
        self._what = what

    @classmethod
    def from_msgpack(cls, data: bytes, *, what: str = "body") -> MapReader:
        value = unpack(data, what=what)
        return cls._from_map(value, what)

    @classmethod
    def from_json(cls, data: bytes, *, what: str = "body") -> MapReader:
        if not data.strip():
            return cls({}, what=what)
        if len(data) > MAX_JSON_BYTES or sum(map(data.count, _JSON_MARKS)) > MAX_BODY_ITEMS:
            raise ResourceExhausted(f"{what} has more than {MAX_JSON_BYTES} bytes or {MAX_BODY_ITEMS} items")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise InvalidArgument(f"{what} is not valid JSON") from exc
        if not isinstance(value, dict):
            raise InvalidArgument(f"{what} must be a JSON object")
        return cls(value, what=what)

    @classmethod
    def from_body(cls, data: bytes, *, what: str = "body") -> MapReader:
        return cls.from_json(data, what=what) if is_json(data) else cls.from_msgpack(data, what=what)

    @classmethod
    def _from_map(cls, value: Any, what: str) -> MapReader:
        if not isinstance(value, dict):
            raise InvalidArgument(f"{what} must be a msgpack map")
        try:
            return cls({_text(key): item for key, item in value.items()}, what=what)
        except (UnicodeError, TypeError) as exc:
            raise InvalidArgument(f"{what} has a key that is not text") from exc

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def text(self, key: str) -> str:
        return self._as_text(key, self._required(key))

    def optional_text(self, key: str) -> str | None:
        """None when the key is absent, nil or empty: the client sends unset text as an empty string."""
        value = self._values.get(key)
        return None if value is None else self._as_text(key, value) or None

    def raw(self, key: str) -> bytes:
        value = self._required(key)
        if isinstance(value, bytes):
            return value
        raise self._wrong(key, "bytes")

    def optional_raw(self, key: str) -> bytes | None:
        """None when the key is absent, nil or empty."""
        return (self.raw(key) or None) if key in self else None

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool):
            return value
        raise self._missing(key) if value is None else self._wrong(key, "a boolean")

    def integer(self, key: str) -> int:
        value = self._required(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._wrong(key, "an integer")

    def optional_integer(self, key: str) -> int | None:
        """None when the key is absent or nil."""
        return self.integer(key) if key in self else None

    def number(self, key: str) -> float:
        value = self._required(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._wrong(key, "a number")

    def integers(self, key: str) -> Sequence[int]:
        value = self._required(key)
        if isinstance(value, list) and all(type(item) is int for item in value):
            return value
        raise self._wrong(key, "a list of integers")

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._required(key)
        if isinstance(value, list):
            return tuple(self._as_text(key, item) for item in value)
        raise self._wrong(key, "a list of texts")

    def text_map(self, key: str) -> dict[str, str]:
        """An absent one counts as empty."""
        value = self._values.get(key) or {}
        if isinstance(value, dict):
            return {self._as_text(key, name): self._as_text(key, item) for name, item in value.items()}
        raise self._wrong(key, "a map of texts")

    def items(self, key: str) -> list[Any]:
        """A list of anything; an absent one counts as empty."""
        value = self._values.get(key)
        if value is None or isinstance(value, list):
            return value or []
        raise self._wrong(key, "a list")

    def map(self, key: str) -> MapReader:
        return self._from_map(self._required(key), f"{self._what} key '{key}'")

    def _required(self, key: str) -> Any:
        value = self._values.get(key, _MISSING)
        if value is _MISSING or value is None:
            raise self._missing(key)
        return value

    def _as_text(self, key: str, value: Any) -> str:
        try:
            return _text(value)
        except (UnicodeError, TypeError) as exc:
            raise self._wrong(key, "text") from exc

    def _missing(self, key: str) -> InvalidArgument:
        return InvalidArgument(f"{self._what} lacks the key '{key}'")

    def _wrong(self, key: str, expected: str) -> InvalidArgument:
        return InvalidArgument(f"{self._what} key '{key}' must be {expected}")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        value.encode()  # JSON can hold halves of characters, which nothing after this could write down
        return value
    raise TypeError(type(value).__name__)
