"""Pointers in an Iceberg REST catalog: read from it, and moved by its commits instead of by SQL.

A REST catalog has no view of all tables at one instant. A cut here is the names of one moment; a table's metadata is
looked up when it is first touched and stays the same from then on. Everything else holds as with SQL catalogs: a change
is made on the condition that nobody touched what it was decided on, and several tables change together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    SchemaNotFound,
    TableNotFound,
    Unavailable,
    Unsupported,
)
from sparkport.lakehouse.pointers import Cut, Edit, Moved, Pointers, TableName
from sparkport.lakehouse.rest_client import Answer, Refused, RestClient, Unanswered
from sparkport.lakehouse.rest_updates import Json, requirements, updates
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["RestPointers"]

_STATEMENT = "sparkport.statement."
_STATEMENT_SECONDS = 3600.0
_STATEMENTS_KEPT = 200
_COMMIT_MANY = "POST /v1/{prefix}/transactions/commit"

Key = TypeVar("Key")
Value = TypeVar("Value")


class RestPointers(Pointers):
    def __init__(self, client: RestClient) -> None:
        self._client = client

    @classmethod
    def of(cls, settings: LakehouseSettings) -> RestPointers:
        """The catalog's settings are those that Spark has too: ``spark.sql.catalog.<name>.token`` and so on."""
        head = f"spark.sql.catalog.{settings.catalog_name}."
        found = {key.removeprefix(head): value for key, value in settings.properties.items() if key.startswith(head)}
        return cls(RestClient(settings.database_uri, found))

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
            noted = None if found is None else found["metadata"].get("properties", {}).get(_STATEMENT + key)
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

    def rename(self, table: TableName, new: TableName) -> None:
        body = {"source": _identifier(table), "destination": _identifier(new)}
        self._change(lambda: self._client.post("tables", "rename", body=body), exists=_exists(new), table=table)

    # Commits

    def commit(self, changes: Sequence[Edit], statements: Mapping[str, int] | None = None) -> dict[TableName, str]:
        """Make all changes or, raising ``Moved``, none; where the metadata is afterwards. ``statements`` are noted too.

        What a statement finds noted already is not checked here: it was made on the same tables, so ``Moved`` tells.
        """
        asked = [_request(change, statements if index == 0 else None) for index, change in enumerate(changes)]
        try:
            answer = self._send_commit(asked)
        except Refused as exc:
            raise self._refusal(exc, changes) from exc
        except Unanswered as exc:
            return self._looked_up(changes, exc)
        if len(changes) == 1:
            return {changes[0].table: str(answer["metadata-location"])}
        return self._locations(changes)

    def _send_commit(self, asked: Sequence[Json]) -> Answer:
        if len(asked) == 1:
            identifier = asked[0]["identifier"]
            path = _path((identifier["namespace"][0], identifier["name"]))
            return self._client.post(*path, body=asked[0])
        if not self._client.offers(_COMMIT_MANY):
            raise Unsupported("this catalog cannot change several tables in one commit")
        return self._client.post("transactions", "commit", body={"table-changes": list(asked)})

    def _refusal(self, refused: Refused, changes: Sequence[Edit]) -> Exception:
        if refused.status == 409:
            created = [change.table for change in changes if change.before is None]
            if created and len(changes) == 1:
                return AlreadyExists(_exists(created[0]))
            return Moved(changes[0].table)
        if refused.status == 404:  # a table that was dropped has moved, as far as a writer is concerned
            if changes[0].before is None:
                return SchemaNotFound(changes[0].table[0])
            return Moved(changes[0].table)
        return InvalidArgument(f"the catalog refuses the change: {refused.message}")

    def _looked_up(self, changes: Sequence[Edit], cause: Unanswered) -> dict[TableName, str]:
        """No answer came: the tables tell whether the change was made."""
        for change in changes:
            found = self._load(change.table, full=True)
            if found is None or not _made(change, found["metadata"]):
                raise Unavailable("the catalog gave no answer to a commit, and the change is not there") from cause
        return self._locations(changes)

    def _locations(self, changes: Sequence[Edit]) -> dict[TableName, str]:
        found: dict[TableName, str] = {}
        for change in changes:
            location = self.location(change.table)
            if location is None:  # dropped the moment after
                raise TableNotFound(*change.table)
            found[change.table] = location
        return found

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


def _identifier(table: TableName) -> Json:
    return {"namespace": [table[0]], "name": table[1]}


def _exists(table: TableName) -> str:
    return f"table '{table[0]}.{table[1]}' already exists"


def _unexpected(refused: Refused) -> Exception:
    return InvalidArgument(f"the catalog refuses: {refused.message}")


def _request(change: Edit, statements: Mapping[str, int] | None) -> Json:
    after = change.after if not statements else _noted(change.after, statements)
    return {
        "identifier": _identifier(change.table),
        # Notes about statements depend on nothing, so they are no part of what must not have changed.
        "requirements": requirements(change.before, change.after),
        "updates": updates(change.before, after),
    }


def _noted(metadata: Mapping[str, Any], statements: Mapping[str, int]) -> Json:
    """With the statements among the table's properties, one each so that writers do not overwrite each other's."""
    now = time.time()
    properties: dict[str, str] = dict(metadata.get("properties", {}))
    old = [(_noted_at(value), key) for key, value in properties.items() if key.startswith(_STATEMENT)]
    for place, (noted, key) in enumerate(sorted(old, reverse=True)):
        if place >= _STATEMENTS_KEPT or noted < now - _STATEMENT_SECONDS:
            del properties[key]
    properties |= {_STATEMENT + key: f"{count} {now:.0f}" for key, count in statements.items()}
    return {**metadata, "properties": properties}


def _noted_at(value: str) -> float:
    try:
        return float(value.partition(" ")[2])
    except ValueError:
        return 0.0


def _made(change: Edit, now: Mapping[str, Any]) -> bool:
    """Whether a change is in a table's present metadata, which may have moved on since."""
    after = change.after
    if now["table-uuid"] != after["table-uuid"]:
        return False
    main = after.get("refs", {}).get("main", {}).get("snapshot-id")
    published = {entry["snapshot-id"] for entry in now.get("snapshot-log", [])} | {None}
    if main not in published:
        return False
    wanted = next(item for item in after["schemas"] if item["schema-id"] == after["current-schema-id"])
    if all(item["fields"] != wanted["fields"] for item in now["schemas"]):
        return False
    before = {} if change.before is None else change.before.get("properties", {})
    changed = {key: value for key, value in after.get("properties", {}).items() if before.get(key) != value}
    held: Mapping[str, str] = now.get("properties", {})
    return all(held.get(key) == value for key, value in changed.items())
