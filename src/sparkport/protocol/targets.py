"""What a descriptor or a ticket points at: both are ours, but come back from clients, so nothing in them is trusted.

A descriptor is the path ``catalog, schema, kind, name``. Other clients may write ``schema, name`` or ``name``. DuckDB's
client puts the path into a header, which takes ASCII only: names of other characters are percent-encoded, and a fifth
part says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

import pyarrow as pa

from sparkport.catalog.memory_sizes import require_room, view_bytes
from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.errors import InvalidArgument, ResourceExhausted
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.ipc_metadata import decompressed_length
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.schemas import check_expanded, check_names, read_schema

__all__ = [
    "Kind",
    "MAX_ARGUMENT_BYTES",
    "MAX_SCHEMA_BYTES",
    "Target",
    "Ticket",
    "as_of",
    "decode_arguments",
    "decode_schema",
]

MAX_ARGUMENT_BYTES = 16 << 20
"""What the compressed arguments of a function may come to."""

_ENCODED = "percent-encoded"

MAX_SCHEMA_BYTES = 4 << 20


class Kind(Enum):
    TABLE = "table"
    SCALAR_FUNCTION = "scalar_function"
    TABLE_FUNCTION = "table_function"


@dataclass(frozen=True, slots=True)
class Target:
    """One table or function. An empty catalog or schema stands for the default one."""

    catalog: str
    schema: str
    kind: Kind
    name: str

    def descriptor(self) -> FlightDescriptor:
        path = (self.catalog, self.schema, self.kind.value, self.name)
        if not all(part.isascii() for part in path):
            return FlightDescriptor(path=(*(quote(part, safe="") for part in path), _ENCODED), command=None)
        return FlightDescriptor(path=path, command=None)

    @classmethod
    def from_descriptor(cls, descriptor: FlightDescriptor) -> Target:
        if descriptor.path is None:
            raise InvalidArgument("descriptor must be a path: catalog, schema, kind, name")
        path = descriptor.path
        if len(path) == 1 and path[0].count("/") == 3:
            path = tuple(path[0].split("/"))
        if len(path) == 5 and path[4] == _ENCODED:
            path = _decoded(path[:4])
        if not path or not path[-1] or len(path) > 4:
            raise InvalidArgument("descriptor path must be: catalog, schema, kind, name")
        if len(path) < 4:
            catalog, schema, name = ("",) * (3 - len(path)) + path
            return cls(catalog, schema, Kind.TABLE, name)
        try:
            return cls(path[0], path[1], Kind(path[2]), path[3])
        except ValueError as exc:
            raise InvalidArgument(f"descriptor path has an unknown kind '{path[2]}'") from exc


def _decoded(path: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(unquote(part, errors="strict") for part in path)
    except UnicodeError as exc:
        raise InvalidArgument("descriptor path is percent-encoded and no UTF-8") from exc


def as_of(unit: str | None, value: str | None) -> AsOf | None:
    """``at_unit`` and ``at_value`` as the client sends them; both empty when unset."""
    if not unit and not value:
        return None
    if not unit or not value:
        raise InvalidArgument("at_unit and at_value must be given together")
    try:
        return AsOf(AsOfUnit(unit.lower()), value)
    except ValueError as exc:
        raise InvalidArgument(f"at_unit must be VERSION or TIMESTAMP, not '{unit}'") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A planned scan: all that DoGet needs. ``filters`` stays DuckDB's JSON; ``arguments`` an IPC stream of one row."""

    target: Target
    columns: tuple[str, ...] | None = None
    filters: str | None = None
    at: AsOf | None = None
    part: bytes = b""
    arguments: bytes | None = None

    def encode(self) -> bytes:
        target = self.target
        return pack(
            {
                "version": 1,
                "target": [target.catalog, target.schema, target.kind.value, target.name],
                "columns": None if self.columns is None else list(self.columns),
                "filters": self.filters,
                "at_unit": None if self.at is None else self.at.unit.value,
                "at_value": None if self.at is None else self.at.value,
                "part": self.part,
                "arguments": self.arguments,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Ticket:
        body = MapReader.from_msgpack(data, what="ticket")
        if body.integer("version") != 1:
            raise InvalidArgument("ticket is of another version")
        path = body.texts("target")
        if len(path) != 4:
            raise InvalidArgument("ticket key 'target' must have four parts")
        return cls(
            target=Target.from_descriptor(FlightDescriptor(path=path, command=None)),
            columns=body.texts("columns") if "columns" in body else None,
            filters=body.optional_text("filters"),
            at=as_of(body.optional_text("at_unit"), body.optional_text("at_value")),
            part=body.optional_raw("part") or b"",
            arguments=body.optional_raw("arguments"),
        )


def decode_schema(data: bytes, *, what: str) -> pa.Schema:
    if len(data) > MAX_SCHEMA_BYTES:
        raise ResourceExhausted(f"{what} has {len(data)} bytes, at most {MAX_SCHEMA_BYTES} are taken")
    try:
        return read_schema(data)
    except Exception as exc:  # whatever pyarrow raises over these bytes, the bytes are at fault
        raise InvalidArgument(f"{what} is not an Arrow schema") from exc


def decode_arguments(data: bytes | None) -> pa.RecordBatch | None:
    """The one row of arguments that a table function is called with; None when there is none."""
    if not data:
        return None
    try:
        _check_expanded(data)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            check_names(reader.schema)
            table = reader.read_all()
        if table.num_rows == 1:
            require_room(sum(view_bytes(chunk) for column in table.columns for chunk in column.chunks))
            table.validate(full=True)
    except ResourceExhausted:
        raise
    except Exception as exc:  # whatever pyarrow raises over these bytes, the bytes are at fault
        raise InvalidArgument("parameters are not an Arrow IPC stream") from exc
    if table.num_rows != 1:
        raise InvalidArgument(f"parameters must have one row, not {table.num_rows}")
    return table.combine_chunks().to_batches()[0] if table.num_columns else None


def _check_expanded(data: bytes) -> None:
    """A few kilobytes of compressed zeros can be gigabytes: what is too much is refused before it is made."""
    expanded = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type == "schema":
            check_expanded(message.metadata.to_pybytes())
        if message.type in ("record batch", "dictionary"):
            expanded += decompressed_length(message.metadata.to_pybytes(), message.body)
        if expanded > MAX_ARGUMENT_BYTES:
            raise ResourceExhausted(f"parameters of {expanded} bytes, at most {MAX_ARGUMENT_BYTES} are taken")
