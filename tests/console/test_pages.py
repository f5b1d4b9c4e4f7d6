"""What each page shows, to somebody who may see everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from tests.console.rig import ROWS, Broken, Past, Rig, Visitor, serving_console

from sparkport.app import HttpSettings
from sparkport.catalog.context import CallContext
from sparkport.catalog.history import TableHistory
from sparkport.catalog.model import Schema
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.client import connect
from sparkport.errors import FailedPrecondition, Unavailable
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = "/table?catalog=lake&schema=public&name=users"
PAGES = ("/", "/tables", USERS, f"{USERS}&show=rows", f"{USERS}&show=history", "/maintenance", "/journal", "/slow")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving_console(settings={"warehouse": "/data/lake", "catalog_uri": "postgresql://u:geheim@db/lake"}) as made:
        yield made


@pytest.mark.parametrize("path", [*PAGES, "/settings"])
def test_every_page_is_there_and_is_kept_by_nobody(rig: Rig, path: str) -> None:
    answer = rig.visitor().get(path)
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", [*PAGES, "/settings", "/nothing"])
def test_no_page_names_an_address_outside_or_has_a_script_without_the_nonce(rig: Rig, path: str) -> None:
    answer = rig.visitor().get(path)
    linked = re.findall(r"""(?:href|src|action|url)\s*[=(]\s*["']?([^"'\s>)]+)""", answer.text)
    assert linked
    assert [place for place in linked if not place.startswith(("/", "#", "data:image/svg+xml,"))] == []
    assert [place for place in linked if place.startswith("//")] == []
    assert answer.text.count("<script") == answer.text.count("<script nonce=")
    assert " style=" not in answer.text
    assert " onclick=" not in answer.text


def test_a_nonce_is_used_once(rig: Rig) -> None:
    one, other = (rig.visitor().get("/").headers["Content-Security-Policy"] for _ in range(2))
    assert one != other


def test_the_first_page_shows_what_runs(rig: Rig) -> None:
    text = rig.visitor().get("/").text
    for words in (
        "Spark ready",
        "merge",
        "schema=public&amp;name=users",
        "name=pay",
        "End job",
        "Rows in the journal",
        'class="chart"',
    ):
        assert words in text


def test_the_journal_names_a_table_that_cannot_be_published_and_the_reason(rig: Rig) -> None:
    assert "set apart" not in rig.visitor().get("/journal").text
    rig.journal.failure = "a <file> is lost"
    try:
        text = rig.visitor().get("/journal").text
    finally:
        rig.journal.failure = None
    assert "1 table is set apart" in text
    assert "a &lt;file&gt; is lost" in text


def test_tables_have_what_they_take_up(rig: Rig) -> None:
    text = rig.visitor().get("/tables").text
    for words in ("users", "People", "12,000", "3.0 MB", 'class="spark"', "2 tables"):
        assert words in text


@pytest.mark.parametrize(("words", "found"), [("use", ["users"]), ("HR.", ["pay"]), ("people", ["users"]), ("zzz", [])])
def test_tables_are_found_by_name_and_comment(rig: Rig, words: str, found: list[str]) -> None:
    text = rig.visitor().get(f"/tables?find={words}").text
    assert [name for name in ("users", "pay") if f"name={name}" in text] == found


def test_tables_are_sorted_by_what_was_asked(rig: Rig) -> None:
    orders = {by: rig.visitor().get(f"/tables?sort={by}").text for by in ("name", "rows", "nonsense")}
    first = {by: "users" if text.index("name=users") < text.index("name=pay") else "pay" for by, text in orders.items()}
    assert first == {"name": "pay", "rows": "users", "nonsense": "pay"}


def test_a_table_has_columns_rows_and_history(rig: Rig) -> None:
    visitor = rig.visitor()
    columns, rows, history = (visitor.get(USERS + show).text for show in ("", "&show=rows", "&show=history"))
    assert "BIGINT" in columns
    assert "VARCHAR" in columns
    assert "Grace" not in columns
    assert "Grace" in rows
    assert "compaction" in history
    assert "1000000000000000003" in history


def test_settings_are_shown_without_secrets(rig: Rig) -> None:
    text = rig.visitor().get("/settings").text
    assert "/data/lake" in text
    assert "postgresql://***@db/lake" in text
    assert "geheim" not in text


def test_an_unknown_page_and_an_unknown_table_are_not_found(rig: Rig) -> None:
    assert rig.visitor().get("/nothing").status == 404
    answer = rig.visitor().get("/table?catalog=lake&schema=public&name=nope")
    assert answer.status == 404
    assert "nope" in answer.text


def test_other_methods_are_refused_and_head_has_no_body(rig: Rig) -> None:
    assert rig.visitor().ask("PUT", "/tables").status == 405
    answer = rig.visitor().ask("HEAD", "/tables")
    assert (answer.status, answer.text) == (200, "")


def test_what_cannot_be_read_is_said_and_tells_no_place() -> None:
    with serving_console(Broken("gone", ROWS), Past("users", ROWS)) as rig:
        visitor = rig.visitor()
        assert "cannot be read" in visitor.get("/tables").text
        answers = [visitor.get(f"/table?catalog=lake&schema=public&name=gone&show={show}") for show in ("", "rows")]
        assert [answer.status for answer in answers] == [200, 200]
        assert "Spark is failed" in answers[1].text
        for answer in (*answers, visitor.get("/")):
            assert "/secret/place" not in answer.text


def test_a_table_without_snapshots_has_an_empty_past() -> None:
    with serving_console(Past("fresh", ROWS.slice(0, 0), days=0)) as rig:
        visitor = rig.visitor()
        place = "/table?catalog=lake&schema=public&name=fresh"
        assert "Nothing was committed yet" in visitor.get(f"{place}&show=history").text
        assert "The table has no rows." in visitor.get(f"{place}&show=rows").text
        assert visitor.get("/").status == visitor.get("/tables").status == visitor.get("/maintenance").status == 200


def test_a_thousand_tables_are_shown_in_pages() -> None:
    tables = [Past(f"t{number:04}", ROWS, days=5) for number in range(1_000)]
    with serving_console(*tables) as rig:
        visitor = rig.visitor()
        first, last = visitor.get("/tables"), visitor.get("/tables?page=11")
        assert "1,001 tables" in first.text
        assert first.text.count("/table?") == 100
        assert "Page 1 of 11" in first.text
        assert last.text.count("/table?") == 1
        assert visitor.get("/tables?page=99999999").status == 200
        assert visitor.get("/").status == 200
        assert "further tables" in visitor.get("/maintenance").text


def test_the_memory_engine_has_a_console_without_what_it_has_not() -> None:
    memory = MemoryCatalog("lake")
    memory.create_table("public.t", ROWS.schema)
    with serving(memory, http=HttpSettings(port=0)) as server, connect(server.location, catalog="lake") as client:
        client.insert("public.t", ROWS)
        assert server.http_location is not None
        visitor = Visitor(server.http_location)
        first = visitor.get("/").text
        assert "Spark" not in first
        assert "Journal" not in first
        assert "Maintenance" not in first
        assert [visitor.get(path).status for path in ("/maintenance", "/journal")] == [404, 404]
        rows = visitor.get("/table?catalog=lake&schema=public&name=t&show=rows")
        assert "Ada" in rows.text
        with suppress(FailedPrecondition), client.transaction() as transaction:  # the end of the block would commit
            transaction.insert("public.t", ROWS)
            assert transaction.id[:8] in visitor.get("/").text
            answer = visitor.press("/", "/end-transaction", id=transaction.id, catalog="lake")
            assert (answer.status, answer.headers["Location"]) == (303, "/?done=transaction")
            assert transaction.id[:8] not in visitor.get("/").text


def test_a_wide_table_shows_its_first_columns() -> None:
    wide = pa.table({f"c{number}": [number] for number in range(100)})
    with serving_console(Past("wide", wide)) as rig:
        text = rig.visitor().get("/table?catalog=lake&schema=public&name=wide&show=rows").text
        assert "without 40 further columns" in text
        assert "c59<" in text
        assert "c60<" not in text


def test_a_users_table_that_raises_anything_spoils_nothing_else() -> None:
    class Raising(Past):
        def history(self, ctx: CallContext, most: int | None = None) -> TableHistory:
            raise ZeroDivisionError("secret-detail")

        def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
            raise ZeroDivisionError("secret-detail")

    with serving_console(Raising("bad", ROWS), Past("users", ROWS)) as rig:
        visitor = rig.visitor()
        pages = [visitor.get(path) for path in ("/", "/tables", "/table?catalog=lake&schema=public&name=bad&show=rows")]
        assert [page.status for page in pages] == [200, 200, 200]
        assert "12,000" in pages[1].text
        assert "internal error; the log has more" in pages[2].text
        assert "secret-detail" not in "".join(page.text for page in pages)


def test_what_runs_is_shown_when_the_catalog_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_console() as rig:

        def away(ctx: CallContext) -> list[Schema]:
            raise Unavailable("the catalog's database postgresql://u:pw@db/x gives no answer")

        monkeypatch.setattr(rig.memory, "schemas", away)
        visitor = rig.visitor()
        first = visitor.get("/")
        assert first.status == 200
        assert "The tables cannot be listed now" in first.text
        assert "End job" in first.text
        assert "pw@db" not in first.text
        assert [visitor.get(path).status for path in ("/tables", "/maintenance", "/settings")] == [503, 503, 200]
