"""The rows of one version of a table: what holds them, the parts in which they are read, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import DuckDBCall, Scan, ScanRequest
from sparkport.filters.expressions import Expression, conjunction, conjuncts, referenced_columns
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.columns.columns import Columns, Json
from sparkport.lakehouse.columns.storage import to_stored
from sparkport.lakehouse.columns.types import pushable
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.lineage import Ids, Lineage, ascending, derived, from_batch, positions_in
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import DataFile, SnapshotPlan, plan, split
from sparkport.lakehouse.iceberg.prune import by_filter, by_row_ids
from sparkport.lakehouse.iceberg.small_files import small_file
from sparkport.lakehouse.journal.net import FIRST_ID
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.client_reads import duckdb_calls
from sparkport.lakehouse.scan.read import SEQUENCE, Reader, RowStream
from sparkport.lakehouse.scan.statistics import TableStatistics

__all__ = ["RowSource", "StoredRows", "TableRows"]

_MOST_PARTS = 16


@dataclass(frozen=True)
class RowSource:
    """What rows are read with. ``spill`` reads those that only Spark reads right."""

    files: FileSystem
    reader: Reader
    spill: Callable[[TableRows, ScanRequest], Scan]


class StoredRows(Protocol):
    """What has been published of a table's rows, with or without a journal on top."""

    @property
    def published_snapshot(self) -> int | None: ...

    @property
    def published_files(self) -> Sequence[DataFile]: ...


