"""A row filter as plain values, so that every engine can read, print, compare and prune with the same tree.

Filters only ever narrow a scan as a favour to the client, which applies them again itself. So one rule
holds wherever a part cannot be translated: drop it in a way that can only let more rows through
(:func:`simplify`).

How literals are held: dates, times and timestamps as the whole units of their type since the epoch or
midnight (days, seconds, milli-, micro- or nanoseconds), because Python's own types end at the year 9999
and know no infinity; decimals as ``Decimal``, UUIDs as ``uuid.UUID``, intervals as ``(months, days,
micros)``, lists and structs as tuples, maps as tuples of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = [
    "And",
    "BOOLEAN",
    "Between",
    "Case",
    "Cast",
    "Column",
    "Comparison",
    "Expression",
    "Function",
    "ILike",
    "In",
    "IsNotNull",
    "IsNull",
    "Like",
    "Literal",
    "Not",
    "NotIn",
    "Or",
    "SqlType",
    "Unsupported",
    "children",
    "conjunction",
    "conjuncts",
    "referenced_columns",
    "simplify",
    "type_of",
    "walk",
]


@dataclass(frozen=True, slots=True)
class SqlType:
    """A DuckDB type. ``fields`` holds a struct's fields, a list's or array's element, a map's key and value."""

    id: str
    width: int = 0
    scale: int = 0
    size: int = 0
    fields: tuple[tuple[str, SqlType], ...] = ()
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.id:
            case "DECIMAL":
                return f"DECIMAL({self.width},{self.scale})"
            case "LIST":
                return f"{self.fields[0][1]}[]"
            case "ARRAY":
                return f"{self.fields[0][1]}[{self.size}]"
            case "STRUCT":
                return f"STRUCT({', '.join(f'{_quoted(name)} {child}' for name, child in self.fields)})"
            case "MAP":
                return f"MAP({self.fields[0][1]}, {self.fields[1][1]})"
            case "ENUM":
                return f"ENUM({', '.join(_text(value) for value in self.values)})"
            case _:
                return self.id


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Column:
    """A column by name, and its type as the sender of the filter sees it."""

    name: str
    type: SqlType | None = None

    def __str__(self) -> str:
        return _quoted(self.name)


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any
    type: SqlType

    def __str__(self) -> str:
        return f"{self.type} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``op`` is one of ``=``, ``<>``, ``<``, ``<=``, ``>``, ``>=``, ``IS DISTINCT FROM``, ``IS NOT DISTINCT FROM``."""

    op: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class And:
    children: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"({' AND '.join(map(str, self.children))})"


@dataclass(frozen=True, slots=True)
class Or:
    children: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"({' OR '.join(map(str, self.children))})"


@dataclass(frozen=True, slots=True)
class Not:
    child: Expression

    def __str__(self) -> str:
        return f"(NOT {self.child})"


@dataclass(frozen=True, slots=True)
class IsNull:
    child: Expression

    def __str__(self) -> str:
        return f"({self.child} IS NULL)"


@dataclass(frozen=True, slots=True)
class IsNotNull:
    child: Expression

    def __str__(self) -> str:
        return f"({self.child} IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class In:
    child: Expression
    values: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"({self.child} IN ({', '.join(map(str, self.values))}))"


@dataclass(frozen=True, slots=True)
class NotIn:
    child: Expression
    values: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"({self.child} NOT IN ({', '.join(map(str, self.values))}))"


@dataclass(frozen=True, slots=True)
class Between:
    child: Expression
    lower: Expression
    upper: Expression
    lower_inclusive: bool = True
    upper_inclusive: bool = True

    def __str__(self) -> str:
        low, high = "<=" if self.lower_inclusive else "<", "<=" if self.upper_inclusive else "<"
        return f"({self.lower} {low} {self.child} {high} {self.upper})"


@dataclass(frozen=True, slots=True)
class Like:
    child: Expression
    pattern: Expression
    escape: Expression | None = None

    def __str__(self) -> str:
        return f"({self.child} LIKE {self.pattern})"


