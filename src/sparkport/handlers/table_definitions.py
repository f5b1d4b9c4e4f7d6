"""What CREATE TABLE asks for, as the body of ``create_table`` has it.

DuckDB's client sends keys of one column by the column's name, the columns of a longer PRIMARY KEY as a set, and a
longer UNIQUE as SQL.
"""

from __future__ import annotations

import re

import pyarrow as pa

from sparkport.catalog.ddl import TableDefinition, check_new_names
from sparkport.catalog.evolve import find_column
from sparkport.catalog.isolated import shortened
from sparkport.catalog.keys import new_keys, require_key_length
from sparkport.catalog.table import Key
from sparkport.errors import InvalidArgument, Unsupported
from sparkport.protocol.contents import plain_schema
from sparkport.protocol.maps import MapReader
from sparkport.protocol.targets import decode_schema

__all__ = ["table_definition"]

_NAME = r'(?:\w+|"(?:[^"]|"")+")'
_UNIQUE = re.compile(rf"UNIQUE\s*\(({_NAME}(?:\s*,\s*{_NAME})*)\)", re.IGNORECASE)


def table_definition(body: MapReader) -> TableDefinition:
    columns = decode_schema(body.raw("arrow_schema"), what="arrow_schema")
    if required := set(_places(body, "not_null_constraints", columns)):
        fields = (column.with_nullable(False) if place in required else column for place, column in enumerate(columns))
        columns = pa.schema(fields, columns.metadata)
    check_new_names(columns)
    keys, columns = _keys(body, columns)
    checks = body.texts("check_constraints") if "check_constraints" in body else ()
    return TableDefinition(
        name=body.text("table_name"),
        columns=plain_schema(columns),
        checks=checks,
        keys=keys,
        comment=body.optional_text("comment"),
        tags=body.text_map("tags"),
    )


def _keys(body: MapReader, columns: pa.Schema) -> tuple[tuple[Key, ...], pa.Schema]:
    primary: list[tuple[str, ...]] = [(name,) for name in _texts(body, "primary_key_columns")]
    if several := _texts(body, "multi_key_primary_keys"):
        require_key_length(several)
        primary.append(tuple(sorted(several, key=lambda name: find_column(columns, name))))  # a set has no order
    unique: list[tuple[str, ...]] = [(name,) for name in _texts(body, "unique_columns")]
    names = columns.names
    unique += [(names[place],) for place in _places(body, "unique_constraints", columns)]
    unique += [_unique(constraint) for constraint in _texts(body, "extra_constraints")]
    return new_keys(columns, primary=primary, unique=unique)


def _unique(constraint: str) -> tuple[str, ...]:
    match = _UNIQUE.fullmatch(constraint)
    if match is None:
        raise Unsupported(
            f"{shortened(constraint)} cannot be enforced and is refused: a table can have NOT NULL, CHECK, "
            "PRIMARY KEY and UNIQUE"
        )
    return tuple(
        name[1:-1].replace('""', '"') if name.startswith('"') else name for name in re.findall(_NAME, match[1])
    )


def _places(body: MapReader, key: str, columns: pa.Schema) -> list[int]:
    """Columns by their numbers, each once."""
    places = dict.fromkeys(body.integers(key) if key in body else ())
    for place in places:
        if not 0 <= place < len(columns):
            raise InvalidArgument(f"{key} has {place}, the table has {len(columns)} columns")
    return list(places)


def _texts(body: MapReader, key: str) -> tuple[str, ...]:
    return body.texts(key) if key in body else ()
