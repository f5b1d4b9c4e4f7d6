"""Filters of the Python client, written as the JSON that DuckDB's client sends, so that servers see one form.

The server only narrows what it sends by them and the client filters the rows itself, so a part that has no
exact counterpart in the column's own type is left out rather than approximated.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sparkport.errors import InvalidArgument
from sparkport.filters.expressions import (
    BOOLEAN,
    And,
    Between,
    Cast,
    Column,
    Comparison,
    Expression,
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
    conjuncts,
    simplify,
    type_of,
)
from sparkport.filters.sql import is_supported
from sparkport.filters.types import INTEGERS, arrow_sql_type

__all__ = ["COMPARISONS", "dump_filters"]

COMPARISONS = {
    "=": "COMPARE_EQUAL",
    "<>": "COMPARE_NOTEQUAL",
    "<": "COMPARE_LESSTHAN",
    "<=": "COMPARE_LESSTHANOREQUALTO",
    ">": "COMPARE_GREATERTHAN",
    ">=": "COMPARE_GREATERTHANOREQUALTO",
    "IS DISTINCT FROM": "COMPARE_DISTINCT_FROM",
    "IS NOT DISTINCT FROM": "COMPARE_NOT_DISTINCT_FROM",
}

_DOUBLE = SqlType("DOUBLE")
_VARCHAR = SqlType("VARCHAR")
_TICKS = {"TIMESTAMP_S": 1, "TIMESTAMP_MS": 1_000, "TIMESTAMP": 1_000_000, "TIMESTAMP_NS": 1_000_000_000}


def dump_filters(expr: Expression | None, schema: pa.Schema) -> str:
    """The JSON for ``json_filters``. Columns are found by name without regard to case; an unknown one is refused."""
    writer = _Writer(schema)
    parts = [simplify(writer.typed(part), is_supported) for part in conjuncts(expr)]
    filters = [writer.dump(part) for part in parts if part is not None]
    document = {"filters": filters, "column_binding_names_by_index": writer.names}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


class _Writer:
    def __init__(self, schema: pa.Schema) -> None:
        self.names: list[str] = []
        self._fields: dict[str, list[Any]] = {}
        for field in schema:
            self._fields.setdefault(field.name.lower(), []).append(field)

    def typed(self, expr: Expression) -> Expression:
        """The same filter with every column's type known and every literal in the type that it is compared with."""
        match expr:
            case Column(name):
                return self._column(name)
            case And(nodes):
                return And(tuple(self.typed(node) for node in nodes))
            case Or(nodes):
                return Or(tuple(self.typed(node) for node in nodes))
            case Not() | IsNull() | IsNotNull():
                return replace(expr, child=self.typed(expr.child))
            case Comparison(op, Literal() as left, right) if not isinstance(right, Literal):
                child, (value,) = _common(self.typed(right), left)
                return Comparison(op, value, child)
            case Comparison(op, left, Literal() as right):
                child, (value,) = _common(self.typed(left), right)
                return Comparison(op, child, value)
            case Comparison(op, left, right):
                return Comparison(op, self.typed(left), self.typed(right))
            case In(child, values) | NotIn(child, values):
                child, common_values = _common(self.typed(child), *values)
                return replace(expr, child=child, values=common_values)
            case Between(child, lower, upper):
                child, (low, high) = _common(self.typed(child), lower, upper)
                return replace(expr, child=child, lower=low, upper=high)
            case Like(child, Literal() as pattern, None) | ILike(child, Literal() as pattern, None):
                return replace(expr, child=self.typed(child), pattern=pattern)
            case Literal(_, sql_type) if sql_type == BOOLEAN:
                return expr
            case _:
                return Unsupported(type(expr).__name__)

    def _column(self, name: str) -> Expression:
        fields = self._fields.get(name.lower(), [])
        if len(fields) != 1:
            raise InvalidArgument(f"column '{name}' {'is ambiguous' if fields else 'not found'}")
        sql_type = arrow_sql_type(fields[0].type)
        return Unsupported(str(fields[0].type)) if sql_type is None else Column(fields[0].name, sql_type)

    def dump(self, expr: Expression) -> dict[str, Any]:
        match expr:
            case Column(name, sql_type):
                if name not in self.names:
                    self.names.append(name)
                binding = {"table_index": 0, "column_index": self.names.index(name)}
                node_type = "BOUND_COLUMN_REF"
                return _node(node_type, node_type, alias=name, return_type=_type(sql_type), binding=binding, depth=0)
            case Literal(value, sql_type):
                constant: dict[str, Any] = {"type": _type(sql_type), "is_null": value is None}
                if value is not None:
                    constant["value"] = _value(value, sql_type)
                return _node("BOUND_CONSTANT", "VALUE_CONSTANT", value=constant)
            case Comparison(op, left, right):
                return _node("BOUND_COMPARISON", COMPARISONS[op], left=self.dump(left), right=self.dump(right))
            case And(nodes) | Or(nodes):
                node_type = "CONJUNCTION_AND" if isinstance(expr, And) else "CONJUNCTION_OR"
                return _node("BOUND_CONJUNCTION", node_type, children=[self.dump(node) for node in nodes])
            case Not(child):
                return self._operator("OPERATOR_NOT", child)
            case IsNull(child):
                return self._operator("OPERATOR_IS_NULL", child)
            case IsNotNull(child):
                return self._operator("OPERATOR_IS_NOT_NULL", child)
            case In(child, values):
                return self._operator("COMPARE_IN", child, *values)
            case NotIn(child, values):
                return self._operator("COMPARE_NOT_IN", child, *values)
            case Between():
                return _node(
                    "BOUND_BETWEEN",
                    "COMPARE_BETWEEN",
                    input=self.dump(expr.child),
                    lower=self.dump(expr.lower),
                    upper=self.dump(expr.upper),
                    lower_inclusive=expr.lower_inclusive,
                    upper_inclusive=expr.upper_inclusive,
                )
            case Like(child, pattern) | ILike(child, pattern):
                return self._like("~~" if isinstance(expr, Like) else "~~*", child, pattern)
            case Cast(child, sql_type, try_cast):
                node_type = "OPERATOR_CAST"
                return _node(
                    "BOUND_CAST", node_type, return_type=_type(sql_type), child=self.dump(child), try_cast=try_cast
                )
            case _:
                raise TypeError(f"typed() lets no {type(expr).__name__} through")

    def _operator(self, node_type: str, *parts: Expression) -> dict[str, Any]:
        return _node(
            "BOUND_OPERATOR", node_type, return_type=_type(BOOLEAN), children=[self.dump(part) for part in parts]
        )

    def _like(self, name: str, child: Expression, pattern: Expression) -> dict[str, Any]:
        return _node(
            "BOUND_FUNCTION",
            "BOUND_FUNCTION",
            return_type=_type(BOOLEAN),
            children=[self.dump(child), self.dump(pattern)],
            name=name,
            arguments=[_type(_VARCHAR), _type(_VARCHAR)],
            original_arguments=[],
            catalog_name="",
            schema_name="",
            has_serialize=False,
            is_operator=True,
        )