@dataclass(frozen=True, slots=True)
class ILike:
    child: Expression
    pattern: Expression
    escape: Expression | None = None

    def __str__(self) -> str:
        return f"({self.child} ILIKE {self.pattern})"


@dataclass(frozen=True, slots=True)
class Function:
    """A call of a DuckDB function by its own name, operators (``+``) and field access (``struct_extract``) included."""

    name: str
    args: tuple[Expression, ...]
    type: SqlType | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Cast:
    child: Expression
    type: SqlType
    try_cast: bool = False

    def __str__(self) -> str:
        return f"{'TRY_CAST' if self.try_cast else 'CAST'}({self.child} AS {self.type})"


@dataclass(frozen=True, slots=True)
class Case:
    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression
    type: SqlType | None = None

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {when} THEN {then}" for when, then in self.branches)
        return f"CASE {branches} ELSE {self.default} END"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Stands for what was not understood, until :func:`simplify` takes it out."""

    what: str

    def __str__(self) -> str:
        return f"<{self.what}>"


Expression: TypeAlias = (
    Column
    | Literal
    | Comparison
    | And
    | Or
    | Not
    | IsNull
    | IsNotNull
    | In
    | NotIn
    | Between
    | Like
    | ILike
    | Function
    | Cast
    | Case
    | Unsupported
)

BOOLEAN = SqlType("BOOLEAN")


def children(expr: Expression) -> tuple[Expression, ...]:
    match expr:
        case And(nodes) | Or(nodes) | Function(_, nodes):
            return nodes
        case Comparison(_, left, right):
            return (left, right)
        case Not(child) | IsNull(child) | IsNotNull(child) | Cast(child):
            return (child,)
        case In(child, values) | NotIn(child, values):
            return (child, *values)
        case Between(child, lower, upper):
            return (child, lower, upper)
        case Like(child, pattern, escape) | ILike(child, pattern, escape):
            return (child, pattern) if escape is None else (child, pattern, escape)
        case Case(branches, default):
            return (*(part for branch in branches for part in branch), default)
        case _:
            return ()


def walk(expr: Expression) -> Iterator[Expression]:
    """Every node of the tree, without recursion: how deep a client nests is not ours to choose."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children(node))


def type_of(expr: Expression) -> SqlType | None:
    """The type of an expression's value, None where the tree does not say."""
    match expr:
        case Column() | Literal() | Function() | Cast() | Case():
            return expr.type
        case Unsupported():
            return None
        case _:
            return BOOLEAN


def referenced_columns(expr: Expression) -> frozenset[str]:
    return frozenset(node.name for node in walk(expr) if isinstance(node, Column))


def conjuncts(expr: Expression | None) -> tuple[Expression, ...]:
    """The parts that must all be true, nested ANDs flattened; none for no filter."""
    if expr is None:
        return ()
    if not isinstance(expr, And):
        return (expr,)
    return tuple(part for child in expr.children for part in conjuncts(child))


def conjunction(parts: Iterable[Expression]) -> Expression | None:
    kept = tuple(parts)
    if len(kept) < 2:
        return kept[0] if kept else None
    return And(kept)


def simplify(expr: Expression, supported: Callable[[Expression], bool]) -> Expression | None:
    """The strongest filter of supported nodes that is true wherever ``expr`` is; None when that is every row.

    AND loses the parts that are not supported, OR is lost with any of its parts, and everything else
    (NOT above all: less inside it would be more outside) stands or falls whole.
    """
    match expr:
        case And(nodes):
            kept = (simplify(node, supported) for node in nodes)
            return conjunction(node for node in kept if node is not None)
        case Or(nodes):
            weaker = [simplify(node, supported) for node in nodes]
            alternatives = tuple(node for node in weaker if node is not None)
            if not alternatives or len(alternatives) < len(weaker):
                return None
            return Or(alternatives)
        case _:
            return expr if all(supported(node) for node in walk(expr)) else None
