"""Rules that give a part of a table hold on pages, too."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.console.rig import TOKENS, Past, serving_console

from sparkport.auth import RuleAuthorizer

pytestmark = pytest.mark.tier("fast")

RULES = RuleAuthorizer.from_table(
    {
        "rules": [
            {"subjects": "admin", "operations": "*", "resources": "lake"},
            {
                "subjects": "reader",
                "operations": "read",
                "resources": "lake.public.users",
                "rows": "id = 1",
                "columns": {"name": "'masked'", "salary": "hidden"},
            },
            {"subjects": "reader", "operations": "action", "resources": "lake.*.console"},
        ]
    }
)
ROWS = pa.table({"id": [1, 2], "name": ["Ada", "Grace"], "salary": [11111, 22222]})


def test_a_caller_sees_the_rows_and_columns_that_rules_give_and_no_numbers_of_others() -> None:
    with serving_console(Past("users", ROWS), authenticator=TOKENS, authorizer=RULES) as rig:
        call = rig.server.calls.begin("DoGet", "ipv4:1.2.3.4:5")
        call.user, call.operation, call.catalog, call.table = "admin", "read", "lake", "public.users"
        call.rows_out = 98_765
        visitor, place = rig.logged_in("reader-token"), "/table?catalog=lake&schema=public&name=users"
        pages = [visitor.get(path) for path in (place, f"{place}&show=rows", f"{place}&show=history", "/", "/tables")]
        rig.server.calls.end(call)
        assert [page.status for page in pages] == [200] * 5
        assert "masked" in pages[1].text
        for page in pages:
            for words in ("Ada", "Grace", "11111", "22222", "salary", "12,000", "3.0 MB", "compaction", "98,765"):
                assert words not in page.text, words
        assert "98,765" not in rig.logged_in("reader-token").get("/slow").text
        assert "Grace" in rig.logged_in("admin-token").get(f"{place}&show=rows").text


def test_a_table_that_rules_do_not_fit_is_not_described() -> None:
    renamed = ROWS.rename_columns(["id", "full_name", "salary"])
    with serving_console(Past("users", renamed), authenticator=TOKENS, authorizer=RULES) as rig:
        visitor, place = rig.logged_in("reader-token"), "/table?catalog=lake&schema=public&name=users"
        for page in (visitor.get(path) for path in (place, f"{place}&show=rows", f"{place}&show=history")):
            assert page.status == 403
            for words in ("salary", "full_name", "Ada", "12,000"):
                assert words not in page.text, words
