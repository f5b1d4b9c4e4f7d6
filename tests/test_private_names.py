"""Tests ask what is public: what they need to see or to set has a door, so that the inside can change.

A moment is met at a fault point (``lakehouse/faults.py``), a limit or a clock is a parameter, and what the kernel knows
of a process is asked there. Tests are read with ``ast``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier("fast")

TESTS = Path(__file__).parent

_SLOW = "how often something is looked at or tried: nobody sets it, and the test would take as long"
_LARGE = "how much there must be before it matters: nobody sets it, and the test would need as much"

# Which test reaches inside, for which name, and why there is no other way to it.
REACHES_INSIDE = {
    ("conftest.py", "_exit"): "the end of a process without what Python does at it has no other name",
    ("integration/test_cli_transfer.py", "_ROWS_PER_FILE"): _LARGE,
    ("lakehouse/test_journal_ids_attacks.py", "_MOST_ROWS"): _LARGE,
    (
        "lakehouse/test_journal_ids_attacks.py",
        "_new_ids",
    ): "no Spark that is there leaves them untold",
    ("lakehouse/test_journal_set_apart.py", "_MOST_ROWS"): _LARGE,
    ("lakehouse/test_recovery.py", "_FIRST_SECONDS"): _SLOW,
    ("lakehouse/test_spark_server.py", "_EVERY_SECONDS"): _SLOW,
    ("lakehouse/test_stuck_queries.py", "_LOOK_SECONDS"): _SLOW,
    ("lakehouse/test_stuck_queries.py", "_TASK_EVERY_SECONDS"): _SLOW,
    ("lakehouse/test_stuck_queries.py", "_TASK_SECONDS"): _SLOW,
    ("lakehouse/unit/test_changes.py", "_MOST_BASE_BYTES"): _LARGE,
    ("lakehouse/unit/test_changes.py", "_MOST_ROWS"): _LARGE,
    ("lakehouse/unit/test_disk_errors.py", "_open"): "a file that cannot be opened, whoever runs the test",
    ("lakehouse/unit/test_ending_jobs.py", "_execute_plan_request_with_metadata"): "what PySpark calls it",
    ("lakehouse/unit/test_journal_flusher.py", "_LOOK_SECONDS"): _SLOW,
    ("lakehouse/unit/test_journal_flusher.py", "_new_ids"): "there is no Spark that could tell them",
    ("lakehouse/unit/test_memory_of_reads.py", "_release"): "Arrow does not tell what it has given back",
    ("lakehouse/unit/test_nested_reads.py", "_LEAST_BYTES"): _LARGE,
    ("lakehouse/unit/test_nested_reads.py", "_MOST_BYTES"): _LARGE,
    ("lakehouse/unit/test_query_memory.py", "_opened"): "there is no Spark that could look at a query",
    ("lakehouse/unit/test_store_requests.py", "_call_s3"): "what s3fs calls it",
    ("lakehouse/unit/test_unlisted_views.py", "_opened"): "there is no Spark that could look at a query",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def reaches(source: str) -> Iterator[tuple[str, int]]:
    """Private names of others that a test uses, and the lines; those of its own classes are its own affair."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {"self", "cls", *(node.name for node in nodes if isinstance(node, ast.ClassDef))}
    for node in nodes:
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name):
                if not (isinstance(value, ast.Name) and value.id in own):
                    yield name, node.lineno
            case ast.ImportFrom(names=imported):
                yield from ((alias.name, node.lineno) for alias in imported if is_private(alias.name))
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "getattr")):
                texts = [part.value for part in node.args[:2] if isinstance(part, ast.Constant)]
                names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
                yield from ((name, node.lineno) for name in names if is_private(name))


def test_no_test_reaches_inside() -> None:
    found = {
        (str(path.relative_to(TESTS)), name): line
        for path in sorted(TESTS.rglob("*.py"))
        for name, line in reaches(path.read_text())
    }
    assert {place: found[place] for place in found.keys() - REACHES_INSIDE.keys()} == {}
    assert REACHES_INSIDE.keys() - found.keys() == set(), "these need no exception any more"


@pytest.mark.parametrize(
    "text",
    [
        "engine._lock.close()",
        "made().store._rows",
        "monkeypatch.setattr(module, '_LIMIT', 1)",
        "patched.setattr('sparkport.package.module._LIMIT', 1)",
        "getattr(thing, '_state')",
        "from sparkport.errors import _hidden",
    ],
)
def test_a_reach_inside_would_be_found(text: str) -> None:
    assert [line for _, line in reaches(text)] == [1]


@pytest.mark.parametrize(
    "text", ["self._lock.acquire()", "class Mine: pass\nMine._steps", "thing.__init__", "setattr(thing, 'limit', 1)"]
)
def test_what_is_a_tests_own_or_public_is_no_reach(text: str) -> None:
    assert list(reaches(text)) == []
