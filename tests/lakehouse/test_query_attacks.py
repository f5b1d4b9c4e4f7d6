"""What callers with the right to run queries try: to hold the server or its Spark, and to learn what is not theirs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkport.lakehouse.query.columns import arrow_schema

pytestmark = pytest.mark.timeout(600)


def test_a_query_with_any_number_of_columns_of_one_name_does_not_hold_the_server() -> None:
    count = 200_000  # to compare each with all before it would take hours
    number = SimpleNamespace(simpleString=lambda: "int")
    columns = [SimpleNamespace(name=name, dataType=number) for name in ("X", "x_2", *["x"] * count)]
    named = arrow_schema(columns).names
    assert named[:5] == ["X", "x_2", "x_1", "x_3", "x_4"]
    assert len({name.casefold() for name in named}) == count + 2
