"""Pointers in an Iceberg REST catalog: read from it, and moved by its commits instead of by SQL.

A REST catalog has no view of all tables at one instant. A cut here is the names of one moment; a table's metadata is
looked up when it is first touched and stays the same from then on. Everything else holds as with SQL catalogs: a change
is made on the condition that nobody touched what it was decided on, and several tables change together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkport.catalog.repeats import KNOWN_SECONDS
from sparkport.catalog.transaction import TransactionState
from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InternalError,
    PermissionDenied,
    SchemaNotFound,
    SparkportError,
    TableNotFound,
    Unavailable,
)
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.looked_up import LookedUp
from sparkport.lakehouse.catalogs.pointers import Cut, Edit, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.catalogs.rest_client import RequestRefused, RestClient
from sparkport.lakehouse.catalogs.rest_commit import PAUSES, CommitRequest, RestCommits, table_path
from sparkport.lakehouse.catalogs.rest_names import change_names, is_name, listed_names, unexpected
from sparkport.lakehouse.catalogs.rest_notes import notes_in, statement_count, transaction_key
from sparkport.lakehouse.catalogs.rest_updates import identifier, same_rows
from sparkport.lakehouse.catalogs.rest_views import RestViewRecords
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["RestPointers"]

logger = logging.getLogger(__name__)

_STATEMENTS_KEPT = 500
"""How many statements a table notes: there may be very many in a day, and each commit writes all notes anew."""

_TRANSACTION_DAYS = 30
"""Days after which a table drops notes of transactions that this server's ledger does not know."""


