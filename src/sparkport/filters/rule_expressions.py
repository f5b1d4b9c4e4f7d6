"""Expressions of rules: SQL as in a CHECK, parsed when rules are loaded; a caller's claims are put in as literals.

``region = $claim.region`` and ``region IN $claim.regions``. A claim is never part of the text that is parsed: a name of
its own stands for it there, and later a literal that is spelled anew from the claim's value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb

from sparkport.filters.expressions import (
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Or,
    SqlType,
    conjunction,
)
from sparkport.filters.isolated_worker import DisallowedExpression, Grammar
from sparkport.filters.predicates import lit
from sparkport.filters.sandbox import SANDBOX
from sparkport.filters.sql import literal_sql

__all__ = ["BoundExpression", "RuleExpression", "RuleRefused", "parse_rule"]

_LIST = "$claims."
_ONE = "$claim."
_CLAIM = re.compile(
    r"""(?P<other>'(?:[^']|'')*'|"(?:[^"]|"")*")"""
    r"""|(?P<in>\bIN\s*)(?P<open>\(\s*)?\$claim\.(?P<list>\w+)(?(open)\s*\))"""
    r"""|\$claim\.(?P<one>\w+)""",
    re.IGNORECASE,
)
_COMPARED = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_INTEGER = re.compile(r"-?\d{1,18}")


class RuleRefused(Exception):
    """Why an expression cannot be that of a rule, in words to follow its text."""


@dataclass(frozen=True, slots=True)
class BoundExpression:
    """An expression for one caller: SQL over the columns of a table. ``columns`` are names in small letters.

    ``pushed`` says as a filter what a part of it says; a table may leave out rows for which it does not hold. Where
    ``is_all_pushed``, it says the same.
    """

    sql: str
    columns: frozenset[str]
    text: str
    pushed: Expression | None = field(default=None, compare=False)
    is_all_pushed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class RuleExpression:
    """An expression that was parsed. ``parts`` are SQL and, at odd places, the names that stand for claims."""

    text: str
    parts: tuple[str, ...]
    columns: frozenset[str]
    tree: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(name.partition(".")[2] for name in self.parts[1::2])

    def bound(self, claims: Mapping[str, object]) -> BoundExpression | None:
        """The expression with the claims' values in it; None where one is missing or of no use there."""
        values: dict[str, Literal] = {}
        for name in self.parts[1::2]:
            literal = _literal(name, claims)
            if literal is None:
                return None
            values[name] = literal
        spelled: dict[str, str] = {}
        for name, literal in values.items():
            sql = literal_sql(literal.value, literal.type)
            if sql is None:
                return None
            # IN takes a list without parentheses; in some it would be a list of lists.
            spelled[name] = sql if name.startswith(_LIST) else f"({sql})"
        sql = "".join(part if index % 2 == 0 else spelled[part] for index, part in enumerate(self.parts))
        whole = _is_whole(self.tree, values)
        return BoundExpression(sql, self.columns, self.text, _filter(self.tree, values), whole)


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> RuleExpression:
    """What may be computed is what may be in a CHECK, if it always has the same value for the same row."""
    parts = _parts(text)
    try:
        nodes = _nodes("".join(part if index % 2 == 0 else f'"{part}"' for index, part in enumerate(parts)))
    except (DisallowedExpression, duckdb.Error) as exc:
        raise RuleRefused(str(exc).splitlines()[0]) from exc
    names = Counter(str(node["column_names"][0]) for node in nodes if node["class"] == "COLUMN_REF")
    if any(names[name] != count for name, count in Counter(parts[1::2]).items()):
        # A text in dollar signs, or a comment: the claim's value could end it, and go on as SQL.
        raise RuleRefused("a claim stands where no value can be: inside of a text or a comment")
    columns = names.keys() - set(parts[1::2])
    if any(name.startswith("$") for name in columns):
        raise RuleRefused("a claim is written $claim.name")
    return RuleExpression(text, parts, frozenset(name.lower() for name in columns), nodes[0])


