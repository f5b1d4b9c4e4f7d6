"""``make test-duckdb CLIENT=path``: the sessions in examples/duckdb through a real DuckDB with the Airport extension.

CLIENT is DuckDB's shell. ``LOAD airport`` must work in it; EXTENSION is the extension's file where it is not installed.
A server of each engine is started here, on a free port, with the functions of examples/functions.py beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples import functions
from tests.support.sql_sessions import Session, is_error, matches, read_session, sessions

from sparkport.app import JournalSettings, Lakehouse, LakehouseSettings
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

ENGINES = ("memory", "lakehouse", "journal")

_SECONDS = 600.0
_VERSIONS, _AT = ("history", "time_travel"), " AT ("
_MARK = "@@ statement "
_LOCATION = "grpc://127.0.0.1:50051"
_ARROW = "/arrow/cpp/"
_SHELL = (".mode list", '.separator " | "', ".nullvalue NULL", ".headers on", "SET TimeZone = 'UTC';")


@dataclass(frozen=True, slots=True)
class Client:
    """DuckDB's shell. Extensions that were built at home are not signed, so they are let in."""

    shell: str
    extension: str | None = None

    def answers(self, session: Session, location: str) -> list[list[str]]:
        """What is printed for each statement. Fewer than there are statements: the process has died."""
        load = "LOAD airport;" if self.extension is None else f"LOAD '{self.extension}';"
        attach = [f"ATTACH '{name}' (TYPE airport, LOCATION '{location}');" for name in ("lake", "tools")]
        script = [*_SHELL, load, *attach]
        for number, statement in enumerate(session.statements):
            script += [f".print {_MARK}{number}", statement.sql]
        script.append(f".print {_MARK}{len(session.statements)}")
        ran = subprocess.run(
            [self.shell, "-unsigned", "-batch"],
            input="\n".join(script) + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        before, *parts = ran.stdout.split(_MARK)
        if before.strip() or not parts:
            raise SystemExit(f"{self.shell} cannot begin: {before.strip()}")
        return [_answer(part.replace(location, _LOCATION)) for part in parts[:-1]]


def _answer(part: str) -> list[str]:
    """Of an error its first line: behind it come names like the one that was not found, and the statement once more.

    Arrow writes lines of its own before some errors.
    """
    lines = [line for line in part.rstrip().splitlines()[1:] if not line.startswith(_ARROW)]
    return lines[:1] if lines and is_error(lines[0]) else lines


@contextmanager
def serving_engine(engine: str) -> Iterator[str]:
    if engine == "memory":
        with serving(MemoryCatalog("lake"), functions.catalog) as server:
            yield server.location
        return
    journal = JournalSettings(new_tables=engine == "journal")
    with (
        tempfile.TemporaryDirectory(prefix="sparkport-sessions-") as warehouse,
        Lakehouse(LakehouseSettings(warehouse=warehouse), journal=journal) as lakehouse,
        serving(lakehouse.catalog, functions.catalog) as server,
    ):
        yield server.location


def run(client: Client, engine: str, paths: Sequence[Path], *, record: bool) -> tuple[int, int]:
    """How many statements were run, and how many of them were answered otherwise than expected."""
    ran = failed = 0
    with serving_engine(engine) as location:
        for path in paths:
            session = read_session(path)
            answers = client.answers(session, location)
            ran += len(answers)
            if record:
                path.write_text(session.recorded(answers), encoding="utf-8")
                continue
            for statement, answer in zip(session.statements, answers, strict=False):
                if engine == "journal" and (path.stem in _VERSIONS or _AT in statement.sql):
                    continue  # versions count what is published there, which depends on the time
                if not matches(statement.expected, answer):
                    failed += 1
                    print(f"{path.name}:{statement.line} on {engine}: {statement.sql}")
                    print("  expected", *statement.expected, "  answered", *answer, sep="\n    ")
            if len(answers) < len(session.statements):
                failed += 1
                last = session.statements[len(answers)]
                print(f"{path.name}:{last.line} on {engine}: DuckDB ended in {last.sql}")
    return ran, failed


def main() -> int:
    options = _options()
    if not options.client:
        print("CLIENT is not given: NOTHING WAS RUN.")
        print("  make test-duckdb CLIENT=path     DuckDB's shell, in which LOAD airport works")
        print("                   EXTENSION=path  the extension's file, where it is not installed")
        return 2
    client = Client(options.client, options.extension or None)
    paths = [path for path in sessions() if not options.files or path.stem in options.files]
    total = 0
    for engine in options.engine or ENGINES:
        ran, failed = run(client, engine, paths, record=options.record)
        print(f"{engine}: {len(paths)} sessions, {ran} statements, {failed} not as expected", flush=True)
        total += failed
    return 1 if total else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sessions")
    parser.add_argument("--client", help="DuckDB's shell")
    parser.add_argument("--extension", help="the extension's file")
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--record", action="store_true", help="write the answers into the files: read them afterwards")
    parser.add_argument("files", nargs="*", help="names without .sql; all where none is given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
