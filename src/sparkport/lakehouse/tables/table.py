"""A lakehouse table, as one version of its metadata describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa

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
from sparkport.catalog.scan import AsOf, DuckDBCall, Scan, ScanRequest
from sparkport.catalog.statement import Change, ChangeableTable, Statement, StatementRequest
from sparkport.catalog.table import ColumnStatistics, DirectTable, StatisticsTable, VersionedTable, row_id_field
from sparkport.errors import Conflict, ConstraintViolation, FailedPrecondition, InvalidArgument, NotFound, TableNotFound
from sparkport.lakehouse.catalogs.pointers import Edit, Moved
from sparkport.lakehouse.columns.columns import CHECKS
from sparkport.lakehouse.iceberg.edits import evolve_schema, set_properties
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.overlay import scan_with
from sparkport.lakehouse.tables.statement import LakeStatement

__all__ = ["LakeTable"]

_ATTEMPTS = 5

# What a ticket's part may hold. A name has no folder in it: a ticket reads metadata of its table and no other file.
_METADATA_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.metadata\.json(\.gz)?")
_FILES = re.compile(rb"(\d{1,9}-\d{1,9})?")


class LakeTable(ChangeableTable, DirectTable, StatisticsTable, VersionedTable, AlterableTable):
    def __init__(self, version: TableVersion, engine: LakeEngine) -> None:
        self._version = version
        self._engine = engine
        self.name = version.name[1]
        self.comment = version.properties.get("comment")
        self.tags = version.tags
        self.checks = version.checks

    @property
    def schema(self) -> pa.Schema:
        return _with_row_id(self._version)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        version = self._version_of(ctx, request)
        part = _split(request.part)[1]
        if request.at is not None:
            return version.scan(request, part, ctx)
        names = version.columns.declared.names
        own = self._engine.own_rows(ctx, version, tuple(at for at, name in enumerate(names) if request.selects(name)))
        return version.scan(request, part, ctx) if own is None else scan_with(own, version, request, part, ctx)

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        """Parts that remember the version they were planned for, whatever is committed in between."""
        version = self._version if request.at is None else self._at(request.at)
        name = _name(version)
        return [request.with_part(name + b"\n" + part.encode()) for part in version.parts(request)]

    def duckdb_calls(self, ctx: CallContext, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        if not self._engine.direct_reads:
            return None
        if request.at is not None:
            return self._at(request.at).duckdb_calls(request)
        if self._engine.hides_statistics(ctx, self._version.name):
            return None  # the files are not all that the transaction sees, or its reading has to be noted
        return self._version.duckdb_calls(request)

    def schema_of(self, ctx: CallContext, request: ScanRequest) -> pa.Schema:
        return _with_row_id(self._version_of(ctx, request))

    def row_count(self, ctx: CallContext) -> int | None:
        return None if self._engine.hides_statistics(ctx, self._version.name) else self._version.row_count()

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        if self._engine.hides_statistics(ctx, self._version.name):
            return None  # bounds that do not hold for the transaction's own rows would hide them
        return self._version.statistics(column)

    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        return _with_row_id(self._at(at))

    def open_statement(self, ctx: CallContext, request: StatementRequest) -> Statement:
        if request.change is not Change.INSERT and not self._version.has_row_ids:
            raise FailedPrecondition(
                f"table '{self.name}' is of format v{self._version.format_version}, which has no row ids: "
                f"upgrade it with 'sparkport table upgrade {'.'.join(self._version.name)}'"
            )
        return LakeStatement(ctx, request, self._version, self._engine)

    def alter(self, ctx: CallContext, alteration: Alteration) -> None:
        """A new metadata file and one conditional move of the pointer; no Spark job."""
        for _ in range(_ATTEMPTS):
            current = self._engine.current(self._version.name)
            if current is None:
                raise TableNotFound(*self._version.name)
            after = self._altered(current, alteration)
            if after is None:
                return
            try:
                moved = self._engine.pointers.commit([Edit(current.name, current.json, after, current.location)])
            except Moved:
                continue
            self._engine.own.note(ctx, current.name, current.location, moved[current.name])
            return
        raise Conflict(f"table '{self.name}' is changed by others all the time; run the statement again")

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
        current.check_still_used(columns)
        checks = checks_after(alteration, current.checks, columns.declared)
        if isinstance(alteration, SetNotNull) and current.has_null(alteration.name):
            raise ConstraintViolation(f"column '{alteration.name}' has NULL values: it cannot be NOT NULL")
        properties = columns.properties()
        if checks != current.checks:
            properties[CHECKS] = json.dumps(checks) if checks else None
        return evolve_schema(
            current.json,
            list(columns.fields),
            last_column_id=columns.last_id,
            properties=properties,
            previous=current.location,
        )

    def _version_of(self, ctx: CallContext, request: ScanRequest) -> TableVersion:
        name, _ = _split(request.part)
        if name is None:
            return self._version if request.at is None else self._at(request.at)
        version = self._version if name == _name(self._version) else self._planned(name)
        return version if request.at is None else version.at(request.at)

    def _at(self, moment: AsOf) -> TableVersion:
        """A version in the history as it is by now: whoever names a version means it, in a transaction too."""
        current = self._engine.current(self._version.name)
        same = current is not None and current.uuid == self._version.uuid
        return (current if current is not None and same else self._version).at(moment)

    def _planned(self, name: bytes) -> TableVersion:
        """The version that a ticket was made for. Tickets come back from clients, so it must be of this table."""
        if _METADATA_NAME.fullmatch(name) is None:
            raise _foreign_part()
        try:
            version = self._engine.version(self._version.name, self._version.metadata_folder + name.decode())
        except NotFound as exc:
            raise self._replaced() from exc
        if version.uuid != self._version.uuid:
            raise self._replaced()
        return version

    def _replaced(self) -> Conflict:
        return Conflict(f"table '{self.name}' is no longer the one that the scan was planned for; run the query again")


def _name(version: TableVersion) -> bytes:
    """Of the metadata file that describes it."""
    return version.location.rpartition("/")[2].encode()


def _split(part: bytes) -> tuple[bytes | None, str | None]:
    """The name of the metadata that a scan was planned on, and the range of its files; None for all there is."""
    if not part:
        return None, None
    name, mark, files = part.rpartition(b"\n")
    if not mark or _FILES.fullmatch(files) is None:
        raise _foreign_part()
    return name, files.decode() or None


def _foreign_part() -> InvalidArgument:
    return InvalidArgument("ticket has a part that this table did not make")


def _with_row_id(version: TableVersion) -> pa.Schema:
    declared = version.columns.declared
    return declared.append(row_id_field().with_nullable(True)) if version.has_row_ids else declared
