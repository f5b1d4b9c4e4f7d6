"""The shape of the program, checked: who may import whom, no cycles, honest export lists.

    wire → handlers → {protocol, transactions} → catalog → filters; catalog ← {memory, lakehouse}

Sources are read with ``ast`` and never imported, so a broken layer cannot hide what is wrong with another.
A unit is a package or a module directly under ``sparkport``; a unit may always import itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier("fast")

SOURCE = Path(__file__).parent.parent / "src" / "sparkport"

EVERYTHING = frozenset(
    {
        "auth",
        "catalog",
        "client",
        "config",
        "console",
        "errors",
        "filters",
        "handlers",
        "history",
        "http",
        "lakehouse",
        "memory",
        "observe",
        "policies",
        "protocol",
        "sparksql",
        "testing",
        "transactions",
        "upserts",
        "wire",
    }
)

# A dotted name allows that one module and not its whole unit. The empty name is sparkport/__init__.py.
ALLOWED: dict[str, frozenset[str]] = {
    "": frozenset({"app", "auth", "catalog", "filters", "config", "errors", "memory"}),
    "errors": frozenset(),
    "auth": frozenset({"errors", "filters"}),
    "config": frozenset({"errors", "auth"}),
    "filters": frozenset(),
    "catalog": frozenset({"errors", "auth.identity", "filters"}),
    "protocol": frozenset({"errors", "catalog", "filters"}),
    "transactions": frozenset({"errors", "auth", "catalog", "filters"}),
    "policies": frozenset({"errors", "auth", "catalog", "filters"}),
    "history": frozenset({"errors", "catalog", "filters"}),
    "upserts": frozenset({"errors", "auth", "catalog", "filters"}),
    "handlers": frozenset(
        {
            "errors",
            "auth",
            "catalog",
            "filters",
            "history",
            "policies",
            "protocol",
            "sparksql",
            "transactions",
            "upserts",
        }
    ),
    "sparksql": frozenset({"errors", "catalog"}),
    "http": frozenset({"errors", "auth"}),
    "observe": frozenset({"errors", "auth", "catalog"}),
    "wire": frozenset({"errors", "auth", "catalog", "filters", "protocol", "handlers", "config", "observe"}),
    "console": frozenset(
        {"errors", "auth", "catalog", "filters", "protocol", "transactions", "handlers", "config", "http", "observe"}
    ),
    "memory": frozenset({"errors", "catalog", "filters", "transactions"}),
    "lakehouse": frozenset({"errors", "catalog", "filters", "transactions"}),
    "client": frozenset({"errors", "auth", "catalog", "filters", "protocol"}),
    "testing": frozenset({"app", "auth", "catalog", "filters", "client", "config", "errors", "memory"}),
    "app": EVERYTHING - {"client", "testing"},
    "cli": frozenset({"", "app", "auth", "catalog", "filters", "client", "config", "errors", "memory", "policies"}),
    "__main__": frozenset({"cli"}),
}

# The rooms of the lakehouse, each with those that it may use. Modules beside them are leaves, which use none, or the
# front door, which knows them all.
ROOMS: dict[str, frozenset[str]] = {
    "iceberg": frozenset(),
    "columns": frozenset({"iceberg"}),
    "spark": frozenset({"iceberg"}),
    "catalogs": frozenset({"iceberg"}),
    "journal": frozenset({"iceberg", "columns", "catalogs"}),
    "scan": frozenset({"iceberg", "columns", "spark", "catalogs", "journal"}),
    "write": frozenset({"iceberg", "columns", "spark", "catalogs", "scan", "journal"}),
    "tables": frozenset({"iceberg", "columns", "spark", "catalogs", "scan", "journal", "write"}),
    "query": frozenset({"columns", "spark", "catalogs", "scan", "tables"}),
    "upkeep": frozenset({"iceberg", "columns", "spark", "catalogs", "scan", "journal", "write", "tables"}),
    "backup": frozenset({"iceberg", "catalogs", "journal"}),
    "verify": frozenset({"iceberg", "columns", "catalogs", "scan", "journal", "backup"}),
}
FRONT_DOOR = frozenset({"lakehouse", "demo", "actions"})

# Modules that are stricter than their unit.
ALLOWED_TO_MODULE: dict[str, frozenset[str]] = {"auth.identity": frozenset()}

LAYERS = {"wire", "handlers", "protocol", "transactions", "catalog", "memory"}

FOREIGN: dict[str, frozenset[str]] = {
    "grpc": frozenset({"wire", "client", "testing"}),
    "grpc_health": frozenset({"wire", "client", "testing"}),
    "grpc_reflection": frozenset({"wire", "client", "testing"}),
    "cheroot": frozenset({"http"}),
    "opentelemetry": frozenset({"observe"}),
    "prometheus_client": frozenset({"observe"}),
    "jinja2": frozenset({"console"}),
    "markupsafe": frozenset({"console"}),
    "pyiceberg": frozenset({"lakehouse"}),
    "pyspark": frozenset({"lakehouse"}),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports. ``eager`` ones run when the module is loaded and can close a cycle."""

    target: str
    line: int
    eager: bool