class RestPointers(Pointers):
    def __init__(
        self,
        client: RestClient,
        files: FileSystem | None = None,
        ledger: Ledger | None = None,
        statements: StatementRecords | None = None,
        *,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """``files`` reads the metadata of tables that must not have changed.

        ``ledger`` gets the transactions in a commit, ``statements`` has the statements; without them only the
        tables note both. ``pauses`` are the seconds between tries at what the catalog does not let change.
        """
        self._client = client
        self.views = RestViewRecords(client)
        self._commits = RestCommits(client, pauses)
        self._files = files or FileSystem()
        self._ledger = ledger
        self._statements = statements

    @classmethod
    def from_settings(
        cls,
        settings: LakehouseSettings,
        files: FileSystem | None = None,
        ledger: Ledger | None = None,
        statements: StatementRecords | None = None,
    ) -> RestPointers:
        """The catalog's settings are those that Spark has too: ``spark.sql.catalog.<name>.token`` and so on."""
        head = f"spark.sql.catalog.{settings.catalog_name}."
        properties = {
            key.removeprefix(head): value for key, value in settings.properties.items() if key.startswith(head)
        }
        return cls(RestClient(settings.database_uri, properties), files, ledger, statements)

    # Looking

    def cut(self) -> Cut:
        names = sorted(_plain_names(self._client.pages("namespaces", "namespaces")))
        tables: list[TableName] = []
        for name in names:
            try:
                tables += listed_names(name, self._tables(name))
            except SchemaNotFound:  # dropped since it was listed
                continue
            except PermissionDenied as exc:
                logger.info("the tables of schema '%s' are not seen: %s", name, exc.message)
        return Cut(LookedUp(tables, self.location), LookedUp(names, self._schema_properties))

    def location(self, table: TableName) -> str | None:
        answer = self._commits.load(table)
        if answer is None:
            return None
        if not isinstance(place := answer.get("metadata-location"), str) or not place:
            raise Unavailable(f"the catalog does not say where the metadata of table '{table}' is")
        return place

    def statement(self, key: str, table: TableName | None = None) -> int | None:
        """By the records, and by ``table``, which notes the statements that changed it. No other table is asked."""
        known = None if self._statements is None else self._statements.find(key)
        if known is not None or table is None:
            return known
        answer = self._commits.load(table)
        return None if answer is None else statement_count(answer["metadata"], key)

    def forget_statements(self, before: float) -> int:
        return 0 if self._statements is None else self._statements.forget(before)

    # Names

    def create_schema(self, name: str, properties: Mapping[str, str]) -> None:
        body = {"namespace": [name], "properties": dict(properties)}
        change_names(
            lambda: self._client.post("namespaces", body=body),
            done=lambda: self._schema_properties(name) is not None,
            exists=f"schema '{name}' already exists",
        )

    def drop_schema(self, name: str) -> None:
        try:
            change_names(
                lambda: self._client.delete("namespaces", name),
                done=lambda: self._schema_properties(name) is None,
                schema=name,
            )
        except AlreadyExists as exc:  # the same status as for a name that is taken
            raise FailedPrecondition(f"schema '{name}' is not empty") from exc

    def drop_schema_with_tables(self, name: str) -> dict[TableName, str]:
        if self.views.locations([name]):  # found out before tables are dropped in vain
            raise FailedPrecondition(f"schema '{name}' has views: drop them first")
        return super().drop_schema_with_tables(name)

    def create(self, table: TableName, location: str) -> None:
        body = {"name": table.name, "metadata-location": location}
        change_names(
            lambda: self._client.post("namespaces", table.schema, "register", body=body),
            done=lambda: self.location(table) == location,
            exists=_exists(table),
            schema=table.schema,
            table=table,
        )

    def drop(self, table: TableName) -> str:
        location = self.location(table)
        if location is None:
            raise TableNotFound(*table)
        query = {"purgeRequested": "false"}
        change_names(
            lambda: self._client.delete(*table_path(table), query=query),
            done=lambda: self.location(table) is None,
            table=table,
        )
        return location

    has_fence = False

    def fence(self, server: str) -> None:
        """Such a catalog has none: a request of a dead server may be carried out at any time."""

    def rename(self, table: TableName, new: TableName) -> None:
        body = {"source": identifier(table), "destination": identifier(new)}
        location = self.location(table)
        if location is None:
            raise TableNotFound(*table)
        change_names(
            lambda: self._client.post("tables", "rename", body=body),
            done=lambda: self.location(new) == location and self.location(table) is None,
            exists=_exists(new),
            table=table,
        )

    # Commits

    def commit(
        self,
        changes: Sequence[Edit],
        statements: Mapping[str, int] | None = None,
        *,
        unchanged: Mapping[TableName, str] | None = None,
        transactions: Sequence[str] = (),
        with_journal: Callable[[Work], None] | None = None,
    ) -> dict[TableName, str]:
        """Make all changes or, raising ``Moved``, none, as far as the catalog does several at one instant.

        The metadata that the changes were decided on shows whether a statement is known. The commit requires that
        nobody has moved ``main`` since, and so that nobody has committed the same statement. A catalog knows nothing of
        ``transactions``: each changed table notes them, as it does statements. A table in ``unchanged`` must have the
        rows that it had, whatever else became of it.
        """
        if with_journal is not None:
            raise InternalError("a REST catalog has no journal")
        statements = statements or {}
        self._require_new(changes, statements)
        noting = bool(statements or transactions)
        forget = {change.table: self._forgettable(change.before or {}) for change in changes if noting}
        asked = CommitRequest(changes, statements, transactions, forget)
        for table, location in sorted((unchanged or {}).items()):
            metadata = load(self._files, location)
            asked.require(table, same_rows(metadata.uuid, metadata.main_snapshot_id))
        if self._ledger is None or not transactions:
            known = self._commits.make(asked)
        else:
            self._ledger.publishing(transactions, [change.table for change in changes])
            try:
                known = self._commits.make(asked)
            except BaseException as exc:
                refused = isinstance(exc, (Moved, SparkportError)) and not isinstance(
                    exc, (InternalError, OutcomeUnknown)
                )
                if not refused:
                    self._ledger.unanswered(transactions)
                raise
            # Before anything else can fail: an error from here on must not look like a commit that was not made.
            self._note_committed(self._ledger, transactions)
        self._remember(statements)
        return {**known, **self._locations(change for change in changes if change.table not in known)}

    def settle(self, transaction_id: str, tables: Sequence[TableName]) -> bool:
        """Whether a transaction's commit to these tables has been made; if not, it never is.

        For a ledger, about a commit whose answer nobody has seen. Raises Unavailable while that cannot be said.
        """
        if not tables:
            return False
        key = transaction_key(transaction_id)
        if self._is_noted(key, tables):
            return True
        self._commits.fence(min(tables), transaction_id, publishing=True)
        return self._is_noted(key, tables)

    def _is_noted(self, key: str, tables: Sequence[TableName]) -> bool:
        answers = [self._commits.load(table) for table in tables]
        if any(now is not None and statement_count(now["metadata"], key) is not None for now in answers):
            return True
        if None not in answers:
            return False
        # One of them was dropped, or has another name by now.
        others: Iterable[TableName] = (name for name in self.cut().tables if name not in tables)
        return any(_noted_in(self._commits, name, key) for name in others)

    def _require_new(self, changes: Sequence[Edit], statements: Mapping[str, int]) -> None:
        for key in statements:
            held = [statement_count(change.before or {}, key) for change in changes]
            count = next((number for number in held if number is not None), None)
            if count is not None:
                self._remember({key: count})
            elif self._statements is not None:
                count = self._statements.find(key)
            if count is not None:
                raise AlreadyExists("a statement has been committed already")

    def _forgettable(self, metadata: Mapping[str, Any]) -> set[str]:
        """Notes of a table that can go with its next commit.

        Those of statements after a day, and earlier when there are many: the ledger's database keeps them then. Those
        of transactions when the ledger knows the end.
        """
        statements = notes_in(metadata, of_transactions=False)
        since = time.time() - KNOWN_SECONDS
        old = {key for key, note in statements.items() if note.time < since}
        recent = {key: note for key, note in statements.items() if key not in old}
        crowded = list(recent)[: max(0, len(recent) - _STATEMENTS_KEPT)]
        if self._remember({key: recent[key].count for key in crowded}, {key: recent[key].time for key in crowded}):
            old.update(crowded)
        transactions = notes_in(metadata, of_transactions=True)
        ended = {key for key, note in transactions.items() if note.time < since - _TRANSACTION_DAYS * KNOWN_SECONDS}
        if self._ledger is not None and transactions:
            ended |= self._ledger.ended(transactions)
        return old | set(map(transaction_key, ended))

    def _remember(self, statements: Mapping[str, int], at: Mapping[str, float] | None = None) -> bool:
        """Keep statements beside the tables, too. What fails here fails nobody: the tables have them."""
        if self._statements is None:
            return False
        try:
            if statements:
                self._statements.add(statements, at)
        except SparkportError as exc:
            logger.warning("%d committed statements are noted in their tables alone: %s", len(statements), exc)
            return False
        return True

    @staticmethod
    def _note_committed(ledger: Ledger, transactions: Sequence[str]) -> None:
        """The commit is done, whatever becomes of the note: the tables show it too."""
        for transaction in transactions:
            try:
                if ledger.end(transaction, TransactionState.COMMITTED) is not TransactionState.COMMITTED:
                    logger.error("transaction '%s' is committed and was taken for aborted before", transaction)
            except SparkportError as exc:
                ledger.unanswered([transaction])
                logger.warning("the commit of transaction '%s' is not noted yet: %s", transaction, exc)

    def _locations(self, changes: Iterable[Edit]) -> dict[TableName, str]:
        """Where tables are after a commit that was made; those that were dropped the moment after are left out."""
        try:
            locations = {change.table: self.location(change.table) for change in changes}
        except Exception as exc:
            message = exc.message if isinstance(exc, SparkportError) else "a commit was made and cannot be looked at"
            raise OutcomeUnknown(message, lambda: True) from exc
        return {table: location for table, location in locations.items() if location is not None}

    # The catalog's answers

    def _tables(self, schema: str) -> Iterator[object]:
        try:
            yield from self._client.pages("identifiers", "namespaces", schema, "tables")
        except RequestRefused as exc:
            if exc.status == 404:
                raise SchemaNotFound(schema) from exc
            raise unexpected(exc) from exc

    def _schema_properties(self, name: str) -> Mapping[str, str] | None:
        try:
            return dict(self._client.get("namespaces", name).get("properties") or {})
        except RequestRefused as exc:
            if exc.status == 404:
                return None
            raise unexpected(exc) from exc


def _plain_names(namespaces: Iterable[object]) -> Iterator[str]:
    """Of those that are not within others."""
    return (parts[0] for parts in namespaces if isinstance(parts, list) and len(parts) == 1 and is_name(parts[0]))


def _noted_in(commits: RestCommits, table: TableName, key: str) -> bool:
    try:
        answer = commits.load(table)
    except PermissionDenied:  # nor could this server have changed it
        return False
    return answer is not None and statement_count(answer["metadata"], key) is not None


def _exists(table: TableName) -> str:
    return f"table '{table}' already exists"
