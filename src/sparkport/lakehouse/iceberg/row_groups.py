"""Row groups of Parquet files: the footer's statistics show which ones to read, as the manifests' do for files.

A row group takes the form of a small file, so that whatever prunes files prunes row groups too. Files never change, so
footers are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, DataFile
from sparkport.lakehouse.iceberg.ranges import FileIndex

__all__ = ["FIELD_ID", "Footer", "OPEN_COST", "ROW_GROUP_BYTES", "footer_of", "read_footer", "row_group_properties"]

ROW_GROUP_BYTES = "write.parquet.row-group-size-bytes"
"""Iceberg's property. Its default of 128 MB makes one row group of most files, in which nothing can be skipped."""

OPEN_COST = "read.split.open-file-cost"
_OPEN_COST_BYTES = 256 << 10

FIELD_ID = b"PARQUET:field_id"

# The writer counts pages of 20,000 rows in the making as they are, and finished ones as they compress. With less than a
# page for each column every group would end in its first.
_BYTES_OF_A_COLUMN = 192 << 10
_LEAST_BYTES, _MOST_BYTES = 576 << 10, 12 << 20
_CACHED_CHUNKS = 50_000
"""Column chunks whose footers are kept, about 1 KB each; one that says more of itself counts as several."""

_PACKED = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def row_group_properties(properties: Mapping[str, str], columns: int) -> dict[str, str]:
    """What to add to a table's properties so that row groups are small: nothing where somebody has set their size.

    For so many columns, of numbers mostly, groups have 25,000 to 150,000 rows, as well as they compress.
    """
    if ROW_GROUP_BYTES in properties:
        return {}
    size = max(_LEAST_BYTES, min(_MOST_BYTES, columns * _BYTES_OF_A_COLUMN))
    # Spark counts each row group as a file to open, of 4 MB if nothing is said, and makes a task of a few of them.
    return {ROW_GROUP_BYTES: str(size), OPEN_COST: properties.get(OPEN_COST, str(_OPEN_COST_BYTES))}


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a file's footer says of it. ``starts`` are the positions of the first rows of its row groups."""

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: tuple[int, ...]

    @property
    def weight(self) -> int:
        """In column chunks. Bounds of texts may be long."""
        chunks = int(self.metadata.num_row_groups * self.metadata.num_columns)
        return max(chunks, int(self.metadata.serialized_size) >> 10)

    def has_column(self, field_id: int) -> bool:
        return any((field.metadata or {}).get(FIELD_ID) == b"%d" % field_id for field in self.schema)

    def row_groups(self, file: DataFile, field_ids: Collection[int]) -> FileIndex:
        """The row groups as files, with what is known of these columns; row ids are always among them."""
        wanted = frozenset([*field_ids, ROW_ID_FIELD])
        key = (file.path, file.first_row_id, wanted)
        return _indexes.get(key, lambda: FileIndex(self._as_files(file, wanted)))

    def _as_files(self, file: DataFile, wanted: Collection[int]) -> Iterable[DataFile]:
        columns = self._columns()
        chosen = {field_id: number for field_id, number in columns.items() if field_id in wanted}
        for number, start in enumerate(self.starts):
            group = self.metadata.row_group(number)
            lower: dict[int, bytes] = {}
            upper: dict[int, bytes] = {}
            nulls: dict[int, int] = {}
            for field_id, place in chosen.items():
                statistics = group.column(place).statistics
                if statistics is None:
                    continue
                if statistics.has_null_count:
                    nulls[field_id] = statistics.null_count
                if statistics.has_min_max:
                    column_type = self.schema.field(group.column(place).path_in_schema).type
                    low, high = (
                        _bound(raw, statistics.physical_type, column_type)
                        for raw in (statistics.min_raw, statistics.max_raw)
                    )
                    if low is not None and high is not None:
                        lower[field_id], upper[field_id] = low, high
            yield replace(
                file,
                record_count=group.num_rows,
                size=group.total_byte_size,
                first_row_id=None if file.first_row_id is None else file.first_row_id + start,
                lower_bounds=lower,
                upper_bounds=upper,
                null_counts=nulls,
                nan_counts={},
                value_counts=dict.fromkeys(columns, group.num_rows),
                deletes=(),
            )

    def _columns(self) -> dict[int, int]:
        """Where the chunks of plain columns are in a row group, by field id."""
        by_name = {field.name: int((field.metadata or {}).get(FIELD_ID, b"-1")) for field in self.schema}
        places: dict[int, int] = {}
        for number in range(self.metadata.num_columns):
            column = self.metadata.schema.column(number)
            field_id = by_name.get(column.path, -1)
            if field_id >= 0 and column.max_repetition_level == 0:
                places[field_id] = number
        return places


_footers: BoundedCache[tuple[str, int], Footer] = BoundedCache(
    _CACHED_CHUNKS, weigh=lambda footer: footer.weight, name="footers"
)
_indexes: BoundedCache[tuple[str, int | None, frozenset[int]], FileIndex] = BoundedCache(
    _CACHED_CHUNKS, weigh=lambda index: sum(len(group.value_counts) + 1 for group in index.files)
)


def footer_of(file: DataFile) -> Footer | None:
    """None for files elsewhere, where it costs a call, and for unreadable ones: their readers will raise an error."""
    path = local_path(file.path)
    if path is None or file.format != "parquet":
        return None
    try:
        return _footers.get((file.path, file.size), lambda: read_footer(str(path)))
    except (pa.ArrowException, OSError):
        return None


def read_footer(path: str) -> Footer:
    metadata = pq.read_metadata(path)
    starts, passed = [], 0
    for number in range(metadata.num_row_groups):
        starts.append(passed)
        passed += metadata.row_group(number).num_rows
    return Footer(metadata, metadata.schema.to_arrow_schema(), tuple(starts))


def _bound(raw: Any, physical_type: str, column_type: pa.DataType) -> bytes | None:
    """A bound of a column chunk in Iceberg's binary form; None for types whose values are not stored as they are."""
    if pa.types.is_decimal(column_type):
        return raw.to_bytes(8, "big", signed=True) if isinstance(raw, int) else raw
    if pa.types.is_timestamp(column_type) and column_type.unit != "us":
        return None
    plain = column_type in (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.binary())
    if not plain and not pa.types.is_timestamp(column_type):
        return None
    if physical_type in _PACKED:
        return struct.pack(_PACKED[physical_type], raw)
    return raw if isinstance(raw, bytes) else None
