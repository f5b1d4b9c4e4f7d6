"""Masks and conditions over columns of many types; a masked value that comes back as it was shown changes nothing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.attacks.limited import limited

from sparkport.errors import PermissionDenied
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "number": [2.5, 1.5],
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "items": [[1, 2], None],
        "place": [{"town": "x", "code": 1}, {"town": "y", "code": 2}],
        "moment": pa.array([dt.datetime(2020, 5, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
        "data": [b"ab", b"cd"],
        "flag": [True, False],
        "kind": pa.array(["p", "q"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize(
    ("column", "mask", "shown"),
    [
        ("number", "number / 2 - 1", [0.25, -0.25]),
        ("price", "price / 2", [Decimal("0.75"), None]),
        ("items", "list_slice(items, 1, 1)", [[1], None]),
        ("place", "{'town': place.town, 'code': NULL}", [{"town": "x", "code": None}, {"town": "y", "code": None}]),
        ("moment", "date_trunc('year', moment)", [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None]),
        ("data", "'x'::BLOB", [b"x", b"x"]),
        ("flag", "NULL", [None, None]),
        ("kind", "upper(kind)", ["P", "Q"]),
    ],
)
def test_a_column_of_any_type_can_be_masked(column: str, mask: str, shown: list[object]) -> None:
    with limited(MemoryCatalog("lake"), people=ROWS, rows=None, columns={column: mask}) as place:
        seen = place.reader.scan(place.table, row_id=True).read_all()
        assert seen.column(column).to_pylist() == shown
        assert place.reader.update(place.table, seen, returning=True).count == 2
        assert place.all_rows() == ROWS.to_pylist()
        true_value = ROWS.column(column).slice(0, 1)
        changed = pa.table({column: true_value, "rowid": seen.column("rowid").slice(0, 1)})
        with pytest.raises(PermissionDenied, match="cannot be updated"):
            place.reader.update(place.table, changed)


@pytest.mark.parametrize(
    "condition",
    [
        "place.town = 'x'",
        "flag",
        "kind = 'p' AND number > 0",
        "list_contains(items, 2)",
        "price = 1.5",
        "moment < TIMESTAMPTZ '2021-01-01 00:00:00+00'",
        "data = 'ab'::BLOB",
        "id IN (1, 7)",
        "id BETWEEN -1 AND 1",
    ],
)
def test_a_condition_can_be_about_any_type(condition: str) -> None:
    with limited(MemoryCatalog("lake"), people=ROWS, rows=condition, columns=None) as place:
        assert place.reader.scan(place.table).read_all().to_pylist() == ROWS.to_pylist()[:1]
        assert place.reader.delete(place.table, list(place.ids().values())).count == 1
        assert [row["id"] for row in place.all_rows()] == [2]
