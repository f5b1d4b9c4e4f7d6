"""Stored values under an older schema, as the table's columns are now."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkport.errors import Unsupported
from sparkport.lakehouse.columns.defaults import write_default
from sparkport.lakehouse.columns.older_rows import evolved, initial_values
from sparkport.lakehouse.columns.types import stored_type

pytestmark = pytest.mark.tier("fast")

UTC = dt.UTC


def field(kind: Any, default: Any = None, *, number: int = 1, name: str = "x") -> dict[str, Any]:
    made = {"id": number, "name": name, "required": False, "type": kind}
    return made if default is None else {**made, "initial-default": default}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("boolean", True, True),
        ("int", -7, -7),
        ("long", 2**40, 2**40),
        ("float", 0.1, 0.10000000149011612),
        ("double", 1e300, 1e300),
        ("decimal(9, 2)", "14.20", Decimal("14.20")),
        ("string", "it's ü", "it's ü"),
        ("string", "", ""),
        ("binary", "00FF", b"\x00\xff"),
        ("fixed[3]", "010203", b"\1\2\3"),
        ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("date", "1969-02-28", dt.date(1969, 2, 28)),
        ("time", "03:04:05.000006", dt.time(3, 4, 5, 6)),
        ("timestamp", "2020-01-02T03:04:05.000006", dt.datetime(2020, 1, 2, 3, 4, 5, 6)),
        ("timestamptz", "2020-01-02T03:04:05+00:00", dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_a_default_is_the_value_that_iceberg_wrote_down(kind: str, default: Any, value: Any) -> None:
    found = initial_values(field(kind, default), 2)
    assert found.type == stored_type(kind)
    assert found.to_pylist() == [value, value]


def test_what_has_no_default_is_null() -> None:
    assert initial_values(field("int"), 3).to_pylist() == [None, None, None]


@pytest.mark.parametrize(("kind", "default"), [("int", "no number"), ({"type": "struct", "fields": []}, {})])
def test_a_default_that_cannot_be_read_says_which_column_has_it(kind: Any, default: Any) -> None:
    with pytest.raises(Unsupported, match="column 'x'"):
        initial_values(field(kind, default), 1)


def test_fields_within_lists_and_maps_get_their_defaults_too() -> None:
    def struct(*fields: dict[str, Any]) -> dict[str, Any]:
        return {"type": "struct", "fields": list(fields)}

    old = struct(field("int", number=5, name="a"))
    new = struct(field("string", "new", number=6, name="b"), field("long", number=5, name="a"))
    items = [{"type": "list", "element-id": 2, "element": each, "element-required": False} for each in (old, new)]
    column = pa.array([[{"a": 1}, None], None, []], stored_type(items[0]))
    assert evolved(column, *items).to_pylist() == [[{"b": "new", "a": 1}, None], None, []]
    maps = [{"type": "map", "key-id": 2, "key": "string", "value-id": 3, "value": each} for each in (old, new)]
    column = pa.array([[("k", {"a": 1}), ("n", None)], None], stored_type(maps[0]))
    assert evolved(column, *maps).to_pylist() == [[("k", {"b": "new", "a": 1}), ("n", None)], None]


@pytest.mark.parametrize("default", ["['infinity'::TIMESTAMP]", "[NULL::TIMESTAMP]", "[TIMESTAMP '2020-01-01']"])
def test_a_list_of_whatever_moments_is_no_default_that_iceberg_has(default: str) -> None:
    column = pa.field("x", pa.list_(pa.timestamp("us")), metadata={"default": default})
    assert write_default(column, {"id": 1, "type": {"type": "list"}}) is None
