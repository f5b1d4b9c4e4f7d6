"""Other sites, other users, and values that mean harm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import quote

import pyarrow as pa
import pytest
from tests.console.rig import HOSTILE, ROWS, RULES, TOKENS, TURNED, Past, Rig, Visitor, serving_console

from sparkport.auth import Operation, Rule, RuleAuthorizer
from sparkport.client import connect
from sparkport.errors import FailedPrecondition, InvalidArgument

pytestmark = pytest.mark.tier("fast")

MAINTAIN = {"catalog": "lake", "schema": "public", "name": "users"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving_console(Past("users", ROWS), Past("plans", ROWS), authenticator=TOKENS, authorizer=RULES) as made:
        yield made


@pytest.fixture
def admin(rig: Rig) -> Visitor:
    return rig.logged_in("admin-token")


# Other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": None, "Sec_Fetch_Site": None},
        {"Origin": None, "Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": ""},
        {"Origin": "http://["},
    ],
)
@pytest.mark.parametrize("button", ["/maintain", "/flush", "/end-job", "/logout", "/login"])
def test_a_form_of_another_site_is_refused(
    rig: Rig, admin: Visitor, button: str, headers: dict[str, str | None]
) -> None:
    form = {**MAINTAIN, "id": "job1", "form_token": admin.get("/tables").form_token}
    before = (len(rig.maintained), rig.journal.rows, list(rig.jobs.ended))
    assert admin.post(button, form, **headers).status == 403
    assert (len(rig.maintained), rig.journal.rows, list(rig.jobs.ended)) == before
    assert admin.get("/").status == 200


@pytest.mark.parametrize("token", [None, "", "0" * 64, "another's"])
def test_a_form_without_its_token_is_refused(rig: Rig, admin: Visitor, token: str | None) -> None:
    if token == "another's":
        token = rig.logged_in("admin-token").get("/tables").form_token
    form = MAINTAIN if token is None else {**MAINTAIN, "form_token": token}
    assert admin.post("/maintain", form).status == 403
    assert rig.maintained == []


def test_buttons_do_nothing_when_they_are_only_looked_at(rig: Rig, admin: Visitor) -> None:
    token = admin.get("/tables").form_token
    for button in ("/maintain", "/flush", "/end-job", "/end-transaction"):
        answer = admin.get(f"{button}?catalog=lake&schema=public&name=users&id=job1&form_token={token}")
        assert answer.status == 404
    assert rig.maintained == []


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:50052", "127.0.0.1.evil.example", "10.0.0.1", "unix:50052", "unix-abstract:80", ""],
)
def test_a_name_that_leads_here_is_refused_where_nobody_logs_in(host: str) -> None:
    with serving_console() as rig:
        visitor = rig.visitor()
        answer = visitor.get("/", Host=host)
        assert answer.status in (400, 403)
        assert "users" not in answer.text
        assert visitor.get("/", Host="localhost:1").status == 200


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content_Type": "text/plain"}, "form_token=x", 400),
        ({"Content_Type": "application/json"}, "{}", 400),
        ({}, "a=1&" * 100, 400),
        ({}, "a=" + "x" * 20_000, 429),
        ({}, "a=%ff", 400),
        ({}, "ä=1", 400),
        ({}, "", 403),
    ],
)
def test_a_form_that_is_none_is_refused(admin: Visitor, headers: dict[str, str], body: str, status: int) -> None:
    sent = {"Origin": f"http://{admin.host}", **headers}
    assert admin.ask("POST", "/maintain", body, **sent).status == status


@pytest.mark.parametrize(
    "path", ["/%ff", "/tables?find=%ff", "/tables?" + "a=1&" * 99, "/tables?find=%00%0a", "/tables//"]
)
def test_an_address_that_makes_no_sense_is_no_error_of_ours(admin: Visitor, path: str) -> None:
    assert admin.get(path).status in (200, 400, 404)


# Values that mean harm


@pytest.mark.parametrize(
    "name", [HOSTILE, '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "a&b=c?d#e/f", "'; DROP", "ünï 日本"]
)
def test_names_are_texts_wherever_they_are_shown(name: str) -> None:
    rows = pa.table({name: [name], "n": [1]})
    with serving_console(Past(name, rows, comment=name)) as rig:
        visitor = rig.visitor()
        place = f"/table?catalog=lake&schema=public&name={quote(name, safe='')}"
        pages = ["/", "/tables", f"/tables?find={quote(name)}&sort={quote(name)}", "/maintenance", place]
        for path in [*pages, f"{place}&show=rows", f"{place}&show=history", f"{place}x"]:
            answer = visitor.get(path)
            assert answer.status == (404 if path.endswith("x") else 200), path
            assert_tame(answer.text)
        answer = visitor.press("/maintenance", "/maintain", catalog="lake", schema="public", name=name)
        assert answer.status == 303
        assert_tame(visitor.get("/maintenance").text)
        assert rig.maintained[0]["table_name"] == name


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def assert_tame(text: str) -> None:
    """Only our own elements are there: no script but ours, no image, no handler."""
    found = Elements(text)
    assert found.tags.count("script") == 1
    assert {"img", "iframe", "object", "b"}.isdisjoint(found.tags)
    assert [name for name in found.attributes if name.startswith("on") or name == "style"] == []
    assert ">49<" not in text


def test_cells_that_mean_harm_are_shown_as_they_are_and_cut() -> None:
    rows = pa.table(
        {
            "text": [HOSTILE, TURNED, "x" * 1_000_000, None],
            "binary": pa.array([b"<b>\x00\xff" * 10_000, b"", None, b"<script>"], pa.binary()),
            "nested": [[HOSTILE] * 100_000, [], None, [None]],
            "struct": [{"<b>": "</td><script>"}, None, {"<b>": TURNED}, {"<b>": "y" * 500_000}],
        }
    )
    with serving_console(Past("t", rows)) as rig:
        answer = rig.visitor().get("/table?catalog=lake&schema=public&name=t&show=rows")
    assert answer.status == 200
    assert_tame(answer.text)
    assert len(answer.text) < 40_000
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "a⟨U+202E⟩b␀c" in answer.text
    assert "\u202e" not in answer.text
    assert "(50,000 bytes)" in answer.text
    assert "100,000 in all" in answer.text


def test_a_message_in_the_address_is_not_shown(admin: Visitor) -> None:
    assert "Log in again" not in admin.get("/?done=Log+in+again").text


# Other users


def test_a_table_that_the_caller_may_not_see_is_named_nowhere(rig: Rig) -> None:
    with (
        connect(rig.server.location, token="admin-token", catalog="lake") as client,
        client.transaction() as transaction,
    ):
        transaction.insert("hr.pay", ROWS)
        call = rig.server.calls.begin("DoPut", "ipv4:1.2.3.4:5")
        call.user, call.operation, call.catalog, call.table = "admin", "insert", "lake", "hr.pay"
        call.message = "table 'hr.pay' is busy"
        try:
            for name in ("reader", "other"):
                visitor = rig.logged_in(f"{name}-token")
                for path in ("/", "/tables", "/maintenance", "/journal", "/slow", "/tables?find=pay"):
                    text = visitor.get(path).text.replace("find=pay", "").replace('value="pay"', "")
                    assert "pay" not in text, (name, path)
                    assert "hr" not in re.findall(r"[a-z]+", re.sub(r"<[^>]*>|<style.*?</style>", " ", text))
                assert visitor.get("/table?catalog=lake&schema=hr&name=pay").status == 404
                assert visitor.get("/table?catalog=lake&schema=hr&name=pay&show=rows").status == 404
            assert "name=pay" in rig.logged_in("admin-token").get("/").text
        finally:
            rig.server.calls.end(call)


def test_who_may_only_read_has_no_buttons_and_a_forged_one_is_denied(rig: Rig) -> None:
    visitor = rig.logged_in("reader-token")
    for path in ("/", "/maintenance", "/journal", "/table?catalog=lake&schema=public&name=users"):
        text = visitor.get(path).text
        assert 'action="/logout"' in text
        assert re.findall(r'action="/(?:maintain|flush|end-job|end-transaction)"', text) == []
    token = visitor.get("/").form_token
    before = (len(rig.maintained), rig.journal.rows, list(rig.jobs.ended))
    forged = {
        "/maintain": MAINTAIN,
        "/flush": {},
        "/end-job": {"id": "job1", "catalog": "lake"},
    }
    assert {path: visitor.post(path, {**form, "form_token": token}).status for path, form in forged.items()} == {
        "/maintain": 403,
        "/flush": 403,
        "/end-job": 403,
    }
    hidden = {**MAINTAIN, "schema": "hr", "name": "pay", "form_token": token}
    assert visitor.post("/maintain", hidden).status in (403, 404)
    assert visitor.post("/end-job", {"id": "job2", "catalog": "lake", "form_token": token}).status == 404
    assert (len(rig.maintained), rig.journal.rows, list(rig.jobs.ended)) == before


def test_settings_are_for_those_who_may_use_the_console(rig: Rig) -> None:
    visitor = rig.logged_in("reader-token")
    assert visitor.get("/settings").status == 403
    assert "/settings" not in visitor.get("/").text
    assert rig.logged_in("admin-token").get("/settings").status == 200


def test_a_transaction_is_ended_by_its_owner_alone(rig: Rig) -> None:
    with (
        connect(rig.server.location, token="other-token", catalog="lake") as client,
        suppress(FailedPrecondition),  # the end of the block would commit
        client.transaction() as transaction,
    ):
        form = {"id": transaction.id, "catalog": "lake"}
        admin, owner = rig.logged_in("admin-token"), rig.logged_in("other-token")
        assert transaction.id[:8] in admin.get("/").text
        assert "/end-transaction" not in admin.get("/").text
        assert admin.press("/", "/end-transaction", **form).status == 404
        assert "/end-transaction" in owner.get("/").text
        assert owner.press("/", "/end-transaction", **form).status == 303
        assert transaction.id[:8] not in admin.get("/").text


def test_who_may_list_a_table_but_not_read_it_sees_no_rows(rig: Rig) -> None:
    rules = RuleAuthorizer([Rule(("reader",), frozenset({Operation.INSERT}), ("lake.public",))])
    with serving_console(authenticator=TOKENS, authorizer=rules) as other:
        visitor = other.logged_in("reader-token")
        assert "12,000" not in visitor.get("/tables").text
        answer = visitor.get("/table?catalog=lake&schema=public&name=users&show=rows")
        assert "may not read" in answer.text or "may know of this table" in answer.text
        assert "Grace" not in answer.text
        assert "12,000" not in answer.text


def test_calls_of_others_tell_no_messages(rig: Rig) -> None:
    call = rig.server.calls.begin("DoGet", "ipv4:1.2.3.4:5")
    call.user, call.operation, call.catalog, call.table = "other", "read", "lake", "public.users"
    call.started_at -= 100
    rig.server.calls.end(call, InvalidArgument("value 'secret-value' in /var/lake/file.parquet is wrong"))
    texts = {name: rig.logged_in(f"{name}-token").get("/slow").text for name in ("admin", "other", "reader")}
    assert "INVALID_ARGUMENT" in texts["admin"]
    assert "secret-value" not in texts["admin"]
    assert "secret-value" in texts["other"]
    assert "/var/lake" not in texts["other"]
    assert "INVALID_ARGUMENT" not in texts["reader"]


def test_buttons_of_who_may_do_what_they_say(rig: Rig, admin: Visitor) -> None:
    assert admin.press("/", "/end-job", id="job2", catalog="lake").status == 303
    assert rig.jobs.ended == ["the job was ended by 'admin'"]
    assert admin.press("/", "/maintain", **MAINTAIN).headers["Location"] == "/maintenance?done=maintain"
    assert "Maintenance has begun." in admin.get("/maintenance?done=maintain").text
    assert admin.press("/journal", "/flush").status == 303
