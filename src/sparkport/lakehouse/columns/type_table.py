"""The one table of types: which Iceberg type keeps which Arrow type, and what Spark and DuckDB call it.

``types.py`` asks it about columns; ``docs/types.md`` is printed from it:

python -m sparkport.lakehouse.columns.type_table > docs/types.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "EXTENSION_MARKS",
    "PRIMITIVES",
    "Primitive",
    "RULES",
    "Refused",
    "Rule",
    "geo_metadata",
    "is_list",
    "parquet_name",
    "primitive",
    "reference_page",
    "rule_for",
    "spelled",
]

_MOST_DIGITS = 38
EXTENSION_MARKS = (b"ARROW:extension:name", b"ARROW:extension:metadata")


class Refused(Exception):
    """Why a type cannot be kept. Never leaves the two modules of types."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of Arrow type is stored. ``compares``: whether stored values compare as the declared ones do."""

    arrow: str
    duckdb: str
    example: pa.DataType
    matches: Callable[[pa.DataType], bool]
    iceberg: Callable[[pa.DataType], str]
    compares: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type of Iceberg. ``spark`` is None where Spark refuses tables that have it: they can only be read.

    ``compares``: whether DuckDB compares it as it compares what clients see.
    """

    arrow: pa.DataType
    stored: pa.DataType
    spark: str | None
    duckdb: str
    compares: bool = True


def _extension(name: str) -> Callable[[pa.DataType], bool]:
    return lambda kind: isinstance(kind, pa.BaseExtensionType) and kind.extension_name == name


def _any_of(*kinds: pa.DataType) -> Callable[[pa.DataType], bool]:
    return lambda kind: kind in kinds


def _timestamp(*units: str) -> Callable[[pa.DataType], bool]:
    return lambda kind: pa.types.is_timestamp(kind) and kind.unit in units


def _always(name: str) -> Callable[[pa.DataType], str]:
    return lambda _: name


def _decimal(kind: pa.DataType) -> str:
    if not 0 <= kind.scale <= kind.precision <= _MOST_DIGITS:
        raise Refused(f"a decimal has at most {_MOST_DIGITS} digits, and a scale from 0 to its precision")
    return f"decimal({kind.precision}, {kind.scale})"


def _fixed(kind: pa.DataType) -> str:
    if kind.byte_width == 0:
        raise Refused("it has no bytes")
    return f"fixed[{kind.byte_width}]"


_ZONED = "timestamptz"
_TIMES = "the number in its unit: Spark takes no TIME"

RULES: tuple[Rule, ...] = (
    Rule("bool", "BOOLEAN", pa.bool_(), pa.types.is_boolean, _always("boolean"), True),
    Rule(
        "arrow.bool8",
        "BOOLEAN (lossless)",
        pa.bool8(),
        _extension("arrow.bool8"),
        _always("boolean"),
        True,
        "any number but 0: 1",
    ),
    Rule(
        "int8, int16, int32",
        "TINYINT … INTEGER",
        pa.int8(),
        _any_of(pa.int8(), pa.int16(), pa.int32()),
        _always("int"),
        True,
    ),
    Rule("int64", "BIGINT", pa.int64(), pa.types.is_int64, _always("long"), True),
    Rule("uint8, uint16", "UTINYINT, USMALLINT", pa.uint8(), _any_of(pa.uint8(), pa.uint16()), _always("int"), True),
    Rule("uint32", "UINTEGER", pa.uint32(), pa.types.is_uint32, _always("long"), True),
    Rule("uint64", "UBIGINT", pa.uint64(), pa.types.is_uint64, _always("decimal(20, 0)"), True),
    Rule("float16, float", "FLOAT", pa.float32(), _any_of(pa.float16(), pa.float32()), _always("float"), True),
    Rule("double", "DOUBLE", pa.float64(), pa.types.is_float64, _always("double"), True),
    Rule(
        "decimal32, 64, 128, 256",
        "DECIMAL, HUGEINT, UHUGEINT",
        pa.decimal128(38, 0),
        pa.types.is_decimal,
        _decimal,
        True,
        f"up to {_MOST_DIGITS} digits",
    ),
    Rule(
        "string, large_string, string_view",
        "VARCHAR, UUID, JSON",
        pa.string(),
        _any_of(pa.string(), pa.large_string(), pa.string_view()),
        _always("string"),
        True,
    ),
    Rule("arrow.json", "JSON (lossless)", pa.json_(), _extension("arrow.json"), _always("string"), True),
    Rule(
        "arrow.uuid",
        "UUID (lossless)",
        pa.uuid(),
        _extension("arrow.uuid"),
        _always("uuid"),
        True,
        "text on its way through Spark",
    ),
    Rule(
        "binary, large_binary, binary_view",
        "BLOB, BIT",
        pa.binary(),
        _any_of(pa.binary(), pa.large_binary(), pa.binary_view()),
        _always("binary"),
        True,
        "as geoarrow.wkb (GEOMETRY) too, but then filters see opaque bytes",
    ),
    Rule("fixed_size_binary[n]", "", pa.binary(4), pa.types.is_fixed_size_binary, _fixed, True),
    Rule("date32", "DATE", pa.date32(), pa.types.is_date32, _always("date"), True),
    Rule("date64", "", pa.date64(), pa.types.is_date64, _always("date"), True, "whole days only, as Arrow says"),
    Rule(
        "timestamp[s], [ms], [us]",
        "TIMESTAMP, _S, _MS",
        pa.timestamp("us"),
        lambda kind: _timestamp("s", "ms", "us")(kind) and kind.tz is None,
        _always("timestamp"),
        True,
        "infinities stay; seconds and milliseconds beyond the range of microseconds (years ±290,000) are refused",
    ),
    Rule(
        "timestamp[s … us, tz]",
        "TIMESTAMPTZ",
        pa.timestamp("us", "UTC"),
        _timestamp("s", "ms", "us"),
        _always(_ZONED),
        True,
        "likewise",
    ),
    Rule(
        "timestamp[ns], timestamp[ns, tz]",
        "TIMESTAMP_NS",
        pa.timestamp("ns"),
        _timestamp("ns"),
        _always("long"),
        False,
        "nanoseconds since 1970: Spark takes no timestamp_ns",
    ),
    Rule("time32, time64", "TIME, TIMETZ, TIME_NS", pa.time64("us"), pa.types.is_time, _always("long"), False, _TIMES),
    Rule("duration", "", pa.duration("us"), pa.types.is_duration, _always("long"), False, "the number in its unit"),
    Rule(
        "month_day_nano_interval",
        "INTERVAL",
        pa.month_day_nano_interval(),
        _any_of(pa.month_day_nano_interval()),
        _always("fixed[16]"),
        False,
        "Arrow's own 16 bytes: months and days (int32), nanoseconds (int64), little-endian",
    ),
)
"""Leaves. Whatever contains others (lists, structs, maps, unions, dictionaries, other extensions) is taken apart."""

PRIMITIVES: dict[str, Primitive] = {
    "boolean": Primitive(pa.bool_(), pa.bool_(), "boolean", "BOOLEAN"),
    "int": Primitive(pa.int32(), pa.int32(), "int", "INTEGER"),
    "long": Primitive(pa.int64(), pa.int64(), "bigint", "BIGINT"),
    "float": Primitive(pa.float32(), pa.float32(), "float", "FLOAT"),
    "double": Primitive(pa.float64(), pa.float64(), "double", "DOUBLE"),
    "date": Primitive(pa.date32(), pa.date32(), "date", "DATE"),
    "time": Primitive(pa.time64("us"), pa.time64("us"), None, "TIME"),
    "timestamp": Primitive(pa.timestamp("us"), pa.timestamp("us"), "timestamp_ntz", "TIMESTAMP"),
    _ZONED: Primitive(pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), "timestamp", "TIMESTAMPTZ"),
    "timestamp_ns": Primitive(pa.timestamp("ns"), pa.timestamp("ns"), None, "TIMESTAMP_NS"),
    # DuckDB 1.5 has no zoned nanoseconds: such a client compares microseconds.
    "timestamptz_ns": Primitive(pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC"), None, "TIMESTAMPTZ_NS", False),
    "string": Primitive(pa.string(), pa.string(), "string", "VARCHAR"),
    "uuid": Primitive(pa.uuid(), pa.string(), "string", "UUID"),
    "binary": Primitive(pa.binary(), pa.binary(), "binary", "BLOB"),
    "unknown": Primitive(pa.null(), pa.null(), "void", "INTEGER", False),
}
"""Without those that have parameters (decimal, fixed, geometry, geography) and without variant, which is refused."""


def rule_for(kind: pa.DataType) -> Rule | None:
    return next((rule for rule in RULES if rule.matches(kind)), None)


def is_list(kind: pa.DataType) -> bool:
    checks = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)


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
    found = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", iceberg)
    return iceberg if found is None else f"decimal({found[1]}, {found[2]})"


def primitive(iceberg: str) -> Primitive:
    if iceberg in PRIMITIVES:
        return PRIMITIVES[iceberg]
    found = _PARAMETERS.fullmatch(iceberg)
    match found and found[1]:
        case "decimal":
            digits = pa.decimal128(*(int(part) for part in found[2].split(",")))  # type: ignore[index]
            text = f"decimal({digits.precision},{digits.scale})"
            return Primitive(digits, digits, text, text.upper())
        case "fixed":
            return Primitive(pa.binary(int(found[2])), pa.binary(), "binary", "BLOB")  # type: ignore[index]
        case "geometry" | "geography":
            return Primitive(pa.binary(), pa.binary(), None, "BLOB", False)
    raise Refused("the type cannot be read")


def geo_metadata(iceberg: str) -> dict[bytes, bytes]:
    found = _PARAMETERS.fullmatch(iceberg)
    if found is None or found[1] not in ("geometry", "geography"):
        return {}
    system, _, edges = (part.strip() for part in (found[2] or "").partition(","))
    about = {"crs": system or "OGC:CRS84"}
    if found[1] == "geography":
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
