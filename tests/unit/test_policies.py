"""What several rules come to for one caller, and which rules are refused when they are read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkport.auth import Identity, Operation, Resource, RuleAuthorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.static import ArrowTable
from sparkport.errors import InvalidArgument, PermissionDenied
from sparkport.policies.guard import GuardedTable, guarded

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "region": ["EU", "US", "ASIA"],
        "pay": pa.array([10, 20, 30], pa.int32()),
    }
)
TABLE = Resource("lake", "public", "people")
ALICE = Identity("alice", {"region": "EU", "roles": ["analyst"]})


def rules(text: str) -> RuleAuthorizer:
    return RuleAuthorizer.from_table(tomllib.loads(text))


def rule(**keys: str) -> str:
    usual = {"subjects": "'alice'", "operations": "'read'", "resources": "'lake.public.people'"}
    lines = {key.replace("__", "."): value for key, value in {**usual, **keys}.items() if value}
    return "[[rules]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


def seen(text: str, identity: Identity = ALICE) -> list[dict[str, Any]]:
    authorizer = rules(text)
    assert authorizer.allows(identity, Operation.READ, TABLE)
    policy = authorizer.policy(identity, TABLE)
    table = ArrowTable("people", ROWS)
    if policy is None:
        return list(ROWS.to_pylist())
    limited = guarded(table, policy)
    found = as_scan(limited.scan(CallContext(), ScanRequest()))
    return [row for batch in found for row in batch.to_pylist()]


EU = rule(rows="\"region = 'EU'\"", columns__pay="'hidden'")
US = rule(rows="\"region = 'US'\"")
ALL_MASKED = rule(columns__pay="'0'")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (EU, [{"id": 1, "region": "EU"}]),
        # A value is seen where a rule that gives its row shows the column.
        (EU + US, [{"id": 1, "region": "EU", "pay": None}, {"id": 2, "region": "US", "pay": 20}]),
        (
            ALL_MASKED + US,
            [
                {"id": 1, "region": "EU", "pay": 0},
                {"id": 2, "region": "US", "pay": 20},
                {"id": 3, "region": "ASIA", "pay": 0},
            ],
        ),
        # The first mask that a rule gives for the row counts; a mask is more than nothing.
        (
            EU + ALL_MASKED + rule(columns__pay="'1'"),
            [
                {"id": 1, "region": "EU", "pay": 0},
                {"id": 2, "region": "US", "pay": 0},
                {"id": 3, "region": "ASIA", "pay": 0},
            ],
        ),
        # One without limits lifts those of all others.
        (EU + rule(), ROWS.to_pylist()),
        # The limits of one operation say nothing of another.
        (rule() + rule(operations="'update'", rows="'false'"), ROWS.to_pylist()),
        (EU + rule(operations="['update', 'delete']"), [{"id": 1, "region": "EU"}]),
        (rule(rows="'region = $claim.region'"), [ROWS.to_pylist()[0]]),
        (rule(rows="\"$claim.sub = 'alice' AND id > 2\""), [ROWS.to_pylist()[2]]),
        # A rule whose claim is missing gives nothing, and takes nothing from others.
        (rule(rows="'region = $claim.country'") + US, [ROWS.to_pylist()[1]]),
        # Nor does one that does not fit the table.
        (rule(rows="'country = 1'") + US, [ROWS.to_pylist()[1]]),
        (rule(columns__country="'hidden'") + US, [ROWS.to_pylist()[1]]),
        (rule(rows="'id'") + US, [ROWS.to_pylist()[1]]),
        (rule(columns__pay="'nothing + 1'") + US, [ROWS.to_pylist()[1]]),
        (rule(rows="'false'"), []),
        (rule(subjects="", roles="'analyst'", rows="'id = 2'"), [ROWS.to_pylist()[1]]),
        ("[roles]\nclerk = ['ali*']\n" + rule(subjects="", roles="'clerk'", rows="'id = 2'"), [ROWS.to_pylist()[1]]),
        (
            rule(columns__pay="'CAST(round(pay, -2) AS INTEGER)'", rows="'id = 1'"),
            [{"id": 1, "region": "EU", "pay": 0}],
        ),
        (rule(columns__PAY="'NULL'", rows="'ID = 1'"), [{"id": 1, "region": "EU", "pay": None}]),
    ],
)
def test_rules_add_up(text: str, rows: list[dict[str, Any]]) -> None:
    assert seen(text) == rows


@pytest.mark.parametrize(
    "text", [rule(rows="'region = $claim.country'"), rule(rows="'nothing = 1'"), rule(columns__rowid="'hidden'")]
)
def test_where_no_rule_fits_nothing_is_given(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PermissionDenied, match="no rule about its rows and columns gives the right to read"):
        seen(text)
    assert "rule 1" in caplog.text


def test_a_role_is_no_subject() -> None:
    authorizer = rules(rule(subjects="", roles="'analyst'"))
    assert authorizer.allows(ALICE, Operation.READ, TABLE)
    assert not authorizer.allows(Identity("analyst"), Operation.READ, TABLE)
    assert not authorizer.allows(Identity("bob", {"roles": "Analyst"}), Operation.READ, TABLE)
    assert authorizer.allows(Identity("bob", {"roles": "analyst"}), Operation.READ, TABLE)
    assert not authorizer.allows(Identity("bob", {"roles": {"analyst": True}}), Operation.READ, TABLE)


def test_all_operations_of_a_limited_rule_are_those_on_rows() -> None:
    authorizer = rules(rule(operations="'*'", rows="'true'", resources="'lake'"))
    allowed = {item for item in Operation if authorizer.allows(ALICE, item, TABLE)}
    assert allowed == {
        Operation.LIST,
        Operation.TRANSACTION,
        Operation.READ,
        Operation.INSERT,
        Operation.UPDATE,
        Operation.DELETE,
    }
    assert not authorizer.allows(ALICE, Operation.ACTION, Resource("lake", None, "maintain"))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"rows": "''"}, "rule 1: 'rows' must be an SQL expression"),
        ({"rows": "5"}, "rule 1: 'rows' must be an SQL expression"),
        ({"rows": "'random() > 1'"}, "rule 1: 'rows' cannot be used: the function random"),
        ({"columns": "'ssn'"}, "rule 1: 'columns' must be a table"),
        ({"columns__pay": "'Hidden('"}, r"rule 1: 'columns.pay' cannot be used"),
        ({"columns__pay": "'0'", "columns__PAY": "'1'"}, "column 'PAY' is given twice"),
        ({"new_rows": "'maybe'", "rows": "'true'"}, "'new_rows' must be 'seen' or 'any'"),
        ({"rows": "'true'", "operations": "['read', 'alter']"}, "rule 1: a rule with rows or columns .* not alter"),
        ({"columns__a": "'hidden'", "operations": "'action'"}, "not action"),
        ({"row": "'true'"}, "unknown key 'row'"),
        ({"subjects": ""}, "'subjects' must be"),
    ],
)
def test_a_rule_with_something_wrong_is_refused_when_it_is_read(keys: Mapping[str, str], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        rules(rule(**keys))


def test_a_broken_file_keeps_the_limits_that_there_were(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    file = tmp_path / "rules.toml"
    file.write_text(EU)
    authorizer = RuleAuthorizer.from_file(file, clock=lambda: now)
    before = authorizer.policy(ALICE, TABLE)
    assert before is not None
    generation = authorizer.generation
    file.write_text(rule(rows="'random() > 1'") + "# longer than before, and wrong\n")
    now += 5
    assert authorizer.policy(ALICE, TABLE) == before
    assert "stays in use" in caplog.text
    assert "random" in caplog.text
    file.write_text(US)
    now += 5
    assert authorizer.policy(ALICE, TABLE) != before
    assert authorizer.generation != generation


def test_a_table_of_ones_own_is_guarded_without_abilities_that_nobody_holds_within_limits() -> None:
    policy = rules(EU).policy(ALICE, TABLE)
    assert policy is not None
    table = guarded(ArrowTable("people", ROWS), policy)
    assert type(table).__mro__[1] is GuardedTable
    assert table.row_count(CallContext()) is None
    assert table.schema.names == ["id", "region"]
