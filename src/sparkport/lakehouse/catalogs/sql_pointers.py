"""Pointers in a SQL database, in the tables that Spark's JdbcCatalog and PyIceberg's SqlCatalog use too.

A pointer is only ever moved on the condition that it still is what the mover has seen, so writers of any kind cannot
overwrite each other; several pointers move in one SQL transaction, which is what makes a transaction over several
tables atomic.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sparkport.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InternalError,
    NotFound,
    SchemaNotFound,
    SparkportError,
    TableNotFound,
    TransactionNotActive,
    Unavailable,
)
from sparkport.lakehouse.catalogs.catalog_tables import create_tables
from sparkport.lakehouse.catalogs.database import Database, Work
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import JournalView
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Cut, Edit, Move, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.catalogs.shadow_records import ShadowRecords
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.names import TableName, is_shadow_catalog

__all__ = ["SqlPointers"]

_EXISTS = "exists"

_NOT_MADE = -1
"""What is noted instead of a number of rows for a commit that can no longer be made."""

_SETTLE_SECONDS = 3.0  # a database that was restarted is back soon


class SqlPointers(Pointers):
    def __init__(
        self,
        database: Database,
        catalog: str,
        files: FileSystem | None = None,
        ledger: Ledger | None = None,
        *,
        server: str | None = None,
        settle_seconds: float = _SETTLE_SECONDS,
    ) -> None:
        """``ledger`` MUST be in the same database: transactions are committed together with the tables.

        With the name of a ``server``, which none had before, nothing is changed any more once that one was fenced off.
        ``settle_seconds`` is how long a commit that was not answered is looked for at once.
        """
        self._files = files or FileSystem()
        self._server = server
        self._settle_seconds = settle_seconds
        self._database = database
        self._catalog = catalog
        self._ledger = ledger
        self._cut_lock = threading.Lock()
        self._cut: tuple[object | None, Cut] | None = None
        self._answered: list[str] = []
        self._statements = StatementRecords(database, catalog)
        database.prepare(self._prepare)
        self.journal: JournalRecords = JournalRecords(database, catalog)
        self.shadows: ShadowRecords = ShadowRecords(
            database, catalog, server=server, require_unfenced=self._require_unfenced
        )

    def _prepare(self) -> None:
        with self._database.transaction(write=True) as work:
            create_tables(work, self._catalog)
            if self._server is not None:
                work.change("INSERT INTO sparkport_fences VALUES (?, ?)", [self._catalog, self._server])

    def cut(self) -> Cut:
        """Shared by all who ask before the next commit."""
        mark = self._database.mark()
        with self._cut_lock:
            if self._cut is not None and mark is not None and self._cut[0] == mark:
                return self._cut[1]
        cut = self._read_cut()
        with self._cut_lock:
            if self._cut is not None and self._cut[1] == cut:
                cut = self._cut[1]
            self._cut = (mark, cut)
        return cut

    def _read_cut(self) -> Cut:
        with self._database.transaction() as work:
            tables = work.query(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ? "
                f"AND {_NO_VIEW}",
                [self._catalog],
            )
            properties = work.query(
                "SELECT namespace, property_key, property_value FROM iceberg_namespace_properties "
                "WHERE catalog_name = ? ORDER BY namespace, property_key",
                [self._catalog],
            )
            journal = self.journal.view(work)
        schemas: dict[str, dict[str, str]] = {schema: {} for schema, _, _ in tables}
        for schema, key, value in properties:
            schemas.setdefault(schema, {})[key] = value or ""
        locations = {TableName(schema, name): location for schema, name, location in sorted(tables)}
        return Cut(locations, dict(sorted(schemas.items())), journal)

    def location(self, table: TableName) -> str | None:
        with self._database.transaction() as work:
            return self.location_in(work, table)

    def place(self, table: TableName) -> tuple[str | None, JournalView]:
        with self._database.transaction() as work:
            return self.location_in(work, table), self.journal.view(work)

    def create_schema(self, name: str, properties: Mapping[str, str]) -> None:
        with self._unique(f"schema '{name}' already exists") as work:
            if self._has_schema(work, name):
                raise AlreadyExists(f"schema '{name}' already exists")
            for key, value in {_EXISTS: "true", **properties}.items():
                work.change(
                    "INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) "
                    "VALUES (?, ?, ?, ?)",
                    [self._catalog, name, key, value],
                )

    def drop_schema(self, name: str) -> None:
        with self._changing() as work:
            if not self._has_schema(work, name):
                raise SchemaNotFound(name)
            if work.query(
                "SELECT 1 FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?", [self._catalog, name]
            ):
                raise FailedPrecondition(f"schema '{name}' is not empty")
            work.change(
                "DELETE FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?",
                [self._catalog, name],
            )

    def drop_schema_with_tables(self, name: str) -> dict[TableName, str]:
        with self._changing() as work:
            revision = self.journal.turn(work)
            if not self._has_schema(work, name):
                raise SchemaNotFound(name)
            rows = work.query(
                "SELECT table_name, metadata_location, iceberg_type FROM iceberg_tables "
                "WHERE catalog_name = ? AND table_namespace = ?",
                [self._catalog, name],
            )
            if any(entry_type not in (None, "TABLE") for _, _, entry_type in rows):
                raise FailedPrecondition(f"schema '{name}' has views: drop them first")
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                column = "table_namespace" if table == "iceberg_tables" else "namespace"
                work.change(f"DELETE FROM {table} WHERE catalog_name = ? AND {column} = ?", [self._catalog, name])
            for table, location, _ in rows:
                gone = self._journalled(work, TableName(name, table), location, revision)
                self.journal.remove(work, gone, revision)
        return {TableName(name, table): str(location) for table, location, _ in rows}

    def rename_schema(self, name: str, new: str) -> dict[str, str]:
        with self._unique(f"schema '{new}' already exists") as work:
            revision = self.journal.turn(work)
            if not self._has_schema(work, name):
                raise SchemaNotFound(name)
            tables = "SELECT table_name, metadata_location FROM iceberg_tables "
            tables += "WHERE catalog_name = ? AND table_namespace = ?"
            if work.query(tables, [self._catalog, new]):
                raise AlreadyExists(f"schema '{new}' already exists, and is not empty")
            rows = work.query(f"{tables} AND {_NO_VIEW}", [self._catalog, name])
            properties = "iceberg_namespace_properties"
            work.change(f"DELETE FROM {properties} WHERE catalog_name = ? AND namespace = ?", [self._catalog, new])
            for table, column in ((properties, "namespace"), ("iceberg_tables", "table_namespace")):
                work.change(
                    f"UPDATE {table} SET {column} = ? WHERE catalog_name = ? AND {column} = ?",
                    [new, self._catalog, name],
                )
            for table, location in rows:
                for table_uuid in self._journalled(work, TableName(name, table), location, revision):
                    self.journal.rename(work, table_uuid, TableName(new, table), revision)
        return {str(table): str(location) for table, location in rows}

    def create(self, table: TableName, location: str) -> None:
        with self._unique(f"table '{table}' already exists") as work:
            work.change(
                "INSERT INTO iceberg_tables "
                "(catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
                "VALUES (?, ?, ?, ?, 'TABLE')",
                [self._catalog, *table, location],
            )

    def drop(self, table: TableName) -> str:
        with self._changing() as work:
            revision = self.journal.turn(work)
            location = self.location_in(work, table)
            if location is None:
                raise TableNotFound(*table)
            work.change(f"DELETE FROM iceberg_tables WHERE {_NAMED}", [self._catalog, *table])
            self.journal.remove(work, self._journalled(work, table, location, revision), revision)
            return location

    def replace(self, table: TableName, location: str) -> str:
        with self._changing() as work:
            revision = self.journal.turn(work)
            old = self.location_in(work, table)
            if old is None:
                raise TableNotFound(*table)
            changed = work.change(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = NULL "
                f"WHERE {_NAMED} AND metadata_location = ?",
                [location, self._catalog, *table, old],
            )
            if changed != 1:
                raise Conflict(f"table '{table}' is being changed by another; try again")
            self.journal.remove(work, self._journalled(work, table, old, revision), revision)
            return old

    def rename(self, table: TableName, new: TableName) -> None:
        with self._unique(f"table '{new[0]}.{new[1]}' already exists") as work:
            revision = self.journal.turn(work)
            location = self.location_in(work, table)
            changed = work.change(
                f"UPDATE iceberg_tables SET table_namespace = ?, table_name = ? WHERE {_NAMED}",
                [*new, self._catalog, *table],
            )
            if changed != 1 or location is None:
                raise TableNotFound(*table)
            for table_uuid in self._journalled(work, table, location, revision):
                self.journal.rename(work, table_uuid, new, revision)

    def _journalled(self, work: Work, table: TableName, location: str, revision: int) -> list[str]:
        """The uuid by which the journal knows a table, if it knows it by this name.

        It knows another where others have renamed the table, or have given its metadata file a second name: what waits
        for that one must not go with this.
        """
        uuids = self.journal.named(work, table) if revision else []
        try:
            return [known for known in uuids if known == load(self._files, location).uuid]
        except (NotFound, InternalError):  # what is lost or damaged has none
            return uuids

    def commit(
        self,
        changes: Sequence[Edit],
        statements: Mapping[str, int] | None = None,
        *,
        unchanged: Mapping[TableName, str] | None = None,
        transactions: Sequence[str] = (),
        with_journal: Callable[[Work], None] | None = None,
    ) -> dict[TableName, str]:
        if transactions:
            self._require_ledger()
        written: list[str] = []
        try:
            for change in changes:
                written.append(write_metadata(self._files, dict(change.after), change.location))
        except Exception:
            self._discard(written)
            raise
        moves = [
            Move(change.table, change.location or "", location)
            for change, location in zip(changes, written, strict=True)
        ]
        attempt = f"try:{uuid.uuid4().hex}"
        try:
            self.swap(
                moves,
                statements,
                unchanged=unchanged,
                transactions=transactions,
                attempt=attempt,
                with_journal=with_journal,
                shadows={change.table: change.shadow for change in changes if change.shadow is not None},
            )
        except (Moved, AlreadyExists, TransactionNotActive):
            self._discard(written)
            raise
        except Unavailable as exc:
            if not self._was_made(attempt, exc):
                self._discard(written)
                raise
        self._answered.append(attempt)
        self._files.published(written)
        return {move.table: move.new for move in moves}

    def _require_ledger(self) -> Ledger:
        if self._ledger is None:
            raise InternalError("transactions cannot be committed without a ledger")
        return self._ledger

    def _discard(self, written: Sequence[str]) -> None:
        for location in written:
            self._files.delete(location)

    def _was_made(self, attempt: str, unanswered: Unavailable) -> bool:
        """Whether a commit was made whose answer did not come."""
        end = time.monotonic() + self._settle_seconds
        while True:
            try:
                return self._settle(attempt)
            except SparkportError:  # a full disk, too, says nothing of the commit
                if time.monotonic() > end:
                    raise OutcomeUnknown(
                        "the catalog's database gave no answer to a commit, and does not say what became of it",
                        lambda: self._settle(attempt),
                    ) from unanswered
                time.sleep(self._settle_seconds / 10)

    def _settle(self, attempt: str) -> bool:
        """The row that a commit writes is written here: either it is there already, or it cannot be written any more.

        The database lets one wait for the other.
        """
        fault("settle.before")
        try:
            with self._database.transaction(write=True) as work:
                self._statements.note(work, {attempt: _NOT_MADE})
            return False
        except Exception as exc:
            if not self._database.is_duplicate(exc):
                raise
        return self.statement(attempt) != _NOT_MADE

    def swap(
        self,
        moves: Sequence[Move],
        statements: Mapping[str, int] | None = None,
        *,
        unchanged: Mapping[TableName, str] | None = None,
        transactions: Sequence[str] = (),
        attempt: str | None = None,
        with_journal: Callable[[Work], None] | None = None,
        shadows: Mapping[TableName, str] | None = None,
    ) -> None:
        """Move all pointers or, raising ``Moved``, none; the rest as for ``commit``.

        ``attempt`` is noted with it, so that one can find out later; such notes go when the answer was heard.
        """
        heard, self._answered = self._answered, []
        held = [Move(table, location, location) for table, location in (unchanged or {}).items()]
        with self._unique("a statement has been committed already") as work:
            if with_journal is not None:
                with_journal(work)
            # In one order everywhere, so that two who touch the same tables wait for each other but never for ever.
            # A table that is held comes before its own move: the condition is about where it was before that.
            for move in sorted([*held, *moves], key=lambda move: move.table):
                self._move(work, move)
            for table, shadow in (shadows or {}).items():
                if self.shadows.remove_in(work, shadow) is None:
                    raise Moved(table)
            if transactions:
                self._require_ledger().committing(work, transactions)
            self._statements.note(work, {**(statements or {}), **({} if attempt is None else {attempt: 0})})
            self._statements.remove(work, heard)

    def _move(self, work: Work, move: Move) -> None:
        if move.old == move.new:
            # Changes nothing but locks the row, so that it stays as it is until the end on PostgreSQL too.
            sql, values = "SET metadata_location = metadata_location", []
        else:
            sql, values = "SET metadata_location = ?, previous_metadata_location = ?", [move.new, move.old]
        changed = work.change(
            f"UPDATE iceberg_tables {sql} WHERE {_NAMED} AND metadata_location = ?",
            [*values, self._catalog, *move.table, move.old],
        )
        if changed != 1:
            raise Moved(move.table)

    def statement(self, key: str, table: TableName | None = None) -> int | None:
        return self._statements.find(key)

    def forget_statements(self, before: float) -> int:
        return self._statements.forget(before)

    @contextmanager
    def _unique(self, message: str) -> Iterator[Work]:
        try:
            with self._changing() as work:
                yield work
        except Exception as exc:
            if self._database.is_duplicate(exc):
                raise AlreadyExists(message) from exc
            raise

    @contextmanager
    def _changing(self) -> Iterator[Work]:
        with self._database.transaction(write=True) as work:
            self._require_unfenced(work)
            yield work
            fault("pointer.before")
        fault("pointer.after")

    def _require_unfenced(self, work: Work) -> None:
        """The row is held until the end: whoever fences this server off waits for what is under way."""
        if self._server is None:
            return
        sql = f"SELECT 1 FROM sparkport_fences WHERE catalog_name = ? AND server = ?{self._database.share}"
        if not work.query(sql, [self._catalog, self._server]):
            raise Unavailable("another server has taken this one for dead: it must be started again")

    def fence(self, server: str) -> None:
        with self._database.transaction(write=True) as work:
            work.change("DELETE FROM sparkport_fences WHERE catalog_name = ? AND server = ?", [self._catalog, server])

    def registered(self) -> list[str]:
        with self._database.transaction() as work:
            rows = work.query("SELECT catalog_name, metadata_location FROM iceberg_tables")
        return [str(location) for name, location in rows if location is not None and not is_shadow_catalog(name)]

    def location_in(self, work: Work, table: TableName, *, hold: bool = False) -> str | None:
        sql = f"SELECT metadata_location FROM iceberg_tables WHERE {_NAMED}{self._database.share if hold else ''}"
        rows = work.query(sql, [self._catalog, *table])
        return str(rows[0][0]) if rows else None

    def _has_schema(self, work: Work, name: str) -> bool:
        rows = work.query(
            "SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ? "
            "UNION ALL SELECT 1 FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?",
            [self._catalog, name, self._catalog, name],
        )
        return bool(rows)


_NO_VIEW = "(iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
_NAMED = f"catalog_name = ? AND table_namespace = ? AND table_name = ? AND {_NO_VIEW}"
