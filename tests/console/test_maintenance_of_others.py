"""What came of maintenance that others have begun, and for whom that is to be seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.console.rig import ROWS, TOKENS, Past, serving_console

from sparkport.auth import RuleAuthorizer

pytestmark = pytest.mark.tier("fast")

PART = RuleAuthorizer.from_table(
    {
        "rules": [
            {"subjects": "admin", "operations": "*", "resources": "lake"},
            {"subjects": "reader", "operations": "read", "resources": "lake.public.users", "rows": "id = 1"},
        ]
    }
)
WHOLE = RuleAuthorizer.from_table(
    {
        "rules": [
            {"subjects": "admin", "operations": "*", "resources": "lake"},
            {"subjects": "reader", "operations": "read", "resources": "lake.public"},
        ]
    }
)


def wait_for(condition: Callable[[], bool]) -> None:
    ticking, until = threading.Event(), time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        ticking.wait(0.05)
    assert condition()


def test_what_came_of_maintenance_is_told_to_who_may_read_the_whole_table() -> None:
    with serving_console(Past("users", ROWS), authenticator=TOKENS, authorizer=PART) as rig:
        admin, place = rig.logged_in("admin-token"), "/table?catalog=lake&schema=public&name=users"
        admin.press("/tables", "/maintain", catalog="lake", schema="public", name="users")
        wait_for(lambda: "12 small files" in admin.get(place).text)
        reader = rig.logged_in("reader-token")
        for page in (place, "/", "/maintenance"):
            assert "12 small files" not in reader.get(page).text


def test_why_maintenance_failed_is_told_to_who_began_it() -> None:
    with serving_console(Past("broken", ROWS), authenticator=TOKENS, authorizer=WHOLE) as rig:
        admin, place = rig.logged_in("admin-token"), "/table?catalog=lake&schema=public&name=broken"
        admin.press("/tables", "/maintain", catalog="lake", schema="public", name="broken")
        wait_for(lambda: "row 4711" in admin.get(place).text)
        seen = rig.logged_in("reader-token").get(place).text
        assert "row 4711" not in seen
        assert "who began it is told why" in seen