def _parts(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    done = 0
    for found in _CLAIM.finditer(text):
        if found["other"] is not None:
            continue
        listed = found["list"] is not None
        before = text[done : found.start()] + (found["in"] if listed else "")
        parts += [before, f"{_LIST}{found['list']}" if listed else f"{_ONE}{found['one']}"]
        done = found.end()
    return (*parts, text[done:])


def _nodes(text: str) -> list[dict[str, Any]]:
    """The nodes of an expression, its root first."""

    def work(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        grammar = Grammar(db)
        grammar.require_steady(text)
        return grammar.check(text)

    nodes = SANDBOX.run(work)
    if any(node["class"] == "LAMBDA" for node in nodes):
        raise DisallowedExpression("a lambda, or the operator ->, is not allowed in it")
    return nodes


def _literal(name: str, claims: Mapping[str, object]) -> Literal | None:
    value = claims.get(name.partition(".")[2])
    if not name.startswith(_LIST):
        return lit(value) if isinstance(value, str | bool | int | float) else None
    values = list(value) if isinstance(value, list | tuple) else [value]
    for kind, sql in ((str, "VARCHAR"), (int, "BIGINT")):
        if all(type(item) is kind for item in values):
            element = SqlType(sql)
            return Literal(tuple(values), SqlType("LIST", fields=(("", element),)))
    return None


def _filter(node: Mapping[str, Any], claims: Mapping[str, Literal]) -> Expression | None:
    """A filter that holds wherever the condition does; None where that would be every row."""
    children: Sequence[Mapping[str, Any]] = node.get("children") or ()
    match node["type"]:
        case "CONJUNCTION_AND":
            return conjunction(part for child in children if (part := _filter(child, claims)) is not None)
        case "CONJUNCTION_OR":
            parts = tuple(part for child in children if (part := _filter(child, claims)) is not None)
            return Or(parts) if len(parts) == len(children) else None
        case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
            column = _operand(children[0], claims)
            make = IsNull if node["type"] == "OPERATOR_IS_NULL" else IsNotNull
            return make(column) if isinstance(column, Column) else None
        case "COMPARE_IN":
            column, *values = (_operand(child, claims) for child in children)
            known = tuple(value for value in values if isinstance(value, Literal))
            return In(column, known) if isinstance(column, Column) and len(known) == len(values) else None
        case "COMPARE_BETWEEN":
            column, low, high = (_operand(node[part], claims) for part in ("input", "lower", "upper"))
            whole = isinstance(column, Column) and isinstance(low, Literal) and isinstance(high, Literal)
            return Between(column, low, high) if whole and column and low and high else None
        case compared if compared in _COMPARED:
            left, right = _operand(node["left"], claims), _operand(node["right"], claims)
            if left is None or right is None or isinstance(left, Column) == isinstance(right, Column):
                return None
            return Comparison(_COMPARED[compared], left, right)
        case "FUNCTION" if node["function_name"] == "contains":  # IN, with a claim that is a list
            listed, member = (_operand(part["expression"], claims) for part in node["arguments"])
            if not (isinstance(listed, Literal) and isinstance(listed.value, tuple) and isinstance(member, Column)):
                return None
            element = listed.type.fields[0][1]
            return In(member, tuple(Literal(value, element) for value in listed.value)) if listed.value else None
        case _:
            return None


def _is_whole(node: Mapping[str, Any], claims: Mapping[str, Literal]) -> bool:
    """Whether no part of the condition is left out of its filter."""
    if node["class"] == "CONJUNCTION":
        return all(_is_whole(child, claims) for child in node["children"])
    return _filter(node, claims) is not None


def _operand(node: Mapping[str, Any], claims: Mapping[str, Literal]) -> Column | Literal | None:
    if node["class"] == "COLUMN_REF" and len(node["column_names"]) == 1:
        name = str(node["column_names"][0])
        return claims.get(name) or Column(name)
    literal = node.get("literal") or {}
    if literal.get("kind") == "STRING":
        return lit(str(literal["text"]))
    if literal.get("kind") == "INTEGER" and _INTEGER.fullmatch(str(literal["text"])):
        return lit(int(literal["text"]))
    return None
