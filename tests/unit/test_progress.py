"""Progress on a terminal, and silence anywhere else."""

from __future__ import annotations

import io
import sys

import pytest

from sparkport.cli.progress import Progress, in_words

pytestmark = pytest.mark.tier("fast")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_nothing() -> None:
    out = io.StringIO()
    with Progress("backup", out) as progress:
        for done in range(100):
            progress.tell("copying files", done, 100)
        with progress.aside():
            pass
    assert out.getvalue() == ""


def test_a_terminal_gets_one_line_that_is_gone_at_the_end() -> None:
    out = Terminal()
    with Progress("backup", out) as progress:
        progress.tell("copying files", 30, 60)
    told = out.getvalue()
    assert "backup  [##########..........]  50 %  copying files 30/60" in told
    assert "\n" not in told
    assert told.endswith("\r\x1b[K")


def test_a_line_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    with Progress("check", out) as progress:
        progress.tell("x" * 500)
    assert max(len(line.removeprefix("\x1b[K")) for line in out.getvalue().split("\r")) < 40


def test_nothing_is_drawn_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    out = Terminal()
    with pytest.raises(ZeroDivisionError), Progress("import", out):
        raise ZeroDivisionError
    assert out.getvalue() == "\r\x1b[K"
    with Progress("import") as progress:
        progress.tell("rows", 1)
    assert capsys.readouterr().err == ""
    assert not sys.stderr.isatty()


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1_000, "1.0 KB"), (1_234_567, "1.2 MB")],
)
def test_sizes_are_told_for_people(size: int, words: str) -> None:
    assert in_words(size) == words
