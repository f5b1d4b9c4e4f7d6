"""What a DuckDB process keeps about a server: its identity, cached listings, and the transaction it is in."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa
from tests.support.flight_rpc import AirportError, Connection, encode
from tests.support.listing import Entry, SchemaEntry, decompressed, pack, raw, unpack
from tests.support.lockstep import Exchange

__all__ = ["HeaderList", "Process", "Session", "exchange_headers"]

USER_AGENT = "airport/20250723"
_RETRIES = 5

HeaderList = list[tuple[str, str]]


class Process:
    """One DuckDB process: one session id, one cache of schema contents by their hash."""

    def __init__(self, location: str, *, token: str | None = None, watchdog: float = 15.0) -> None:
        self.location = location
        self.connection = Connection(location)
        self.session_id = str(uuid.uuid4())
        self.contents: dict[str, tuple[Entry, ...]] = {}
        self.attempts: list[str] = []
        self.watchdog = watchdog
        self._token = token

    def headers(self, catalog: str, *more: tuple[str, str]) -> HeaderList:
        headers = [
            ("airport-user-agent", USER_AGENT),
            ("authority", self.location),
            ("airport-client-session-id", self.session_id),
        ]
        if catalog:
            headers.append(("airport-catalog", catalog))
        if self._token is not None:
            headers.append(("authorization", f"Bearer {self._token}"))
        return [*headers, *more]

    def action(self, name: str, body: Any, headers: HeaderList) -> bytes:
        """One result. An IO error is tried again, five times, as the client does (but at once)."""
        headers = [*headers, ("airport-action-name", name)]
        data = pack(body)
        for attempt in range(_RETRIES + 1):
            self.attempts.append(name)
            try:
                results = self.connection.do_action(name, data, headers)
            except AirportError as exc:
                if attempt == _RETRIES or not exc.is_io_error:
                    raise
            else:
                return results[0] if results else b""
        raise AssertionError("unreachable")

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """One attached catalog: its listing, its transaction, and the headers that its calls carry."""

    def __init__(self, client: Process, catalog: str) -> None:
        self.client = client
        self.catalog = catalog
        self.schemas: dict[str, SchemaEntry] = {}
        self.version: int | None = None
        self.is_fixed = False
        self.transaction_id: str | None = None
        self.listings = 0
        self._in_transaction = False

    # Discovery

    def load(self) -> None:
        self.catalog_version()
        self._create_transaction()
        self.list_schemas()

    def catalog_version(self) -> int:
        if self.is_fixed and self.version is not None:
            return self.version
        answer = unpack(self.action("catalog_version", {"catalog_name": self.catalog}))
        assert set(answer) == {"catalog_version", "is_fixed"}
        self.version, self.is_fixed = answer["catalog_version"], answer["is_fixed"]
        assert isinstance(self.version, int)
        return self.version

    def list_schemas(self) -> None:
        listing = decompressed(self.action("list_schemas", {"catalog_name": self.catalog}))
        assert {"contents", "schemas", "version_info"} <= set(listing)
        self.listings += 1
        self.schemas = {item["name"]: self._schema(item) for item in listing["schemas"]}

    def list_flights(self, *, schema: str | None = None) -> list[Entry]:
        headers = self.headers(("airport-list-flights-filter-catalog", self.catalog))
        if schema is not None:
            headers.append(("airport-list-flights-filter-schema", schema))
        infos = self.client.connection.unary_stream("ListFlights", encode("Criteria"), headers)
        return [Entry.decode(data) for data in infos]

    def table(self, name: str) -> Entry:
        return self.entry(name, "table")

    def entry(self, name: str, kind: str) -> Entry:
        schema_name, _, item = name.rpartition(".")
        assert schema_name != "main", 'DuckDB fails: Schema with name "main" not found'
        schema = self.schemas[schema_name or next(s.name for s in self.schemas.values() if s.is_default)]
        return next(entry for entry in schema.entries if entry.kind == kind and entry.name == item)

    def flight_info(self, table: str, *, at: tuple[str, str] | None = None) -> Entry:
        unit, value = at or ("", "")
        descriptor = self.table(table).descriptor.serialize()
        return Entry.decode(self.action("flight_info", {"descriptor": descriptor, "at_unit": unit, "at_value": value}))

    def column_statistics(self, table: str, column: str) -> dict[str, Any]:
        entry = self.table(table)
        kind = duckdb.from_arrow(pa.table({column: pa.array([], entry.schema.field(column).type)})).types[0]
        body = {"flight_descriptor": entry.descriptor.serialize(), "column_name": column, "type": str(kind)}
        # This action names itself twice, once here and once where all actions do.
        more = (("airport-action-name", "column_statistics"), *self.flight_headers(entry))
        data = self.action("column_statistics", body, *more)
        with pa.ipc.open_stream(data) as reader:
            (row,) = reader.read_all().to_pylist()
        return dict(row)

    # Transactions

    @contextmanager
    def transaction(self) -> Iterator[str | None]:
        """BEGIN … COMMIT: nothing is sent at the end."""
        self.begin()
        try:
            yield self.transaction_id
        finally:
            self.end()

    def begin(self) -> str | None:
        self._create_transaction()
        known = self.version
        if self.catalog_version() != known:
            self.list_schemas()
        self._in_transaction = True
        return self.transaction_id

    def join(self, transaction_id: str | None) -> None:
        """Be in a transaction that somebody else has begun; None is in none, and begins none for a query."""
        self.transaction_id, self._in_transaction = transaction_id, True

    def end(self) -> None:
        self._in_transaction = False
        self.transaction_id = None

    @contextmanager
    def query(self) -> Iterator[None]:
        """Every query outside ``transaction`` begins one of its own, as DuckDB does."""
        if self._in_transaction:
            yield
            return
        with self.transaction():
            yield

    def _create_transaction(self) -> None:
        answer = unpack(self.action("create_transaction", {"catalog_name": self.catalog}))
        assert set(answer) == {"identifier"}
        self.transaction_id = answer["identifier"]

    # Calls

    def action(self, name: str, body: Any, *more: tuple[str, str]) -> bytes:
        answer = self.client.action(name, body, self.headers(*more))
        if name == "create_table" and body["on_conflict"] == "error":
            _check_created(Entry.decode(answer), pa.ipc.read_schema(pa.py_buffer(raw(body["arrow_schema"]))))
        return answer

    def exchange(self, entry: Entry, operation: str, schema: pa.Schema, *, returning: bool) -> Exchange:
        more = exchange_headers(operation, returning=returning)
        return Exchange(
            self.client.connection,
            self.headers(*more, *self.transaction_headers(), *self.flight_headers(entry)),
            descriptor=entry.descriptor.serialize(),
            schema=schema,
            watchdog=self.client.watchdog,
        )

    def headers(self, *more: tuple[str, str]) -> HeaderList:
        return self.client.headers(self.catalog, *more)

    def flight_headers(self, entry: Entry) -> HeaderList:
        assert entry.path.isascii(), f"DuckDB fails: Illegal header value {entry.path}"
        return [("airport-trace-id", str(uuid.uuid4())), ("airport-flight-path", entry.path)]

    def transaction_headers(self) -> HeaderList:
        return [("airport-transaction-id", self.transaction_id)] if self.transaction_id else []

    def _schema(self, item: dict[str, Any]) -> SchemaEntry:
        contents = item["contents"]
        sha256 = contents["sha256"]
        known = self.client.contents.get(sha256)
        if known is None:
            if contents["serialized"] is None:
                known = tuple(self.list_flights(schema=item["name"]))
            else:
                serialized = raw(contents["serialized"])
                assert hashlib.sha256(serialized).hexdigest() == sha256, "contents do not have the hash they claim"
                known = tuple(Entry.decode(raw(data)) for data in decompressed(serialized))
                self.client.contents[sha256] = known
        for entry in known:
            place = (entry.metadata["catalog"], entry.metadata["schema"])
            assert place == (self.catalog, item["name"]), f"{entry.name} claims to be in {place}"
        return SchemaEntry(item["name"], item["description"], item["tags"], item["is_default"], sha256, known)


def _check_created(entry: Entry, sent: pa.Schema) -> None:
    """CREATE TABLE AS then sends rows in the types of the query, which DuckDB reads as what it makes of the answer."""
    answered = [(name, entry.schema.field(name).type) for name in entry.columns]
    assert answered == [(field.name, field.type) for field in sent], "DuckDB invalidates itself: types have changed"


def exchange_headers(operation: str, *, returning: bool) -> HeaderList:
    return [("airport-operation", operation), ("return-chunks", "1" if returning else "0")]
