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
from contextlib import contextmanager
from typing import Any, TypeVar

from sparkport.catalog.transaction import TransactionState
from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    SchemaNotFound,
    SparkportError,
    TableNotFound,
    Unavailable,
    Unsupported,
)
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.ledger import Ledger
from sparkport.lakehouse.metadata import load
from sparkport.lakehouse.pointers import Cut, Edit, Moved, Pointers, TableName
from sparkport.lakehouse.rest_client import Answer, Refused, RestClient, Unanswered
from sparkport.lakehouse.rest_updates import STATEMENT, Json, change_request, holds, identifier, made, still
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["RestPointers"]

logger = logging.getLogger(__name__)

_COMMIT_MANY = "POST /v1/{prefix}/transactions/commit"
_NOT_TOGETHER = "this catalog cannot commit several tables at once"

_LOOKS = 5
_LOOK_SECONDS = 0.2
"""How often, and how long after each other, tables are looked at that show a part of a commit."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class RestPointers(Pointers):
    def __init__(self, client: RestClient, files: FileSystem | None = None, ledger: Ledger | None = None) -> None:
        """``files`` reads the metadata of tables that must not have changed.

        ``ledger`` is told of the transactions in a commit; without one only the tables note them.
        """
        self._client = client
        self._files = files or FileSystem()
        self._ledger = ledger

    @classmethod
    def of(
        cls, settings: LakehouseSettings, files: FileSystem | None = None, ledger: Ledger | None = None
    ) -> RestPointers:
        """The catalog's settings are those that Spark has too: ``spark.sql.catalog.<name>.token`` and so on."""
        head = f"spark.sql.catalog.{settings.catalog_name}."
        found = {key.removeprefix(head): value for key, value in settings.properties.items() if key.startswith(head)}
        return cls(RestClient(settings.database_uri, found), files, ledger)

    # Looking

    def cut(self) -> Cut:
        names = sorted(name[0] for name in self._pages("namespaces", "namespaces") if len(name) == 1)
        tables: list[TableName] = []
        for name in names:
            try:
                tables += sorted((name, found["name"]) for found in self._tables(name))
            except SchemaNotFound:  # dropped since it was listed
                continue
        return Cut(_Lazy(tables, self.location), _Lazy(names, self._schema_properties))

    def location(self, table: TableName) -> str | None:
        found = self._load(table)
        return None if found is None else str(found["metadata-location"])

    def statement(self, key: str, table: TableName | None = None) -> int | None:
        """Statements are noted in a table that they changed: without ``table`` all tables are looked through."""
        for name in [table] if table is not None else list(self.cut().tables):
            found = self._load(name)
            noted = None if found is None else found["metadata"].get("properties", {}).get(STATEMENT + key)
            if noted is not None:
                return int(noted.partition(" ")[0])
        return None

    # Names

    def create_schema(self, name: str, properties: Mapping[str, str]) -> None:
        body = {"namespace": [name], "properties": dict(properties)}
        self._change(lambda: self._client.post("namespaces", body=body), exists=f"schema '{name}' already exists")

    def drop_schema(self, name: str) -> None:
        try:
            self._change(lambda: self._client.delete("namespaces", name), schema=name)
        except AlreadyExists as exc:  # the same status as for a name that is taken
            raise FailedPrecondition(f"schema '{name}' is not empty") from exc

    def create(self, table: TableName, location: str) -> None:
        body = {"name": table[1], "metadata-location": location}
        self._change(
            lambda: self._client.post("namespaces", table[0], "register", body=body),
            exists=_exists(table),
            schema=table[0],
        )

    def drop(self, table: TableName) -> str:
        location = self.location(table)
        if location is None:
            raise TableNotFound(*table)
        query = {"purgeRequested": "false"}
        self._change(lambda: self._client.delete(*_path(table), query=query), table=table)
        return location

    has_fence = False

    def fence(self, server: str) -> None:
        """Such a catalog has none: a request of a dead server may be carried out at any time."""

    def rename(self, table: TableName, new: TableName) -> None:
        body = {"source": identifier(table), "destination": identifier(new)}
        self._change(lambda: self._client.post("tables", "rename", body=body), exists=_exists(new), table=table)

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

        What a statement finds noted already is not checked here: it was made on the same tables, so ``Moved`` tells.
        Neither is the state of ``transactions``, which a catalog knows nothing of: each changed table notes them as
        statements ``tx:<id>``. A table in ``unchanged`` must have the rows that it had, whatever else became of it.
        """
        asked = _Asked(changes, statements or {}, transactions)
        for table, location in sorted((unchanged or {}).items()):
            found = load(self._files, location)
            asked.require(table, still(found.uuid, found.main_snapshot_id))
        if self._ledger is None or not transactions:
            known = self._make(asked)
        else:
            self._ledger.publishing(transactions, [change.table for change in changes])
            try:
                known = self._make(asked)
            except BaseException as exc:
                refused = isinstance(exc, (Moved, SparkportError)) and not isinstance(exc, (InternalError, _InDoubt))
                if not refused:
                    self._ledger.unanswered(transactions)
                raise
            # Before anything else can fail: an error from here on must not look like a commit that was not made.
            self._note_committed(self._ledger, transactions)
        return {**known, **self._locations(change for change in changes if change.table not in known)}

    def _make(self, asked: _Asked) -> dict[TableName, str]:
        """Make the changes; where tables are now, as far as the catalog has told by the way.

        ``_InDoubt`` and ``InternalError`` say that it may have been made, all other errors that it was not.
        """
        if not asked.requests:
            return {}
        try:
            answer = self._send_commit(list(asked.requests.values()))
        except Refused as exc:
            return self._refused(asked, exc)
        except Unanswered as exc:
            return self._looked_up(asked, exc)
        except SparkportError:
            raise  # it was not sent, or not let in
        except Exception as exc:
            raise _InDoubt("a commit was sent, and its answer cannot be read") from exc
        location = answer.get("metadata-location")
        return (
            {change.table: str(location) for change in asked.changes} if location and len(asked.requests) == 1 else {}
        )

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

    def _send_commit(self, requests: Sequence[Json]) -> Answer:
        if len(requests) == 1:
            name = requests[0]["identifier"]
            return self._client.post(*_path((name["namespace"][0], name["name"])), body=requests[0])
        if not self._client.offers(_COMMIT_MANY):
            raise Unsupported(_NOT_TOGETHER)
        try:
            return self._client.post("transactions", "commit", body={"table-changes": list(requests)})
        except Unsupported as exc:
            raise Unsupported(_NOT_TOGETHER) from exc

    def _refusal(self, refused: Refused, table: TableName, changes: Sequence[Edit]) -> Exception:
        created = any(change.before is None for change in changes)
        if refused.status == 409:
            return AlreadyExists(_exists(table)) if created else Moved(table)
        if refused.status == 404:  # a table that was dropped has moved, as far as a writer is concerned
            return SchemaNotFound(table[0]) if created else Moved(table)
        return InvalidArgument(f"the catalog refuses the change: {refused.message}")

    def _refused(self, asked: _Asked, refused: Refused) -> dict[TableName, str]:
        """Which table it was, and whether nothing was changed indeed: not every catalog keeps to all or nothing."""
        together = refused.status in (404, 409) and len(asked.requests) > 1
        if together or (refused.status == 409 and asked.is_noted):
            found = self._look(asked.requests)
            known = asked.made_at(found)
            if known is not None:  # the request came twice, and we were told of the second
                return known
        if not together:
            raise self._refusal(refused, next(iter(asked.requests)), asked.changes) from refused
        for table, request in asked.requests.items():
            now = found[table]
            if now is None or not holds(request["requirements"], now["metadata"]):
                raise Moved(table) from refused
        if refused.status == 404:  # all tables are there: it is the way to change them together that is not
            raise Unsupported(_NOT_TOGETHER) from refused
        raise Moved(next(iter(asked.requests))) from refused

    def _looked_up(self, asked: _Asked, cause: Unanswered) -> dict[TableName, str]:
        """No answer came: the tables tell whether the change was made."""
        for left in reversed(range(_LOOKS)):
            try:
                known = asked.made_at(self._look(change.table for change in asked.changes))
                if known is not None:
                    return known
                break
            except InternalError:  # the catalog may still be at it
                if not left:
                    raise
                time.sleep(_LOOK_SECONDS)
        raise _InDoubt("the catalog gave no answer to a commit, and the change is not there") from cause

    def _look(self, tables: Iterable[TableName]) -> dict[TableName, Answer | None]:
        """What tables show after a commit was sent."""
        with _in_doubt():
            found = {table: self._load(table, full=True) for table in tables}
            for table, now in found.items():
                if now is not None and not {"metadata", "metadata-location"} <= now.keys():
                    raise Unavailable(f"the catalog does not tell how table '{table[0]}.{table[1]}' is")
        return found

    def _locations(self, changes: Iterable[Edit]) -> dict[TableName, str]:
        """Where tables are after a commit that was made; those that were dropped the moment after are left out."""
        with _in_doubt():
            found = {change.table: self.location(change.table) for change in changes}
        return {table: location for table, location in found.items() if location is not None}

    # The catalog's answers

    def _load(self, table: TableName, *, full: bool = False) -> Answer | None:
        try:
            return self._client.get(*_path(table), query={"snapshots": "all" if full else "refs"})
        except Refused as exc:
            if exc.status == 404:
                return None
            raise _unexpected(exc) from exc

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
        exists: str = "it already exists",
        schema: str | None = None,
        table: TableName | None = None,
    ) -> None:
        try:
            send()
        except Refused as exc:
            if exc.status == 409:
                raise AlreadyExists(exists) from exc
            if exc.status == 404 and table is not None and "Namespace" not in exc.kind:
                raise TableNotFound(*table) from exc
            if exc.status == 404 and (schema or table):
                raise SchemaNotFound(schema or exc.message) from exc
            raise _unexpected(exc) from exc
        except Unanswered as exc:
            raise Unavailable("the catalog gave no answer; look whether it was done before trying again") from exc


class _InDoubt(Unavailable):
    """A commit was sent, and more cannot be said for certain: whether it was made, or what became of it."""


@contextmanager
def _in_doubt() -> Iterator[None]:
    """Whatever fails while a commit is looked at says nothing about the commit."""
    try:
        yield
    except Exception as exc:
        raise _InDoubt(exc.message if isinstance(exc, SparkportError) else "a commit cannot be looked at") from exc


class _Asked:
    """A commit in the catalog's words: a request per table, and what each table will show of it."""

    def __init__(self, changes: Sequence[Edit], statements: Mapping[str, int], transactions: Sequence[str]) -> None:
        self.changes = changes
        together = {f"tx:{transaction}": 0 for transaction in transactions}
        self._notes = {
            change.table: together if index else {**statements, **together} for index, change in enumerate(changes)
        }
        self.requests = {change.table: change_request(change, self._notes[change.table]) for change in changes}

    def require(self, table: TableName, required: Sequence[Json]) -> None:
        request = self.requests.setdefault(table, {"identifier": identifier(table), "requirements": [], "updates": []})
        request["requirements"] += [item for item in required if item not in request["requirements"]]

    @property
    def is_noted(self) -> bool:
        """Whether the tables tell this commit from another's that looks the same."""
        return all(self._notes.values()) and bool(self._notes)

    def made_at(self, found: Mapping[TableName, Answer | None]) -> dict[TableName, str] | None:
        """Where the tables are that show the changes; None when none does.

        Raises InternalError when some do and others do not.
        """
        seen = {
            change.table: (now := found[change.table]) is not None
            and made(change, self._notes[change.table], now["metadata"])
            for change in self.changes
        }
        if any(seen.values()) and not all(seen.values()):
            changed, others = (
                ", ".join(f"'{table[0]}.{table[1]}'" for table, done in seen.items() if done is which)
                for which in (True, False)
            )
            raise InternalError(f"the catalog has made only a part of a commit: {changed} changed, {others} did not")
        if not any(seen.values()):
            return None
        return {table: str(now["metadata-location"]) for table in seen if (now := found[table]) is not None}


class _Lazy(Mapping[Key, Value]):
    """Known keys, and values that are looked up when first asked for and then stay.

    What vanished since the keys were listed is left out of ``items`` and ``values``.
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
        return {key: self[key] for key in self._keys if self.get(key) is not None}.items()

    def values(self) -> Any:
        return dict(self.items()).values()


def _path(table: TableName) -> tuple[str, ...]:
    return ("namespaces", table[0], "tables", table[1])


def _exists(table: TableName) -> str:
    return f"table '{table[0]}.{table[1]}' already exists"


def _unexpected(refused: Refused) -> Exception:
    return InvalidArgument(f"the catalog refuses: {refused.message}")
