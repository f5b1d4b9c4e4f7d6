"""Filter trees as DuckDB SQL text, made so that what a stranger sent can be run.

Nothing of the sender's reaches the text as it is: names are quoted, literals are spelled again from their
values, and only types and functions of the lists below are translated. What is not on the lists is dropped
by the rule of :func:`sparkport.filters.expressions.simplify`. Left off the lists on purpose is whatever
depends on settings of the client that the server cannot see: its time zone (anything that turns a TIMESTAMP
WITH TIME ZONE into something else), what it makes of a division by zero, and how floats print.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

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
    simplify,
    type_of,
)
from sparkport.filters.types import INTEGERS, SIGNED, UNSIGNED, ZONED

__all__ = ["ColumnSql", "is_supported", "literal_sql", "quote_identifier", "quote_text", "to_sql", "type_sql"]

ColumnSql: TypeAlias = Callable[[Column], str]

_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_NUMBERS = INTEGERS | _FLOATS | {"DECIMAL"}
_TEXT = frozenset({"VARCHAR"})
_LOCAL = frozenset({"DATE", "TIMESTAMP"})
_TIMESTAMPS = frozenset({"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
_SCALARS = (
    _NUMBERS | _TEXT | _TIMESTAMPS | {"BOOLEAN", "BLOB", "DATE", "TIME", "TIME_NS", ZONED, "INTERVAL", "UUID", "NULL"}
)
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"})

_ANY: frozenset[str] = frozenset()  # stands for any type that can be written at all
_INTERVAL = frozenset({"INTERVAL"})
_DATE = frozenset({"DATE"})
_LISTS = frozenset({"LIST", "ARRAY"})
_Kinds: TypeAlias = tuple[frozenset[str], ...]


def _named(names: str, *signatures: _Kinds) -> dict[str, tuple[_Kinds, ...]]:
    return dict.fromkeys(names.split(), signatures)


# Functions by DuckDB's names, with the types of arguments for which they mean the same everywhere.
_FUNCTIONS: dict[str, tuple[_Kinds, ...]] = {
    **_named("prefix suffix starts_with ^@ ends_with regexp_matches regexp_full_match ~~~", (_TEXT, _TEXT)),
    **_named("instr strpos position", (_TEXT, _TEXT)),
    **_named("contains", (_TEXT, _TEXT), (_LISTS, _ANY)),
    **_named("lower lcase upper ucase strlen char_length character_length reverse", (_TEXT,)),
    **_named("length len", (_TEXT,), (_LISTS,)),
    **_named("trim ltrim rtrim", (_TEXT,), (_TEXT, _TEXT)),
    **_named("substring substr", (_TEXT, INTEGERS), (_TEXT, INTEGERS, INTEGERS)),
    **_named("left right", (_TEXT, INTEGERS)),
    **_named("|| concat", (_TEXT, _TEXT)),
    **_named("+", (INTEGERS, INTEGERS), (_FLOATS, _FLOATS), (_LOCAL, _INTERVAL), (_DATE, INTEGERS)),
    **_named(
        "-",
        (INTEGERS,),
        (_FLOATS,),
        (INTEGERS, INTEGERS),
        (_FLOATS, _FLOATS),
        (_LOCAL, _INTERVAL),
        (_DATE, INTEGERS),
        (_DATE, _DATE),
    ),
    **_named("*", (INTEGERS, INTEGERS), (_FLOATS, _FLOATS)),
    **_named("// %", (INTEGERS, INTEGERS)),
    **_named("abs", (INTEGERS,), (_FLOATS,)),
    **_named("year month day quarter dayofweek isodow dayofyear hour minute second last_day", (_LOCAL,)),
    **_named("date_trunc datetrunc date_part datepart", (_TEXT, _LOCAL)),
    **_named("date_diff datediff", (_TEXT, _LOCAL, _LOCAL)),
    **_named("epoch_ms epoch_us", (_LOCAL | {ZONED},)),
    **_named("normalized_interval", (_INTERVAL,)),
    **_named("constant_or_null", (frozenset({"BOOLEAN"}), _ANY)),  # what DuckDB makes of LIKE '%'
    **_named("struct_extract", (frozenset({"STRUCT"}), _TEXT)),
    **_named("struct_extract_at", (frozenset({"STRUCT"}), INTEGERS)),
    **_named("array_extract list_extract list_element", (_LISTS | _TEXT, INTEGERS), (frozenset({"STRUCT"}), _TEXT)),
    **_named("list_contains array_contains list_has array_has", (_LISTS, _ANY)),
    **_named("array_length", (_LISTS,)),
    **_named("map_extract map_extract_value element_at", (frozenset({"MAP"}), _ANY)),
}
_INFIX = frozenset({"+", "-", "*", "//", "%", "||", "^@"})


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """A string literal. Text with a NUL in it is spelled in hex: SQL text may end at one."""
    if "\0" in text:
        return f"decode(unhex('{text.encode().hex()}'))"
    return "'" + text.replace("'", "''") + "'"


def type_sql(sql_type: SqlType) -> str | None:
    """A type as SQL, None for one that is not on the list. JSON is compared as the text it is."""
    match sql_type.id:
        case "JSON":
            return "VARCHAR"
        case "DECIMAL":
            fits = 1 <= sql_type.width <= 38 and 0 <= sql_type.scale <= sql_type.width
            return f"DECIMAL({sql_type.width},{sql_type.scale})" if fits else None
        case "ENUM":
            ok = sql_type.values and all(_is_text(value) and "\0" not in value for value in sql_type.values)
            return f"ENUM({', '.join(map(quote_text, sql_type.values))})" if ok else None
        case "LIST" | "ARRAY" | "STRUCT" | "MAP":
            return _nested_type_sql(sql_type)
        case known if known in _SCALARS:
            return known
        case _:
            return None


def _nested_type_sql(sql_type: SqlType) -> str | None:
    parts = [type_sql(child) for _, child in sql_type.fields]
    if not parts or None in parts:
        return None
    match sql_type.id:
        case "LIST" if len(parts) == 1:
            return f"{parts[0]}[]"
        case "ARRAY" if len(parts) == 1 and sql_type.size > 0:
            return f"{parts[0]}[{sql_type.size}]"
        case "MAP" if len(parts) == 2:
            return f"MAP({parts[0]}, {parts[1]})"
        case "STRUCT" if all(name and _is_text(name) and "\0" not in name for name, _ in sql_type.fields):
            names = (quote_identifier(name) for name, _ in sql_type.fields)
            return f"STRUCT({', '.join(f'{name} {part}' for name, part in zip(names, parts, strict=True))})"
        case _:
            return None


def _is_text(value: Any) -> bool:
    """A string that UTF-8 can hold: JSON can smuggle lone surrogates in."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def literal_sql(value: Any, sql_type: SqlType) -> str | None:
    """A value as SQL of exactly this type, None where the value does not fit it."""
    type_name = type_sql(sql_type)
    if type_name is None:
        return None
    if value is None:
        return f"CAST(NULL AS {type_name})"
    if sql_type.fields:
        return _nested_sql(value, sql_type, type_name)
    if sql_type.id in _TIMESTAMPS or sql_type.id in {ZONED, "DATE", "TIME", "TIME_NS", "INTERVAL"}:
        return _temporal_sql(value, sql_type.id)
    text = _scalar_text(value, sql_type)
    return None if text is None else f"CAST({text} AS {type_name})"


