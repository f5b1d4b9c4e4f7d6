"""The SQL that reads a group of a snapshot's files: columns by field id, row ids, positions of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkport.catalog.plain_values import is_moment
from sparkport.filters.expressions import Expression, referenced_columns
from sparkport.filters.sql import literal_sql, quote_text
from sparkport.filters.types import ROW_ID
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.columns.shapes import (
    Node,
    Shape,
    column_sql,
    default_sql,
    default_text,
    fits,
    must_inspect,
    read_shape,
)
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.columns.types import sql_type
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.row_groups import footer_of
from sparkport.lakehouse.scan.limits import Ways
from sparkport.lakehouse.scan.pushdown import filter_sql

__all__ = ["Group", "KEY_SHIFT", "Request", "SEQUENCE", "WANTED", "empty_sql", "group_files", "group_sql", "scattered"]

SEQUENCE = "_last_updated_sequence_number"
WANTED = "wanted"  # the name under which a query finds the row ids that it is restricted to
KEY_SHIFT = 40  # a file's number and a row's position in one number, ascending in the order of reading

_OWN_ID = "own_row_id"  # what a file says of a row's id itself

Field = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is wanted of every file, whichever query reads it.

    ``skips_only``: the filter is there to skip files and row groups by, and rows for which it does not hold may come.
    """

    metadata: TableMetadata
    schema_fields: tuple[Field, ...]
    fields: tuple[Field, ...]
    filter: Expression | None
    row_id: bool
    sequence: bool
    row_ids: NDArray[np.int64] | None
    without: NDArray[np.int64] | None
    ways: Ways
    skips_only: bool = False

    @cached_property
    def names(self) -> list[str]:
        return [field["name"] for field in self.fields] + [ROW_ID] * self.row_id + [SEQUENCE] * self.sequence

    @cached_property
    def needed(self) -> tuple[Field, ...]:
        """The columns that are read: the ones asked for, and those of the filter."""
        asked = {field["id"] for field in (*self.fields, *self.compared)}
        return tuple(field for field in self.schema_fields if field["id"] in asked)

    @cached_property
    def compared(self) -> tuple[Field, ...]:
        """The columns of the filter."""
        named = set() if self.filter is None else {name.lower() for name in referenced_columns(self.filter)}
        return tuple(field for field in self.schema_fields if field["name"].lower() in named)

    @cached_property
    def needs_row_ids(self) -> bool:
        """Whether row ids must be worked out, for whatever purpose."""
        if self.row_id or self.row_ids is not None or self.without is not None:
            return True
        return self.filter is not None and any(name.lower() == ROW_ID for name in referenced_columns(self.filter))


@dataclass(frozen=True, slots=True)
class Group:
    """Files that one query reads. ``nodes`` is None where DuckDB's own mapping does; ``constants`` are by field id.

    ``pages`` is a condition by which DuckDB leaves out pages that hold none of the wanted rows.
    """

    files: list[DataFile]
    nodes: tuple[Node, ...] | None = None
    constants: tuple[tuple[int, str], ...] = ()
    pages: str = ""

    @property
    def has_deletes(self) -> bool:
        return any(file.deletes for file in self.files)


def group_files(fs: FileSystem, request: Request, files: list[DataFile]) -> list[Group]:
    """Files by the way in which they are to be read, in their order; mostly that is one group."""
    needed = request.needed
    if not files or not must_inspect(request.metadata, needed):
        return [Group(files)]
    groups: dict[tuple[Any, ...], Group] = {}
    for file in files:
        shape = read_shape(fs, request.metadata, file.path)
        constants = _constants(request.metadata, file, shape=shape, fields=needed)
        native = not constants and fits(shape, needed)
        key = () if native else (shape.nodes, constants)
        group = groups.setdefault(key, Group([], None if native else shape.nodes, constants))
        group.files.append(file)
    return list(groups.values())


def scattered(request: Request, group: Group) -> list[Group]:
    """A group, less the large files of which a few rows are wanted here and there: each of these is one of its own."""
    if request.row_ids is None or group.nodes is not None:
        return [group]
    parts: list[Group] = []
    for file in group.files:
        pages = _pages(file, request.row_ids, request.ways)
        if parts and not pages and not parts[-1].pages:
            parts[-1].files.append(file)
        else:
            parts.append(replace(group, files=[file], pages=pages))
    return parts


def _pages(file: DataFile, row_ids: NDArray[np.int64], ways: Ways) -> str:
    """Empty where DuckDB could leave out too little to be quicker than Arrow, which leaves out row groups."""
    bounds, first = file.row_id_bounds, file.first_row_id
    if file.record_count < ways.large_file_rows or bounds is None or first is None:
        return ""
    low, high = np.searchsorted(row_ids, bounds[0]), np.searchsorted(row_ids, bounds[1], "right")
    if not ways.few_in_file < high - low <= file.record_count // ways.rows_per_wanted:
        return ""
    wanted, footer = row_ids[low:high], footer_of(file)
    holds_ids = footer is not None and footer.has_column(ROW_ID_FIELD)
    if file.derives_row_ids and not holds_ids:
        return f"file_row_number IN ({_listed(wanted - first)})"
    all_told = file.null_counts.get(ROW_ID_FIELD) == 0 and (holds_ids or footer is None)
    return f"{_OWN_ID} IN ({_listed(wanted)})" if all_told else ""


def _listed(numbers: NDArray[np.int64]) -> str:
    return ", ".join(map(str, numbers.tolist()))


