"""DuckDB's pushed-down filters, read from the JSON of its bound expressions.

The client applies its filters again itself, so a part that is not understood may be left out, as long as
no row is lost by it (:func:`sparkport.filters.expressions.simplify`). Only what is not even the right shape
is refused. Two generations of the form are read: DuckDB 1.x has classes of their own for comparisons and
casts and gives functions a ``name``; DuckDB 2 makes functions of them all and gives those a ``qname``.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sparkport.errors import InvalidArgument
from sparkport.filters.expressions import (
    And,
    Between,
    Case,
    Cast,
    Column,
    Comparison,
    Expression,
    Function,
    ILike,
    In,
    IsNotNull,
    IsNull,
    Like,
    Literal,
    Not,
    NotIn,
    Or,
    SqlType,
    Unsupported,
    conjunction,
    simplify,
)
from sparkport.filters.types import INTEGERS, ZONED
from sparkport.protocol.filter_limits import MAX_BYTES, MAX_DEPTH, within_limits
from sparkport.protocol.filter_writer import COMPARISONS, dump_filters

__all__ = ["dump_filters", "parse_filters", "parse_type"]

_log = logging.getLogger(__name__)

_OPERATORS = {name: op for op, name in COMPARISONS.items()}
_TYPE_NAMES = {
    "TIMESTAMP_TZ": ZONED,
    "TIMESTAMPTZ": ZONED,
    "TIMESTAMP_SEC": "TIMESTAMP_S",
    "CHAR": "VARCHAR",
    "SQLNULL": "NULL",
    '"NULL"': "NULL",
}
_COUNTED = frozenset({"DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
_MOST_DIGITS = 38
_WHOLE = INTEGERS | _COUNTED | {ZONED}
_PLAIN_TYPES = _WHOLE | {"BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "INTERVAL", "UUID", "NULL"}
_LIKES: dict[str, tuple[type[Like] | type[ILike], bool]] = {
    "~~": (Like, False),
    "!~~": (Like, True),
    "~~*": (ILike, False),
    "!~~*": (ILike, True),
    "like_escape": (Like, False),
    "not_like_escape": (Like, True),
    "ilike_escape": (ILike, False),
    "not_ilike_escape": (ILike, True),
}
# Strings are matched first and left alone, so that only bare words are replaced. A string that does not end is matched
# too, and nothing is tried twice: the time that this takes grows with the text and not with its square.
_BARE_WORDS = re.compile(r'"(?:[^"\\]++|\\.?)*+"?|\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
_BLOB = re.compile(r"(?:\\x[0-9A-Fa-f]{2}|[\x00-\x5b\x5d-\x7f])*")
_BLOB_BYTE = re.compile(rb"\\x([0-9A-Fa-f]{2})")


class _NotUnderstood(Exception):
    """Inside this module only: a value or type in a form that we don't know."""


