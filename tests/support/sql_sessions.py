"""The sessions in examples/duckdb: SQL files that say beneath each statement what DuckDB answers.

A statement ends with the line that ends with ``;``. Comment lines right beneath it are its rows, a line with the names
of the columns first and ``|`` between values, or the first line of its error; ``…`` in them stands for any text. Other
comments are for people, but for one: ``-- only with a server: why`` holds for the statements to the next empty line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Session", "Statement", "is_error", "matches", "read_session", "sessions"]

FOLDER = Path(__file__).parents[2] / "examples" / "duckdb"

_COMMENT = re.compile(r"-- ?(.*)")
_SERVER_ONLY = "-- only with a server"
_ERROR = re.compile(r"[A-Z][A-Za-z ]+ Error: ")


@dataclass(frozen=True, slots=True)
class Statement:
    """``line`` is where it begins; ``end`` is the number of the line after its expected answer."""

    sql: str
    line: int
    expected: tuple[str, ...] = ()
    end: int = 0
    server_only: bool = False

    @property
    def error(self) -> str | None:
        """``Constraint Error`` and the like, where that is what is expected."""
        found = _ERROR.match(self.expected[0]) if self.expected else None
        return None if found is None else found[0].removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Session:
    path: Path
    lines: tuple[str, ...]
    statements: tuple[Statement, ...]

    def recorded(self, answers: Sequence[Sequence[str]]) -> str:
        """The file again, with these answers beneath its statements. What matches stays as it was written."""
        text: list[str] = []
        done = 0
        for statement, answer in zip(self.statements, answers, strict=True):
            text += self.lines[done : statement.line - 1 + statement.sql.count("\n") + 1]
            lines = statement.expected if matches(statement.expected, answer) else answer
            text += [f"-- {line}".rstrip() for line in lines]
            done = statement.end
        return "\n".join([*text, *self.lines[done:]]) + "\n"


def is_error(line: str) -> bool:
    return _ERROR.match(line) is not None


def sessions() -> list[Path]:
    return sorted(FOLDER.glob("*.sql"))


def read_session(path: Path) -> Session:
    lines = path.read_text(encoding="utf-8").splitlines()
    statements: list[Statement] = []
    sql: list[str] = []
    answering = server_only = False
    for number, line in enumerate(lines, start=1):
        comment = _COMMENT.fullmatch(line)
        if sql or (line.strip() and comment is None):
            sql.append(line)
            if line.rstrip().endswith(";"):
                begin = number - len(sql) + 1
                statements.append(Statement("\n".join(sql), begin, end=number, server_only=server_only))
                sql = []
                answering = True
        elif comment is not None and answering:
            last = statements[-1]
            statements[-1] = replace(last, expected=(*last.expected, comment[1]), end=number)
        else:
            answering = False
            server_only = bool(line.strip()) and (server_only or line.startswith(_SERVER_ONLY))
    if sql:
        raise ValueError(f"{path}: the last statement has no end: {sql[0]}")
    return Session(path, tuple(lines), tuple(statements))


def matches(expected: Sequence[str], answer: Sequence[str]) -> bool:
    """``…`` stands for any text within its line."""
    if len(expected) != len(answer):
        return False
    patterns = (".*".join(re.escape(part) for part in line.split("…")) for line in expected)
    return all(re.fullmatch(pattern, line.rstrip()) is not None for pattern, line in zip(patterns, answer, strict=True))
