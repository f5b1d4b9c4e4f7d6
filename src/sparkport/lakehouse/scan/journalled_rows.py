"""The rows of a journalled table: those of its snapshot, less what the journal changed, and then the journal's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import DuckDBCall, Scan, ScanRequest
from sparkport.catalog.static import select_batches
from sparkport.catalog.table import ColumnStatistics
from sparkport.errors import SparkportError
from sparkport.filters.expressions import Expression, referenced_columns
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.columns.columns import Columns
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, Lineage, ascending, positions_in
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.journal.net import (
    FIRST_ID,
    Applied,
    Net,
    applied,
    require_known,
    resolved,
    unknown_among,
    untold_among,
)
from sparkport.lakehouse.scan.rows import StoredRows, TableRows

__all__ = ["JournalledRows"]

_BATCH_ROWS = 65_536
_DECLARED = "declared rows"


@dataclass(frozen=True, eq=False)
class JournalledRows:
    """``published`` is what Spark has applied. All else is as in ``TableRows``."""

    published: TableRows
    journal: TableJournal

    @cached_property
    def net(self) -> Net:
        """What a stranger has deleted from the snapshot stays deleted, whatever the journal has made of it before."""
        net = require_known(self.journal)
        if not len(net.hidden) or self._changed_by_us_alone():
            return net
        there = self.published.lineage(net.hidden).ids
        return net.without(net.hidden[positions_in(there, net.hidden) < 0])

    def _changed_by_us_alone(self) -> bool:
        """Whether all snapshots since the oldest entry are ours: those delete no row that the journal changes."""
        since = min(entry.sequence for entry in self.journal.entries)
        for snapshot in self.published.metadata.ancestors(self.published.snapshot_id):
            if snapshot.sequence_number <= since:
                return snapshot.sequence_number == since
            if snapshot.operation != "replace" and not snapshot.is_ours:
                return False
        return since == 0

    @property
    def _flushes(self) -> list[Applied]:
        return applied(self.journal)

    @property
    def columns(self) -> Columns:
        return self.published.columns

    @property
    def has_row_ids(self) -> bool:
        return self.published.has_row_ids

    @property
    def needs_spark(self) -> bool:
        return self.published.needs_spark

    @cached_property
    def statistics(self) -> JournalledStatistics:
        return JournalledStatistics(self)

    def selected(self, request: ScanRequest) -> list[str]:
        return self.published.selected(request)

    def selects_ids(self, request: ScanRequest) -> bool:
        return self.published.selects_ids(request)

    def parts(self) -> Sequence[range | None]:
        return self.published.parts()

    def duckdb_calls(self, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        """The files are not all that there is, if the journal has rows."""
        return None if len(self.net.ids) else self.published.duckdb_calls(request)

    def resolve(self, ids: Ids) -> Ids:
        """Ids that clients were given before a flush, as they are now."""
        return resolved(ids, self._flushes)

    def unknown(self, ids: Ids) -> Ids:
        """Those of these that ``resolve`` leads nowhere: what became of the rows is not known any more."""
        return unknown_among(ids, self.journal)

    def untold(self, ids: Ids) -> Ids:
        """Those of these whose rows are there under ids that nobody can tell."""
        return untold_among(ids, self.journal)

    def scan(self, request: ScanRequest, part: range | None = None, *, without: Ids | None = None) -> Scan:
        """The journal's rows are in the first of several parts."""
        net, names = self.net, self.selected(request)
        hidden = net.hidden if without is None else ascending(net.hidden, without)
        beneath = self.published.scan(request, part, without=hidden)
        if not int(np.count_nonzero(net.visible)) or (part is not None and part.start != 0):
            return beneath
        total = None if beneath.total_rows is None else beneath.total_rows + int(np.count_nonzero(net.visible))

        filtered = set() if request.filter is None else {name.lower() for name in referenced_columns(request.filter)}
        wanted = [n for n in self.columns.declared.names if n in names or n.lower() in filtered]

        def batches() -> Iterator[pa.RecordBatch]:
            yield from beneath
            yield from select_batches(self._declared(wanted, without), request)

        return Scan(batches(), total_rows=total, close=beneath.close)

    def _declared(self, names: Sequence[str], without: Ids | None) -> Iterable[pa.RecordBatch]:
        """The journal's rows as clients know them, less some; the last ones are kept for who reads the same columns.

        They depend on the table as well, where strangers may have deleted rows or changed columns.
        """
        net = self.net
        if without is not None:
            chosen = net.visible & (positions_in(ascending(without), net.ids) < 0)
            return self.columns.as_declared(self._own(names, chosen), names)
        key = (self.published.metadata.metadata_location, self.published.snapshot_id, *names)
        known: Any = self.journal.known.get(_DECLARED)
        if known is not None and known[0] == key:
            batches: list[pa.RecordBatch] = known[1]
            return batches
        made = list(self.columns.as_declared(self._own(names, net.visible), names))
        self.journal.known[_DECLARED] = (key, made)
        return made

    def stored(self, names: Sequence[str], *, row_ids: NDArray[np.int64]) -> JournalledStream:
        """Rows by their ids as they are stored, with a column ``rowid``; the caller closes the stream."""
        net, wanted = self.net, ascending(row_ids)
        chosen = net.visible & (positions_in(wanted, net.ids) >= 0)
        rest = wanted[positions_in(net.ids, wanted) < 0]
        rest = rest[rest < FIRST_ID]
        beneath = self.published.stored(names, row_ids=rest) if len(rest) else None
        return JournalledStream(beneath, self._own(names, chosen) if bool(chosen.any()) else ())

    def matching(
        self,
        names: Sequence[str],
        condition: Expression | None,
        *,
        since: StoredRows | None = None,
        skips_only: bool = False,
    ) -> JournalledStream:
        """As for the table itself; all of the journal's rows come."""
        net = self.net
        beneath = self.published.matching(names, condition, since=since, without=net.hidden, skips_only=skips_only)
        return JournalledStream(beneath, self._own(names, net.visible) if bool(net.visible.any()) else ())

    @property
    def published_snapshot(self) -> int | None:
        return self.published.published_snapshot

    @property
    def published_files(self) -> Sequence[DataFile]:
        return self.published.published_files

    def lineage(self, row_ids: Ids) -> Lineage:
        """As for the table itself; the number of the last change is the journal's where that has made it."""
        net, wanted = self.net, ascending(row_ids)
        places = positions_in(net.ids, wanted)
        rest = wanted[(places < 0) & (wanted < FIRST_ID)]
        beneath = self.published.lineage(rest) if len(rest) else Lineage(NO_IDS, NO_IDS)
        here = places[places >= 0]
        here = here[net.visible[here]]
        ids = np.concatenate([beneath.ids, net.ids[here]])
        commits = np.concatenate([beneath.commits, np.zeros(len(here), np.int64)])
        revisions = np.concatenate([self._revisions(beneath), net.revisions[here]])
        order = np.argsort(ids, kind="stable")
        return Lineage(ids[order], commits[order], revisions[order])

    def _revisions(self, lineage: Lineage) -> Ids:
        """The revisions of rows that a flush has brought into the snapshot; -1 for all others."""
        revisions = np.full(len(lineage.ids), -1, np.int64)
        for flush in self._flushes:
            ours = (lineage.commits >= flush.first_sequence) & (lineage.commits <= flush.last_sequence)
            if bool(ours.any()):
                revisions[ours] = flush.revisions(lineage.ids[ours])
        return revisions

    def has_null(self, column: str) -> bool:
        name = str(self.columns.field(column)["name"])
        own = self.net.values(self.columns.fields, [name], self.net.visible)
        return bool(own[0].null_count) or self.published.has_null(column)

    def _own(self, names: Sequence[str], chosen: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """The journal's rows as they are stored, the id at the end."""
        fields = {str(field["name"]): field for field in self.columns.fields}
        schema = pa.schema([*(pa.field(name, stored_type(fields[name]["type"])) for name in names), _ID_FIELD])
        columns = self.net.values(self.columns.fields, names, chosen)
        whole = pa.RecordBatch.from_arrays([*columns, pa.array(self.net.ids[chosen])], schema=schema)
        for start in range(0, whole.num_rows, _BATCH_ROWS):
            yield whole.slice(start, _BATCH_ROWS)


_ID_FIELD = pa.field(ROW_ID, pa.int64())


class JournalledStream:
    """Rows of the snapshot, then rows of the journal."""

    def __init__(self, beneath: Any, own: Iterable[pa.RecordBatch]) -> None:
        self._beneath = beneath
        self._own = own

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._beneath is not None:
            yield from self._beneath
        yield from self._own

    def close(self) -> None:
        if self._beneath is not None:
            self._beneath.close()


class JournalledStatistics:
    """What is known of the rows without reading them, with what the journal has made of them."""

    def __init__(self, rows: JournalledRows) -> None:
        self._rows = rows
        self._beneath = rows.published.statistics

    def row_count(self) -> int:
        net = self._rows.net
        return max(self._beneath.row_count() - len(net.hidden) + int(np.count_nonzero(net.visible)), 0)

    def column(self, name: str) -> ColumnStatistics | None:
        beneath, net = self._beneath.column(name), self._rows.net
        if beneath is None or not bool(net.visible.any()):
            return beneath
        batches = self._rows.columns.as_declared(self._rows._own([name], net.visible), [name])
        own = pa.chunked_array([batch.column(0) for batch in batches])
        has_null = None if beneath.has_null is None else beneath.has_null or own.null_count > 0
        has_value = None if beneath.has_not_null is None else beneath.has_not_null or own.null_count < len(own)
        minimum = maximum = None
        if beneath.minimum is not None and beneath.maximum is not None:
            try:
                bounds = pc.min_max(own)
                low, high = bounds["min"], bounds["max"]
                minimum, maximum = beneath.minimum, beneath.maximum
                if low.is_valid:
                    minimum = low if pc.less(low, minimum).as_py() else minimum
                    maximum = high if pc.greater(high, maximum).as_py() else maximum
            except (pa.ArrowException, SparkportError):  # a type that Arrow does not compare
                minimum = maximum = None
        return ColumnStatistics(minimum=minimum, maximum=maximum, has_null=has_null, has_not_null=has_value)

    def bounds_predicate(self, row_ids: Ids, alias: str) -> str:
        return self._beneath.bounds_predicate(row_ids, alias)