def module_name(path: Path) -> str:
    parts = ("sparkport", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: dict[str, Path] = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), filename=str(MODULES[module]))


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def walk_imports(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, eager
    elif isinstance(node, ast.If) and is_type_checking(node.test):
        for child in node.body:
            yield from walk_imports(child, eager=False)
        for child in node.orelse:
            yield from walk_imports(child, eager=eager)
    else:
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for part in ast.iter_child_nodes(node):
            yield from walk_imports(part, eager=eager and not lazy)


def import_base(module: str, node: ast.ImportFrom) -> str:
    """The absolute name that ``from … import`` starts at, relative dots resolved."""
    if node.level == 0:
        return node.module or ""
    is_package = MODULES[module].name == "__init__.py"
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    found: list[Import] = []
    for node, eager in walk_imports(parsed(module), eager=True):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, eager) for alias in node.names]
            continue
        base = import_base(module, node)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            found.append(Import(inner if inner in MODULES else base, node.lineno, eager))
    return tuple(found)


def inside(module: str) -> str:
    """``sparkport.auth.identity`` → ``auth.identity``."""
    return module.removeprefix("sparkport").removeprefix(".")


def unit_of(module: str) -> str:
    return inside(module).split(".")[0]


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "sparkport"


def is_allowed(module: str, target: str) -> bool:
    allowed = ALLOWED_TO_MODULE.get(inside(module))
    if allowed is None:
        if unit_of(module) == unit_of(target):
            return True
        allowed = ALLOWED[unit_of(module)]
    return unit_of(target) in allowed or inside(target) in allowed


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, or of one that points at itself (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            component = sorted(stack[start:])
            del stack[start:]
            if len(component) > 1 or node in graph[node]:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def exported(module: str) -> list[str] | None:
    """The names in ``__all__``, or None where a module has none."""
    for node in parsed(module).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            names: list[str] = ast.literal_eval(node.value)
            return list(names)
    return None


def bound_names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name) and is_stored(part))
            case ast.If():
                yield from bound_names([*node.body, *node.orelse])
            case ast.Try():
                yield from bound_names([*node.body, *node.orelse, *node.finalbody])
                for handler in node.handlers:
                    yield from bound_names(handler.body)
            case _:
                pass


def is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def is_empty(module: str) -> bool:
    """Nothing but a docstring and ``from __future__``."""
    return all(
        isinstance(node, ast.Expr) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        for node in parsed(module).body
    )


PUBLIC = [name for name in MODULES if is_public(name) and not is_empty(name)]


def wrong_imports(is_wrong: Callable[[str, str], bool]) -> list[str]:
    """Each import of which a rule says so, of a module and its target."""
    return [
        f"{MODULES[module].relative_to(SOURCE)}:{found.line}: {inside(module)} must not import {found.target}"
        for module in MODULES
        for found in imports_of(module)
        if is_wrong(module, found.target)
    ]


