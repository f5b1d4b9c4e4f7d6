"""The one table of types: which Iceberg type keeps which Arrow type, and what Spark and DuckDB call it.

``types.py`` asks it about columns; ``docs/types.md`` is printed from it:

python -m sparkport.lakehouse.columns.type_table > docs/types.md
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from sparkport.filters.expressions import SqlType
from sparkport.filters.types import arrow_sql_type

__all__ = [
    "EXTENSION_MARKS",
    "PRIMITIVES",
    "Primitive",
    "RULES",
    "Rule",
    "SparkLiteral",
    "TypeRefused",
    "geo_metadata",
    "is_list",
    "known_type",
    "parquet_name",
    "primitive",
    "reference_page",
    "rule_for",
    "spelled",
]

SparkLiteral: TypeAlias = Callable[[int], str | None]

_MOST_DIGITS = 38
_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = ((edge - _EPOCH).days for edge in (dt.date.min, dt.date.max))
_DAY_MICROS = 86_400_000_000
EXTENSION_MARKS = (b"ARROW:extension:name", b"ARROW:extension:metadata")


class TypeRefused(Exception):
    """Why a type cannot be kept. Never leaves the two modules of types."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of Arrow type is stored. ``compares``: whether stored values compare as the declared ones do."""

    arrow: str
    duckdb: str
    example: pa.DataType
    matches: Callable[[pa.DataType], bool]
    stored_as: str | Callable[[pa.DataType], str]
    note: str = ""
    compares: bool = True

    def iceberg(self, arrow_type: pa.DataType) -> str:
        return self.stored_as if isinstance(self.stored_as, str) else self.stored_as(arrow_type)


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type of Iceberg. ``spark`` is None where Spark refuses tables that have it: they can only be read.

    ``filtered`` is the stored type as filters name it, None where DuckDB compares it otherwise than what clients see.
    ``direct``: whether Arrow reads from files just what DuckDB would. ``literal`` writes a bound, a whole number, in
    Spark's SQL; where it is None, nobody asks for bounds.
    """

    arrow: pa.DataType
    stored: pa.DataType
    spark: str | None
    duckdb: str
    filtered: SqlType | None
    direct: bool = True
    literal: SparkLiteral | None = None

    @property
    def in_files(self) -> pa.DataType | None:
        """The type in which Arrow reads it from files, from which it is made what DuckDB reads; None for what only
        DuckDB reads right."""
        if self.direct:
            return self.stored
        is_fixed = isinstance(self.arrow, pa.UuidType) or pa.types.is_fixed_size_binary(self.arrow)
        return self.arrow if is_fixed else None

    @property
    def is_bytes(self) -> bool:
        """Then defaults are written down as hexadecimal digits."""
        return bool(self.stored == pa.binary())


def _primitive(
    arrow: pa.DataType, spark: str | None, duckdb: str, *, direct: bool = True, literal: SparkLiteral | None = None
) -> Primitive:
    """One that is stored as what it is."""
    return Primitive(arrow, arrow, spark, duckdb, arrow_sql_type(arrow), direct, literal)


# Bounds as Spark SQL, in exactly the column's type: an implicit cast in a statement that also names a metadata column
# such as ``_row_id`` fails in Spark. None beyond the years 1 to 9999, where Spark's literals end, and what DuckDB takes
# for infinity is a number like any other to Spark.


def _long(value: int) -> str:
    return f"{value}L" if value > -(2**63) else f"CAST('{value}' AS BIGINT)"


def _day(value: int) -> str | None:
    inside = _FIRST_DAY <= value <= _LAST_DAY
    return f"DATE '{(_EPOCH + dt.timedelta(days=value)).isoformat()}'" if inside else None


def _instant(value: int) -> str | None:
    return None if _day(value // _DAY_MICROS) is None else f"timestamp_micros({value}L)"


def _local(value: int) -> str | None:
    instant = _instant(value)
    return None if instant is None else f"CAST({instant} AS TIMESTAMP_NTZ)"


def _extension(name: str) -> Callable[[pa.DataType], bool]:
    return lambda arrow_type: isinstance(arrow_type, pa.BaseExtensionType) and arrow_type.extension_name == name


def _any_of(*arrow_types: pa.DataType) -> Callable[[pa.DataType], bool]:
    return lambda arrow_type: arrow_type in arrow_types


def _timestamp(*units: str) -> Callable[[pa.DataType], bool]:
    return lambda arrow_type: pa.types.is_timestamp(arrow_type) and arrow_type.unit in units


def _decimal(arrow_type: pa.DataType) -> str:
    if not 0 <= arrow_type.scale <= arrow_type.precision <= _MOST_DIGITS:
        raise TypeRefused(f"a decimal has at most {_MOST_DIGITS} digits, and a scale from 0 to its precision")
    return f"decimal({arrow_type.precision}, {arrow_type.scale})"


def _fixed(arrow_type: pa.DataType) -> str:
    if arrow_type.byte_width == 0:
        raise TypeRefused("it has no bytes")
    return f"fixed[{arrow_type.byte_width}]"


_ZONED = "timestamptz"
_TIMES = "the number in its unit: Spark takes no TIME"

RULES: tuple[Rule, ...] = (
    Rule("bool", "BOOLEAN", pa.bool_(), pa.types.is_boolean, "boolean"),
    Rule("arrow.bool8", "BOOLEAN (lossless)", pa.bool8(), _extension("arrow.bool8"), "boolean", "any number but 0: 1"),
    Rule("int8, int16, int32", "TINYINT … INTEGER", pa.int8(), _any_of(pa.int8(), pa.int16(), pa.int32()), "int"),
    Rule("int64", "BIGINT", pa.int64(), pa.types.is_int64, "long"),
    Rule("uint8, uint16", "UTINYINT, USMALLINT", pa.uint8(), _any_of(pa.uint8(), pa.uint16()), "int"),
    Rule("uint32", "UINTEGER", pa.uint32(), pa.types.is_uint32, "long"),
    Rule("uint64", "UBIGINT", pa.uint64(), pa.types.is_uint64, "decimal(20, 0)"),
    Rule("float16, float", "FLOAT", pa.float32(), _any_of(pa.float16(), pa.float32()), "float"),
    Rule("double", "DOUBLE", pa.float64(), pa.types.is_float64, "double"),
    Rule(
        "decimal32, 64, 128, 256",
        "DECIMAL, HUGEINT, UHUGEINT",
        pa.decimal128(38, 0),
        pa.types.is_decimal,
        _decimal,
        f"up to {_MOST_DIGITS} digits",
    ),
    Rule(
        "string, large_string, string_view",
        "VARCHAR, UUID, JSON",
        pa.string(),
        _any_of(pa.string(), pa.large_string(), pa.string_view()),
        "string",
    ),
    Rule("arrow.json", "JSON (lossless)", pa.json_(), _extension("arrow.json"), "string"),
    Rule("arrow.uuid", "UUID (lossless)", pa.uuid(), _extension("arrow.uuid"), "uuid", "text on its way through Spark"),
    Rule(
        "binary, large_binary, binary_view",
        "BLOB, BIT",
        pa.binary(),
        _any_of(pa.binary(), pa.large_binary(), pa.binary_view()),
        "binary",
        "as geoarrow.wkb (GEOMETRY) too, but then filters see opaque bytes",
    ),
    Rule("fixed_size_binary[n]", "", pa.binary(4), pa.types.is_fixed_size_binary, _fixed),
    Rule("date32", "DATE", pa.date32(), pa.types.is_date32, "date"),
    Rule("date64", "", pa.date64(), pa.types.is_date64, "date", "whole days only, as Arrow says"),
    Rule(
        "timestamp[s], [ms], [us]",
        "TIMESTAMP, _S, _MS",
        pa.timestamp("us"),
        lambda arrow_type: _timestamp("s", "ms", "us")(arrow_type) and arrow_type.tz is None,
        "timestamp",
        "infinities stay; seconds and milliseconds beyond the range of microseconds (years ±290,000) are refused",
    ),
    Rule(
        "timestamp[s … us, tz]",
        "TIMESTAMPTZ",
        pa.timestamp("us", "UTC"),
        _timestamp("s", "ms", "us"),
        _ZONED,
        "likewise",
    ),
    Rule(
        "timestamp[ns], timestamp[ns, tz]",
        "TIMESTAMP_NS",
        pa.timestamp("ns"),
        _timestamp("ns"),
        "long",
        "nanoseconds since 1970: Spark takes no timestamp_ns",
        compares=False,
    ),
    Rule("time32, time64", "TIME, TIMETZ, TIME_NS", pa.time64("us"), pa.types.is_time, "long", _TIMES, compares=False),
    Rule("duration", "", pa.duration("us"), pa.types.is_duration, "long", "the number in its unit", compares=False),
    Rule(
        "month_day_nano_interval",
        "INTERVAL",
        pa.month_day_nano_interval(),
        _any_of(pa.month_day_nano_interval()),
        "fixed[16]",
        "Arrow's own 16 bytes: months and days (int32), nanoseconds (int64), little-endian",
        compares=False,
    ),
)
"""Leaves. Whatever contains others (lists, structs, maps, unions, dictionaries, other extensions) is taken apart."""

PRIMITIVES: dict[str, Primitive] = {
    "boolean": _primitive(pa.bool_(), "boolean", "BOOLEAN"),
    "int": _primitive(pa.int32(), "int", "INTEGER", literal=str),
    "long": _primitive(pa.int64(), "bigint", "BIGINT", literal=_long),
    "float": _primitive(pa.float32(), "float", "FLOAT"),
    "double": _primitive(pa.float64(), "double", "DOUBLE"),
    "date": _primitive(pa.date32(), "date", "DATE", literal=_day),
    "time": _primitive(pa.time64("us"), None, "TIME", direct=False),
    "timestamp": _primitive(pa.timestamp("us"), "timestamp_ntz", "TIMESTAMP", literal=_local),
    _ZONED: _primitive(pa.timestamp("us", "UTC"), "timestamp", "TIMESTAMPTZ", literal=_instant),
    "timestamp_ns": _primitive(pa.timestamp("ns"), None, "TIMESTAMP_NS", direct=False),
    # DuckDB 1.5 has no zoned nanoseconds: such a client compares microseconds.
    "timestamptz_ns": _primitive(pa.timestamp("ns", "UTC"), None, "TIMESTAMPTZ_NS", direct=False),
    "string": _primitive(pa.string(), "string", "VARCHAR"),
    "uuid": Primitive(pa.uuid(), pa.string(), "string", "UUID", SqlType("UUID"), direct=False),
    "binary": _primitive(pa.binary(), "binary", "BLOB"),
    "unknown": _primitive(pa.null(), "void", "INTEGER", direct=False),
}
"""Without those that have parameters (decimal, fixed, geometry, geography) and without variant, which is refused."""


def rule_for(arrow_type: pa.DataType) -> Rule | None:
    return next((rule for rule in RULES if rule.matches(arrow_type)), None)


def is_list(arrow_type: pa.DataType) -> bool:
    checks = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{check}")(arrow_type) for check in checks)


def parquet_name(name: str) -> str:
    """What Iceberg's writers call a field in a file, where names are held to Avro's rules.

    Columns are found by their ids, but DuckDB looks for nested fields by name, and where it finds none it reads NULL.
    """
    if not name:
        return name
    units = name.encode("utf-16-be", "surrogatepass")
    letters = [chr(int.from_bytes(units[at : at + 2])) for at in range(0, len(units), 2)]
    return "".join(_parquet_letter(letter, first=at == 0) for at, letter in enumerate(letters))


def _parquet_letter(letter: str, *, first: bool) -> str:
    if letter == "_" or letter.isalpha() or (letter.isdecimal() and not first):
        return letter
    return f"_{letter}" if letter.isdecimal() else f"_x{ord(letter):X}"


_PARAMETERS = re.compile(r"(decimal|fixed|geometry|geography)\s*(?:[(\[]\s*(.*?)\s*[)\]])?")


def spelled(iceberg: str) -> str:
    """One spelling for types that writers space differently."""
    decimal = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", iceberg)
    return iceberg if decimal is None else f"decimal({decimal[1]}, {decimal[2]})"


@lru_cache(maxsize=1_000)
def primitive(iceberg: str) -> Primitive:
    if iceberg in PRIMITIVES:
        return PRIMITIVES[iceberg]
    parts = _PARAMETERS.fullmatch(iceberg)
    match parts and parts[1]:
        case "decimal":
            digits = pa.decimal128(*(int(part) for part in parts[2].split(",")))  # type: ignore[index]
            text = f"decimal({digits.precision},{digits.scale})"
            return _primitive(digits, text, text.upper())
        case "fixed":
            return Primitive(
                pa.binary(int(parts[2])),  # type: ignore[index]
                pa.binary(),
                "binary",
                "BLOB",
                SqlType("BLOB"),
                direct=False,
            )
        case "geometry" | "geography":
            return Primitive(pa.binary(), pa.binary(), None, "BLOB", None, direct=False)
    raise TypeRefused("the type cannot be read")


def known_type(iceberg: object) -> Primitive | None:
    """None for what is nested, and for types that cannot be read."""
    try:
        return primitive(iceberg) if isinstance(iceberg, str) else None
    except TypeRefused:
        return None


def geo_metadata(iceberg: str) -> dict[bytes, bytes]:
    parts = _PARAMETERS.fullmatch(iceberg)
    if parts is None or parts[1] not in ("geometry", "geography"):
        return {}
    system, _, edges = (part.strip() for part in (parts[2] or "").partition(","))
    about = {"crs": system or "OGC:CRS84"}
    if parts[1] == "geography":
        about["edges"] = edges or "spherical"
    return dict(zip(EXTENSION_MARKS, (b"geoarrow.wkb", json.dumps(about).encode()), strict=True))


_HEAD = """\
# Types

