"""A server that is asked for a backup makes it where its own settings allow, for who may ask, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lakehouse.small import checked, small_lake, to_new

from sparkport.app import Lakehouse, Server, lakehouse_actions
from sparkport.auth import Secret, StaticTokens
from sparkport.auth.rules import RuleAuthorizer
from sparkport.cli.main import main
from sparkport.client import connect
from sparkport.errors import InvalidArgument
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

TOKENS = StaticTokens({Secret("admin-token"): "admin", Secret("other-token"): "other"})
RULES = RuleAuthorizer.from_table(
    {
        "rules": [
            {"subjects": "admin", "operations": "*", "resources": "*"},
            {"subjects": "other", "operations": ["read", "action"], "resources": ["lake.public.*", "lake.*.maintain"]},
        ]
    }
)


@pytest.fixture
def settings(tmp_path: Path) -> LakehouseSettings:
    return small_lake(tmp_path / "warehouse", ("changes",))


@pytest.fixture
def server(settings: LakehouseSettings, tmp_path: Path) -> Iterator[Server]:
    """Its Spark is never started."""
    lakehouse = Lakehouse(replace(settings, backups=str(tmp_path / "backups")))
    try:
        actions = lakehouse_actions(lakehouse)
        with serving(lakehouse.catalog, authenticator=TOKENS, authorizer=RULES, actions=actions) as running:
            yield running
    finally:
        lakehouse.stop()


def ask(server: Server, target: Path | str, *more: str, who: str = "admin") -> int:
    return main(["backup", str(target), "--location", server.location, *more], {"SPARKPORT_TOKEN": f"{who}-token"})


def test_it_is_made_at_the_place_or_below(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(server, tmp_path / "backups" / "nightly") == 0
    assert ask(server, tmp_path / "backups" / "nightly", "--keep", "1") == 0
    told = capsys.readouterr()
    assert told.out.startswith("backup 1 of 1 table: ")
    assert "removed: 0 files that only backup 1 had" in told.out
    assert told.err == ""
    assert checked(to_new(tmp_path / "backups" / "nightly", tmp_path / "new"), deep=True).found == ()


@pytest.mark.parametrize("target", ["elsewhere", "backups/../elsewhere", "backupsx", "warehouse/x", "link/x", "/etc"])
def test_no_caller_has_it_written_anywhere_else(
    server: Server, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "link").symlink_to(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    place = tmp_path / "backups" / target if target == "link/x" else tmp_path / target
    assert ask(server, place) == 1
    assert "backups" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_who_may_not_ask_is_refused(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(server, tmp_path / "backups", who="other") == 1
    assert not (tmp_path / "backups").exists()
    assert "may not action" in capsys.readouterr().err


def test_without_the_setting_there_is_none(
    settings: LakehouseSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehouse = Lakehouse(settings)
    try:
        with serving(lakehouse.catalog, actions=lakehouse_actions(lakehouse)) as server:
            assert ask(server, tmp_path / "backups") == 1
            with connect(server.location) as client, pytest.raises(InvalidArgument, match="keep"):
                client.action("backup", json.dumps({"keep": True}).encode())
    finally:
        lakehouse.stop()
    assert "set 'backups'" in capsys.readouterr().err
    assert not (tmp_path / "backups").exists()
