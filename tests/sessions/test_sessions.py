"""The sessions in examples/duckdb on tables of DuckDB's own, so that they stay right where no real client is at hand.

What only a server has (versions, functions, its own refusals) is left out, and counted.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from tests.support.sql_sessions import Statement, matches, read_session, sessions

pytestmark = pytest.mark.tier("fast")

RUN, LEFT_OUT = 460, 185

_NO_ROWS = (["Success"], ["Count"])


def local_lake() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("ATTACH ':memory:' AS lake; CREATE SCHEMA lake.public; SET TimeZone = 'UTC'")
    return connection


def answer(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The rows as DuckDB's shell prints them: none of a statement that only counts what it has changed."""
    result = connection.sql(sql)
    if result is None or result.columns in _NO_ROWS:
        return []
    names, rows = result.columns, result.to_arrow_table()
    with duckdb.connect() as printer:
        texts = printer.execute("SELECT CAST(COLUMNS(*) AS VARCHAR) FROM rows").fetchall()
    assert len(rows) == len(texts)
    return [" | ".join("NULL" if value is None else value for value in row) for row in [names, *texts]]


def check(connection: duckdb.DuckDBPyConnection, statement: Statement) -> None:
    """Where an error is expected, one of its kind is enough: a server says it in its own words."""
    where = f"line {statement.line}: {statement.sql}"
    if statement.error is None:
        got = answer(connection, statement.sql)
        assert matches(statement.expected, got), f"{where}\nexpected {statement.expected}\nanswered {got}"
        return
    with pytest.raises(duckdb.Error) as caught:
        answer(connection, statement.sql)
    assert statement.error == "IO Error" or str(caught.value).startswith(statement.error), where


@pytest.mark.parametrize("path", sessions(), ids=lambda path: path.stem)
def test_a_session_answers_as_its_file_says(path: Path) -> None:
    with local_lake() as connection:
        for statement in read_session(path).statements:
            if not statement.server_only:
                check(connection, statement)


def test_the_session_of_the_readme_has_all_that_the_readme_tells_to_type() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    typed = [
        line.partition("--")[0] for block in text.split("```sql\n")[1:] for line in block.split("```")[0].splitlines()
    ]
    wanted = {part.strip() for line in typed for part in line.split(";") if part.strip()}
    setup = {part for part in wanted if part.startswith(("INSTALL", "LOAD", "ATTACH"))}
    session = read_session(next(path for path in sessions() if path.stem == "readme"))
    assert len(setup) == 3
    assert wanted - setup <= {statement.sql.removesuffix(";") for statement in session.statements}


def test_most_statements_are_run_here() -> None:
    found = [statement.server_only for path in sessions() for statement in read_session(path).statements]
    assert (found.count(False), found.count(True)) == (RUN, LEFT_OUT)


def test_every_error_in_a_session_is_of_duckdbs_kinds() -> None:
    kinds = {statement.error for path in sessions() for statement in read_session(path).statements}
    assert not {kind for kind in kinds if kind in ("INTERNAL Error", "FATAL Error")}
    assert {"Constraint Error", "Catalog Error", "Binder Error", "IO Error"} <= kinds


# The files themselves


@pytest.mark.parametrize("path", sessions(), ids=lambda path: path.stem)
def test_a_session_recorded_with_its_own_answers_is_the_same_file(path: Path) -> None:
    session = read_session(path)
    answers = [statement.expected for statement in session.statements]
    assert session.recorded(answers) == path.read_text(encoding="utf-8")


def test_comments_right_beneath_a_statement_are_its_answer_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sql"
    path.write_text(
        "-- For people.\nSELECT 1\n  AS a;\n-- a\n-- 1\n\n"
        "-- only with a server: why\nSELECT b;\n-- Binder Error: …\n\nSELECT 2;\n"
    )
    first, second, third = read_session(path).statements
    assert (first.sql, first.line, first.expected, first.error) == ("SELECT 1\n  AS a;", 2, ("a", "1"), None)
    assert (second.server_only, second.error) == (True, "Binder Error")
    assert (third.server_only, third.expected) == (False, ())
    assert matches(second.expected, ["Binder Error: nothing known"])
    assert not matches(second.expected, ["Catalog Error: nothing known"])
    assert not matches(first.expected, ["a", "1", "2"])


def test_a_statement_without_an_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.sql"
    path.write_text("SELECT 1\n")
    with pytest.raises(ValueError, match="the last statement has no end: SELECT 1"):
        read_session(path)
