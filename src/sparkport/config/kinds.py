"""The kinds of values that settings have: what a source may give for one, and how the reference page shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkport.auth import Secret

__all__ = [
    "BOOLEAN",
    "COUNT",
    "ENGINE",
    "FILE_MODE",
    "FORMAT",
    "INTERVAL",
    "Kind",
    "LEVEL",
    "LOCATION",
    "PATH",
    "PERIOD",
    "PORT",
    "PROPERTIES",
    "ROOM",
    "SECONDS",
    "SECRET",
    "SIZE",
    "TABLE",
    "TEXT",
    "TEXTS",
    "parse_size",
]

_MAX_BYTES = 2**31 - 1
"""gRPC counts a message's bytes in 32 bits."""

# As DuckDB writes them: MB is a million bytes, MiB is 2 to the 20.
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: ``native`` are the types that a TOML file may use, ``read`` takes one of them or a text and
    raises ValueError with the words that follow "must be"."""

    label: str
    native: tuple[type, ...]
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str

    @property
    def metavar(self) -> str:
        """How a flag's help calls the value."""
        return self.label.replace(" \\| ", "|") if "|" in self.label else self.label.upper().replace(" ", "-")


# Readers: a native TOML value or a text in, the setting's value out


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text with something in it")
    return value.strip()


def _path(value: str) -> Path:
    return Path(_text(value)).expanduser()


def _secret(value: str) -> Secret:
    return Secret(_text(value))


def _boolean(value: bool | str) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _texts(value: list[object] | str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("a list of texts")
    return tuple(str(part).strip() for part in parts)


def _integer(low: int, high: int) -> Callable[[int | str], int]:
    def read(value: int | str) -> int:
        text = str(value).strip()
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return read


def _seconds(low: float) -> Callable[[float | str], float]:
    def read(value: float | str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        # The upper end keeps milliseconds within gRPC's 32 bits.
        if not low <= number <= 2_000_000:
            raise ValueError(f"a number of seconds from {low:g} to 2000000")
        return number

    return read


def parse_size(value: int | str) -> int:
    """Bytes, from ``1048576``, ``"1MiB"`` or ``"1.5 MB"``. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)", str(value).strip().lower())
    unit = None if match is None else _UNITS.get(match[2])
    size = 0 if match is None or unit is None else int(float(match[1]) * unit)
    if not 1024 <= size <= _MAX_BYTES:
        raise ValueError("a size from 1KiB to 2GiB less one byte, such as 64MB or 8MiB")
    return size


def _room(value: int | str) -> int:
    """Bytes on a disk, which gRPC does not limit."""
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", str(value).strip().lower())
    unit = None if match is None else _UNITS.get(match[2])
    if match is None or unit is None or not 1024 <= int(match[1]) * unit < 2**63:
        raise ValueError("a size from 1KiB, such as 500MB or 64GiB")
    return int(match[1]) * unit


def _show_size(size: int) -> str:
    for unit in ("gib", "mib", "kib"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit[0].upper()}iB"
    return str(size)


def _choice(*words: str) -> Kind:
    def read(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.strip().lower()

    return Kind(" \\| ".join(words), (str,), read)


def _table(value: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(value)


def _properties(value: dict[str, Any]) -> Mapping[str, Secret]:
    """Names with dots are tables in tables to TOML, unless they are quoted: both mean the same here."""
    return MappingProxyType(dict(_flat("", value)))


def _flat(head: str, value: object) -> Iterator[tuple[str, Secret]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{head}.{key}" if head else key, inner)
    elif isinstance(value, str | int | float):
        yield head, Secret(str(value).lower() if isinstance(value, bool) else str(value))
    else:
        raise ValueError("a table of texts and numbers")


TEXT = Kind("text", (str,), _text)
PATH = Kind("file", (str,), _path)
LOCATION = Kind("file or url", (str,), _text)
SECRET = Kind("secret", (str,), _secret)
BOOLEAN = Kind("true or false", (bool,), _boolean, lambda value: str(value).lower())
TABLE = Kind("table", (dict,), _table)
PROPERTIES = Kind("table", (dict,), _properties)
TEXTS = Kind("list", (list,), _texts, ",".join)
SIZE = Kind("size", (int, str), parse_size, _show_size)
ROOM = Kind("size", (int, str), _room, _show_size)
LEVEL = _choice("debug", "info", "warning", "error")
FORMAT = _choice("text", "json")
ENGINE = _choice("lakehouse", "memory")
FILE_MODE = _choice("private", "group")
PORT = Kind("number", (int,), _integer(0, 65_535))
COUNT = Kind("number", (int,), _integer(1, 100_000))
SECONDS = Kind("seconds", (int, float), _seconds(0), lambda value: f"{value:g}")
INTERVAL = Kind("seconds", (int, float), _seconds(1), lambda value: f"{value:g}")
PERIOD = Kind("seconds", (int, float), _seconds(0.05), lambda value: f"{value:g}")