def _constants(
    metadata: TableMetadata, file: DataFile, *, shape: Shape, fields: Sequence[Field]
) -> tuple[tuple[int, str], ...]:
    """Columns that a file does not have because all of its rows have the partition's value there."""
    there = {node.field_id for node in shape.nodes}
    constants = []
    for part, value in zip(metadata.specs.get(file.spec_id, ()), file.partition, strict=False):
        field = next((field for field in fields if field["id"] == part.get("source-id")), None)
        if field is None or part["transform"] != "identity" or field["id"] in there or value is None:
            continue
        constants.append((int(field["id"]), f"CAST({_constant(value, field['type'])} AS {sql_type(field['type'])})"))
    return tuple(constants)


def _constant(value: Any, iceberg_type: Any) -> str:
    """A partition's value as SQL; a date or a time is a number there."""
    known = known_type(iceberg_type)
    if isinstance(value, int) and known is not None and known.filtered is not None and is_moment(known.stored):
        moment = literal_sql(value, known.filtered)
        if moment is not None:
            return moment
    return quote_text("".join(f"\\x{byte:02X}" for byte in value) if isinstance(value, bytes) else str(value))


def empty_sql(request: Request) -> str:
    """A query without rows whose columns are those of every query of the request."""
    parts = [f"CAST(NULL AS {sql_type(field['type'])})" for field in request.fields]
    parts += ["CAST(NULL AS BIGINT)"] * (request.row_id + request.sequence)
    return f"SELECT {_numbered(parts) or 'NULL'} LIMIT 0"


def group_sql(fs: FileSystem, request: Request, group: Group, *, filtered: bool) -> str:
    """Columns as asked for, then the key (where rows were deleted) and the row id (where some are left out)."""
    parts = [_name(field) for field in request.fields]
    parts += ["row_id"] * request.row_id + ["sequence"] * request.sequence
    parts += ["key"] * group.has_deletes + ["row_id"] * (request.without is not None)
    text = f"SELECT {_numbered(parts) or 'NULL'} FROM ({_source(fs, request, group)})"
    conditions = []
    if filtered and request.filter is not None:
        condition = filter_sql(request.filter, request.schema_fields, column=_name, row_id="row_id")
        conditions += [condition] if condition else []
    if request.row_ids is not None:
        conditions.append(f"row_id IN (SELECT id FROM {WANTED})")
    if conditions:
        text += f" WHERE {' AND '.join(conditions)}"
    # The join with the wanted ids loses the order.
    return text if request.row_ids is None else f"{text} ORDER BY key"


def _numbered(parts: Sequence[str]) -> str:
    return ", ".join(f"{part} AS v{number}" for number, part in enumerate(parts))


def _name(field: Field) -> str:
    """Columns go by their ids in the query: no name can be in the way of another."""
    return f"c{field['id']}"


def _source(fs: FileSystem, request: Request, group: Group) -> str:
    needed = request.needed
    paths = ", ".join(quote_text(fs.duckdb_path(file.path)) for file in group.files)
    if group.nodes is None:
        columns = [_name(field) for field in needed]
        own_id, own_sequence = _OWN_ID, "own_sequence"
        entries = [_entry(field["id"], _name(field), field) for field in needed]
        lineage = {"type": "long", "name": ""}
        entries += [_entry(ROW_ID_FIELD, own_id, lineage)] * request.needs_row_ids
        entries += [_entry(SEQUENCE_FIELD, own_sequence, lineage)] * request.sequence
        options = f", schema = MAP {{{', '.join(entries)}}}" if entries else ""
    else:
        constants = dict(group.constants)
        columns = [
            f"{column_sql(group.nodes, field) or constants.get(field['id']) or default_sql(field, field['name'])} "
            f"AS {_name(field)}"
            for field in needed
        ]
        own_id, own_sequence = (
            column_sql(group.nodes, {"id": field_id, "type": "long", "name": ""}) or "NULL"
            for field_id in (ROW_ID_FIELD, SEQUENCE_FIELD)
        )
        options = ""
    # Each of these makes the query longer to set up: only those that are used are in it.
    if request.needs_row_ids:
        first = _by_file([file.first_row_id for file in group.files])
        columns.append(f"coalesce({own_id}, {first} + file_row_number) AS row_id")
    if request.sequence:
        # Like Spark: what has no row ids has no lineage at all.
        written = _by_file([None if file.first_row_id is None else file.sequence_number for file in group.files])
        columns.append(f"coalesce({own_sequence}, {written}) AS sequence")
    if group.has_deletes or request.row_ids is not None:
        columns.append(f"(CAST(file_index AS BIGINT) << {KEY_SHIFT}) + file_row_number AS key")
    columns = columns or ["NULL"]
    where = f" WHERE {group.pages}" if group.pages else ""
    return f"SELECT {', '.join(columns)} FROM read_parquet([{paths}], hive_partitioning = false{options}){where}"


def _by_file(values: Sequence[int | None]) -> str:
    """A number that belongs to the row's file: a constant list that the file's place in the query points into."""
    listed = ", ".join("NULL" if value is None else str(value) for value in values)
    return f"CAST([{listed}] AS BIGINT[])[CAST(file_index AS BIGINT) + 1]"


def _entry(field_id: int, name: str, field: Field) -> str:
    default = "NULL"
    if field.get("initial-default") is not None:
        text = default_text(field["initial-default"], field["type"])
        default = "NULL" if text is None else quote_text(text)
        if text is None:
            default_sql(field, field["name"])  # says that it cannot be done
    duckdb_type = quote_text(sql_type(field["type"]))
    return f"{field_id}: {{name: {quote_text(name)}, type: {duckdb_type}, default_value: CAST({default} AS VARCHAR)}}"
