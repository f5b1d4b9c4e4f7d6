"""Arrow reads files that hold just what is asked for: there is no query to set up, and rows cost less.

Row groups that cannot hold what is asked for are left out by their statistics. DuckDB reads what is left: columns of
another type than the table's, files without field ids, filters that take more than a comparison. Rows, types and order
are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkport.catalog.best_effort import best_effort
from sparkport.catalog.memory_sizes import cuts
from sparkport.filters.masks import Mask, compile_mask
from sparkport.filters.types import ROW_ID
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.files import FileSystem, local_path
from sparkport.lakehouse.iceberg import prune
from sparkport.lakehouse.iceberg.deletes import deleted_positions
from sparkport.lakehouse.iceberg.lineage import ascending, filled, ids_of, places_of
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID, Footer, footer_of
from sparkport.lakehouse.scan.decoded import (
    LARGE_ROW,
    Share,
    as_key,
    file_row_bytes,
    has_long_dictionary,
    held_bytes,
    is_all_numbered,
    row_bytes,
)
from sparkport.lakehouse.scan.kept_columns import kept_batches
from sparkport.lakehouse.scan.large_reads import LargeReads
from sparkport.lakehouse.scan.nested import as_handed_out, is_direct, is_same_column, leaves
from sparkport.lakehouse.scan.query import Request

__all__ = ["DirectScan", "arrow_type", "read_ahead", "removed"]

_READ_BYTES = 16 << 20  # at a time, of all columns together: column chunks do not come into memory as a whole
_LEAST_READ, _MOST_READ = 64 << 10, 1 << 20  # of one column
_PAGE_SHARES = 2  # that a batch may take whose texts are longer than is usual in their page
_MANY_RUNS = 1 << 10  # of rows between deleted ones, beyond which a mask is quicker than to copy runs

Positions = NDArray[np.int64]
_Chunk: TypeAlias = tuple[int, int, dict[int, pa.Array]]
"""The position of the first row in its file, how many rows, and their columns by field id."""
_NONE: Positions = np.empty(0, dtype=np.int64)


def arrow_type(iceberg_type: Any) -> pa.DataType | None:
    """The Arrow type in which DuckDB hands out a column of this type, None for what is left to DuckDB."""
    known = known_type(iceberg_type)
    return known.stored if known is not None and known.direct else None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file that is being read. ``layout`` is what it calls the columns, by field id."""

    file: DataFile
    footer: Footer
    raw: pa.NativeFile
    source: pq.ParquetFile
    layout: Mapping[int, str]

    @property
    def key(self) -> tuple[str, int]:
        return self.file.path, self.file.size