@dataclass(frozen=True)
class TableRows:
    """``schema`` is where ``columns`` come from, which need not be the one that the snapshot was written with."""

    name: TableName
    metadata: TableMetadata
    schema: Json
    columns: Columns
    snapshot_id: int | None
    source: RowSource

    @property
    def has_row_ids(self) -> bool:
        return self.metadata.format_version >= 3

    @property
    def needs_spark(self) -> bool:
        """Whether only Spark reads the rows right."""
        return self._plan.needs_spark

    @cached_property
    def statistics(self) -> TableStatistics:
        return TableStatistics(self._plan, self.columns)

    @cached_property
    def _plan(self) -> SnapshotPlan:
        return plan(self.source.files, self.metadata, self.snapshot_id)

    def selected(self, request: ScanRequest) -> list[str]:
        """The names of the columns that are asked for, without the row id."""
        return [name for name in self.columns.declared.names if request.selects(name)]

    def selects_ids(self, request: ScanRequest) -> bool:
        return request.selects(ROW_ID) and self.has_row_ids

    def parts(self) -> Sequence[range | None]:
        """Ranges of the snapshot's files, for scans that are worth more than one."""
        files = self._plan.files
        wanted = min(_MOST_PARTS, sum(file.size for file in files) // self.source.reader.ways.part_bytes + 1)
        if wanted < 2 or self._plan.needs_spark:
            return [None]
        parts, start = [], 0
        for piece in split(files, wanted):
            parts.append(range(start, start + len(piece)))
            start += len(piece)
        return parts

    def duckdb_calls(self, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        """What clients may run instead of a scan; None where it reads other rows, or with a filter far more of them."""
        if self._pushable(request.filter) is not None:
            return None
        files, names = self._plan.files, self.selected(request)
        return duckdb_calls(self.source.files, self.metadata, self.columns, files=files, names=names)

    def scan(self, request: ScanRequest, part: range | None = None, *, without: Ids | None = None) -> Scan:
        """``without`` are ids of rows to leave out."""
        if self._plan.needs_spark:
            return self._spilled(request, without)
        names = self.selected(request)
        stream = self._stream(
            names,
            self._plan if part is None else self._plan.only(self._plan.files[part.start : part.stop]),
            filter=self._pushable(request.filter),
            row_id=self.selects_ids(request),
            without=without,
        )
        total = stream.total_rows if request.filter is None else None
        return Scan(self.columns.as_declared(stream, names), total_rows=total, close=stream.close)

    def _spilled(self, request: ScanRequest, without: Ids | None) -> Scan:
        if without is None or not len(without):
            return self.source.spill(self, request)
        # What Spark has read is taken apart here: it has to bring the row ids along.
        columns = None if request.columns is None else tuple(dict.fromkeys([*request.columns, ROW_ID]))
        scan = self.source.spill(self, replace(request, columns=columns))
        hidden = ascending(without)
        kept = (batch.filter(pa.array(positions_in(hidden, _ids(batch)) < 0)) for batch in scan)
        return Scan(kept, close=scan.close)

    def stored(self, names: Sequence[str], *, row_ids: NDArray[np.int64]) -> RowStream:
        """Rows by their ids as they are stored, with a column ``rowid``; the caller closes the stream."""
        return self._stream(names, self._plan, row_ids=row_ids, row_id=True)

    def stored_in(self, chosen: SnapshotPlan, names: Sequence[str], *, row_ids: Ids | None) -> RowStream:
        """The same of files of another snapshot, by these columns; all rows if ``row_ids`` is None."""
        return self._stream(names, chosen, row_ids=row_ids, row_id=True)

    def matching(
        self,
        names: Sequence[str],
        condition: Expression | None,
        *,
        since: StoredRows | None = None,
        without: Ids | None = None,
        skips_only: bool = False,
    ) -> RowStream | Scan:
        """Rows for which a condition on stored columns holds, and perhaps others, as ``stored`` gives them.

        ``skips_only``: it holds for most rows of the files and row groups that it does not rule out. Of files that
        ``since`` has as well nothing is read, and ``without`` are ids of rows to leave out.
        """
        if self._plan.needs_spark:
            return self._matching_spilled(names, without)
        chosen = self._plan.only(self.files_matching(condition, since=since))
        if not chosen.files:
            return Scan(iter(()))  # as for most keys that ascend, which need not wait for a query to be made
        return self._stream(
            names, chosen, filter=condition, row_id=self.has_row_ids, without=without, skips_only=skips_only
        )

    def files_matching(self, condition: Expression | None, *, since: StoredRows | None = None) -> list[DataFile]:
        """The files that ``matching`` reads."""
        chosen = self._plan
        if since is not None and since.published_snapshot != self.snapshot_id:
            known = {(file.path, file.deletes) for file in since.published_files}
            chosen = self._plan.only(file for file in self._plan.files if (file.path, file.deletes) not in known)
        elif since is not None:
            return []
        return by_filter(chosen.index, self.metadata, schema=self.schema, filter=condition)

    @property
    def published_snapshot(self) -> int | None:
        return self.snapshot_id

    @property
    def published_files(self) -> Sequence[DataFile]:
        return self._plan.files

    def _matching_spilled(self, names: Sequence[str], without: Ids | None) -> Scan:
        scan = self._spilled(ScanRequest(columns=(*names, ROW_ID) if self.has_row_ids else tuple(names)), without)
        columns = [(self.columns.declared.field(name), self.columns.field(name)) for name in names]
        rest = [ROW_ID] if self.has_row_ids else []

        def stored() -> Iterator[pa.RecordBatch]:
            for batch in scan:
                arrays = [to_stored(batch.column(declared.name), declared, field) for declared, field in columns]
                yield pa.RecordBatch.from_arrays([*arrays, *(batch.column(name) for name in rest)], [*names, *rest])

        return Scan(stored(), close=scan.close)

    def lineage(self, row_ids: Ids) -> Lineage:
        """The lineage of those of these rows that are there; ``row_ids`` ascend."""
        files = self.source.files
        pairs, rest = derived(files, by_row_ids(self._plan.index, row_ids), row_ids)
        known = [(file, small_file(files, file)) for file in rest]
        pairs += [small.find(files, file, row_ids) for file, small in known if small is not None]
        if rest := [file for file, small in known if small is None]:
            chosen = self._plan.only(rest)
            with closing(self._stream([], chosen, row_ids=row_ids, row_id=True, sequence=True)) as stream:
                pairs += [from_batch(batch.column(ROW_ID), batch.column(SEQUENCE)) for batch in stream]
        return Lineage.from_parts(pairs)

    def resolve(self, ids: Ids) -> Ids:
        """Ids that clients were given earlier, as they are now."""
        return ids

    def unknown(self, ids: Ids) -> Ids:
        """Those of these that a journal has given, of which nothing is left here."""
        return ids[ids >= FIRST_ID]

    def untold(self, ids: Ids) -> Ids:
        """Those of these whose rows are there under ids that nobody can tell."""
        return ids[:0]

    def has_null(self, column: str) -> bool:
        with closing(self._stream([str(self.columns.field(column)["name"])], self._plan)) as stream:
            return any(batch.column(0).null_count for batch in stream)

    def _stream(self, names: Sequence[str], chosen: SnapshotPlan, **options: Any) -> RowStream:
        return self.source.reader.scan(self.metadata, chosen, schema=self.schema, columns=list(names), **options)

    def _pushable(self, condition: Expression | None) -> Expression | None:
        """The parts of a filter that mean the same on the columns as they are stored."""
        if condition is None:
            return None
        good = {
            column.name.lower()
            for column, field in zip(self.columns.declared, self.columns.fields, strict=True)
            if pushable(field, column)
        }
        if self.has_row_ids:
            good.add(ROW_ID)
        kept = [part for part in conjuncts(condition) if {name.lower() for name in referenced_columns(part)} <= good]
        return conjunction(kept) if kept else None


def _ids(batch: pa.RecordBatch) -> Ids:
    ids: Ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False)
    return ids