def test_the_sources_are_found() -> None:
    assert "sparkport.errors" in MODULES
    assert len(PUBLIC) > 200


def test_every_unit_has_a_rule() -> None:
    assert {unit_of(module) for module in MODULES} - {""} <= set(ALLOWED)


def test_the_rules_name_only_units_that_have_rules_and_have_no_cycle() -> None:
    graph = {unit: {name.split(".")[0] for name in allowed} for unit, allowed in ALLOWED.items()}
    assert set().union(*graph.values()) <= set(graph)
    assert cycles(graph) == []


def test_the_rooms_of_the_lakehouse_have_no_cycle() -> None:
    assert cycles({room: set(allowed) for room, allowed in ROOMS.items()}) == []
    packages = {path.parent.name for path in (SOURCE / "lakehouse").glob("*/__init__.py")}
    assert packages == set(ROOMS)


def test_only_app_may_know_every_layer() -> None:
    assert [unit for unit, allowed in ALLOWED.items() if allowed >= LAYERS] == ["app"]
    assert [unit for unit, allowed in ALLOWED.items() if "wire" in allowed] == ["app"]


def test_imports_point_down_only() -> None:
    assert wrong_imports(lambda module, target: is_ours(target) and not is_allowed(module, target)) == []


def room_of(module: str) -> str:
    """``sparkport.lakehouse.scan.read`` → ``scan``; the module's own name where it is in none."""
    return inside(module).split(".")[1] if module.count(".") > 1 else ""


def leaves_its_rooms(module: str, target: str) -> bool:
    if unit_of(module) != "lakehouse" or unit_of(target) != "lakehouse":
        return False
    room = room_of(module)
    allowed = ROOMS.keys() | FRONT_DOOR if room in FRONT_DOOR else ROOMS.get(room, frozenset()) | {room}
    return room_of(target) in (ROOMS.keys() | FRONT_DOOR) - allowed


def test_rooms_of_the_lakehouse_use_only_what_they_may() -> None:
    assert wrong_imports(leaves_its_rooms) == []


def test_foreign_libraries_stay_in_their_layer() -> None:
    def strays(module: str, target: str) -> bool:
        return unit_of(module) not in FOREIGN.get(target.split(".")[0], {unit_of(module)})

    assert wrong_imports(strays) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {found.target for found in imports_of(module) if found.eager and found.target in MODULES}
        for module in MODULES
    }
    assert cycles(graph) == []


def test_a_circle_would_be_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "d"}, "e": {"a"}}) == [["a", "b", "c"], ["d"]]


def test_every_public_module_says_what_it_exports_in_order() -> None:
    found = {module: exported(module) for module in PUBLIC}
    assert [module for module, names in found.items() if names is None] == []
    assert [module for module, names in found.items() if names != sorted(set(names or ()), key=str)] == []


def test_every_exported_name_exists() -> None:
    def missing(module: str) -> set[str]:
        submodules = {name.removeprefix(f"{module}.") for name in MODULES}
        return set(exported(module) or ()) - set(bound_names(parsed(module).body)) - submodules

    assert {module: names for module in PUBLIC if (names := missing(module))} == {}


def test_every_error_class_is_exported() -> None:
    classes = {node.name for node in parsed("sparkport.errors").body if isinstance(node, ast.ClassDef)}
    assert classes <= set(exported("sparkport.errors") or ())


def test_every_error_has_a_status_of_its_code() -> None:
    from sparkport import errors
    from sparkport.wire.status import GRPC_CODES

    found = [item for item in vars(errors).values() if isinstance(item, type)]
    classes = [item for item in found if issubclass(item, errors.SparkportError)]
    assert len(classes) > 20
    for kind in classes:
        assert GRPC_CODES[kind.code].value[0] == kind.code.value
    assert set(GRPC_CODES) == set(errors.Code)


