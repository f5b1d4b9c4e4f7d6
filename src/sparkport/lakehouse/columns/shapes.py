"""How the columns of one Parquet file become the columns of the table, where DuckDB's own mapping would go wrong.

DuckDB maps top-level columns by field id, but finds the fields of structs by name, and reads NULL where it finds none:
after a nested field was renamed, or dropped and added again, or where a writer spelled its name otherwise. Files that
were not written for Iceberg have no field ids at all. Such files are found by looking at their own schema, and their
columns are put together again by SQL that :func:`column_sql` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import Conflict, NotFound, Unsupported
from sparkport.filters.sql import quote_identifier, quote_text
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.columns.type_table import known_type, parquet_name
from sparkport.lakehouse.columns.types import sql_type
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID

__all__ = [
    "HIDDEN_COLUMNS",
    "Node",
    "Shape",
    "column_sql",
    "default_sql",
    "default_text",
    "fits",
    "must_inspect",
    "read_shape",
]

_NAME_MAPPING = "schema.name-mapping.default"
HIDDEN_COLUMNS = frozenset({"file_index", "file_row_number", "filename"})
"""Columns that DuckDB adds to every file."""


@dataclass(frozen=True, slots=True)
class Node:
    """A column or nested field of a file. Children: a struct's fields, a list's element, a map's key and value."""

    name: str
    field_id: int | None
    kind: str
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a file. ``has_ids``: whether their ids are in the file itself, where DuckDB finds them."""

    nodes: tuple[Node, ...]
    has_ids: bool


def default_text(value: Any, iceberg_type: Any) -> str | None:
    """An ``initial-default`` as text that DuckDB casts to the column's type; None where it cannot be written so."""
    known = known_type(iceberg_type)
    if known is not None and known.is_bytes:
        return "".join(f"\\x{byte:02X}" for byte in bytes.fromhex(value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) and known is not None else None


def default_sql(field: Mapping[str, Any], column: str) -> str:
    """What a row has in a column that its file does not."""
    duckdb_type, value = sql_type(field["type"]), field.get("initial-default")
    if value is None:
        return f"CAST(NULL AS {duckdb_type})"
    text = default_text(value, field["type"])
    if text is None:
        raise Unsupported(f"column '{column}': a default of a nested type cannot be read")
    return f"CAST({quote_text(text)} AS {duckdb_type})"


def must_inspect(metadata: TableMetadata, fields: Iterable[Mapping[str, Any]]) -> bool:
    """Whether reading these columns needs a look at each file's own schema.

    Not for tables without structs, and not where the table's schemas tell that names and ids of nested fields always
    went together. That needs all schemas that the table ever had: old ones may have been cleaned away.
    """
    if _NAME_MAPPING in metadata.properties:
        return True
    wanted = [field for field in fields if any(_nested(field["type"], field["id"]))]
    if not wanted:
        return False
    if set(metadata.schemas) != set(range(max(metadata.schemas) + 1)):
        return True
    known = {field["id"] for field in wanted}
    targets = _structs(wanted)
    names: dict[int, str] = {}
    ids: dict[tuple[int, str], int] = {}
    for schema in metadata.schemas.values():
        columns = [column for column in schema["fields"] if column["id"] in known]
        # DuckDB refuses to make one struct of another that has none of its fields.
        if any(parent in targets and not inner & targets[parent] for parent, inner in _structs(columns).items()):
            return True
        for column in columns:
            for parent, field in _nested(column["type"], column["id"]):
                field_id, name = field["id"], field["name"]
                if field.get("initial-default") is not None:  # DuckDB fills in defaults of columns only
                    return True
                if parquet_name(name) != name or names.setdefault(field_id, name) != name:
                    return True
                if ids.setdefault((parent, name.lower()), field_id) != field_id:
                    return True
    return False


def _structs(columns: Iterable[Mapping[str, Any]]) -> dict[int, set[int]]:
    """The ids of the fields of each struct, by the id of the column or nested field that it is."""
    structs: dict[int, set[int]] = {}
    for column in columns:
        for parent, field in _nested(column["type"], column["id"]):
            structs.setdefault(parent, set()).add(field["id"])
    return structs


def _nested(iceberg_type: Any, parent: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                yield parent, field
                yield from _nested(field["type"], field["id"])
        case {"type": "list", "element": element, "element-id": element_id}:
            yield from _nested(element, element_id)
        case {"type": "map", "key": key, "value": value}:
            yield from _nested(key, iceberg_type["key-id"])
            yield from _nested(value, iceberg_type["value-id"])


_shapes: BoundedCache[tuple[FileSystem, str, str], Shape] = BoundedCache(100_000, weigh=lambda shape: len(shape.nodes))


def read_shape(fs: FileSystem, metadata: TableMetadata, path: str) -> Shape:
    """The columns of a file by its footer; ids come from the table's name mapping where the file has none."""
    mapping = metadata.properties.get(_NAME_MAPPING, "")

    def read() -> Shape:
        try:
            with fs.open(path) as source:
                schema: Any = pq.ParquetFile(source).schema_arrow
        except NotFound as exc:
            raise Conflict(f"a snapshot's file is gone: '{path}'; it was expired while it was being read") from exc
        except (pa.ArrowException, OSError) as exc:
            raise Unsupported(f"the schema of '{path}' cannot be read: {exc}") from exc
        nodes = tuple(_node(field) for field in schema)
        has_ids = any(node.field_id is not None for node in nodes)
        if mapping and not has_ids:
            nodes = tuple(_mapped(node, json.loads(mapping)) for node in nodes)
        return Shape(nodes, has_ids)

    return _shapes.get((fs, path, mapping), read)


def _node(field: Any) -> Node:
    field_id = (field.metadata or {}).get(FIELD_ID)
    arrow_type = field.type
    if pa.types.is_struct(arrow_type):
        return Node(
            field.name, _id(field_id), "struct", tuple(_node(arrow_type.field(i)) for i in range(arrow_type.num_fields))
        )
    if pa.types.is_map(arrow_type):
        return Node(field.name, _id(field_id), "map", (_node(arrow_type.key_field), _node(arrow_type.item_field)))
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return Node(field.name, _id(field_id), "list", (_node(arrow_type.value_field),))
    return Node(field.name, _id(field_id), str(arrow_type))


def _id(text: bytes | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)


def _mapped(node: Node, mapping: list[dict[str, Any]]) -> Node:
    entry = next((entry for entry in mapping if node.name in entry.get("names", ())), None)
    inner = (entry or {}).get("fields") or []
    # Whatever a file calls them, the mapping calls the parts of maps and lists so.
    names = {"map": ("key", "value"), "list": ("element",)}.get(node.kind, [child.name for child in node.children])
    named = (Node(name, None, part.kind, part.children) for name, part in zip(names, node.children, strict=True))
    children = tuple(_mapped(child, inner) for child in named)
    return Node(node.name, (entry or {}).get("field-id"), node.kind, children)


def fits(shape: Shape, fields: Iterable[Mapping[str, Any]]) -> bool:
    """Whether DuckDB's own mapping reads these columns of such a file right."""
    by_id = {node.field_id: node for node in shape.nodes}
    return shape.has_ids and all(
        field["id"] not in by_id or _same_names(by_id[field["id"]], field["type"]) for field in fields
    )


def _same_names(node: Node, iceberg_type: Any) -> bool:
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            by_id = {child.field_id: child for child in node.children}
            taken = {child.name.lower() for child in node.children}
            if not any(field["id"] in by_id for field in fields):
                return False
            for field in fields:
                child = by_id.get(field["id"])
                if child is None:
                    if field["name"].lower() in taken or field.get("initial-default") is not None:
                        return False
                elif child.name != field["name"] or not _same_names(child, field["type"]):
                    return False
            return True
        case {"type": "list", "element": element}:
            return _same_names(node.children[0], element)
        case {"type": "map", "key": key, "value": value}:
            return _same_names(node.children[0], key) and _same_names(node.children[1], value)
        case _:
            return True


def column_sql(shape: tuple[Node, ...], field: Mapping[str, Any]) -> str | None:
    """The expression that makes a column of the table from a file's columns, None where the file has none of it."""
    node = next((node for node in shape if node.field_id == field["id"]), None)
    if node is None:
        return None
    same = [other for other in shape if other.name.lower() == node.name.lower()]
    if len(same) > 1 or node.name.lower() in HIDDEN_COLUMNS:
        raise Unsupported(
            f"column '{field['name']}': its file has a column '{node.name}' that DuckDB takes for the same"
        )
    return _rebuilt(quote_identifier(node.name), node, field["type"], column=field["name"], depth=0)


def _rebuilt(value: str, node: Node, iceberg_type: Any, *, column: str, depth: int) -> str:
    item = f"x{depth}"
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            by_id = {child.field_id: child for child in node.children}
            parts = []
            for field in fields:
                child = by_id.get(field["id"])
                inner = (
                    default_sql(field, column)
                    if child is None
                    else _rebuilt(
                        f"struct_extract({value}, {quote_text(child.name)})",
                        child,
                        field["type"],
                        column=column,
                        depth=depth + 1,
                    )
                )
                parts.append(f"{quote_identifier(field['name'])} := {inner}")
            return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"
        case {"type": "list", "element": element}:
            inner = _rebuilt(item, node.children[0], element, column=column, depth=depth + 1)
            return f"list_transform({value}, lambda {item}: {inner})"
        case {"type": "map", "key": key, "value": mapped}:
            keys = _rebuilt(item, node.children[0], key, column=column, depth=depth + 1)
            values = _rebuilt(item, node.children[1], mapped, column=column, depth=depth + 1)
            return (
                f"CASE WHEN {value} IS NULL THEN NULL ELSE "
                f"map(list_transform(map_keys({value}), lambda {item}: {keys}), "
                f"list_transform(map_values({value}), lambda {item}: {values})) END"
            )
        case _:
            return f"CAST({value} AS {sql_type(iceberg_type)})"