def parse_filters(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Expression | None:
    """The filter to apply, None for none. What is not understood is left out, and so is a text over the limit."""
    if not text:
        return None
    if len(text) > max_bytes:
        _log.debug("filters of %d bytes are not read", len(text))
        return None
    try:
        whole = _parse_document(_load(text))
        return None if whole is None else simplify(whole, _is_understood)
    except RecursionError:
        _log.debug("filters nested too deep are not read")
        return None
    except ValueError as exc:
        raise InvalidArgument(f"json_filters is not valid JSON: {exc}") from exc


def _parse_document(document: Any) -> Expression | None:
    if not isinstance(document, dict):
        raise InvalidArgument("json_filters must be a JSON object")
    filters = document.get("filters", [])
    names = document.get("column_binding_names_by_index", [])
    if not isinstance(filters, list):
        raise InvalidArgument("json_filters: 'filters' must be a list")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument("json_filters: 'column_binding_names_by_index' must be a list of names")
    parser = _Parser(names)
    return conjunction(
        parser.expression(item, depth=0) if fits else Unsupported("more than the server reads")
        for item, fits in zip(filters, within_limits(filters), strict=True)
    )


def _load(text: str | bytes) -> Any:
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(_BARE_WORDS.sub(_bare_word, text))


def _bare_word(match: re.Match[str]) -> str:
    word = match.group()
    if word.startswith('"'):
        return word
    return "NaN" if word.lower() == "nan" else "Infinity"


def _is_understood(node: Expression) -> bool:
    if isinstance(node, Unsupported):
        _log.debug("filter on %s is not pushed down", node.what)
        return False
    return True


def _member(item: dict[str, Any], key: str, expected: type) -> Any:
    value = item.get(key)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise InvalidArgument(f"json_filters: '{key}' is missing or not what it should be")
    return value


class _Parser:
    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._classes: dict[str, Callable[[dict[str, Any], int], Expression]] = {
            "BOUND_BETWEEN": self._between,
            "BOUND_CASE": self._case,
            "BOUND_CAST": self._cast,
            "BOUND_COLUMN_REF": self._column,
            "BOUND_COMPARISON": self._comparison,
            "BOUND_CONJUNCTION": self._conjunction,
            "BOUND_CONSTANT": self._constant,
            "BOUND_FUNCTION": self._function,
            "BOUND_OPERATOR": self._operator,
        }

    def expression(self, item: Any, *, depth: int) -> Expression:
        if not isinstance(item, dict):
            raise InvalidArgument("json_filters: an expression must be a JSON object")
        name = _member(item, "expression_class", str)
        parse = self._classes.get(name)
        if parse is None:
            return Unsupported(name)
        if depth > MAX_DEPTH:
            return Unsupported("an expression nested too deep")
        try:
            return parse(item, depth + 1)
        except _NotUnderstood as exc:
            return Unsupported(str(exc))

    def _children(self, item: dict[str, Any], depth: int) -> tuple[Expression, ...]:
        return tuple(self.expression(child, depth=depth) for child in _member(item, "children", list))

    def _column(self, item: dict[str, Any], depth: int) -> Expression:
        index = _member(_member(item, "binding", dict), "column_index", int)
        if not 0 <= index < len(self._names):
            raise InvalidArgument(f"json_filters: column_index {index} is not in column_binding_names_by_index")
        if item.get("depth", 0) != 0:
            return Unsupported("a column of an outer query")
        return Column(self._names[index], parse_type(item.get("return_type")))

    def _constant(self, item: dict[str, Any], depth: int) -> Expression:
        value = _member(item, "value", dict)
        sql_type = parse_type(value.get("type"))
        return Literal(_value(value, sql_type), sql_type)

    def _comparison(self, item: dict[str, Any], depth: int) -> Expression:
        sides = (self.expression(item.get(side), depth=depth) for side in ("left", "right"))
        return _compare(_member(item, "type", str), *sides)

    def _conjunction(self, item: dict[str, Any], depth: int) -> Expression:
        node_type, parts = _member(item, "type", str), self._children(item, depth)
        if not parts or node_type not in {"CONJUNCTION_AND", "CONJUNCTION_OR"}:
            return Unsupported(node_type)
        return And(parts) if node_type == "CONJUNCTION_AND" else Or(parts)

    def _between(self, item: dict[str, Any], depth: int) -> Expression:
        child, lower, upper = (self.expression(item.get(key), depth=depth) for key in ("input", "lower", "upper"))
        inclusive = (_member(item, key, bool) for key in ("lower_inclusive", "upper_inclusive"))
        return Between(child, lower, upper, *inclusive)

    def _case(self, item: dict[str, Any], depth: int) -> Expression:
        branches = []
        for check in _member(item, "case_checks", list):
            if not isinstance(check, dict):
                raise InvalidArgument("json_filters: a branch of CASE must be a JSON object")
            when, then = (self.expression(check.get(key), depth=depth) for key in ("when_expr", "then_expr"))
            branches.append((when, then))
        default = self.expression(item.get("else_expr"), depth=depth)
        return Case(tuple(branches), default, parse_type(item.get("return_type")))

    def _cast(self, item: dict[str, Any], depth: int) -> Expression:
        child = self.expression(item.get("child"), depth=depth)
        return Cast(child, parse_type(item.get("return_type")), _member(item, "try_cast", bool))

    def _operator(self, item: dict[str, Any], depth: int) -> Expression:
        parts = self._children(item, depth)
        match item.get("type"), parts:
            case "OPERATOR_NOT", (child,):
                return Not(child)
            case "OPERATOR_IS_NULL", (child,):
                return IsNull(child)
            case "OPERATOR_IS_NOT_NULL", (child,):
                return IsNotNull(child)
            case "COMPARE_IN", (child, *values) if values:
                return In(child, tuple(values))
            case "COMPARE_NOT_IN", (child, *values) if values:
                return NotIn(child, tuple(values))
            case "OPERATOR_COALESCE", _:
                return Function("coalesce", parts, parse_type(item.get("return_type")))
            case node_type, _:
                return Unsupported(str(node_type))

    def _function(self, item: dict[str, Any], depth: int) -> Expression:
        node_type, parts = _member(item, "type", str), self._children(item, depth)
        if node_type in _OPERATORS and len(parts) == 2:
            return _compare(node_type, *parts)
        if node_type == "OPERATOR_CAST" and len(parts) == 1:
            data = _member(item, "function_data", dict)
            return Cast(parts[0], parse_type(item.get("return_type")), _member(data, "try_cast", bool))
        if node_type != "BOUND_FUNCTION":
            return Unsupported(node_type)
        name = _function_name(item)
        like = _LIKES.get(name)
        if like is None:
            return Function(name, parts, parse_type(item.get("return_type")))
        if len(parts) != (3 if name.endswith("escape") else 2):
            return Unsupported(name)
        matched = like[0](*parts)
        return Not(matched) if like[1] else matched


def _compare(node_type: str, left: Expression, right: Expression) -> Expression:
    op = _OPERATORS.get(node_type)
    return Unsupported(node_type) if op is None else Comparison(op, left, right)


def _function_name(item: dict[str, Any]) -> str:
    """The function's own name, if it is one of DuckDB's: users may have others of the same name in their schemas."""
    if isinstance(qualified := item.get("qname"), dict):
        path = qualified.get("path")
        if not isinstance(path, list) or not path or not all(isinstance(part, str) for part in path):
            raise InvalidArgument("json_filters: the name of a function is missing")
    else:
        path = [item.get("catalog_name") or "system", item.get("schema_name") or "main", _member(item, "name", str)]
    if len(path) > 1 and path[:-1] != ["system", "main"]:
        raise _NotUnderstood(f"function {'.'.join(map(str, path))}")
    return str(path[-1])


def parse_type(item: Any) -> SqlType:
    """The type in DuckDB's JSON; a type that is not known here comes out under its name and no engine takes it."""
    if not isinstance(item, dict):
        raise InvalidArgument("json_filters: a type must be a JSON object")
    name = _member(item, "id", str)
    name = _TYPE_NAMES.get(name, name)
    info = item.get("type_info")
    if info is None:
        return SqlType(name if name in _PLAIN_TYPES else f"UNKNOWN {name}")
    if not isinstance(info, dict):
        raise InvalidArgument("json_filters: 'type_info' must be a JSON object")
    if info.get("alias") or info.get("extension_info"):
        return SqlType("JSON" if (name, info.get("alias")) == ("VARCHAR", "JSON") else f"UNKNOWN {name}")
    return _detailed_type(name, info)


def _detailed_type(name: str, info: dict[str, Any]) -> SqlType:
    match name:
        case "DECIMAL":
            return SqlType(name, width=_member(info, "width", int), scale=_member(info, "scale", int))
        case "LIST":
            return SqlType(name, fields=(("", parse_type(info.get("child_type"))),))
        case "ARRAY":
            return SqlType(name, size=_member(info, "size", int), fields=(("", parse_type(info.get("child_type"))),))
        case "MAP":
            entry = parse_type(info.get("child_type"))
            return SqlType(name, fields=entry.fields)
        case "STRUCT":
            pairs = _member(info, "child_types", list)
            if not all(isinstance(pair, dict) for pair in pairs):
                raise InvalidArgument("json_filters: the fields of a struct must be JSON objects")
            return SqlType(name, fields=tuple((_member(p, "first", str), parse_type(p.get("second"))) for p in pairs))
        case "ENUM":
            values = _member(info, "values", list)
            if not all(isinstance(value, str) for value in values):
                raise InvalidArgument("json_filters: the values of an enum must be text")
            return SqlType(name, values=tuple(values))
        case "VARCHAR" if not info.get("collation"):
            return SqlType(name)
        case _:  # a collation among others: another order, another equality
            return SqlType(f"UNKNOWN {name}")


def _value(item: Any, sql_type: SqlType) -> Any:
    if not isinstance(item, dict):
        raise InvalidArgument("json_filters: a value must be a JSON object")
    if item.get("is_null"):
        return None
    value = item.get("value")
    match sql_type.id, value:
        case "BOOLEAN", bool():
            return value
        case _, bool():
            pass
        case "FLOAT" | "DOUBLE", int() | float():
            return value
        case "VARCHAR" | "JSON", str():
            return value
        case "BLOB", str() if _BLOB.fullmatch(value):
            return _BLOB_BYTE.sub(lambda match: bytes.fromhex(match[1].decode()), value.encode())
        case "BLOB", {"base64": str(text)}:
            return _base64(text)
        case "DECIMAL", int() | dict() if 0 <= sql_type.scale <= _MOST_DIGITS:
            digits = _whole(value, signed=True)
            return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -sql_type.scale))
        case "UUID", dict():
            # DuckDB keeps UUIDs with the first bit flipped, so that signed numbers sort like them.
            return uuid.UUID(int=(_whole(value, signed=True) & (1 << 128) - 1) ^ 1 << 127)
        case "INTERVAL", {"months": int(months), "days": int(days), "micros": int(micros)}:
            return (months, days, micros)
        case "ENUM", int() if 0 <= value < len(sql_type.values):
            return sql_type.values[value]
        case (("LIST" | "ARRAY" | "STRUCT" | "MAP"), {"children": list(parts)}):
            return _nested_value(parts, sql_type)
        case (name, int() | dict()) if name in _WHOLE:
            return _whole(value, signed=name != "UHUGEINT")
    raise _NotUnderstood(f"a constant of type {sql_type}")


def _whole(value: Any, *, signed: bool) -> int:
    match value:
        case int():
            return value
        case {"upper": int(upper), "lower": int(lower)} if 0 <= lower < 1 << 64:
            if -(1 << 63) * signed <= upper < 1 << (63 if signed else 64):
                return (upper << 64) + lower
    raise _NotUnderstood("a number in a form of its own")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise _NotUnderstood("a constant that is not base64") from exc


def _nested_value(parts: list[Any], sql_type: SqlType) -> tuple[Any, ...]:
    types = [child for _, child in sql_type.fields]
    match sql_type.id:
        case "MAP":
            entry = SqlType("STRUCT", fields=sql_type.fields)
            types = [entry] * len(parts)
        case "LIST" | "ARRAY":
            types = types * len(parts)
    if len(types) != len(parts):
        raise _NotUnderstood(f"a constant of type {sql_type}")
    return tuple(_value(part, child) for part, child in zip(parts, types, strict=True))
