"""Fixed tokens: where they come from, when they are read again, and what a broken list says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkport.auth import Peer, Secret, StaticTokens
from sparkport.errors import InvalidArgument, Unauthenticated

pytestmark = pytest.mark.tier("fast")

PEER = Peer("ipv4:127.0.0.1:1")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, text: str) -> Path:
    """Replaced as an editor does it: a new file under the old name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, path)
    return path


def who(tokens: StaticTokens, token: str) -> str | None:
    try:
        return tokens.authenticate(Secret(token), PEER).subject
    except Unauthenticated:
        return None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def test_a_file_has_named_tokens_and_tokens_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "# who may come in\n\nalice: tok-a\nbob:tok-b==\n  tok-c  \nalice: tok-a2\n")
    tokens = StaticTokens.from_file(path)
    assert [who(tokens, t) for t in ("tok-a", "tok-b==", "tok-c", "tok-a2")] == ["alice", "bob", "user", "alice"]
    assert [who(tokens, t) for t in ("tok", "alice", "TOK-A", "tok-a ", "# who may come in", "\ud800")] == [None] * 6
    assert caplog.messages == []


@pytest.mark.parametrize("token", [None, Secret("")])
def test_a_call_without_a_token_is_told_that_one_is_required(token: Secret | None) -> None:
    with pytest.raises(Unauthenticated, match="a bearer token is required"):
        StaticTokens({Secret("t"): "alice"}).authenticate(token, PEER)


@pytest.mark.parametrize(
    "text",
    ["alice: tok-first\n: tok-secret\n", "\nalice:\n", "# c\nalice: tok-secret twice", "a: tok-secret\nb: tok-secret"],
)
def test_a_broken_file_is_refused_by_line_and_without_the_token(path: Path, text: str) -> None:
    write(path, text)
    with pytest.raises(InvalidArgument, match="line 2") as failure:
        StaticTokens.from_file(path)
    assert "tok-" not in failure.value.message


def test_a_missing_or_binary_file_is_refused(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        StaticTokens.from_file(path)
    path.write_bytes(b"alice: \xff\xfe")
    with pytest.raises(InvalidArgument, match="not UTF-8") as failure:
        StaticTokens.from_file(path)
    assert failure.value.__context__ is None


def test_a_file_that_everybody_can_read_is_warned_about(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "alice: tok-a").chmod(0o644)
    StaticTokens.from_file(path)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "mode 600" in caplog.text


def test_an_empty_file_lets_nobody_in_and_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "# nobody yet\n")
    assert who(StaticTokens.from_file(path), "x") is None
    assert "nobody can log in" in caplog.text


def test_a_changed_file_is_read_again_but_at_most_once_a_second(path: Path) -> None:
    clock = Clock()
    tokens = StaticTokens.from_file(write(path, "alice: old"), clock=clock)
    write(path, "alice: new")
    clock.now += 0.5
    assert (who(tokens, "old"), who(tokens, "new")) == ("alice", None)
    clock.now += 0.6
    assert (who(tokens, "old"), who(tokens, "new")) == (None, "alice")


def test_a_file_that_breaks_or_vanishes_leaves_the_last_good_tokens(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    tokens = StaticTokens.from_file(write(path, "alice: good"), clock=clock)
    write(path, "alice: bad token")
    for _ in range(3):
        clock.now += 2
        assert who(tokens, "good") == "alice"
    assert len(caplog.records) == 1
    assert "line 1" in caplog.text
    path.unlink()
    clock.now += 2
    assert who(tokens, "good") == "alice"
    assert len(caplog.records) == 2
    write(path, "alice: better")
    clock.now += 2
    assert (who(tokens, "good"), who(tokens, "better")) == (None, "alice")


def test_the_environment_names_many_tokens_or_one() -> None:
    tokens = StaticTokens.from_environment({"SPARKPORT_TOKENS": "alice=t1==, bob=t2,", "SPARKPORT_TOKEN": "t3\n"})
    assert tokens is not None
    assert [who(tokens, t) for t in ("t1==", "t2", "t3", "t1")] == ["alice", "bob", "user", None]


@pytest.mark.parametrize("environ", [{}, {"SPARKPORT_TOKEN": ""}, {"SPARKPORT_TOKENS": " , "}])
def test_an_environment_without_tokens_gives_nothing(environ: dict[str, str]) -> None:
    assert StaticTokens.from_environment(environ) is None


@pytest.mark.parametrize("value", ["a=t1,tok-secret", "a=t1,=tok-secret", "a=t1,b=", "a=tok-secret,b=tok-secret"])
def test_a_broken_environment_is_refused_by_entry_and_without_the_token(value: str) -> None:
    with pytest.raises(InvalidArgument, match="entry 2") as failure:
        StaticTokens.from_environment({"SPARKPORT_TOKENS": value})
    assert "tok-secret" not in failure.value.message