Tables live in Apache Iceberg, which has fewer types than Arrow and DuckDB. Every column comes back in the type in which
it was declared, value by value; this page says what it is in between, for those who look at a table with Spark. The
declared type is kept in the table's properties where the Iceberg type alone would not lead back to it, together with a
field's metadata.

*Filters* says whether the server uses filters on such a column to read less. Where it does not, rows are filtered by
the client all the same.

| Arrow | from DuckDB | Iceberg | Spark | filters | |
|---|---|---|---|---|---|
"""

_NESTED = """\
| list, large_list, list_view, large_list_view | T[] | list | array | as its items | |
| fixed_size_list | T[n] | list | array | no | |
| struct | STRUCT | struct | struct | as its fields | see below for names |
| map | MAP | map | map | as its entries | a key cannot hold a map |
| sparse_union, dense_union | UNION | struct | struct | no | `union_tag` and all members, of which one has a value |
| dictionary | ENUM | that of its values | | as its values | the values of an enum are not checked |
| arrow.opaque | BIGNUM; lossless HUGEINT, UHUGEINT, BIT, TIMETZ | that of its storage | binary | no | |
| other extensions | | that of their storage | | no | |

Refused: the null type, decimals of more than 38 digits or with a negative scale, structs without fields, fields without
a name or with one that differs from another only in case, run-end encoded columns, dictionaries of anything nested.
Infinities and NaN are kept. A list, struct or map can hold any of the types above.

Iceberg's writers change the names of nested fields inside of files (`a.b` becomes `a_x2Eb`). Queries never show it;
only filters on a struct that has such a field are left to the client.

## Tables made elsewhere

| Iceberg | Arrow | can be written |
|---|---|---|
"""

_TAIL = """\
| decimal(P, S) | decimal128(P, S) | yes |
| fixed[N] | fixed_size_binary[N] | yes |
| geometry, geography | binary, geoarrow.wkb | no: Spark refuses it |
| struct, list, map | struct, list, map | as their parts |
| variant | refused | |
"""


def reference_page() -> str:
    written = "".join(_rule_row(rule) for rule in RULES)
    foreign = "".join(
        f"| {name} | {known.arrow} | {'yes' if known.spark else 'no: Spark refuses it'} |\n"
        for name, known in PRIMITIVES.items()
    )
    return _HEAD + written + _NESTED + foreign + _TAIL


def _rule_row(rule: Rule) -> str:
    iceberg = rule.iceberg(rule.example)
    filters = "yes" if rule.compares else "no"
    return f"| {rule.arrow} | {rule.duckdb} | {iceberg} | {primitive(iceberg).spark} | {filters} | {rule.note} |\n"


if __name__ == "__main__":
    print(reference_page(), end="")