class DirectScan:
    """Batches of files, as far as Arrow can read them: ``rest`` are the files that it has left for DuckDB."""

    def __init__(
        self,
        fs: FileSystem,
        request: Request,
        files: Sequence[DataFile],
        *,
        schema: pa.Schema,
        rows: int,
        share: Share,
        large: LargeReads,
        stopped: Callable[[], bool],
    ) -> None:
        """Batches have at most so many ``rows``, and no more bytes than the scan's ``share`` if a row has not."""
        self._fs = fs
        self._request = request
        self._files = list(files)
        self._schema = schema
        self._rows = rows
        self._share = share
        self._large = large
        self._stopped = stopped
        self._next = 0
        self._mask = None if request.skips_only else _mask(request)
        self._wanted = None if request.row_ids is None else request.row_ids[request.row_ids >= 0]
        self._count = sum(file.record_count for file in files)
        self._size = sum(file.size for file in files)
        self._parts: dict[str, list[int]] = {}
        filtered, ways = request.filter is not None, request.ways
        self._possible = (
            bool(request.names)
            and (not filtered or request.skips_only or self._mask is not None)
            and (len(files) <= ways.small_files or self._count >= len(files) * ways.small_file_rows)
            and all(is_direct(field["type"]) for field in request.needed)
            and all(local_path(file.path) is not None for file in files)
        )
        if self._possible and self._count > ways.small_file_rows and (filtered or self._wanted is not None):
            self._choose_row_groups()
        if filtered and not request.skips_only and self._count > ways.filtered_rows:
            self._possible = self._possible and self._has_large_rows()
        self._needs_ids = request.needs_row_ids
        self._compared = {field["id"] for field in request.compared}
        self._types = {field["id"]: schema.field(place).type for place, field in enumerate(request.fields)}
        each = _READ_BYTES // max(sum(leaves(field["type"]) for field in request.needed), 1)
        self._read_bytes = max(_LEAST_READ, min(_MOST_READ, each))

    @property
    def is_small(self) -> bool:
        """Whether all of it is one batch or so: not worth another thread."""
        return self._count <= 2 * self._rows and self._size <= self._request.ways.small_bytes

    @property
    def rest(self) -> list[DataFile]:
        return self._files[self._next :]

    def _has_large_rows(self) -> bool:
        field_ids = {field["id"] for field in self._request.needed}
        return any((file_row_bytes(file, field_ids) or 0) > LARGE_ROW for file in self._files)

    def _choose_row_groups(self) -> None:
        """The row groups that may hold what is asked for, of files whose footers are kept."""
        request, count = self._request, 0
        for file in self._files:
            footer = footer_of(file)
            if footer is None:
                count += file.record_count
                continue
            groups = footer.row_groups(file, [field["id"] for field in request.compared])
            chosen = list(groups.files)
            if request.filter is not None:
                schema = {"fields": request.schema_fields}
                chosen = prune.by_filter(groups, request.metadata, schema=schema, filter=request.filter)
            if self._wanted is not None:
                chosen = prune.by_row_ids(chosen, self._wanted)
            kept = {id(group) for group in chosen}
            self._parts[file.path] = [number for number, group in enumerate(groups.files) if id(group) in kept]
            count += sum(group.record_count for group in chosen)
        self._size = self._size * count // max(self._count, 1)
        self._count = count

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Small ones put together: a batch of a few rows costs the wire as much as one of thousands."""
        waiting: list[pa.RecordBatch] = []
        count = size = 0
        for batch in self._single_batches():
            nbytes = batch.nbytes
            if waiting and (count + batch.num_rows > self._rows or size + nbytes > self._share.bytes):
                yield _together(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(batch)
            count += batch.num_rows
            size += nbytes
            if 2 * count > self._rows or 2 * size > self._share.bytes:
                yield _together(waiting)
                waiting, count, size = [], 0, 0
        if waiting:
            yield _together(waiting)

    def _single_batches(self) -> Iterator[pa.RecordBatch]:
        while self._possible and self._next < len(self._files):
            file = self._files[self._next]
            footer = footer_of(file)
            if footer is None:
                return  # DuckDB says what is wrong with it
            with ExitStack() as opened:
                try:
                    raw = opened.enter_context(pa.OSFile(str(local_path(file.path))))
                    source = pq.ParquetFile(raw, metadata=footer.metadata, buffer_size=self._read_bytes)
                except (pa.ArrowException, OSError):
                    return
                layout = self._layout(source.schema_arrow)
                if layout is None:
                    return
                self._next += 1
                parts = self._parts.get(file.path)
                runs = [range(len(footer.starts))] if parts is None else _runs(parts)
                opened_file = _Opened(file, footer, raw, source, layout)
                for run in filter(None, runs):
                    repeating = self._repeating(opened_file, run)
                    batches = self._read(file, self._chunks(opened_file, run, repeating))
                    sizes = {"names": layout.values(), "numbered": repeating}
                    held = max(held_bytes(opened_file.key, footer, group, **sizes) for group in run)
                    yield from self._large.read(batches, held=held, stopped=self._stopped)

    def _layout(self, schema: pa.Schema) -> dict[int, str] | None:
        """What the file calls the columns, by field id; None where it does not have one just as it is asked for."""
        by_id: dict[int, pa.Field] = {}
        for field in schema:
            field_id = int((field.metadata or {}).get(FIELD_ID, b"-1"))
            if field_id in by_id:
                return None
            if field_id >= 0:
                by_id[field_id] = field
        if not by_id:  # a file of another tool, which may not even have the columns of its name mapping
            return None
        wanted = {field["id"]: field["type"] for field in self._request.needed}
        lineage = {ROW_ID_FIELD: self._needs_ids, SEQUENCE_FIELD: self._request.sequence}
        wanted |= {field_id: "long" for field_id, needed in lineage.items() if needed and field_id in by_id}
        layout: dict[int, str] = {}
        for field_id, expected_type in wanted.items():
            field = by_id.get(field_id)
            # Columns are read by name, in which a dot leads into a struct.
            if field is None or "." in field.name or field.name in layout.values():
                return None
            if not is_same_column(field, expected_type):
                return None
            layout[field_id] = field.name
        return layout

    def _read(self, file: DataFile, chunks: Iterable[_Chunk]) -> Generator[pa.RecordBatch, None, None]:
        gone = deleted_positions(self._fs, file) if file.deletes else _NONE
        for start, count, columns in chunks:
            if self._needs_ids:
                first = file.first_row_id
                ids = None if first is None else np.arange(first + start, first + start + count, dtype=np.int64)
                columns[ROW_ID_FIELD] = filled(columns.get(ROW_ID_FIELD), ids, count)
            if self._request.sequence:
                # Like Spark: what has no row ids has no lineage at all.
                written = None if file.first_row_id is None else np.full(count, file.sequence_number, dtype=np.int64)
                columns[SEQUENCE_FIELD] = filled(columns.get(SEQUENCE_FIELD), written, count)
            low, high = np.searchsorted(gone, (start, start + count))
            batch = self._kept(columns, gone[low:high] - start)
            if batch.num_rows:
                yield batch

    def _repeating(self, opened: _Opened, groups: range) -> list[str]:
        all_of_them = self._mask is not None or not self.is_small
        names = opened.layout.values()
        return _repeating_columns.get(
            (*opened.key, groups, as_key(names), all_of_them),
            lambda: _repeating(opened, names, groups, all_of_them=all_of_them),
        )

    def _chunks(self, opened: _Opened, groups: range, repeating: Sequence[str]) -> Iterator[_Chunk]:
        """The rows of neighbouring row groups of a file."""
        footer, layout = opened.footer, opened.layout
        metadata, names = footer.metadata, list(layout.values())
        start = footer.starts[groups[0]]
        if not names:  # only row ids are asked for, and they are in no column
            end = start + sum(metadata.row_group(number).num_rows for number in groups)
            yield from ((first, min(self._rows, end - first), {}) for first in range(start, end, self._rows))
            return
        source = opened.source
        if repeating:
            source = pq.ParquetFile(
                opened.raw, metadata=metadata, buffer_size=self._read_bytes, read_dictionary=repeating
            )
        for part, rows in self._steps(opened, groups, repeating):
            end = start + sum(metadata.row_group(number).num_rows for number in part)
            batches = (
                kept_batches(source, opened.key, part, names, repeating=repeating, rows=rows)
                if self.is_small
                else source.iter_batches(rows, row_groups=list(part), columns=names)
            )
            for batch in batches:
                columns = {field_id: batch.column(name) for field_id, name in layout.items()}
                limit = self._share.bytes
                uneven = repeating or any(column.type.num_fields for column in batch.columns)
                uneven = uneven or batch.nbytes > _PAGE_SHARES * limit
                for first, count in cuts(batch.columns, limit) if uneven else [(0, batch.num_rows)]:
                    yield start + first, count, self._decoded(columns, first, count)
                start += batch.num_rows
            if start != end:  # Arrow takes a page without values for the end of a list's column
                raise pa.ArrowInvalid(f"{end - start} rows of '{opened.file.path}' could not be read")

    def _steps(self, opened: _Opened, groups: range, repeating: Sequence[str]) -> Iterator[tuple[range, int]]:
        """Row groups that are read so many rows at a time."""
        names, limit = opened.layout.values(), self._share.bytes
        sizes = [row_bytes(opened.key, opened.footer, group, names=names, numbered=repeating) for group in groups]
        alone = any("." in path for path in repeating)  # Arrow has one dictionary at a time for what is nested
        steps = [self._rows if size * self._rows <= limit else _power_of_two(limit // size) for size in sizes]
        first = 0
        for place in range(1, len(steps) + 1):
            if place == len(steps) or alone or steps[place] != steps[first]:
                yield groups[first:place], steps[first]
                first = place

    def _decoded(self, columns: Mapping[int, pa.Array], first: int, count: int) -> dict[int, pa.Array]:
        """Some rows of a chunk. A filter leaves few of them, and of what it does not compare only those are worth
        decoding."""
        decoded = {}
        for field_id, column in columns.items():
            part = column
            if count != len(column):
                # A copy: on its way out a slice would take bytes of its neighbours along.
                part = pa.concat_arrays([column.slice(first, count), column.slice(0, 0)])
            if self._mask is None or field_id in self._compared:
                part = as_handed_out(part, self._types.get(field_id, part.type))
            decoded[field_id] = part
        return decoded

    def _kept(self, columns: Mapping[int, pa.Array], gone: Positions) -> pa.RecordBatch:
        request = self._request
        asked = [field["id"] for field in request.fields]
        asked += [ROW_ID_FIELD] * request.row_id + [SEQUENCE_FIELD] * request.sequence
        arrays = [columns[field_id] for field_id in asked]
        if request.without is not None:
            gone = ascending(gone, _among(columns[ROW_ID_FIELD], request.without))
        if self._wanted is not None:
            others = np.ones(len(arrays[0]), dtype=np.bool_)
            others[_among(columns[ROW_ID_FIELD], self._wanted)] = False
            gone = ascending(gone, np.flatnonzero(others))
        if self._mask is None:
            return removed(pa.RecordBatch.from_arrays(arrays, schema=self._schema), gone)
        named = {field["name"].lower(): columns[field["id"]] for field in request.needed}
        if self._needs_ids:
            named.setdefault(ROW_ID, columns[ROW_ID_FIELD])
        keep = self._mask(named)
        if len(gone):
            left = np.ones(len(keep), dtype=np.bool_)
            left[gone] = False
            keep = pc.and_(keep, pa.array(left))
        decoded = [
            as_handed_out(array.filter(keep), field.type) for array, field in zip(arrays, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(decoded, schema=self._schema)


def _mask(request: Request) -> Mask | None:
    condition = request.filter
    if condition is None:
        return None
    types = {field["name"].lower(): arrow_type(field["type"]) for field in request.schema_fields}
    if len(types) < len(request.schema_fields):
        return None
    types.setdefault(ROW_ID, pa.int64())
    return best_effort(lambda: compile_mask(condition, types), otherwise=None)


def _runs(numbers: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges of neighbours."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def _repeating(opened: _Opened, names: Collection[str], groups: range, *, all_of_them: bool) -> list[str]:
    """Texts that the file holds once and points to: read as such and decoded here, they take half the time, and no
    more room than is left. Few small ones are read as they are: the file need not be opened a second time."""
    footer, metadata = opened.footer, opened.footer.metadata
    if not metadata.num_row_groups:
        return []
    chosen = []
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        asked = column.path.partition(".")[0] in names
        chunks = [metadata.row_group(group).column(number) for group in groups] if asked else []
        if not chunks or chunks[0].physical_type != "BYTE_ARRAY":
            continue
        if not all(chunk.has_dictionary_page for chunk in chunks):
            continue
        is_long = any(has_long_dictionary(footer, group, number) for group in groups)
        if all("PLAIN" not in chunk.encodings for chunk in chunks):
            worth_it = all_of_them or is_long
        else:  # of lists nobody knows how many texts come at once
            worth_it = is_long and column.max_repetition_level > 0
            worth_it = worth_it and all(is_all_numbered(opened.key, footer, group, number) for group in groups)
        if worth_it:
            chosen.append(column.path)
    return chosen


_repeating_columns: BoundedCache[tuple[object, ...], list[str]] = BoundedCache(
    100_000, weigh=lambda paths: len(paths) + 5
)


def _power_of_two(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


def _among(row_ids: pa.Array, wanted: Positions) -> Positions:
    return places_of(wanted, ids_of(row_ids))


def removed(batch: pa.RecordBatch, gone: Positions, *, many: int = _MANY_RUNS) -> pa.RecordBatch:
    """A batch without some of its rows. Unless they are many they are left out by copying what is between them."""
    if not len(gone):
        return batch
    if len(gone) > many:
        keep = np.ones(batch.num_rows, dtype=np.bool_)
        keep[gone] = False
        return batch.filter(pa.array(keep))
    starts = [0, *(gone + 1).tolist()]
    ends = [*gone.tolist(), batch.num_rows]
    runs = [batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True) if end > start]
    return pa.concat_batches(runs) if runs else batch.slice(0, 0)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def read_ahead(pool: Executor, source: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
    """The same batches, each made by another thread while the one before it is on its way out.

    One at a time: a reader that has stopped asking holds no thread, and no more than a batch.
    """
    coming = pool.submit(next, source, None)
    try:
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield batch
    finally:
        if not coming.cancel():  # one that never began is not waited for: a pool that was shut down says nothing of it
            wait([coming])
        source.close()