def test_every_action_is_described_and_handled() -> None:
    from sparkport.handlers.directory import Directory
    from sparkport.handlers.service import Handlers
    from sparkport.protocol.actions import ACTIONS

    described = [spec.name for spec in ACTIONS]
    assert described == sorted(described)
    assert Handlers(Directory()).handled_actions == frozenset(described)
    assert all(spec.description and spec.body and spec.result for spec in ACTIONS)


def test_the_page_of_actions_is_the_table_of_actions() -> None:
    from sparkport.lakehouse.actions import LakehouseActions
    from sparkport.lakehouse.lakehouse import Lakehouse
    from sparkport.protocol.actions import ActionSpec, actions_page

    unopened = Lakehouse.__new__(Lakehouse)
    more = [
        ActionSpec(action.name, action.description, action.body, action.result, msgpack=False, json=True)
        for action in LakehouseActions(unopened).all()
    ]
    assert [spec.name for spec in more] == sorted(spec.name for spec in more)
    page = Path(__file__).parent.parent / "docs" / "actions.md"
    assert page.read_text(encoding="utf-8") == actions_page(more)


def test_no_process_is_started_by_way_of_a_fork_that_runs_python() -> None:
    """gRPC's handlers in such a fork can wait for ever for threads that are not in it."""
    words = ("preexec_fn" + "=", "os." + "fork(", 'get_context("' + 'fork")')
    files = [path for folder in ("src", "tests") for path in (Path(__file__).parents[1] / folder).rglob("*.py")]
    assert len(files) > 100
    assert [path.name for path in files if any(word in path.read_text() for word in words)] == []


def test_the_page_about_the_architecture_names_modules_that_exist() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", page)) - {"tests/test_architecture.py"}
    assert len(named) > 30
    assert {name for name in named if not (SOURCE / name).exists()} == set()


@pytest.mark.parametrize(
    ("home", "words"),
    [
        ("filters/types.py", r"\"rowid\"|b\"is_rowid\""),
        ("filters/types.py", r"\"TINYINT\": \d"),
        ("catalog/disk_errors.py", r"ENOSPC|EDQUOT|EROFS"),
    ],
)
def test_what_many_need_to_know_is_written_down_once(home: str, words: str) -> None:
    found = [path for path in SOURCE.rglob("*.py") if re.search(words, path.read_text(encoding="utf-8"))]
    assert found == [SOURCE / home]


# Where tables are taken out of a schema, and given on as the caller may see them.
FINDS_TABLES = {
    "sparkport.handlers.directory": {"table", "tables"},
    "sparkport.handlers.ddl": {"create_table", "rename_table", "rename_schema", "run", "drop_table", "_check_taken"},
    "sparkport.handlers.spark_schema": {"creatable", "droppable"},
}


def enclosing_functions(module: str, attributes: frozenset[str]) -> Iterator[tuple[str, int]]:
    """The functions in which something other than the directory is asked for a table, and where."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            name = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in attributes:
                receiver = ast.unparse(child.func.value)
                if receiver not in ("pa", "self") and not receiver.endswith("directory"):
                    yield name, child.lineno
            yield from walk(child, name)

    return walk(parsed(module), "")


def test_only_the_directory_finds_tables() -> None:
    """It wraps them in what the rules about rows and columns leave of them: no call may get a table past it."""
    attributes = frozenset({"create_table", "rename_table", "table", "table_name", "tables"})
    # Engines have tables, clients and commands ask a server for them.
    others = {"", "catalog", "cli", "client", "filters", "lakehouse", "memory", "testing", "transactions"}
    found: set[tuple[str, str]] = set()
    for module in MODULES:
        if "".join(module.split(".")[1:2]) not in others:
            for function, line in enclosing_functions(module, attributes):
                allowed = FINDS_TABLES.get(module, set())
                assert function in allowed, f"{module}:{line} takes a table from a schema: ask the directory for it"
                found.add((module, function))
    assert ("sparkport.handlers.directory", "table") in found
