"""What ``tx.transactions`` tells of others' transactions."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sparkport.auth.identity import Identity
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.transaction import Isolation, OpenTransaction
from sparkport.transactions.functions import TransactionSchema

pytestmark = pytest.mark.tier("fast")

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def listed(subject: str, *tables: str) -> dict[str, Any]:
    """A transaction of Bob's with five changed rows in these tables, as somebody sees it who sees ``public.part`` in
    part, and nothing of the schema ``hr``."""
    item = OpenTransaction(
        id="1",
        owner="bob",
        isolation=Isolation.SNAPSHOT,
        begun=NOW,
        last_used=NOW,
        changed_tables=tables,
        changed_rows=5,
    )
    manager: Any = SimpleNamespace(open_transactions=lambda: [item])

    def sees(ctx: CallContext, schema: str, name: str) -> bool:
        return schema != "hr"

    def sees_whole(ctx: CallContext, schema: str, name: str) -> bool:
        return sees(ctx, schema, name) and name != "part"

    def nothing(value: object) -> None:
        return None

    made = TransactionSchema(manager, may_use=nothing, sees=sees, sees_whole=sees_whole, commit=nothing, ended=nothing)
    ctx = CallContext(identity=Identity(subject))
    (table,) = made.tables(ctx)
    (batch,) = as_scan(table.scan(ctx, ScanRequest()))
    (row,) = batch.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("tables", "named", "rows"),
    [
        (["public.t"], ["public.t"], 5),
        (["public.part"], ["public.part"], None),
        (["public.part", "public.t"], ["public.part", "public.t"], None),
        (["hr.pay"], [], None),
        (["hr.pay", "public.t"], ["public.t"], None),
        (["t"], ["t"], None),  # of which schema is not said
    ],
)
def test_of_others_changes_only_those_of_tables_that_are_seen_whole_are_counted(
    tables: list[str], named: list[str], rows: int | None
) -> None:
    seen = listed("ada", *tables)
    assert (seen["changed_tables"], seen["changed_rows"]) == (named, rows)


@pytest.mark.parametrize("table", ["public.t", "public.part", "hr.pay", "t"])
def test_the_owner_is_told_of_all_of_its_own(table: str) -> None:
    seen = listed("bob", table)
    assert (seen["changed_tables"], seen["changed_rows"]) == ([table], 5)
