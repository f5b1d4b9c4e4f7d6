"""``sparkport rules test``: what it shows is what a server with these rules would show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparkport.app import Server
from sparkport.auth import AllowAll, Secret, StaticTokens
from sparkport.cli.main import main
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

RULES = """
[[rules]]
roles = "clerk"
operations = ["read", "update"]
resources = "lake.public.people"
rows = "region = $claim.region"
columns.ssn = "'***-' || right(ssn, 4)"
columns.pay = "hidden"

[[rules]]
subjects = "bob"
operations = "*"
resources = "lake.public.misfit"
rows = "nothing = 1"

[[rules]]
subjects = "bob"
operations = "read"
resources = "lake.public.plain"
"""
PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "region": ["US", "EU", "EU"],
        "ssn": ["123-45-6789", "987-65-4321", "555-44-3333"],
        "pay": pa.array([1, 2, 3], pa.int64()),
    }
)


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    return str(file)


@pytest.fixture
def server() -> Iterator[Server]:
    catalog = MemoryCatalog("lake")
    for name in ("people", "misfit", "plain", "unseen"):
        catalog.create_table(f"public.{name}", PEOPLE.schema, rows=PEOPLE)
    tokens = StaticTokens({Secret("admin-token"): "admin"})
    with serving(catalog, authenticator=tokens, authorizer=AllowAll()) as running:
        yield running


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["rules", "test", *arguments], {"SPARKPORT_TOKEN": "admin-token"}) == 0
    return capsys.readouterr().out.splitlines()


def test_tables_columns_and_rows_are_shown_as_somebody_sees_them(
    server: Server, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ("--as", "alice", "--role", "clerk", "--claim", "region=EU")
    assert shown(capsys, "--rules", rules, *who, "--location", server.location) == [
        "lake.public.people: read, update",
        "  rows: region = $claim.region",
        "  id int64",
        "  region string",
        "  ssn string: '***-' || right(ssn, 4)",
        "  pay int64: hidden",
        '  {"id": 2, "region": "EU", "ssn": "***-4321"}',
        '  {"id": 3, "region": "EU", "ssn": "***-3333"}',
    ]


def test_what_does_not_fit_and_what_is_whole_is_told(
    server: Server, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "--rules", rules, "--as", "bob", "--location", server.location, "--rows", "1")
    assert lines == [
        "lake.public.misfit: nothing, because no rule about its rows and columns fits it, or claims are missing",
        "lake.public.plain: read",
        "  id int64",
        "  region string",
        "  ssn string",
        "  pay int64",
        '  {"id": 1, "region": "US", "ssn": "123-45-6789", "pay": 1}',
    ]
    unseen = shown(capsys, "--rules", rules, "--as", "bob", "--location", server.location, "public.unseen")
    assert unseen == ["lake.public.unseen: is not seen"]


def test_without_a_server_the_rules_are_shown(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--rules", rules, "--as", "carl", "--role", "clerk", "lake.public.people") == [
        "rule 1: read, update on lake.public.people",
        "  rows: region = $claim.region",
        "  ssn: '***-' || right(ssn, 4)",
        "  pay: hidden",
        "  gives nothing: a claim that it needs is missing, or of no use there",
    ]
    assert shown(capsys, "--rules", rules, "--as", "nobody") == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--as", "bob"], "there are no rules"),
        (["--as", "bob", "--rules", "{rules}", "--claim", "region"], "'region' is no claim"),
        (["--as", "bob", "--rules", "{rules}", "people"], "three parts"),
        (["--as", "bob", "--rules", "{rules}.not"], "cannot be read"),
        (["--as", "bob", "--rules", "{rules}", "--location", "{location}", "public.none"], "not found"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    server: Server, rules: str, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    given = [item.format(rules=rules, location=server.location) for item in arguments]
    assert main(["rules", "test", *given], {"SPARKPORT_TOKEN": "admin-token"}) != 0
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
