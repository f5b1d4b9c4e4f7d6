"""New rows on their way into a table, written while they come as the very data files that the table will have.

In a plain table (see ``iceberg/appends.py``) such a file only has to be given its place: nobody reads or writes the
rows once more. Spark reads what is staged for other tables, see ``spark/staging.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkport.lakehouse.columns.columns import Json
from sparkport.lakehouse.columns.file_schema import file_notes, file_schema
from sparkport.lakehouse.columns.storage import conformed_batch, from_stored
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.appends import Compression, compression_of, is_plain
from sparkport.lakehouse.iceberg.file_metrics import LONG, FileMetrics, Leaf, leaves_of, metrics_of
from sparkport.lakehouse.iceberg.totals import summary_number
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.change_set import new_rows_schema

__all__ = ["FileForm", "NewRows", "WrittenFile", "file_form", "staged_new_rows"]

_FILE_BYTES = 512 << 20
_FILE_SIZE = "write.target-file-size-bytes"
_SAMPLE = 8_192
_MAY_BE_NAN = ("float", "double")
_MAY_BE_LONG = ("string", "binary")
_TOO_MANY_VALUES = 0.8
"""Of a sample's rows: a column with more different values gets no dictionary, which would take time and space."""


@dataclass(frozen=True, slots=True, eq=False)
class FileForm:
    """What data files of a table are like."""

    schema: pa.Schema
    fields: tuple[Json, ...]
    leaves: tuple[Leaf, ...]
    compression: Compression
    file_bytes: int

    def is_same(self, other: FileForm) -> bool:
        same_columns = bool(self.schema.equals(other.schema, check_metadata=True))
        return same_columns and (self.compression, self.file_bytes) == (other.compression, other.file_bytes)

    def in_file(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Stored columns by name as a file has them; one that is not there is null."""
        names = set(batch.schema.names)
        columns = [
            from_stored(batch.column(field["name"]), column, field)
            if field["name"] in names
            else pa.nulls(len(batch), column.type)
            for field, column in zip(self.fields, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def nan_counts(self, rows: pa.Table) -> dict[int, int]:
        return {
            field_id: pc.sum(pc.is_nan(column)).as_py() or 0 for field_id, column in self._values(rows, _MAY_BE_NAN)
        }

    def long_bounds(self, rows: pa.Table) -> dict[int, tuple[bytes, bytes]]:
        """The lowest and the highest value of each column that has long ones."""
        bounds = {}
        for field_id, column in self._values(rows, _MAY_BE_LONG):
            if (pc.max(pc.binary_length(column)).as_py() or 0) > LONG:
                both = pc.min_max(column.cast(pa.binary()))
                bounds[field_id] = (both["min"].as_py(), both["max"].as_py())
        return bounds

    def _values(self, rows: pa.Table, types: Collection[str]) -> Iterator[tuple[int, pa.ChunkedArray]]:
        """The columns of some types of which manifests have bounds, by their field ids."""
        for leaf in self.leaves:
            if leaf.path is not None and leaf.is_described and leaf.iceberg_type in types:
                column = rows.column(leaf.path[0])
                yield leaf.field_id, column if len(leaf.path) == 1 else pc.struct_field(column, leaf.path[1:])


def file_form(version: TableVersion) -> FileForm | None:
    """None for a table whose files Spark has to write."""
    metadata, fields = version.metadata, version.columns.fields
    if not is_plain(metadata):
        return None
    schema, compression = file_schema(fields), compression_of(metadata)
    if schema is None or compression is None:
        return None
    size = summary_number(metadata.properties, _FILE_SIZE)
    file_bytes = size if size is not None and 0 < size < 1 << 40 else _FILE_BYTES
    return FileForm(schema, fields, leaves_of(fields), compression, file_bytes)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: Path
    rows: int
    size: int
    metrics: FileMetrics


class NewRows(StagedRows):
    """Data files in the making."""

    is_for_spark = False
    group_rows, group_bytes = 122_880, 32 << 20

    def __init__(self, path: Path, schema: pa.Schema, form: FileForm) -> None:
        """``schema`` is of the rows that are given: some or all of the table's columns as they are stored."""
        super().__init__(path, schema)
        self.form = form
        self._files: list[WrittenFile] = []
        self._footers: list[pq.FileMetaData] = []
        self._nan_counts: dict[int, int] = {}
        self._long_bounds: dict[int, tuple[bytes, bytes]] = {}
        self._dictionaries: list[str] | None = None

    @property
    def files(self) -> Sequence[WrittenFile]:
        self.finish()
        return [file for file in self._files if file.rows]

    @property
    def paths(self) -> Sequence[Path]:
        return self._opened

    def _open(self, first: pa.Table) -> None:
        if self._dictionaries is None:
            self._dictionaries = list(_repeating(first, self.form))
        path = self.path.with_stem(f"{self.path.stem}-{len(self._opened)}") if self._opened else self.path
        self._opened.append(path)
        self._footers = []
        self._nan_counts = {}
        self._long_bounds = {}
        self._writer = pq.ParquetWriter(
            path,
            self.form.schema,
            compression=self.form.compression.codec,
            compression_level=self.form.compression.level,
            use_dictionary=self._dictionaries,
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_checksum=True,
            metadata_collector=self._footers,
        )

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._open(rows)
        elif self._opened[-1].stat().st_size >= self.form.file_bytes:
            self._close()
            self._open(rows)
        groups = max(-(-rows.num_rows // self.group_rows), -(-rows.nbytes // (2 * self.group_bytes)), 1)
        size = max(-(-rows.num_rows // groups), 1)
        for start in range(0, rows.num_rows, size):
            batches = rows.slice(start, size).combine_chunks().to_batches()
            group = pa.Table.from_batches([self.form.in_file(batch) for batch in batches], self.form.schema)
            for field_id, count in self.form.nan_counts(group).items():
                self._nan_counts[field_id] = self._nan_counts.get(field_id, 0) + count
            for field_id, (low, high) in self.form.long_bounds(group).items():
                lowest, highest = self._long_bounds.get(field_id, (low, high))
                self._long_bounds[field_id] = (min(low, lowest), max(high, highest))
            assert self._writer is not None
            self._writer.write_table(group, row_group_size=size)

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.add_key_value_metadata(file_notes(self.form.fields))
        super()._close()
        path, (footer,) = self._opened[-1], self._footers
        metrics = metrics_of(footer, self.form.leaves, self._nan_counts, self._long_bounds)
        self._files.append(WrittenFile(path, footer.num_rows, path.stat().st_size, metrics))

    def _read(self, file: pq.ParquetFile, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
        places = {str(field["name"]): at for at, field in enumerate(self.form.fields)}
        columns = [self.form.schema.names[places[name]] for name in schema.names]
        for batch in file.iter_batches(rows, columns=columns):
            yield conformed_batch(batch.select(columns), schema)


def _repeating(rows: pa.Table, form: FileForm) -> Iterator[str]:
    """The columns of a file in which values repeat, as far as a sample of the first rows shows."""
    sample = _sample(rows)
    for column, field in zip(form.schema, form.fields, strict=True):
        name = field["name"]
        if column.type.num_fields:
            yield from _leaf_paths(column, column.name)
        elif (
            name not in sample.schema.names
            or not sample.num_rows
            or pc.count_distinct(sample.column(name)).as_py() <= _TOO_MANY_VALUES * sample.num_rows
        ):
            yield column.name


def _sample(rows: pa.Table) -> pa.Table:
    """From batch to batch: taken from all of them at once, a few rows would make Arrow put all into one."""
    step, start, taken = max(1, rows.num_rows // _SAMPLE), 0, []
    for batch in rows.to_batches():
        taken.append(batch.take(pa.array(np.arange(-start % step, batch.num_rows, step), pa.int64())))
        start += batch.num_rows
    return pa.Table.from_batches(taken, rows.schema)


def _leaf_paths(field: pa.Field, path: str) -> Iterator[str]:
    """The columns of a file that a nested one is, as Parquet names them."""
    kind = field.type
    if pa.types.is_map(kind):
        yield from _leaf_paths(kind.key_field, f"{path}.key_value.key")
        yield from _leaf_paths(kind.item_field, f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _leaf_paths(kind.value_field, f"{path}.list.element")
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _leaf_paths(kind.field(at), f"{path}.{kind.field(at).name}")
    else:
        yield path


def staged_new_rows(staging: Staging, version: TableVersion, names: Sequence[str] | None = None) -> StagedRows:
    """A place for new rows of a table, or for some of their columns, as they are stored."""
    fields: Mapping[str, Any] = {str(field["name"]): field for field in version.columns.fields}
    chosen = [fields[name] for name in (fields if names is None else names)]
    schema = new_rows_schema((field["name"] for field in chosen), (stored_type(field["type"]) for field in chosen))
    form = file_form(version) if staging.makes_data_files else None
    return staging.new(schema) if form is None else NewRows(staging.new_path(), schema, form)
