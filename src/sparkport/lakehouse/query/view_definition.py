"""What a view is: a query in Spark's SQL and the columns that it has, in a metadata file of Iceberg's."""

from __future__ import annotations

import gzip
import itertools
import json
import time
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkport.errors import InternalError, Unsupported
from sparkport.lakehouse.columns.types import plan_column, stored_type

__all__ = ["ViewDefinition", "new_view"]

_GZIP = b"\x1f\x8b"
_DIALECT = "spark"
_DAMAGE = (
    OSError,
    EOFError,
    zlib.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    StopIteration,
    RecursionError,
)
"""What reading and unpacking JSON that anybody may have written can raise."""


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    sql: str
    columns: pa.Schema
    comment: str | None

    @classmethod
    def parse(cls, data: bytes, name: str) -> ViewDefinition:
        """Unsupported where no query of Spark's is in it."""
        try:
            metadata = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
            version = _with_id(metadata["versions"], "version-id", metadata["current-version-id"])
            schema = _with_id(metadata["schemas"], "schema-id", version["schema-id"])
            sql = next((str(part["sql"]) for part in version["representations"] if part["dialect"] == _DIALECT), None)
            fields = [pa.field(field["name"], stored_type(field["type"])) for field in schema["fields"]]
            comment = metadata.get("properties", {}).get("comment")
        except _DAMAGE as exc:
            raise InternalError(f"the metadata of view '{name}' cannot be read") from exc
        if sql is None:
            raise Unsupported(f"view '{name}' has no query in Spark's SQL")
        return cls(sql, pa.schema(fields), comment if isinstance(comment, str) else None)


def _with_id(parts: list[dict[str, Any]], key: str, wanted: int) -> dict[str, Any]:
    return next(part for part in parts if part[key] == wanted)


def new_view(sql: str, columns: pa.Schema, *, catalog: str, schema: str) -> dict[str, Any]:
    """The metadata of a view that is not there yet; its place is the catalog's to say."""
    ids = itertools.count()
    now = int(time.time() * 1000)
    return {
        "view-uuid": str(uuid.uuid4()),
        "format-version": 1,
        "properties": {"spark.query-column-names": ",".join(columns.names)},
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [plan_column(field, lambda: next(ids)) for field in columns],
            }
        ],
        "current-version-id": 1,
        "versions": [
            {
                "version-id": 1,
                "timestamp-ms": now,
                "schema-id": 0,
                "summary": {"engine-name": "sparkport"},
                "default-catalog": catalog,
                "default-namespace": [schema],
                "representations": [{"type": "sql", "sql": sql, "dialect": _DIALECT}],
            }
        ],
        "version-log": [{"timestamp-ms": now, "version-id": 1}],
    }
