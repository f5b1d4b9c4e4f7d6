"""A table as one metadata file describes it: columns, rows, statistics, history. It never changes, so it is shared.

History is told in the numbers of ``AT (VERSION => n)``: see ``numbers.py``. As long as the metadata of a version is in
the table's log of metadata, that is what tells about it; of older ones the newest metadata knows rows and columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, AsOfUnit, DuckDBCall, Scan, ScanRequest
from sparkport.catalog.table import ROW_ID, ColumnStatistics
from sparkport.errors import InvalidArgument, NotFound, Unsupported, VersionNotFound
from sparkport.filters.expressions import Expression, conjunction, conjuncts, referenced_columns
from sparkport.lakehouse.columns.columns import CHECKS, Columns, Json, field_names, read_columns, tags_in
from sparkport.lakehouse.columns.storage import from_stored
from sparkport.lakehouse.columns.types import pushable
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.lineage import Ids, Lineage, derived, from_batch
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.numbers import number_of, versions
from sparkport.lakehouse.iceberg.plan import DataFile, SnapshotPlan, plan, split
from sparkport.lakehouse.iceberg.prune import by_row_ids
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.client_reads import duckdb_calls
from sparkport.lakehouse.scan.read import SEQUENCE, Reader, RowStream
from sparkport.lakehouse.scan.statistics import bounds_predicate, column_statistics

__all__ = ["TableVersion", "VersionLoader"]

_PART_BYTES = 256 << 20
_MOST_PARTS = 16

_UNREADABLE = f"error('the property {CHECKS} of the table is not a list of conditions')::BOOLEAN"
"""The condition of a table whose conditions somebody else has spoiled: clients can read it, and no row keeps it."""


class VersionLoader:
    """Makes versions; what they need for reading is here."""

    def __init__(self, files: FileSystem, reader: Reader, spill: Callable[[TableVersion, ScanRequest], Scan]) -> None:
        self.files = files
        self.reader = reader
        self.spill = spill

    def load(self, name: TableName, location: str) -> TableVersion:
        return TableVersion(name, load(self.files, location), self)


@dataclass(frozen=True)
class TableVersion:
    """``snapshot`` and ``schema_id`` say which of the states in the metadata is meant: the current one if None."""

    name: TableName
    metadata: TableMetadata
    loader: VersionLoader
    snapshot: tuple[int | None] | None = None
    schema_id: int | None = None

    # What there is to know about it

    @property
    def location(self) -> str:
        """Where the metadata is."""
        return self.metadata.metadata_location

    @property
    def metadata_folder(self) -> str:
        return self.location.rpartition("/")[0] + "/"

    @property
    def json(self) -> Json:
        return dict(self.metadata.json)

    @property
    def uuid(self) -> str:
        return self.metadata.uuid

    @property
    def format_version(self) -> int:
        return self.metadata.format_version

    @property
    def has_row_ids(self) -> bool:
        return self.format_version >= 3

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.metadata.properties)

    @property
    def snapshot_id(self) -> int | None:
        return self.metadata.main_snapshot_id if self.snapshot is None else self.snapshot[0]

    @property
    def sequence_number(self) -> int:
        """Rows that were changed by a later commit have a higher one."""
        return 0 if self.snapshot_id is None else self.metadata.snapshot(self.snapshot_id).sequence_number

    @cached_property
    def schema(self) -> Json:
        if self.schema_id is None:
            return dict(self.metadata.current_schema)
        return dict(self.metadata.schemas[self.schema_id])

    @cached_property
    def columns(self) -> Columns:
        return read_columns(
            self.schema,
            self.metadata.properties,
            int(self.metadata.json.get("last-column-id", 0)),
            has_rows=self.snapshot_id is not None,
            keeps_defaults=self.format_version >= 3,
        )

    @cached_property
    def checks(self) -> tuple[str, ...]:
        try:
            found = json.loads(self.metadata.properties.get(CHECKS) or "[]")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(isinstance(check, str) for check in found):
            return (_UNREADABLE,)
        return tuple(found)

    @cached_property
    def tags(self) -> dict[str, str]:
        return tags_in(self.metadata.properties)

    @cached_property
    def fingerprint(self) -> str:
        """Equal as long as a listing would show the same."""
        columns = self.columns.declared.serialize().to_pybytes()
        shown = (self.uuid, columns, self.has_row_ids, self.checks, self.properties.get("comment"), self.tags)
        return hashlib.sha256(repr(shown).encode()).hexdigest()

    @cached_property
    def _plan(self) -> SnapshotPlan:
        return plan(self.loader.files, self.metadata, self.snapshot_id)

    def row_count(self) -> int | None:
        return self._plan.record_count

    def statistics(self, column: str) -> ColumnStatistics | None:
        if column == ROW_ID:
            return None
        index = self.columns.declared.get_field_index(column)
        if index not in self._statistics:
            field, declared = self.columns.fields[index], self.columns.declared.field(index)
            self._statistics[index] = column_statistics(self._plan.files, field, declared)
        return self._statistics[index]

    @cached_property
    def _statistics(self) -> dict[int, ColumnStatistics]:
        """Those that have been asked for, by the column's place."""
        return {}

    def has_null(self, column: str) -> bool:
        field = self.columns.field(column)
        stream = self._stream([str(field["name"])])
        try:
            return any(batch.column(0).null_count for batch in stream)
        finally:
            stream.close()

    def check_still_used(self, columns: Columns) -> None:
        """Refuse to drop a column that the table is or was partitioned or sorted by.

        Metadata keeps the partitions and orders of the past, and Spark writes to no table where one lacks its column.
        """
        kept = field_names(columns.fields)
        dropped = {number: name for number, name in field_names(self.columns.fields).items() if number not in kept}
        used = [field for fields in self.metadata.specs.values() for field in fields]
        for order in self.metadata.json.get("sort-orders") or ():
            used += order["fields"]
        for field in used:
            if field["source-id"] in dropped:
                raise Unsupported(
                    f"the table is or was partitioned or sorted by column '{dropped[field['source-id']]}': "
                    "it cannot be dropped, by CASCADE neither"
                )

    def same_rows_as(self, earlier: TableVersion) -> bool:
        """Whether the table has the same rows and columns that it had: compaction leaves it so."""
        if self.uuid != earlier.uuid or not self.columns.takes_rows_of(earlier.columns):
            return False
        at = self.snapshot_id
        while at != earlier.snapshot_id:
            if at is None:
                return False
            try:
                snapshot = self.metadata.snapshot(at)
            except NotFound:
                return False
            if snapshot.operation != "replace":
                return False
            at = snapshot.parent_id
        return True

    # Rows

    def parts(self, request: ScanRequest) -> Sequence[str]:
        """Names of parts of a scan: ranges of the snapshot's files."""
        files = self._plan.files
        wanted = min(_MOST_PARTS, sum(file.size for file in files) // _PART_BYTES + 1)
        if wanted < 2 or self._plan.needs_spark:
            return [""]
        parts, start = [], 0
        for piece in split(files, wanted):
            parts.append(f"{start}-{start + len(piece)}")
            start += len(piece)
        return parts

    def duckdb_calls(self, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        """What clients may run instead of a scan; None where it reads other rows, or with a filter far more of them."""
        if self._pushable(request.filter) is not None:
            return None
        names = [name for name in self.columns.declared.names if request.selects(name)]
        return duckdb_calls(self.loader.files, self.metadata, self.columns, files=self._plan.files, names=names)

    @property
    def needs_spark(self) -> bool:
        """Whether only Spark reads the rows right."""
        return self._plan.needs_spark

    def scan(
        self, request: ScanRequest, part: str | None, ctx: CallContext, *, without: NDArray[np.int64] | None = None
    ) -> Scan:
        """``without`` are ids of rows to leave out, where Spark is not needed."""
        if self._plan.needs_spark:
            return self.loader.spill(self, request)
        declared = self.columns.declared
        names = [name for name in declared.names if request.selects(name)]
        stream = self._stream(
            names,
            filter=self._pushable(request.filter),
            row_id=request.selects(ROW_ID) and self.has_row_ids,
            files=None if part is None else _files(self._plan.files, part),
            without=without,
        )
        total = stream.total_rows if request.filter is None else None
        return Scan(self._declared(stream, names), total_rows=total, close=stream.close)

    def stored_rows(self, names: Sequence[str], *, row_ids: NDArray[np.int64]) -> RowStream:
        """Rows by their ids as they are stored, with a column ``rowid``; the caller closes the stream."""
        return self._stream(names, row_ids=row_ids, row_id=True)

    def as_declared(self, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Stored columns of these names, and whatever columns follow them, as clients know their types."""
        return self._declared(batches, names)

    def lineage(self, row_ids: Ids) -> Lineage:
        """Of these rows the ones that are there; ``row_ids`` ascend."""
        found, rest = derived(self.loader.files, by_row_ids(self._plan.index, row_ids), row_ids)
        if rest:
            with closing(self._stream([], row_ids=row_ids, row_id=True, sequence=True, files=rest)) as stream:
                found += [from_batch(batch.column(ROW_ID), batch.column(SEQUENCE)) for batch in stream]
        return Lineage.of(found)

    def bounds_predicate(self, row_ids: Ids, alias: str) -> str:
        """A condition that holds for all of these rows, whose ids ascend: it spares Spark files and row groups."""
        return bounds_predicate(self._plan.files, row_ids, self.columns.fields, alias)

    def _stream(
        self,
        names: Sequence[str],
        *,
        filter: Expression | None = None,  # noqa: A002 - the word of scan requests
        row_ids: Sequence[int] | NDArray[np.int64] | None = None,
        row_id: bool = False,
        sequence: bool = False,
        files: Sequence[DataFile] | None = None,
        without: NDArray[np.int64] | None = None,
    ) -> RowStream:
        chosen = self._plan if files is None else self._plan.only(files)
        return self.loader.reader.scan(
            self.metadata,
            chosen,
            schema=self.schema,
            columns=list(names),
            filter=filter,
            row_ids=None if row_ids is None else np.array(row_ids, np.int64),
            without=without,
            row_id=row_id,
            sequence=sequence,
        )

    def _declared(self, stream: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows as clients know their types."""
        declared = [self.columns.declared.field(name) for name in names]
        fields = [self.columns.field(name) for name in names]
        schema: pa.Schema | None = None
        for batch in stream:
            columns = [
                from_stored(batch.column(index), column, field)
                for index, (column, field) in enumerate(zip(declared, fields, strict=True))
            ]
            rest = batch.columns[len(columns) :]
            if schema is None:
                extra = [batch.schema.field(index) for index in range(len(columns), batch.num_columns)]
                schema = pa.schema([*declared, *extra])
            if not schema.names:
                yield batch
                continue
            yield pa.RecordBatch.from_arrays([*columns, *rest], schema=schema)

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

    # History

    def at(self, moment: AsOf) -> TableVersion:
        """The version at a point in the table's history."""
        if moment.unit is AsOfUnit.TIMESTAMP:
            return self._at_time(moment.value)
        try:
            number = int(moment.value)
        except ValueError as exc:
            raise InvalidArgument(f"'{moment.value}' is not a version") from exc
        published = {entry["snapshot-id"] for entry in self.metadata.snapshot_log}
        published |= {ref["snapshot-id"] for ref in self.metadata.refs.values()}
        if number in published:
            try:
                snapshot = self.metadata.snapshot(number)
            except NotFound as exc:
                raise VersionNotFound(f"table '{self.name[1]}': snapshot {number} has expired") from exc
            return TableVersion(self.name, self.metadata, self.loader, (number,), snapshot.schema_id)
        left: list[int] = []
        for version in self._history():
            found = number_of(version.metadata)
            if found is not None and self._keeps(version.snapshot_id):
                if found == number:
                    return version
                left.append(found)
        for known in versions(self.metadata):
            if self._keeps(known.snapshot_id, known.schema_id):
                if known.number == number:
                    return self._moment(known.snapshot_id, known.schema_id)
                left.append(known.number)
        oldest = (
            f"the oldest is {min(left)}" if left else "others have expired its numbers, so name a snapshot or a time"
        )
        raise VersionNotFound(f"table '{self.name[1]}' has no version {number}; {oldest}")

    def _at_time(self, text: str) -> TableVersion:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as exc:
            raise InvalidArgument(f"'{text}' is not a timestamp") from exc
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        limit = moment.timestamp() * 1000
        oldest = self.metadata.last_updated_ms
        for version in self._history():
            kept = self._keeps(version.snapshot_id)
            if version.metadata.last_updated_ms <= limit:
                if kept:
                    return version
                break
            oldest = min(oldest, version.metadata.last_updated_ms) if kept else oldest
        else:
            for time, snapshot_id, schema_id in self._moments():
                kept = self._keeps(snapshot_id, schema_id)
                if time <= limit:
                    if kept:
                        return self._moment(snapshot_id, schema_id)
                    break
                oldest = min(oldest, time) if kept else oldest
        when = datetime.fromtimestamp(oldest / 1000, UTC).isoformat()
        raise VersionNotFound(f"table '{self.name[1]}' has no version at {text}; the oldest is of {when}")

    def _moment(self, snapshot_id: int | None, schema_id: int | None) -> TableVersion:
        return TableVersion(self.name, self.metadata, self.loader, (snapshot_id,), schema_id)

    def _moments(self) -> Iterator[tuple[int, int | None, int | None]]:
        """Commits by their times, newest first, as far back as the newest metadata knows of them."""
        passed = None
        for known in versions(self.metadata):
            if known.timestamp_ms is not None:
                passed = known.timestamp_ms
                yield known.timestamp_ms, known.snapshot_id, known.schema_id
        for move in reversed(self.metadata.snapshot_log):
            if passed is None or move["timestamp-ms"] < passed:
                kept = self._keeps(move["snapshot-id"])
                schema_id = self.metadata.snapshot(move["snapshot-id"]).schema_id if kept else None
                yield move["timestamp-ms"], move["snapshot-id"], schema_id

    def _keeps(self, snapshot_id: int | None, schema_id: int | None = None) -> bool:
        """Whether rows and columns of a version have not been cleaned away."""
        there = snapshot_id is None or self.metadata.has_snapshot(snapshot_id)
        return there and (schema_id is None or schema_id in self.metadata.schemas)

    def _history(self) -> Iterator[TableVersion]:
        """This version and those before it, as far as their metadata is still there; their rows may have expired."""
        yield self
        for entry in reversed(self.metadata.metadata_log):
            try:
                yield self.loader.load(self.name, entry["metadata-file"])
            except NotFound:
                return


def _files(files: Sequence[DataFile], part: str) -> Sequence[DataFile]:
    start, _, end = part.partition("-")
    return files[int(start) : int(end)]
