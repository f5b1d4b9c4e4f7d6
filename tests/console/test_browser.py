"""The console in a real browser: every page, every button, light and dark, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product

import pyarrow as pa
import pytest
from tests.console.rig import HOSTILE, ROWS, RULES, TOKENS, Past, Rig, serving_console
from tests.support.browser import Browser, browser

from sparkport.client import connect
from sparkport.errors import FailedPrecondition

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(400)]  # a browser may have to be installed

USERS = "/table?catalog=lake&schema=public&name=users"
PAGES = ("/", "/tables", USERS, f"{USERS}&show=rows", f"{USERS}&show=history", "/maintenance", "/journal", "/slow")
LONG = "a_table_with_a_rather_long_name_of_the_kind_that_generators_like_to_make_" * 3


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def rig() -> Iterator[Rig]:
    rows = pa.table({"id": [1, 2], "note": [HOSTILE, "x" * 5_000], "other": [["y" * 300] * 9, None]})
    with serving_console(Past("users", rows, comment="People"), Past(LONG, ROWS, comment=LONG)) as made:
        yield made


def test_every_page_is_quiet_and_as_wide_as_the_screen(chromium: Browser, rig: Rig) -> None:
    paths = [*PAGES, "/settings", "/nothing", f"/table?catalog=lake&schema=public&name={LONG}&show=history"]
    chromium.complaints()
    backgrounds = {}
    for width, dark in product((1280, 390), (False, True)):
        chromium.look(width=width, dark=dark)
        for path in paths:
            chromium.open(rig.location + path)
            inner = chromium.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert inner[0] <= inner[1] <= width, (path, width)
            assert chromium.run("return document.querySelectorAll('h1').length") == 1, path
        backgrounds[dark] = chromium.run("return getComputedStyle(document.body).backgroundColor")
    noise = [text for text in chromium.complaints() if "/nothing" not in text]  # a browser tells of every 404
    assert noise == []
    assert backgrounds[True] != backgrounds[False]


def test_everything_can_be_reached_by_keyboard_and_has_a_name(chromium: Browser, rig: Rig) -> None:
    chromium.look()
    for path in PAGES:
        chromium.open(rig.location + path)
        nameless = chromium.run(
            """return [...document.querySelectorAll('a, button, summary, input:not([type=hidden]), [role=region], nav')]
            .filter(part => !(part.textContent.trim() || part.ariaLabel || part.labels?.length
              || part.getAttribute('aria-labelledby'))).map(part => part.outerHTML)"""
        )
        assert nameless == [], path
        assert chromium.run("return [...document.querySelectorAll('th')].every(cell => cell.scope)"), path
        ids = chromium.run("return [...document.querySelectorAll('[id]')].map(part => part.id)")
        assert len(ids) == len(set(ids)), path
    chromium.open(rig.location)
    chromium.run("document.getElementById('live').click(); document.body.focus()")  # held: nothing moves the focus
    seen = set()
    for _ in range(12):
        chromium.press("\ue004")  # tab
        outline = chromium.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        seen.add(chromium.run("return document.activeElement.textContent.trim()"))
    assert {"Skip to content", "sparkport", "Running", "Tables", "Settings", "End job"} <= seen


def test_a_script_in_a_cell_is_a_text(chromium: Browser, rig: Rig) -> None:
    chromium.look()
    chromium.open(f"{rig.location}{USERS}&show=rows")
    assert HOSTILE in chromium.text
    assert chromium.run("return document.scripts.length") == 1


def test_the_buttons_work(chromium: Browser, rig: Rig) -> None:
    chromium.look()
    chromium.complaints()
    with (
        connect(rig.server.location, catalog="lake") as client,
        suppress(FailedPrecondition),  # the end of the block would commit
        client.transaction() as transaction,
    ):
        transaction.insert("hr.pay", ROWS)
        chromium.open(rig.location)
        assert transaction.id[:8] in chromium.text
        chromium.confirm(f"#end-tx-{transaction.id}")
        chromium.wait_for("The transaction was rolled back.")
        assert transaction.id[:8] not in chromium.text
        assert transaction.status().value == "aborted"
    chromium.confirm("#end-job-job1")
    chromium.wait_for("The job is being ended.")
    assert rig.jobs.ended == ["the job was ended by 'anonymous'"]
    chromium.open(rig.location + USERS)
    chromium.click("#maintain")
    chromium.wait_for("Maintenance has begun.")
    chromium.wait_for("12 small files put together")  # the page looks again by itself
    assert rig.maintained == [{"catalog_name": "lake", "schema_name": "public", "table_name": "users"}]
    chromium.open(f"{rig.location}/journal")
    chromium.click("#flush")
    chromium.wait_for("The journal is being flushed.")
    chromium.wait_for("7 rows published")
    assert "Nothing waits." in chromium.text
    assert chromium.complaints() == []


def test_the_first_page_follows_what_happens_and_can_be_held(chromium: Browser, rig: Rig) -> None:
    chromium.look()
    chromium.complaints()
    chromium.open(rig.location)
    assert "merge" in chromium.text
    rig.jobs.jobs = []
    chromium.wait_for("Spark has nothing to do.")
    chromium.click("#live")
    chromium.wait_for("Paused")
    assert chromium.complaints() == []


def test_a_caller_logs_in_sees_what_it_may_and_logs_out(chromium: Browser) -> None:
    chromium.look()
    with serving_console(authenticator=TOKENS, authorizer=RULES) as rig:
        chromium.open(f"{rig.location}/tables")
        chromium.complaints()
        assert "Log in" in chromium.text
        chromium.write("#token", "wrong")
        chromium.click("form button")
        chromium.wait_for("That token is not valid.")
        chromium.write("#token", "reader-token")
        chromium.click("form button")
        chromium.wait_for("1 table, ")
        assert "users" in chromium.text
        assert "pay" not in chromium.text
        cookies = {cookie["name"]: cookie for cookie in chromium.driver.get_cookies()}
        (session,) = [cookie for name, cookie in cookies.items() if "session" in name]
        assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
        assert chromium.run("return document.cookie") == ""
        for path in ("/", "/maintenance", "/journal", USERS):
            chromium.open(rig.location + path)
            assert [part.text for part in chromium.all("main form[method=post] button")] == []
        chromium.complaints()
        chromium.open(f"{rig.location}/settings")
        assert "may not see the settings" in chromium.text
        chromium.open(rig.location)
        chromium.click(".who button")
        chromium.wait_for("Log in")
        chromium.open(rig.location)
        assert "Log in" in chromium.text


def test_it_works_without_script(rig: Rig) -> None:
    with browser(script=False) as plain:
        plain.look()
        plain.open(rig.location + USERS)
        plain.click("#maintain")
        plain.wait_for("Maintenance has begun.")
        plain.wait_for("12 small files put together")
        plain.open(rig.location)
        plain.confirm("#end-job-job1")
        plain.wait_for("The job is being ended.")
    assert len(rig.jobs.ended) == 1
