"""Pointers in an Iceberg REST catalog: read from it, and moved by its commits instead of by SQL.

A REST catalog has no view of all tables at one instant. A cut here is the names of one moment; a table's metadata is
looked up when it is first touched and stays the same from then on. Everything else holds as with SQL catalogs: a change
is made on the condition that nobody touched what it was decided on, and several tables change together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sparkport.catalog.transaction import TransactionState
from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    PermissionDenied,
    SchemaNotFound,
    SparkportError,
    TableNotFound,
    Unavailable,
)
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Cut, Edit, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.catalogs.rest_client import Answer, Refused, RestClient, Unanswered
from sparkport.lakehouse.catalogs.rest_commit import CommitRequest, RestCommits, table_path
from sparkport.lakehouse.catalogs.rest_notes import DAY, notes_in, statement_count, transaction_key
from sparkport.lakehouse.catalogs.rest_updates import Json, identifier, still
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["RestPointers"]

logger = logging.getLogger(__name__)

_STATEMENTS_KEPT = 500
"""How many statements a table notes, of which there may be very many in a day: each commit writes all of them anew."""

_TRANSACTION_DAYS = 30
"""After which a table drops notes of transactions that this server's ledger does not know."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class RestPointers(Pointers):
    def __init__(
        self,
        client: RestClient,
        files: FileSystem | None = None,
        ledger: Ledger | None = None,
        statements: StatementRecords | None = None,
    ) -> None:
        """``files`` reads the metadata of tables that must not have changed.

        ``ledger`` is told of the transactions in a commit, ``statements`` has the statements; without them only the
        tables note both.
        """
        self._client = client
        self._commits = RestCommits(client)
        self._files = files or FileSystem()
        self._ledger = ledger
        self._statements = statements

    @classmethod
    def of(
        cls,
        settings: LakehouseSettings,
        files: FileSystem | None = None,
        ledger: Ledger | None = None,
        statements: StatementRecords | None = None,
    ) -> RestPointers:
        """The catalog's settings are those that Spark has too: ``spark.sql.catalog.<name>.token`` and so on."""
        head = f"spark.sql.catalog.{settings.catalog_name}."
        found = {key.removeprefix(head): value for key, value in settings.properties.items() if key.startswith(head)}
        return cls(RestClient(settings.database_uri, found), files, ledger, statements)

    # Looking

    def cut(self) -> Cut:
        names = sorted(name[0] for name in self._pages("namespaces", "namespaces") if len(name) == 1)
        tables: list[TableName] = []
        for name in names:
            try:
                tables += sorted((name, found["name"]) for found in self._tables(name))
            except SchemaNotFound:  # dropped since it was listed
                continue
            except PermissionDenied as exc:
                logger.info("the tables of schema '%s' are not seen: %s", name, exc.message)
        return Cut(_Lazy(tables, self.location), _Lazy(names, self._schema_properties))

    def location(self, table: TableName) -> str | None:
        found = self._commits.load(table)
        return None if found is None else str(found["metadata-location"])

    def statement(self, key: str, table: TableName | None = None) -> int | None:
        """By the records, and by ``table``, which notes the statements that changed it. No other table is asked."""
        known = None if self._statements is None else self._statements.find(key)
        if known is not None or table is None:
            return known
        found = self._commits.load(table)
        return None if found is None else statement_count(found["metadata"], key)

    def forget_statements(self, before: float) -> int:
        return 0 if self._statements is None else self._statements.forget(before)

    # Names

    def create_schema(self, name: str, properties: Mapping[str, str]) -> None:
        body = {"namespace": [name], "properties": dict(properties)}
        self._change(
            lambda: self._client.post("namespaces", body=body),
            done=lambda: self._schema_properties(name) is not None,
            exists=f"schema '{name}' already exists",
        )

    def drop_schema(self, name: str) -> None:
        try:
            self._change(
                lambda: self._client.delete("namespaces", name),
                done=lambda: self._schema_properties(name) is None,
                schema=name,
            )
        except AlreadyExists as exc:  # the same status as for a name that is taken
            raise FailedPrecondition(f"schema '{name}' is not empty") from exc

    def create(self, table: TableName, location: str) -> None:
        body = {"name": table[1], "metadata-location": location}
        self._change(
            lambda: self._client.post("namespaces", table[0], "register", body=body),
            done=lambda: self.location(table) == location,
            exists=_exists(table),
            schema=table[0],
            table=table,
        )

    def drop(self, table: TableName) -> str:
        location = self.location(table)
        if location is None:
            raise TableNotFound(*table)
        query = {"purgeRequested": "false"}
        self._change(
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
        self._change(
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
    ) -> dict[TableName, str]:
        """Make all changes or, raising ``Moved``, none, as far as the catalog does several at one instant.

        Whether a statement is known is looked up in the tables as the changes were decided on. The commit requires
        that nobody has moved ``main`` since, and so that nobody has committed the same statement. A catalog knows
        nothing of ``transactions``: each changed table notes them, as it does statements. A table in ``unchanged``
        must have the rows that it had, whatever else became of it.
        """
        statements = statements or {}
        self._require_new(changes, statements)
        noting = bool(statements or transactions)
        forget = {change.table: self._forgettable(change.before or {}) for change in changes if noting}
        asked = CommitRequest(changes, statements, transactions, forget)
        for table, location in sorted((unchanged or {}).items()):
            found = load(self._files, location)
            asked.require(table, still(found.uuid, found.main_snapshot_id))
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
        """Whether the commit of a transaction, which was to change these tables, has been made; if not, it never is.

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
        found = [self._commits.load(table) for table in tables]
        if any(now is not None and statement_count(now["metadata"], key) is not None for now in found):
            return True
        if None not in found:
            return False
        # One of them was dropped, or has another name by now.
        others: Iterable[TableName] = (name for name in self.cut().tables if name not in tables)
        return any(_noted_in(self._commits, name, key) for name in others)

    def _require_new(self, changes: Sequence[Edit], statements: Mapping[str, int]) -> None:
        for key in statements:
            held = [statement_count(change.before or {}, key) for change in changes]
            count = next((found for found in held if found is not None), None)
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
        since = time.time() - DAY
        old = {key for key, note in statements.items() if note.time < since}
        recent = {key: note for key, note in statements.items() if key not in old}
        crowded = list(recent)[: max(0, len(recent) - _STATEMENTS_KEPT)]
        if self._remember({key: recent[key].count for key in crowded}, {key: recent[key].time for key in crowded}):
            old.update(crowded)
        transactions = notes_in(metadata, of_transactions=True)
        ended = {key for key, note in transactions.items() if note.time < since - _TRANSACTION_DAYS * DAY}
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
        """It is done, whatever becomes of the note: the tables tell too."""
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
            found = {change.table: self.location(change.table) for change in changes}
        except Exception as exc:
            message = exc.message if isinstance(exc, SparkportError) else "a commit was made and cannot be looked at"
            raise OutcomeUnknown(message, lambda: True) from exc
        return {table: location for table, location in found.items() if location is not None}

    # The catalog's answers

    def _tables(self, schema: str) -> Iterator[Json]:
        try:
            yield from self._pages("identifiers", "namespaces", schema, "tables")
        except Refused as exc:
            if exc.status == 404:
                raise SchemaNotFound(schema) from exc
            raise _unexpected(exc) from exc

    def _schema_properties(self, name: str) -> Mapping[str, str] | None:
        try:
            return dict(self._client.get("namespaces", name).get("properties") or {})
        except Refused as exc:
            if exc.status == 404:
                return None
            raise _unexpected(exc) from exc

    def _pages(self, key: str, *path: str) -> Iterator[Any]:
        query: dict[str, str] = {}
        while True:
            answer = self._client.get(*path, query=query)
            yield from answer.get(key) or []
            token = answer.get("next-page-token")
            if not token:
                return
            query = {"pageToken": token}

    def _change(
        self,
        send: Callable[[], Answer],
        *,
        done: Callable[[], bool],
        exists: str = "it already exists",
        schema: str | None = None,
        table: TableName | None = None,
    ) -> None:
        """Ask for a change of names; ``done`` looks whether it is made, for when the answer does not come.

        A request may have come twice, and been refused the second time. Of tables one can tell that: their metadata
        is at a place of its own, or they were there the moment before.
        """
        try:
            send()
        except Refused as exc:
            if exc.status in (404, 409) and table is not None and done():
                return
            if exc.status == 409:
                raise AlreadyExists(exists) from exc
            if exc.status == 404 and schema is None and table is not None and "Namespace" not in exc.kind:
                raise TableNotFound(*table) from exc
            if exc.status == 404 and (schema or table):
                raise SchemaNotFound(schema or exc.message) from exc
            raise _unexpected(exc) from exc
        except Unanswered as exc:
            if not done():
                raise Unavailable("the catalog gave no answer; look whether it was done before trying again") from exc


def _noted_in(commits: RestCommits, table: TableName, key: str) -> bool:
    try:
        found = commits.load(table)
    except PermissionDenied:  # nor could this server have changed it
        return False
    return found is not None and statement_count(found["metadata"], key) is not None


class _Lazy(Mapping[Key, Value]):
    """Known keys, and values that are looked up when first asked for and then stay.

    What vanished since the keys were listed, or may not be seen, is left out of ``items`` and ``values``.
    """

    def __init__(self, keys: Iterable[Key], look_up: Callable[[Key], Value | None]) -> None:
        self._found: dict[Key, Value | None] = {}
        self._keys = dict.fromkeys(keys)
        self._look_up = look_up
        self._lock = threading.Lock()

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        with self._lock:
            known = key in self._found
        if not known:
            value = self._look_up(key)
            with self._lock:
                # Whoever was first decides, so that all see the same.
                self._found.setdefault(key, value)
        found = self._found[key]
        if found is None:
            raise KeyError(key)
        return found

    @property
    def known(self) -> dict[Key, Value]:
        """What has been looked up so far."""
        with self._lock:
            return {key: value for key, value in self._found.items() if value is not None}

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def items(self) -> Any:
        return {key: found for key in self._keys if (found := self._seen(key)) is not None}.items()

    def _seen(self, key: Key) -> Value | None:
        try:
            return self.get(key)
        except PermissionDenied as exc:
            logger.info("%s is not seen: %s", key, exc.message)
            return None

    def values(self) -> Any:
        return dict(self.items()).values()


def _exists(table: TableName) -> str:
    return f"table '{table[0]}.{table[1]}' already exists"


def _unexpected(refused: Refused) -> Exception:
    return InvalidArgument(f"the catalog refuses: {refused.message}")
