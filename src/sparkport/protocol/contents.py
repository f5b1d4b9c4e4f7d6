"""How clients see a catalog: FlightInfos, and the compressed listing that DuckDB caches by its hash.

Equal content must give equal bytes, so nothing here depends on time, order of a set, or an object's identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import zstandard

from sparkport.catalog.functions import Function, ScalarFunction
from sparkport.catalog.model import CatalogVersion
from sparkport.catalog.row_ids import ROW_ID_MARK, find_row_id_column
from sparkport.catalog.table import StatisticsTable, Table
from sparkport.protocol.flight import FlightEndpoint, FlightInfo
from sparkport.protocol.maps import pack
from sparkport.protocol.statistics import all_have_statistics
from sparkport.protocol.targets import Target

__all__ = [
    "CHECKS_MARK",
    "KEYS_MARK",
    "SchemaListing",
    "catalog_listing",
    "flight_info",
    "plain_schema",
    "schema_contents",
    "table_schema",
    "without_statistics",
]

CHECKS_MARK = b"check_constraints"
KEYS_MARK = b"key_constraints"
STATISTICS_MARK = b"can_produce_statistics"

_ABSENT_ROOT = {"sha256": "0" * 64, "url": None, "serialized": None}


@dataclass(frozen=True, slots=True)
class SchemaListing:
    """One schema with the FlightInfos of all that is in it."""

    name: str
    comment: str | None
    tags: Mapping[str, str]
    is_default: bool
    infos: Sequence[FlightInfo]


def table_schema(table: Table, columns: pa.Schema | None = None) -> pa.Schema:
    """A table's columns as clients see them: the row id last and marked, checks and keys listed, statistics announced.

    DuckDB numbers columns as if the row id were not there, which is right only when it comes last.
    """
    schema = table.schema if columns is None else columns
    index = find_row_id_column(schema)
    if index is not None:
        row_id = schema.field(index)
        marked = row_id.with_metadata({**(row_id.metadata or {}), ROW_ID_MARK: b"1"})
        schema = schema.remove(index).append(marked)
    if table.checks:
        checks = pack({"constraints": list(table.checks)})
        schema = schema.with_metadata({**(schema.metadata or {}), CHECKS_MARK: checks})
    if table.keys:
        keys = pack({"keys": [{"columns": list(key.columns), "primary": key.primary} for key in table.keys]})
        schema = schema.with_metadata({**(schema.metadata or {}), KEYS_MARK: keys})
    if isinstance(table, StatisticsTable) and all_have_statistics(schema):
        schema = schema.with_metadata({**(schema.metadata or {}), STATISTICS_MARK: b"1"})
    return schema


def without_statistics(schema: pa.Schema) -> pa.Schema:
    """A schema from which no client learns that it may ask for statistics."""
    return _without(schema, STATISTICS_MARK)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without what ``table_schema`` adds to its metadata."""
    return _without(schema, CHECKS_MARK, KEYS_MARK, STATISTICS_MARK)


def _without(schema: pa.Schema, *keys: bytes) -> pa.Schema:
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key not in keys}
    return schema.with_metadata(metadata or None)


def flight_info(
    item: Table | Function,
    target: Target,
    schema: pa.Schema,
    *,
    endpoints: Sequence[FlightEndpoint] = (),
    total_records: int | None = None,
) -> FlightInfo:
    """One table or function, as it stands in a listing and as the answer to ``flight_info``."""
    function = item if isinstance(item, Function) else None
    extra = {"stability": item.stability.value} if isinstance(item, ScalarFunction) else None
    app_metadata = {
        "type": target.kind.value,
        "schema": target.schema,
        "catalog": target.catalog,
        "name": item.name,
        "comment": item.comment,
        "input_schema": None if function is None else function.input_schema().serialize().to_pybytes(),
        "action_name": None,
        "description": None if function is None else function.comment,
        "extra_data": None if extra is None else pack(extra),
    }
    if isinstance(item, Table) and item.tags:  # a key that DuckDB's client passes over
        app_metadata["tags"] = dict(sorted(item.tags.items()))
    return FlightInfo(
        schema=schema,
        descriptor=Target(target.catalog, target.schema, target.kind, item.name).descriptor(),
        endpoints=tuple(endpoints),
        total_records=-1 if total_records is None else total_records,
        app_metadata=pack(app_metadata),
    )


def _compressed(value: object) -> bytes:
    data = pack(value)
    return pack([len(data), zstandard.ZstdCompressor(level=3).compress(data)])


def schema_contents(infos: Iterable[FlightInfo]) -> dict[str, object]:
    """The contents of a schema, inline, under the hash that clients cache it by."""
    serialized = _compressed([info.encode() for info in infos])
    return {"sha256": hashlib.sha256(serialized).hexdigest(), "url": None, "serialized": serialized}


def catalog_listing(schemas: Iterable[SchemaListing], version: CatalogVersion) -> bytes:
    """The answer to ``list_schemas``."""
    return _compressed(
        {
            "contents": _ABSENT_ROOT,
            "schemas": [
                {
                    "name": schema.name,
                    "description": schema.comment or "",
                    "tags": dict(sorted(schema.tags.items())),
                    "contents": schema_contents(schema.infos),
                    "is_default": schema.is_default,
                }
                for schema in schemas
            ],
            "version_info": {"catalog_version": version.version, "is_fixed": version.fixed},
        }
    )