def _node(expression_class: str, node_type: str, *, alias: str = "", **members: Any) -> dict[str, Any]:
    return {"expression_class": expression_class, "type": node_type, "alias": alias, **members}


def _common(child: Expression, *values: Expression) -> tuple[Expression, tuple[Expression, ...]]:
    """Literals brought to the column's type; numbers with no place in it are compared as DOUBLE, as by DuckDB."""
    target = type_of(child)
    if target is None or not all(isinstance(value, Literal) for value in values):
        return child, tuple(Unsupported("no common type") for _ in values)
    literals = [value for value in values if isinstance(value, Literal)]
    fitted = [_fit(literal, target) for literal in literals]
    if None in fitted and (target.id in INTEGERS or target.id in {"DECIMAL", "FLOAT"}):
        doubles = [_fit(literal, _DOUBLE) for literal in literals]
        if None not in doubles:
            child, fitted = Cast(child, _DOUBLE), doubles
    return child, tuple(Unsupported(f"a literal for {target}") if value is None else value for value in fitted)


def _fit(literal: Literal, target: SqlType) -> Literal | None:
    """The literal in another type where it is exactly the same value there."""
    value, source = literal.value, literal.type
    if value is None or source == target:
        return Literal(value, target)
    whole = source.id in INTEGERS
    if whole and target.id in INTEGERS:
        return Literal(value, target) if is_supported(Literal(value, target)) else None
    if target.id == "DECIMAL" and (whole or source.id == "DECIMAL"):
        moved = Literal(Decimal(value), target)
        return moved if is_supported(moved) else None
    if target.id == "DOUBLE" and whole:
        return Literal(float(value), target) if abs(value) <= 2**53 else None
    if target.id == "FLOAT" and (whole or source.id == "DOUBLE"):
        return Literal(float(value), target) if abs(value) <= 2**24 and _is_single(float(value)) else None
    if target.id in _TICKS and source.id in {"DATE", "TIMESTAMP"}:
        micros = value * 86_400_000_000 if source.id == "DATE" else value
        ticks, rest = divmod(micros * _TICKS[target.id], 1_000_000)
        return None if rest else Literal(ticks, target)
    return None


def _is_single(value: float) -> bool:
    return bool(struct.unpack("<f", struct.pack("<f", value))[0] == value)


def _type(sql_type: SqlType | None) -> dict[str, Any]:
    if sql_type is None:
        raise TypeError("typed() leaves no column without a type")
    info: dict[str, Any] | None = None
    if sql_type.id == "DECIMAL":
        info = {"type": "DECIMAL_TYPE_INFO", "alias": "", "width": sql_type.width, "scale": sql_type.scale}
    return {"id": sql_type.id, "type_info": info}


def _value(value: Any, sql_type: SqlType) -> Any:
    match sql_type.id:
        case "HUGEINT" | "UHUGEINT":
            return _halves(value)
        case "DECIMAL":
            sign, digits, exponent = value.as_tuple()
            shift = int(exponent) + sql_type.scale
            unscaled = int("".join(map(str, digits))) * 10 ** max(shift, 0) // 10 ** max(-shift, 0)
            unscaled = -unscaled if sign else unscaled
            return unscaled if sql_type.width <= 18 else _halves(unscaled)
        case "UUID":
            flipped = value.int ^ 1 << 127
            return _halves(flipped - (1 << 128) if flipped >> 127 else flipped)
        case "INTERVAL":
            return dict(zip(("months", "days", "micros"), value, strict=True))
        case "BLOB":
            plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'\"" else f"\\x{byte:02X}" for byte in value)
            return "".join(plain)
        case _:
            return value


def _halves(value: int) -> dict[str, int]:
    return {"upper": value >> 64, "lower": value & (1 << 64) - 1}
