"""What the console may take of the server, what it leaves on record, and how it is under TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest
from tests.console.rig import ROWS, RULES, TOKENS, Answer, Past, Visitor, serving_console
from tests.unit.test_tls import Authority, Files

from sparkport.app import HttpSettings, ObserveSettings, TlsSettings
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

PLACE = "/table?catalog=lake&schema=public&name={}&show=rows"


class Slow(Past):
    """A table whose rows come when they may."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ROWS)
        self.asked, self.go_on = threading.Semaphore(0), threading.Event()

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        self.asked.release()
        self.go_on.wait(60)
        return super().scan(ctx, request)


def test_slow_rows_leave_threads_to_others() -> None:
    slow = Slow("slow")
    with serving_console(slow, Past("users", ROWS)) as rig:
        visitor = rig.visitor()
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(Visitor(rig.location).get(PLACE.format("slow")).status))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert slow.asked.acquire(timeout=30)
        assert visitor.get(PLACE.format("slow")).status == 429
        assert visitor.get(PLACE.format("users")).status == 429
        assert [visitor.get(path).status for path in ("/", "/tables", "/healthz")] == [200, 200, 200]
        slow.go_on.set()
        for thread in threads:
            thread.join(30)
        assert answers == [200, 200, 200]
        assert visitor.get(PLACE.format("users")).status == 200


def test_no_more_is_read_than_is_shown() -> None:
    closed = threading.Event()
    read = []

    class Endless(Past):
        def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
            def batches() -> Iterator[pa.RecordBatch]:
                for number in range(10_000):
                    read.append(number)
                    yield pa.record_batch({"id": pa.array([number] * 20, pa.int64()), "name": ["x"] * 20})

            return Scan(batches(), close=closed.set)

    with serving_console(Endless("endless", ROWS)) as rig:
        text = rig.visitor().get(PLACE.format("endless")).text
    assert "The first 50 rows" in text
    assert len(read) == 3
    assert closed.is_set()


def test_rows_and_buttons_are_in_the_audit_and_looking_around_is_not(tmp_path: Path) -> None:
    memory = MemoryCatalog("lake")
    memory.create_table("public.users", ROWS.schema).insert(CallContext(), ROWS.to_reader())
    file = tmp_path / "audit"
    settings = {"authenticator": TOKENS, "authorizer": RULES, "observe": ObserveSettings(audit=file)}
    with serving(memory, http=HttpSettings(port=0), **settings) as server:  # type: ignore[arg-type]
        assert server.http_location is not None
        visitor = Visitor(server.http_location)
        visitor.log_in("reader-token")
        for path in ("/", "/tables", "/table?catalog=lake&schema=public&name=users", "/slow"):
            assert visitor.get(path).status == 200
        assert not file.exists() or file.read_text() == ""
        assert visitor.get(PLACE.format("users")).status == 200
        token = visitor.get("/").form_token
        forged = {"id": "x", "catalog": "lake", "form_token": token}
        assert visitor.post("/end-job", forged).status in (403, 404, 501)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    reads = [line for line in lines if line.get("operation") == "read"]
    assert {(line["user"], line["object"]) for line in reads} == {("reader", "lake.public.users")}
    assert [line["event"] for line in reads] == ["begin", "end"]
    assert reads[1]["rows_out"] == 3


def test_under_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    authority, files = Authority("first"), Files(tmp_path)
    files.put(authority.issue("server"))
    tls = TlsSettings(files.certificate, files.key)
    with serving(MemoryCatalog("lake"), http=HttpSettings(port=0), authenticator=TOKENS, tls=tls) as server:
        assert server.http_location is not None
        place = urlsplit(server.http_location)
        assert place.scheme == "https"
        context = ssl.create_default_context(cadata=authority.pem.decode())

        def ask(method: str, path: str, body: str | None = None, **headers: str) -> Answer:
            connection = http.client.HTTPSConnection("localhost", place.port, context=context, timeout=30)
            form = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
            with closing(connection):
                connection.request(method, path, body, {**form, **headers})
                answer = connection.getresponse()
                return Answer(answer.status, answer.read().decode(), answer.headers)

        page = ask("GET", "/login")
        visit = str(page.headers["Set-Cookie"]).partition(";")[0]
        assert visit.startswith(f"__Host-sparkport-login-{place.port}=")
        origin = f"https://localhost:{place.port}"
        body = urlencode({"token": "admin-token", "form_token": page.form_token})
        answer = ask("POST", "/login", body, Origin=origin, Cookie=visit)
        assert answer.status == 303
        (cookie,) = [text for text in answer.headers.get_all("Set-Cookie") or () if "session" in text]
        assert cookie.startswith(f"__Host-sparkport-session-{place.port}=")
        assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
        assert ask("GET", "/", Cookie=cookie.partition(";")[0]).status == 200


def test_metrics_that_need_no_token_are_for_this_machines_own_names() -> None:
    with serving_console() as rig:
        visitor = rig.visitor()
        assert visitor.get("/metrics").status == visitor.get("/metrics", Host="localhost").status == 200
        assert visitor.get("/metrics", Host="evil.example:50052").status == 403
        assert visitor.get("/healthz", Host="evil.example:50052").status == 200
