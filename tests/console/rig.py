"""A server with a console for tests: tables with a past, rows that mean harm, jobs, a journal, calls and actions."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from sparkport.app import CustomAction, HttpSettings, Server, shown_settings
from sparkport.auth import Authenticator, Authorizer, Operation, Rule, RuleAuthorizer, Secret, StaticTokens
from sparkport.catalog.context import CallContext
from sparkport.catalog.history import HistoryTable, TableHistory, TableSnapshot
from sparkport.catalog.jobs import Job, Jobs
from sparkport.catalog.journal import Journal, JournalledTable
from sparkport.catalog.model import Catalog, Schema, find_by_name
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.static import ArrowTable
from sparkport.catalog.table import Table
from sparkport.config import Settings
from sparkport.errors import Unavailable
from sparkport.memory import MemoryCatalog

HOSTILE = "<script>alert(1)</script>"
TURNED = "a\u202eb\u0000c"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", HOSTILE]})
NOW = datetime.now(UTC)

TOKENS = StaticTokens(
    {Secret("admin-token"): "admin", Secret("reader-token"): "reader", Secret("other-token"): "other"}
)
RULES = RuleAuthorizer(
    [
        Rule(("admin",), frozenset(Operation), ("lake",)),
        Rule(("reader",), frozenset({Operation.READ}), ("lake.public.users", "lake.tx")),
        Rule(("other",), frozenset({Operation.READ, Operation.INSERT}), ("lake.public", "lake.tx")),
    ]
)


class Past(ArrowTable, HistoryTable):
    """A table that has grown for some days."""

    def __init__(self, name: str, rows: pa.Table, *, days: int = 12, comment: str | None = None) -> None:
        super().__init__(name, rows, comment=comment)
        self._days = days

    def history(self, ctx: CallContext, most: int | None = None) -> TableHistory:
        snapshots = tuple(
            TableSnapshot(
                id=10**18 + day,
                version=day + 1,
                committed=NOW - timedelta(days=self._days - day),
                operation="replace" if day % 5 == 4 else "append",
                rows=1000 * (day + 1),
                bytes=250_000 * (day + 1),
                files=day % 5 + 1,
                delete_files=0,
                added_rows=1000,
                removed_rows=0,
            )
            for day in range(self._days)
        )
        return TableHistory(snapshots=snapshots, kept=len(snapshots), compacted=NOW, format="Iceberg v3")


class Broken(ArrowTable, HistoryTable):
    """What cannot be read, as when its files are gone or Spark is down."""

    def history(self, ctx: CallContext, most: int | None = None) -> TableHistory:
        raise Unavailable("file:///secret/place/metadata.json is gone")

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        raise Unavailable("Spark is failed: see /secret/place/log")


class FixedJobs(Jobs):
    def __init__(self) -> None:
        self.jobs = [
            Job(id="job1", purpose="merge", tables=(("public", "users"),), began=NOW),
            Job(id="job2", purpose="insert", tables=(("hr", "pay"),), began=NOW),
        ]
        self.ended: list[str] = []

    @property
    def state(self) -> str:
        return "ready"

    def running(self) -> Sequence[Job]:
        return list(self.jobs)

    def end(self, job_id: str, reason: str) -> bool:
        self.ended.append(reason)
        self.jobs = [job for job in self.jobs if job.id != job_id]
        return True


class FixedJournal(Journal):
    def __init__(self) -> None:
        self.rows = 7
        self.failure: str | None = None
        """Why nothing of the users can be published."""

    def set_journal(self, ctx: CallContext, schema_name: str, table_name: str, *, on: bool) -> None:
        raise NotImplementedError

    def flush(self, ctx: CallContext) -> int:
        rows, self.rows = self.rows, 0
        return rows

    def waiting(self) -> Sequence[JournalledTable]:
        names = (("public", "users"), ("hr", "pay"))
        return [
            JournalledTable(
                schema_name=schema,
                table_name=name,
                entries=2,
                rows=self.rows,
                bytes=900,
                oldest=NOW,
                failure=self.failure if name == "users" else None,
            )
            for schema, name in names
            if self.rows
        ]


@dataclass
class Rig:
    """What a test can look at. ``maintained`` are the bodies that the action has got."""

    server: Server
    memory: MemoryCatalog
    jobs: FixedJobs
    journal: FixedJournal
    maintained: list[dict[str, str]] = field(default_factory=list)

    @property
    def location(self) -> str:
        assert self.server.http_location is not None
        return self.server.http_location

    def visitor(self) -> Visitor:
        return Visitor(self.location)

    def logged_in(self, token: str) -> Visitor:
        visitor = self.visitor()
        answer = visitor.log_in(token)
        assert answer.status == 303, answer.text
        return visitor


class _Mixed(Schema):
    """A schema of the memory engine with tables of our own beside those that it makes."""

    def __init__(self, inner: Schema, tables: Sequence[Table]) -> None:
        self.name, self.comment, self.is_default = inner.name, inner.comment, inner.is_default
        self._inner, self._own = inner, tables

    def tables(self, ctx: CallContext) -> list[Table]:
        return [*self._inner.tables(ctx), *self._own]


class Lake(MemoryCatalog):
    def __init__(self, tables: Sequence[Table]) -> None:
        self.own: Sequence[Table] = ()
        super().__init__("lake")
        self.own = tables

    def schemas(self, ctx: CallContext) -> list[Schema]:
        return [_Mixed(item, self.own) if item.name == "public" else item for item in super().schemas(ctx)]

    def schema(self, ctx: CallContext, name: str) -> Schema | None:
        return find_by_name(self.schemas(ctx), name) if self.own else super().schema(ctx, name)


@contextmanager
def serving_console(
    *tables: Table,
    authenticator: Authenticator | None = None,
    authorizer: Authorizer | None = None,
    more: Sequence[Catalog] = (),
    settings: Mapping[str, object] | None = None,
) -> Iterator[Rig]:
    memory = Lake(tables or (Past("users", ROWS, comment="People"),))
    memory.create_schema(CallContext(), "hr")
    memory.create_table("hr.pay", ROWS.schema).insert(CallContext(), ROWS.to_reader())
    memory.jobs, memory.journal = FixedJobs(), FixedJournal()
    maintained: list[dict[str, str]] = []

    def maintain(ctx: CallContext, body: bytes) -> Iterator[bytes]:
        maintained.append(json.loads(body))
        if maintained[-1]["table_name"] == "broken":
            raise Unavailable("row 4711 is damaged")
        yield json.dumps({"progress": "compact"}).encode()
        yield json.dumps({"table": "public.users", "compacted_files": 12, "skipped": {}}).encode()

    def flush(ctx: CallContext, body: bytes) -> Iterator[bytes]:
        yield json.dumps({"tables": 1, "rows": memory.journal.flush(ctx) if memory.journal else 0}).encode()

    def status(ctx: CallContext, body: bytes) -> Iterator[bytes]:
        waiting = memory.journal.waiting() if memory.journal else ()
        rows = sum(item.rows for item in waiting)
        apart = [item for item in waiting if item.failure is not None]
        sums = {"rows": rows, "entries": 4, "bytes": 1800, "age": 2.5, "failure": None, "set_apart": len(apart)}
        yield json.dumps(sums).encode()

    server = Server(
        memory,
        *more,
        port=0,
        http=HttpSettings(port=0),
        authenticator=authenticator,
        authorizer=authorizer,
        actions=[
            CustomAction("maintain", maintain, catalog="lake", table=Operation.ALTER),
            CustomAction("flush_journal", flush, catalog="lake"),
            CustomAction("journal_status", status, catalog="lake"),
        ],
        shown=shown_settings(Settings(**(settings or {}))),  # type: ignore[arg-type]
    )
    with server:
        yield Rig(server, memory, memory.jobs, memory.journal, maintained)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: http.client.HTTPMessage

    @property
    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="([^"]+)"', self.text)
        assert found, self.text
        return unescape(found[1])


class Visitor:
    """A browser that can be told to lie."""

    def __init__(self, location: str) -> None:
        self.host = urlsplit(location).netloc
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, body: str | None = None, **headers: str | None) -> Answer:
        sent: dict[str, str] = {"Host": self.host}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        for name, value in headers.items():
            sent.pop(name.replace("_", "-"), None)
            if value is not None:
                sent[name.replace("_", "-")] = value
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            data = None if body is None else body.encode()
            if data is not None and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for cookie in answer.headers.get_all("Set-Cookie") or ():
            name, _, rest = cookie.partition("=")
            value = rest.partition(";")[0]
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
        return Answer(answer.status, text, answer.headers)

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str | None) -> Answer:
        sent: dict[str, str | None] = {"Origin": f"http://{self.host}", "Sec_Fetch_Site": "same-origin", **headers}
        return self.ask("POST", path, urlencode(form), **sent)

    def log_in(self, token: str, **form: str) -> Answer:
        page = self.get("/login")
        return self.post("/login", {"token": token, "form_token": page.form_token, **form})

    def press(self, page: str, button: str, **form: str) -> Answer:
        return self.post(button, {"form_token": self.get(page).form_token, **form})