def _scalar_text(value: Any, sql_type: SqlType) -> str | None:
    match sql_type.id:
        case "BOOLEAN" if isinstance(value, bool):
            return str(value).lower()
        case name if name in INTEGERS and _is_int(value) and _in_range(value, name):
            return f"'{value}'"
        case "FLOAT" | "DOUBLE" if isinstance(value, float) or (_is_int(value) and abs(value) < 1 << 1000):
            return f"'{float(value)!r}'" if math.isfinite(value) else f"'{value}'"
        case "DECIMAL" if isinstance(value, Decimal) and value.is_finite():
            return _decimal_text(value, sql_type)
        case "VARCHAR" | "JSON" if _is_text(value):
            return quote_text(value)
        case "ENUM" if value in sql_type.values:
            return quote_text(value)
        case "UUID" if isinstance(value, uuid.UUID):
            return f"'{value}'"
        case "BLOB" if isinstance(value, bytes):
            return f"unhex('{value.hex()}')"
        case _:
            return None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(value: int, name: str) -> bool:
    if name in UNSIGNED:
        return 0 <= value < 1 << UNSIGNED[name]
    return -(1 << (SIGNED[name] - 1)) <= value < 1 << (SIGNED[name] - 1)


def _decimal_text(value: Decimal, sql_type: SqlType) -> str | None:
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + sql_type.scale
    if not -100 <= shift <= 100:
        return None
    whole, rest = divmod(int("".join(map(str, digits))) * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest or whole >= 10**sql_type.width:
        return None
    text = str(whole).rjust(sql_type.scale + 1, "0")
    point = len(text) - sql_type.scale
    return f"'{'-' if sign else ''}{text[:point]}.{text[point:]}'"


def _temporal_sql(value: Any, name: str) -> str | None:
    if name == "INTERVAL":
        if not (isinstance(value, tuple) and len(value) == 3 and all(map(_is_int, value))):
            return None
        months, days, micros = value
        return f"(to_months({months}) + to_days({days}) + to_microseconds({micros}))"
    if not _is_int(value) or not -(2**63) < value < 2**63:
        return None
    edge = 2**31 - 1 if name == "DATE" else 2**63 - 1
    if abs(value) == edge and name not in {"TIME", "TIME_NS"}:
        return f"CAST('{'-' if value < 0 else ''}infinity' AS {name})"
    match name:
        case "DATE":
            return f"make_date({value})" if abs(value) < edge else None
        case "TIME":
            return f"CAST('{_clock(value, 6)}' AS TIME)" if 0 <= value <= 86_400_000_000 else None
        case "TIME_NS":
            return f"CAST('{_clock(value, 9)}' AS TIME_NS)" if 0 <= value <= 86_400_000_000_000 else None
        case "TIMESTAMP_NS":
            return f"make_timestamp_ns({value})"
        case "TIMESTAMP WITH TIME ZONE":
            return f"make_timestamptz({value})"
        case "TIMESTAMP":
            return f"make_timestamp({value})"
        case _:
            micros = value * (1_000_000 if name == "TIMESTAMP_S" else 1_000)
            return f"CAST(make_timestamp({micros}) AS {name})" if abs(micros) < 2**63 else None


def _clock(units: int, digits: int) -> str:
    seconds, fraction = divmod(units, 10**digits)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"


def _nested_sql(value: Any, sql_type: SqlType, type_name: str) -> str | None:
    if not isinstance(value, tuple):
        return None
    if sql_type.id == "MAP":
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return None
        sides = [[literal_sql(pair[side], sql_type.fields[side][1]) for pair in value] for side in (0, 1)]
        if None in sides[0] or None in sides[1]:
            return None
        keys, values = (", ".join(str(part) for part in side) for side in sides)
        return f"CAST(map([{keys}], [{values}]) AS {type_name})"
    types = [child for _, child in sql_type.fields]
    if sql_type.id != "STRUCT":
        types = types * len(value)
    if len(types) != len(value):
        return None
    parts = [literal_sql(part, child) for part, child in zip(value, types, strict=True)]
    if None in parts or (sql_type.id == "ARRAY" and len(parts) != sql_type.size):
        return None
    if sql_type.id == "STRUCT":
        fields = zip((quote_identifier(name) for name, _ in sql_type.fields), parts, strict=True)
        return f"CAST(struct_pack({', '.join(f'{name} := {part}' for name, part in fields)}) AS {type_name})"
    return f"CAST([{', '.join(str(part) for part in parts)}] AS {type_name})"


def is_supported(node: Expression) -> bool:
    """Whether this node, its children aside, can be written as SQL that means the same as at the sender's."""
    match node:
        case Column(name, sql_type):
            return _is_text(name) and "\0" not in name and (sql_type is None or type_sql(sql_type) is not None)
        case Literal(value, sql_type):
            return literal_sql(value, sql_type) is not None
        case Comparison(op, left, right):
            return op in _COMPARISONS and _comparable(left, right)
        case And(nodes) | Or(nodes):
            return bool(nodes)
        case Not() | IsNull() | IsNotNull():
            return True
        case In(child, values) | NotIn(child, values):
            return bool(values) and all(_comparable(child, value, bytes_too=False) for value in values)
        case Between(child, lower, upper):
            return _comparable(child, lower) and _comparable(child, upper)
        case Like(child, pattern, escape) | ILike(child, pattern, escape):
            return all(_is_one_of(part, _TEXT) for part in (child, pattern, escape) if part is not None)
        case Function("coalesce", args, sql_type):
            return bool(args) and all(type_of(arg) == sql_type for arg in args)
        case Function(name, args):
            return any(
                len(types) == len(args) and all(map(_is_one_of, args, types))
                for types in _FUNCTIONS.get(name.lower(), ())
            )
        case Cast(child, target, try_cast):
            return _castable(type_of(child), target, try_cast=try_cast)
        case Case(branches, default, sql_type):
            return bool(branches) and all(type_of(then) == sql_type for then in (*(b[1] for b in branches), default))
        case _:
            return False


def _is_one_of(expr: Expression, type_ids: frozenset[str]) -> bool:
    sql_type = type_of(expr)
    return sql_type is None or not type_ids or sql_type.id in type_ids


def _comparable(left: Expression, right: Expression, *, bytes_too: bool = True) -> bool:
    """DuckDB compares like with like; where it compares text with bytes, it has made the bounds itself."""
    one, other = type_of(left), type_of(right)
    if one is None or other is None or one == other or "NULL" in (one.id, other.id):
        return True
    ids = {one.id, other.id}
    return ids == {"VARCHAR", "JSON"} or (bytes_too and ids == {"VARCHAR", "BLOB"})


def _castable(source: SqlType | None, target: SqlType, *, try_cast: bool) -> bool:
    if type_sql(target) is None or source is None:
        return False
    if source == target:
        return True
    pair = (source.id, target.id)
    if source.id in _NUMBERS | {"BOOLEAN"} and target.id in _NUMBERS | {"BOOLEAN"}:
        return True
    if try_cast:  # what fails to parse may differ from one version to the next, and here would lose the row
        return False
    if target.id == "VARCHAR":
        return source.id in INTEGERS | {"BOOLEAN", "DECIMAL", "DATE", "TIMESTAMP", "UUID", "ENUM", "JSON"}
    if source.id == "VARCHAR":
        return target.id in _NUMBERS | {"BOOLEAN", "UUID", "ENUM"}
    local = _TIMESTAMPS | _DATE
    return source.id == "NULL" or (source.id in local and target.id in local) or pair == ("TIMESTAMP", "TIME")


def to_sql(expr: Expression, *, column: ColumnSql | None = None) -> str:
    """A condition for WHERE: true for every row that ``expr`` keeps, ``TRUE`` where nothing of it can be said.

    ``column`` spells column references; without it, they are quoted names.
    """
    kept = simplify(expr, is_supported)
    return "TRUE" if kept is None else _Writer(column or (lambda ref: quote_identifier(ref.name))).write(kept)


class _Writer:
    def __init__(self, column: ColumnSql) -> None:
        self._column = column

    def write(self, expr: Expression) -> str:
        match expr:
            case Column():
                return self._column(expr)
            case Literal(value, sql_type):
                return literal_sql(value, sql_type) or "NULL"
            case Comparison(op, left, right):
                return f"({self._side(left, right)} {op} {self._side(right, left)})"
            case And(nodes):
                return f"({' AND '.join(map(self.write, nodes))})"
            case Or(nodes):
                return f"({' OR '.join(map(self.write, nodes))})"
            case Not(child):
                return f"(NOT {self.write(child)})"
            case IsNull(child):
                return f"({self.write(child)} IS NULL)"
            case IsNotNull(child):
                return f"({self.write(child)} IS NOT NULL)"
            case In(child, values):
                return f"({self.write(child)} IN ({self._values(child, values)}))"
            case NotIn(child, values):
                return f"({self.write(child)} NOT IN ({self._values(child, values)}))"
            case Between(child, lower, upper):
                low = Comparison(">=" if expr.lower_inclusive else ">", child, lower)
                high = Comparison("<=" if expr.upper_inclusive else "<", child, upper)
                return f"({self.write(low)} AND {self.write(high)})"
            case Like(child, pattern, escape) | ILike(child, pattern, escape):
                word = "LIKE" if isinstance(expr, Like) else "ILIKE"
                tail = "" if escape is None else f" ESCAPE {self.write(escape)}"
                return f"({self.write(child)} {word} {self.write(pattern)}{tail})"
            case Function(name, args):
                return self._call(name.lower(), [self.write(arg) for arg in args])
            case Cast(child, target, try_cast):
                return f"{'TRY_CAST' if try_cast else 'CAST'}({self.write(child)} AS {type_sql(target)})"
            case Case(branches, default):
                checks = " ".join(f"WHEN {self.write(when)} THEN {self.write(then)}" for when, then in branches)
                return f"CASE {checks} ELSE {self.write(default)} END"
            case _:
                return "NULL"

    def _values(self, child: Expression, values: tuple[Expression, ...]) -> str:
        """Plain numbers and texts where they cannot be taken for another type: a cast each makes long lists slow."""
        child_type = type_of(child)
        if child_type is None or child_type.id not in INTEGERS | _TEXT:
            return ", ".join(map(self.write, values))
        return ", ".join(
            (quote_text(value.value) if child_type.id == "VARCHAR" else str(value.value))
            if isinstance(value, Literal) and value.type == child_type and value.value is not None
            else self.write(value)
            for value in values
        )

    def _side(self, expr: Expression, other: Expression) -> str:
        """Text against bytes is compared byte by byte; a cast would read ``\\x41`` in the text as an escape."""
        sides = (type_of(expr), type_of(other))
        if [side_type.id for side_type in sides if side_type is not None] == ["VARCHAR", "BLOB"]:
            return f"encode({self.write(expr)})"
        return self.write(expr)

    def _call(self, name: str, args: list[str]) -> str:
        if name in _INFIX:
            return f"({name}{args[0]})" if len(args) == 1 else f"({args[0]} {name} {args[1]})"
        if name == "~~~":
            return f"({args[0]} GLOB {args[1]})"
        # Quoted, because some names are keywords; coalesce is one that is no function at all.
        return f"{name if name == 'coalesce' else quote_identifier(name)}({', '.join(args)})"
