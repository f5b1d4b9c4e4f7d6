"""A lakehouse table, as one version of its metadata describes it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from sparkport.catalog.changes import ChangesTable, TableCommit, TableHead, changes_schema
from sparkport.catalog.constraints import checks_after
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    AlterableTable,
    Alteration,
    ChangeType,
    SetComment,
    SetDefault,
    SetNotNull,
)
from sparkport.catalog.defaults import require_default
from sparkport.catalog.history import HistoryTable, TableHistory
from sparkport.catalog.keys import keys_after
from sparkport.catalog.row_ids import row_id_field
from sparkport.catalog.scan import AsOf, DuckDBCall, Scan, ScanRequest
from sparkport.catalog.statement import Change, ChangeableTable, Statement, StatementRequest
from sparkport.catalog.table import ColumnStatistics, DirectTable, StatisticsTable
from sparkport.catalog.versions import RevertibleTable, TableTag, TaggedTable
from sparkport.errors import Conflict, ConstraintViolation, FailedPrecondition, NotFound, Unsupported
from sparkport.lakehouse.columns.columns import CHECKS, Columns, field_names
from sparkport.lakehouse.columns.keys import UNIQUE, unique_property
from sparkport.lakehouse.iceberg.commits import commits_of
from sparkport.lakehouse.iceberg.edits import evolve_schema, set_properties
from sparkport.lakehouse.iceberg.snapshots import history_of
from sparkport.lakehouse.iceberg.version_numbers import number_of
from sparkport.lakehouse.scan.changes import TableChanges
from sparkport.lakehouse.scan.history import version_at
from sparkport.lakehouse.scan.ticket_part import TicketPart
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.overlay import scan_with
from sparkport.lakehouse.tables.statement import LakeStatement
from sparkport.lakehouse.tables.upsert import LakeUpsert
from sparkport.lakehouse.tables.version_edits import VersionEdits, tags_of

__all__ = ["LakeTable"]


class LakeTable(
    ChangeableTable,
    DirectTable,
    StatisticsTable,
    RevertibleTable,
    TaggedTable,
    AlterableTable,
    HistoryTable,
    ChangesTable,
):
    def __init__(self, version: TableVersion, engine: LakeEngine) -> None:
        self._version = version
        self._engine = engine
        self.name = version.table.name
        self.comment = version.properties.get("comment")
        self.tags = version.tags
        self.checks = version.checks
        self.keys = version.keys

    @property
    def schema(self) -> pa.Schema:
        return _with_row_id(self._version)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        version = self._version_of(request)
        rows, files = version.rows, TicketPart.parse(request.part).files
        if request.at is not None:
            return rows.scan(request, files)
        names = version.columns.declared.names
        places = tuple(at for at, name in enumerate(names) if request.selects(name))
        overlay = self._engine.own_rows(ctx, version, places)
        return (
            version.rows.scan(request, files) if overlay is None else scan_with(overlay, version.rows, request, files)
        )

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        """Parts that remember the version they were planned for, whatever is committed in between."""
        version = self._version if request.at is None else self._at(request.at)
        journal = None
        if version.journal is not None:
            self._engine.planned.keep(version.journal)
            journal = (version.journal.flushed, version.journal.last)
        return [request.with_part(TicketPart(_name(version), files, journal).dump()) for files in version.rows.parts()]

    def duckdb_calls(self, ctx: CallContext, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        if not self._engine.storage.direct_reads:
            return None
        if request.at is not None:
            return self._at(request.at).rows.duckdb_calls(request)
        if self._engine.hides_statistics(ctx, self._version.table):
            return None  # the files are not all that the transaction sees, or its reading has to be noted
        return self._version.rows.duckdb_calls(request)

    def schema_of(self, ctx: CallContext, request: ScanRequest) -> pa.Schema:
        return _with_row_id(self._version_of(request))

    def row_count(self, ctx: CallContext) -> int | None:
        hidden = self._engine.hides_statistics(ctx, self._version.table)
        return None if hidden else self._version.rows.statistics.row_count()

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        if self._engine.hides_statistics(ctx, self._version.table):
            return None  # bounds that do not hold for the transaction's own rows would hide them
        return self._version.rows.statistics.column(column)

    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        return _with_row_id(self._at(at))

    def history(self, ctx: CallContext, most: int | None = None) -> TableHistory:
        return history_of(self._version.metadata, most)

    def head(self, ctx: CallContext) -> TableHead:
        published = self._published()
        return TableHead(published.uuid, number_of(published.metadata))

    def commits(self, ctx: CallContext) -> Sequence[TableCommit]:
        return commits_of(self._published().metadata)

    def changes_schema(self, ctx: CallContext, end: AsOf | None) -> pa.Schema:
        version = self._published() if end is None else self._at(end)
        return changes_schema(version.columns.declared)

    def changes(self, ctx: CallContext, start: AsOf, end: AsOf | None, request: ScanRequest) -> Scan:
        return TableChanges(self._published(), start, end).scan(ctx, request)

    def rollback(self, ctx: CallContext, at: AsOf) -> int | None:
        return VersionEdits(self._engine, self._version).rollback(ctx, at)

    def version_tags(self, ctx: CallContext) -> Sequence[TableTag]:
        return tags_of(self._published().metadata)

    def tag(self, ctx: CallContext, name: str, at: AsOf) -> None:
        VersionEdits(self._engine, self._version).tag(ctx, name, at)

    def untag(self, ctx: CallContext, name: str) -> None:
        VersionEdits(self._engine, self._version).untag(ctx, name)

    def branch(self, ctx: CallContext, name: str, at: AsOf) -> None:
        VersionEdits(self._engine, self._version).branch(ctx, name, at)

    def drop_branch(self, ctx: CallContext, name: str) -> None:
        VersionEdits(self._engine, self._version).drop_branch(ctx, name)

    def open_statement(self, ctx: CallContext, request: StatementRequest) -> Statement:
        if request.change is not Change.INSERT and not self._version.has_row_ids:
            raise FailedPrecondition(
                f"table '{self.name}' is of format v{self._version.format_version}, which has no row ids: "
                f"upgrade it with 'sparkport table upgrade {self._version.table}'"
            )
        kind = LakeUpsert if request.change is Change.UPSERT else LakeStatement
        return kind(ctx, request, self._version, self._engine)

    def alter(self, ctx: CallContext, alteration: Alteration) -> None:
        """A new metadata file and one conditional move of the pointer; no Spark job."""
        self._engine.alter(
            ctx, self._version.table, lambda current: self._altered(current, alteration), published=False
        )

    def _altered(self, current: TableVersion, alteration: Alteration) -> dict[str, object] | None:
        if isinstance(alteration, SetComment) and alteration.column is None:
            return set_properties(current.json, {"comment": alteration.comment}, previous=current.location)
        columns = current.columns.altered(alteration)
        if columns is current.columns:
            return None
        if isinstance(alteration, AddColumn | ChangeType | SetDefault):
            for column in columns.declared:
                require_default(column)
        if isinstance(alteration, AddField):
            require_default(alteration.field)
        _check_still_used(current, columns)
        checks = checks_after(alteration, current.checks, columns.declared)
        keys = keys_after(alteration, current.keys, current.columns.declared, columns.declared)
        if isinstance(alteration, SetNotNull) and current.rows.has_null(alteration.name):
            raise ConstraintViolation(f"column '{alteration.name}' has NULL values: it cannot be NOT NULL")
        properties = columns.properties()
        if checks != current.checks:
            properties[CHECKS] = json.dumps(checks) if checks else None
        if keys != current.keys:
            properties[UNIQUE] = unique_property(keys, columns)
        return evolve_schema(
            current.json,
            list(columns.fields),
            last_column_id=columns.last_id,
            properties=properties,
            identifier_fields=_identifier_fields(current, columns),
            previous=current.location,
        )

    def _version_of(self, request: ScanRequest) -> TableVersion:
        part = TicketPart.parse(request.part)
        if part.name is None:
            return self._version if request.at is None else self._at(request.at)
        version = self._version if self._is_planned_for(part) else self._planned(part)
        return version if request.at is None else version_at(version.without_journal(), request.at)

    def _is_planned_for(self, part: TicketPart) -> bool:
        journal = self._version.journal
        state = None if journal is None else (journal.flushed, journal.last)
        return part.name == _name(self._version) and part.journal == state

    def _at(self, moment: AsOf) -> TableVersion:
        """A version in the history as it is by now: to name a version means that one, in a transaction too."""
        return version_at(self._published(), moment)

    def _published(self) -> TableVersion:
        """The table as it is by now, without what the journal holds."""
        current = self._engine.versions.current(self._version.table)
        same = current is not None and current.uuid == self._version.uuid
        version = current if current is not None and same else self._version
        return version.without_journal()

    def _planned(self, part: TicketPart) -> TableVersion:
        """The version that a ticket was made for. Tickets come back from clients, so it must be of this table."""
        location = part.location_in(self._version.metadata_folder)
        try:
            version = self._engine.versions.at(self._version.table, location)
        except NotFound as exc:
            raise self._replaced() from exc
        if version.uuid != self._version.uuid:
            raise self._replaced()
        if part.journal is None:
            return version
        journal = self._engine.planned.find(version.uuid, *part.journal)
        if journal is None:
            raise Conflict(f"table '{self.name}' has changed since the scan was planned; run the query again")
        return version.with_journal(journal)

    def _replaced(self) -> Conflict:
        return Conflict(f"table '{self.name}' is no longer the one that the scan was planned for; run the query again")


def _name(version: TableVersion) -> str:
    """The name of the metadata file that describes it."""
    return version.location.rpartition("/")[2]


def _identifier_fields(before: TableVersion, columns: Columns) -> list[int]:
    """Those that the table has, whoever set them; a key of which a column is dropped goes as a whole."""
    kept = before.schema.get("identifier-field-ids") or []
    return list(kept) if set(kept) <= field_names(columns.fields).keys() else []


def _check_still_used(version: TableVersion, columns: Columns) -> None:
    """Refuse to drop a column that the table is or was partitioned or sorted by.

    Metadata keeps the partitions and orders of the past, and Spark writes to no table where one lacks its column.
    """
    kept = field_names(columns.fields)
    dropped = {number: name for number, name in field_names(version.columns.fields).items() if number not in kept}
    used = [field for fields in version.metadata.specs.values() for field in fields]
    for order in version.metadata.json.get("sort-orders") or ():
        used += order["fields"]
    for field in used:
        if field["source-id"] in dropped:
            raise Unsupported(
                f"the table is or was partitioned or sorted by column '{dropped[field['source-id']]}': "
                "it cannot be dropped, by CASCADE neither"
            )


def _with_row_id(version: TableVersion) -> pa.Schema:
    declared = version.columns.declared
    return declared.append(row_id_field().with_nullable(True)) if version.has_row_ids else declared
