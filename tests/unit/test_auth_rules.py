"""What rules allow, what they hide, and how a refusal reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sparkport.auth import AllowAll, Authorizer, Identity, Operation, Resource, RuleAuthorizer
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, SparkportError

pytestmark = pytest.mark.tier("fast")

RULES = """
[[rules]]
subjects = "admin"
operations = "*"
resources = "*"

[[rules]]
subjects = ["alice", "team-*"]
operations = ["read", "INSERT"]
resources = ["lake.sales.*", "lake.main.ev*s"]

[[rules]]
subjects = "bob"
operations = ["create", "drop", "read"]
resources = "lake.scratch"

[[rules]]
subjects = "carol"
operations = ["action"]
resources = "lake.*.refresh"

[[rules]]
subjects = "*"
operations = "call"
resources = "lake.public.*"
"""

O = Operation  # noqa: E741


@pytest.fixture
def rules() -> Authorizer:
    return RuleAuthorizer.from_table(tomllib.loads(RULES))


def resource(text: str) -> Resource:
    return Resource(*text.split("."))


@pytest.mark.parametrize(
    ("subject", "operation", "where", "allowed"),
    [
        ("admin", O.DROP, "lake", True),
        ("admin", O.READ, "other.x.y", True),
        ("alice", O.READ, "lake.sales.orders", True),
        ("alice", O.READ, "LAKE.Sales.ORDERS", True),
        ("Alice", O.READ, "lake.sales.orders", False),
        ("team-blue", O.INSERT, "lake.sales.orders", True),
        ("xteam-blue", O.INSERT, "lake.sales.orders", False),
        ("alice", O.UPDATE, "lake.sales.orders", False),
        ("alice", O.DROP, "lake.sales", False),
        ("alice", O.READ, "lake.main.events", True),
        ("alice", O.READ, "lake.main.event", False),
        ("alice", O.READ, "other.sales.orders", False),
        ("bob", O.CREATE, "lake.scratch", True),
        ("bob", O.CREATE, "lake.scratch.t", True),
        ("bob", O.CREATE, "lake.scratch2", False),
        ("bob", O.CREATE, "lake", False),
        ("nobody", O.CALL, "lake.public.f", True),
        ("nobody", O.READ, "lake.public.f", False),
    ],
)
def test_a_rule_allows_what_it_names_and_no_more(
    rules: Authorizer, subject: str, operation: Operation, where: str, allowed: bool
) -> None:
    assert rules.allows(Identity(subject), operation, resource(where)) is allowed


@pytest.mark.parametrize("operation", [O.LIST, O.TRANSACTION])
@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        ("lake", True),
        ("lake.sales", True),
        ("lake.sales.orders", True),
        ("lake.main", True),
        ("lake.main.events", True),
        ("lake.main.salaries", False),
        ("lake.scratch", False),
        ("other", False),
    ],
)
def test_listing_follows_from_any_rule_for_the_thing_or_what_encloses_it(
    rules: Authorizer, operation: Operation, where: str, allowed: bool
) -> None:
    assert rules.allows(Identity("alice"), operation, resource(where)) is allowed


def test_an_action_is_named_without_a_schema(rules: Authorizer) -> None:
    assert rules.allows(Identity("carol"), O.ACTION, Resource("lake", None, "refresh"))
    assert not rules.allows(Identity("carol"), O.ACTION, Resource("lake", None, "vacuum"))
    assert not rules.allows(Identity("bob"), O.ACTION, Resource("lake", None, "refresh"))


def test_names_with_dots_and_newlines_are_matched_by_part_and_not_as_text(rules: Authorizer) -> None:
    assert rules.allows(Identity("alice"), O.READ, Resource("lake", "sales", "a.b\nc"))
    assert not rules.allows(Identity("alice"), O.READ, Resource("lake.sales", "x", "orders"))
    assert not rules.allows(Identity("alice"), O.READ, Resource("lake", "main", "evilXs\n.x"))


def test_signs_other_than_the_star_have_no_meaning_in_patterns() -> None:
    table = {"rules": [{"subjects": "a.b", "operations": "read", "resources": "l+.[x].?"}]}
    rules = RuleAuthorizer.from_table(table)
    assert rules.allows(Identity("a.b"), O.READ, Resource("l+", "[x]", "?"))
    assert not rules.allows(Identity("aXb"), O.READ, Resource("l+", "[x]", "?"))
    assert not rules.allows(Identity("a.b"), O.READ, Resource("ll", "x", "t"))


def test_no_rules_allow_nothing() -> None:
    rules = RuleAuthorizer.from_table({})
    assert not any(rules.allows(Identity("admin"), operation, Resource("lake")) for operation in Operation)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"rule": []}, "'rule'"),
        ({"rules": "all"}, "array of tables"),
        ({"rules": ["all"]}, "rule 1"),
        ({"rules": [{"subjects": "a", "operations": "read"}]}, "'resources'"),
        ({"rules": [{"subjects": [], "operations": "read", "resources": "l"}]}, "'subjects'"),
        ({"rules": [{"subjects": [1], "operations": "read", "resources": "l"}]}, "'subjects'"),
        ({"rules": [{"subjects": "a", "operations": "reed", "resources": "l"}]}, "'reed'"),
        ({"rules": [{"subjects": "a", "operations": "read", "resources": "a.b.c.d"}]}, "'a.b.c.d'"),
        ({"rules": [{"subjects": "a", "operations": "read", "resources": "a..c"}]}, "'a..c'"),
        ({"rules": [{"subjects": "a", "operations": "read", "resources": "l", "deny": True}]}, "'deny'"),
        (
            {"rules": [{"subjects": "a", "operations": "list", "resources": "l", "columns": {"pay": "hidden"}}]},
            "gives rights to rows",
        ),
        (
            {"rules": [{"subjects": "a", "operations": ["list", "transaction"], "resources": "l", "rows": "true"}]},
            "gives rights to rows",
        ),
    ],
)
def test_a_broken_rule_is_refused_and_named(table: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        RuleAuthorizer.from_table(table)
    assert named in failure.value.message


@pytest.mark.parametrize(
    ("operation", "where", "kind", "message"),
    [
        (O.UPDATE, "lake.sales.orders", PermissionDenied, "'alice' may not update 'lake.sales.orders'"),
        (O.DROP, "lake.sales", PermissionDenied, "'alice' may not drop 'lake.sales'"),
        (O.READ, "lake.main.salaries", NotFound, "table 'main.salaries' not found"),
        (O.CALL, "lake.main.f", NotFound, "function 'main.f' not found"),
        (O.READ, "lake.hr.salaries", NotFound, "schema 'hr' not found"),
        (O.READ, "other.hr.salaries", NotFound, "catalog 'other' not found"),
        (O.CREATE, "lake.main.new", PermissionDenied, "'alice' may not create 'lake.main.new'"),
        (O.CREATE, "lake.hr.new", NotFound, "schema 'hr' not found"),
        (O.CREATE, "lake.new", PermissionDenied, "'alice' may not create 'lake.new'"),
    ],
)
def test_what_may_not_be_seen_is_not_found_and_the_rest_is_denied(
    rules: Authorizer, operation: Operation, where: str, kind: type[SparkportError], message: str
) -> None:
    with pytest.raises(kind) as failure:
        rules.require(Identity("alice"), operation, resource(where))
    assert failure.value.message == message


def test_an_action_or_transaction_that_is_not_allowed_is_denied(rules: Authorizer) -> None:
    with pytest.raises(PermissionDenied):
        rules.require(Identity("alice"), O.ACTION, Resource("lake", None, "refresh"))
    with pytest.raises(PermissionDenied):
        rules.require(Identity("alice"), O.TRANSACTION, Resource("other"))


def test_what_is_allowed_passes() -> None:
    for operation in Operation:
        assert AllowAll(spark_sql=True).allows(Identity("x"), operation, Resource("lake"))
        AllowAll(spark_sql=True).require(Identity("x"), operation, Resource("lake", "main", "t"))
        is_named = operation is Operation.SPARK_SQL
        assert AllowAll().allows(Identity("x"), operation, Resource("lake")) is not is_named


def test_queries_on_spark_are_a_right_that_has_to_be_named() -> None:
    sql = Resource("lake", "spark", "sql")
    for operations in ("*", ["*"], ["read", "call", "action", "alter"]):
        table = {"rules": [{"subjects": "ada", "operations": operations, "resources": "*"}]}
        assert not RuleAuthorizer.from_table(table).allows(Identity("ada"), Operation.SPARK_SQL, sql)
    named = RuleAuthorizer.from_table(
        {"rules": [{"subjects": "ada", "operations": ["*", "spark_sql"], "resources": "lake"}]}
    )
    assert named.allows(Identity("ada"), Operation.SPARK_SQL, sql)
    assert named.allows(Identity("ada"), Operation.ALTER, Resource("lake", "public", "users"))
    assert not named.allows(Identity("bob"), Operation.SPARK_SQL, sql)


def test_rules_are_read_again_when_their_file_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, now, alice = tmp_path / "rules.toml", [0.0], Identity("alice")
    path.write_text(RULES)
    rules = RuleAuthorizer.from_file(path, clock=lambda: now[0])

    def may_read() -> bool:
        now[0] += 2
        return rules.allows(alice, O.READ, resource("lake.sales.orders"))

    assert may_read()
    path.write_text('[[rules]]\nsubjects = "alice"\noperations = "write"\nresources = "lake"\n')
    assert may_read(), "a broken file leaves the rules as they were"
    assert may_read()
    (said,) = caplog.records
    assert "there is no operation 'write'" in said.message
    path.unlink()
    assert may_read()
    path.write_text('[[rules]]\nsubjects = "bob"\noperations = "read"\nresources = "lake"\n')
    assert not may_read()


def test_a_file_of_rules_that_is_broken_at_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[[rules]")
    with pytest.raises(InvalidArgument, match="is not TOML"):
        RuleAuthorizer.from_file(path)
