"""What a server offers, as plain values: decoded from the listing that DuckDB reads too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa
import zstandard

from sparkport.catalog.functions import ANY, Parameter
from sparkport.catalog.row_ids import data_schema, find_row_id_column
from sparkport.catalog.table import Key
from sparkport.client.names import Name
from sparkport.errors import InvalidArgument
from sparkport.protocol.contents import CHECKS_MARK, KEYS_MARK, plain_schema
from sparkport.protocol.flight import FlightInfo
from sparkport.protocol.maps import MapReader, unpack
from sparkport.protocol.targets import Kind, decode_schema

__all__ = [
    "CatalogVersion",
    "FunctionInfo",
    "FunctionKind",
    "Listing",
    "SchemaInfo",
    "TableInfo",
    "decode_listing",
    "function_info",
    "table_info",
]

_MAX_LISTING_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Changes with names, schemas and comments, not with rows; a fixed one never does."""

    version: int
    fixed: bool


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    name: str
    comment: str | None
    tags: Mapping[str, str]
    is_default: bool


@dataclass(frozen=True, slots=True)
class TableInfo:
    """``schema`` holds the columns that a plain scan returns; a row id is not among them."""

    catalog: str
    schema_name: str
    name: str
    schema: pa.Schema
    row_id: bool
    comment: str | None
    total_records: int | None
    """An estimate, where the server has one at hand; listings have none."""
    wire_schema: pa.Schema = field(repr=False)
    """All columns as they are numbered on the wire, the row id included."""
    checks: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return str(Name(self.catalog, self.schema_name, self.name))


class FunctionKind(Enum):
    """Which method calls it: ``call``, ``call_table`` or ``call_in_out``."""

    SCALAR = "scalar"
    TABLE = "table"
    IN_OUT = "in_out"


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """``schema`` is what comes back: one column for a scalar function, possibly another per call for a table's."""

    catalog: str
    schema_name: str
    name: str
    kind: FunctionKind
    parameters: tuple[Parameter, ...]
    schema: pa.Schema
    comment: str | None
    stability: str | None

    @property
    def full_name(self) -> str:
        return str(Name(self.catalog, self.schema_name, self.name))


@dataclass(frozen=True, slots=True)
class Listing:
    schemas: tuple[SchemaInfo, ...]
    tables: tuple[TableInfo, ...]
    functions: tuple[FunctionInfo, ...]


def decode_listing(data: bytes) -> Listing:
    """The answer to ``list_schemas``."""
    top = _map(unpack(_decompressed(data), what="catalog listing"))
    schemas: list[SchemaInfo] = []
    tables: list[TableInfo] = []
    functions: list[FunctionInfo] = []
    for entry in _array(top.get("schemas")):
        item = MapReader(_map(entry), what="schema in the catalog listing")
        schemas.append(_schema_info(item))
        contents = item.map("contents").raw("serialized")
        for encoded in _array(unpack(_decompressed(contents))):
            info = FlightInfo.decode(encoded)
            if _kind(info) is Kind.TABLE:
                tables.append(table_info(info))
            else:
                functions.append(function_info(info))
    return Listing(tuple(schemas), tuple(tables), tuple(functions))


def table_info(info: FlightInfo) -> TableInfo:
    about = _about(info)
    return TableInfo(
        catalog=about.optional_text("catalog") or "",
        schema_name=about.text("schema"),
        name=about.text("name"),
        schema=data_schema(plain_schema(info.schema)),
        row_id=find_row_id_column(info.schema) is not None,
        comment=about.optional_text("comment"),
        total_records=None if info.total_records < 0 else info.total_records,
        wire_schema=info.schema,
        checks=_checks(info.schema),
        keys=_keys(info.schema),
        tags=about.text_map("tags"),
    )


def function_info(info: FlightInfo) -> FunctionInfo:
    about = _about(info)
    encoded = about.optional_raw("input_schema")
    inputs = pa.schema([]) if encoded is None else decode_schema(encoded, what="input_schema")
    parameters = tuple(_parameter(declared) for declared in inputs)
    extra = about.optional_raw("extra_data")
    return FunctionInfo(
        catalog=about.optional_text("catalog") or "",
        schema_name=about.optional_text("schema") or "",
        name=about.text("name"),
        kind=_function_kind(_kind(info), parameters),
        parameters=parameters,
        schema=info.schema,
        comment=about.optional_text("comment"),
        stability=None if extra is None else MapReader.from_msgpack(extra).optional_text("stability"),
    )


def _schema_info(item: MapReader) -> SchemaInfo:
    return SchemaInfo(
        name=item.text("name"),
        comment=item.optional_text("description"),
        tags=item.text_map("tags"),
        is_default=item.flag("is_default", default=False),
    )


def _about(info: FlightInfo) -> MapReader:
    return MapReader.from_msgpack(info.app_metadata, what="description of a flight")


def _kind(info: FlightInfo) -> Kind:
    text = _about(info).text("type")
    try:
        return Kind(text)
    except ValueError as exc:
        raise InvalidArgument(f"unknown kind of flight '{text}'") from exc


def _function_kind(kind: Kind, parameters: tuple[Parameter, ...]) -> FunctionKind:
    if kind is Kind.SCALAR_FUNCTION:
        return FunctionKind.SCALAR
    return FunctionKind.IN_OUT if any(parameter.table for parameter in parameters) else FunctionKind.TABLE


def _parameter(declared: pa.Field) -> Parameter:
    marks = declared.metadata or {}
    any_type = b"is_any_type" in marks or b"is_table_type" in marks
    return Parameter(
        declared.name,
        ANY if any_type else declared.type,
        named=b"is_named_parameter" in marks,
        table=b"is_table_type" in marks,
    )


def _checks(schema: pa.Schema) -> tuple[str, ...]:
    data = (schema.metadata or {}).get(CHECKS_MARK)
    return () if data is None else MapReader.from_msgpack(data, what="check constraints").texts("constraints")


def _keys(schema: pa.Schema) -> tuple[Key, ...]:
    data = (schema.metadata or {}).get(KEYS_MARK)
    if data is None:
        return ()
    readers = [MapReader(_map(item), what="key") for item in MapReader.from_msgpack(data, what="keys").items("keys")]
    return tuple(Key(reader.texts("columns"), reader.flag("primary", default=False)) for reader in readers)


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArgument("catalog listing lacks an array")
    return value


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, bytes) for key in value):
        raise InvalidArgument("catalog listing lacks a map")
    return {key.decode("utf-8", "replace"): item for key, item in value.items()}


def _decompressed(data: bytes) -> bytes:
    """``[length, zstd]``."""
    value = _array(unpack(data, what="catalog listing"))
    if len(value) != 2 or type(value[0]) is not int or not isinstance(value[1], bytes):
        raise InvalidArgument("catalog listing must be a length and compressed bytes")
    length, compressed = value
    if not 0 <= length <= _MAX_LISTING_BYTES:
        raise InvalidArgument(f"catalog listing of {length} bytes")
    try:
        plain = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=length)
    except zstandard.ZstdError as exc:
        raise InvalidArgument("catalog listing cannot be decompressed") from exc
    if len(plain) != length:
        raise InvalidArgument(f"catalog listing has {len(plain)} bytes, it says {length}")
    return plain
