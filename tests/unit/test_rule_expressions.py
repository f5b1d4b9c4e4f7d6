"""Expressions of rules: what they may be, what claims become, and what of them a table can be told."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from sparkport.filters.expressions import And, Column, Comparison, In, Or
from sparkport.filters.predicates import lit
from sparkport.filters.rule_expressions import RuleRefused, parse_rule
from sparkport.policies.compute import Condition

pytestmark = pytest.mark.tier("fast")

ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "region": ["EU", "US", "EU-WEST", None],
        "note": ["a", "$claim.region", "c", "d"],
    }
)


def kept(text: str, claims: Mapping[str, object] | None = None) -> list[int]:
    bound = parse_rule(text).bound(claims or {})
    assert bound is not None
    mask = Condition("t", ROWS.schema, [bound]).mask(ROWS)
    ids: list[int] = ROWS.filter(mask).column("id").to_pylist()
    return ids


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "SELECT clause"),
        ("region = 'EU' OR (SELECT true)", "subquery"),
        ("region = 'EU'); DROP TABLE t; --", "one expression|syntax"),
        ("read_text('/etc/passwd') = ''", "read_text"),
        ("random() < 0.5", "random"),
        ("seen < now()", "now"),
        ("seen < current_date", "current_date"),
        ("getenv('HOME') = 'x'", "getenv"),
        ("getvariable('x') = 'x'", "getvariable"),
        ("error(region)", "error"),
        ("count(*) > 1", "count"),
        ("list_filter(l, lambda x: x > 1)", "lambda"),
        ("region = $1", "one expression"),
        ("region = $claim", "one expression"),
        ('region = "$claim.region"', "claim is written"),
        ("lower(region) = $$eu $claim.region $$", "inside of a text"),  # which "$$ OR true --" would end
        ("region = 'EU' /* $claim.region */", "a comment"),
        ("region = $claim.region -- $claim.region", "a comment"),
        (r"region = e'\' || $claim.region || '", "inside of a text"),
    ],
)
def test_an_expression_that_may_not_be_computed_is_refused_when_it_is_parsed(text: str, reason: str) -> None:
    with pytest.raises(RuleRefused, match=f"(?i){reason}"):
        parse_rule(text)


@pytest.mark.parametrize(
    "value", ["EU' OR true --", "x') OR ('' = '", "\\", 'EU" OR 1=1', "'; SELECT 1", "\n", "$claim.region", "é🦆"]
)
def test_a_claim_is_a_value_and_never_text(value: str) -> None:
    assert kept("region = $claim.region", {"region": value}) == []
    assert kept("region IN $claim.regions", {"regions": [value]}) == []
    rows = pa.record_batch({"region": [value]})
    bound = parse_rule("lower(region) = lower($claim.region)").bound({"region": value})
    assert bound is not None
    assert Condition("t", rows.schema, [bound]).mask(rows).to_pylist() == [True]


def test_claims_inside_of_quotes_are_text() -> None:
    assert kept("note = '$claim.region'") == [2]


@pytest.mark.parametrize(
    ("claims", "ids"),
    [
        ({"regions": ["EU", "US"]}, [1, 2]),
        ({"regions": ("US",)}, [2]),
        ({"regions": []}, []),
        ({"regions": "EU-WEST"}, [3]),  # and not every region that is a part of this text
    ],
)
@pytest.mark.parametrize(
    "text", ["region IN $claim.regions", "region in ( $claim.regions )", "upper(region) IN $claim.regions"]
)
def test_a_claim_can_be_a_list(text: str, claims: Mapping[str, object], ids: list[int]) -> None:
    assert kept(text, claims) == ids


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("region = $claim.region", {}),
        ("region = $claim.region", {"region": None}),
        ("region = $claim.region", {"Region": "EU"}),
        ("region = $claim.region", {"region": ["EU"]}),
        ("region = $claim.region", {"region": {"EU": 1}}),
        ("region IN $claim.regions", {"regions": ["EU", 1]}),
        ("region IN $claim.regions", {"regions": [None]}),
        ("region IN $claim.regions", {}),
        ("region = 'EU' OR region = $claim.region", {}),
    ],
)
def test_a_claim_that_is_missing_or_of_no_use_leaves_nothing(text: str, claims: Mapping[str, object]) -> None:
    assert parse_rule(text).bound(claims) is None


def test_null_gives_no_row() -> None:
    assert kept("region <> 'EU'") == [2, 3]
    assert kept("NOT (upper(region) = 'EU')") == [2, 3]
    assert kept("NULL") == []


@pytest.mark.parametrize(
    ("text", "pushed", "whole"),
    [
        ("region = 'EU'", Comparison("=", Column("region"), lit("EU")), True),
        ("'EU' = region", Comparison("=", lit("EU"), Column("region")), True),
        ("region IN ('EU', 'US')", In(Column("region"), (lit("EU"), lit("US"))), True),
        ("region = 'EU' AND lower(note) = 'a'", Comparison("=", Column("region"), lit("EU")), False),
        (
            "id > 1 OR id < -3",
            Or((Comparison(">", Column("id"), lit(1)), Comparison("<", Column("id"), lit(-3)))),
            True,
        ),
        ("region = 'EU' OR lower(note) = 'a'", None, False),
        ("NOT region = 'EU'", None, False),
        (
            "id >= 1 AND id <= 2",
            And((Comparison(">=", Column("id"), lit(1)), Comparison("<=", Column("id"), lit(2)))),
            True,
        ),
    ],
)
def test_what_tables_understand_of_a_condition_is_no_stronger(text: str, pushed: object, whole: bool) -> None:
    bound = parse_rule(text).bound({})
    assert bound is not None
    assert (bound.pushed, bound.is_all_pushed) == (pushed, whole)


def test_a_comparison_of_other_types_is_computed_and_not_pushed() -> None:
    bound = parse_rule("id = '2'").bound({})
    assert bound is not None
    condition = Condition("t", ROWS.schema, [bound])
    assert condition.pushed is None
    assert condition.mask(ROWS).to_pylist() == [False, True, False, False]
