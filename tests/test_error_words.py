"""Nothing is decided by the words of an error: errors have classes and fields, libraries have codes.

Words change, and names and values of callers stand among them. Sources are read with ``ast``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests.test_architecture import MODULES, inside, parsed

pytestmark = pytest.mark.tier("fast")

# Where a library says what has happened in words alone, and the reason why nothing else can be asked.
DECIDES_BY_WORDS = {
    ("catalog.disk_errors", "disk_error"): "file systems of other libraries raise OSError without a number",
    (
        "catalog.duckdb_errors",
        "_kind",
    ): "a stream in Arrow's C interface hands on the text alone; its beginning",
    ("catalog.duckdb_errors", "is_out_of_room"): "DuckDB keeps no number of the system's error",
    (
        "client.errors",
        "is_unreachable",
    ): "gRPC has one status for a server that is not there and one not ready",
    ("lakehouse.query.reasons", "_reason"): "Spark names a catalog that cannot be loaded in its text only",
    ("lakehouse.scan.duck", "translate"): "DuckDB has one error for files that are gone and files that cannot be read",
    ("lakehouse.spark.errors", "_ends_with"): "Java keeps no number of the system's error",
    (
        "lakehouse.spark.errors",
        "_is_of_sqlite",
    ): "SQLite's driver for Java has its code in the text; its beginning",
    ("lakehouse.spark.errors", "_causes"): "Spark Connect sends the classes of exceptions as text",
}
_LOOKS = frozenset({"startswith", "endswith", "find", "index", "count", "match", "search", "fullmatch", "finditer"})


def is_text_of_error(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Whether an expression is the text of an error: ``str(exc)``, ``exc.message``, ``exc.args[0]``, or made of it."""
    match node:
        case ast.Name(id=name):
            return name in texts
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return name in errors
        case ast.Attribute(attr="message" | "args" | "details" | "strerror"):
            return True
        case ast.Call(func=ast.Attribute() as function):
            return is_text_of_error(function, errors, texts) or is_text_of_error(function.value, errors, texts)
        case ast.Subscript(value=value):
            return is_text_of_error(value, errors, texts)
    return False


def decides_by_words(function: ast.AST) -> Iterator[int]:
    """The lines of a function at which it looks for words in the text of an error."""
    nodes = list(ast.walk(function))
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    errors |= {node.arg for node in nodes if isinstance(node, ast.arg) and node.arg in ("exc", "error", "failure")}
    texts = {node.arg for node in nodes if isinstance(node, ast.arg) and ast.unparse(node) == "details: str"}
    for node in nodes:
        if isinstance(node, ast.Assign) and is_text_of_error(node.value, errors, texts):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        match node:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]):
                found = is_text_of_error(right, errors, texts)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                sides = (left, right)
                found = any(is_text_of_error(side, errors, texts) for side in sides) and any(
                    isinstance(side, ast.Constant | ast.JoinedStr) for side in sides
                )
            case ast.Call(func=ast.Attribute(value=value, attr=attribute), args=arguments) if attribute in _LOOKS:
                found = any(is_text_of_error(part, errors, texts) for part in (value, *arguments))
            case _:
                found = False
        if found and isinstance(node, ast.expr):
            yield node.lineno


def words_decided_by(module: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((node.name, line) for line in decides_by_words(node))


def test_nothing_decides_by_the_words_of_an_error() -> None:
    found = {(inside(module), function): line for module in MODULES for function, line in words_decided_by(module)}
    assert {place: found[place] for place in found.keys() - DECIDES_BY_WORDS.keys()} == {}
    assert DECIDES_BY_WORDS.keys() - found.keys() == set(), "these need no exception any more"


@pytest.mark.parametrize(
    "text",
    [
        "exc.message.startswith('table ')",
        "'violates' in str(exc)",
        "str(exc) == 'gone'",
        "exc.args[0].endswith(f'violates {key}')",
        "_PATTERN.search(str(exc))",
        "exc.message.removeprefix('a').startswith(where)",
        "any(words in exc.details() for words in known)",
    ],
)
def test_a_decision_by_words_would_be_found(text: str) -> None:
    source = f"def f():\n  try:\n    pass\n  except Exception as exc:\n    if {text}:\n      raise"
    assert list(decides_by_words(ast.parse(source))) == [5]
    assigned = text.replace("exc.message", "said").replace("str(exc)", "said").replace("exc.args[0]", "said")
    if assigned != text:
        made = f"def f(exc):\n  said = str(exc)\n  return {assigned}"
        assert list(decides_by_words(ast.parse(made))) == [3]


@pytest.mark.parametrize("text", ["str(exc).splitlines()[0]", "exc.code == 5", "exc.table in limits", "f'{exc}: more'"])
def test_what_is_only_told_is_no_decision(text: str) -> None:
    source = f"def f():\n  try:\n    pass\n  except Exception as exc:\n    return {text}"
    assert list(decides_by_words(ast.parse(source))) == []
