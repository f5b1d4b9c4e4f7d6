"""Defaults as expressions: for how long they have the same value."""

from __future__ import annotations

import pytest

from sparkport.catalog.defaults import Steadiness, steadiness

pytestmark = pytest.mark.tier("fast")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("5", Steadiness.ALWAYS),
        ("-5 + 2 * 3", Steadiness.ALWAYS),
        ("'now()'", Steadiness.ALWAYS),
        ("DATE '2020-01-01' + INTERVAL 1 DAY", Steadiness.ALWAYS),
        ("[1, 2]", Steadiness.ALWAYS),
        ("NOW()", Steadiness.IN_ONE_STATEMENT),
        ("current_timestamp", Steadiness.IN_ONE_STATEMENT),
        ("CURRENT_DATE + 1", Steadiness.IN_ONE_STATEMENT),
        ("year(today())", Steadiness.IN_ONE_STATEMENT),
        ("random()", Steadiness.NEVER),
        ("now() + INTERVAL 1 DAY * random()", Steadiness.NEVER),
        ("CAST(gen_random_uuid() AS VARCHAR)", Steadiness.NEVER),
        ("list_transform([1], lambda x: x + random())", Steadiness.NEVER),
        ("nextval('numbers')", Steadiness.NEVER),
        ("not sql at all", Steadiness.NEVER),
    ],
)
def test_an_expression_is_as_steady_as_its_least_steady_part(expression: str, expected: Steadiness) -> None:
    assert steadiness(expression) is expected
