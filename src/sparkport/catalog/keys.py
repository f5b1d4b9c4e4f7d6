"""Keys: columns whose values, together, no two rows of a table share.

A table's PRIMARY KEY takes no NULL. A row with a NULL in another key (UNIQUE) shares it with no other row, as SQL says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.ddl import Alteration, ChangeType, DropColumn, DropNotNull, RenameColumn
from sparkport.catalog.evolve import find_column
from sparkport.catalog.table import Key
from sparkport.errors import InvalidArgument

__all__ = ["Key", "is_comparable", "keys_after", "new_keys", "primary_key", "require_key_length"]

_MOST_KEYS = 16
_MOST_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a client asks for, before names are looked up."""

    columns: Sequence[str]
    primary: bool


def primary_key(keys: Iterable[Key]) -> Key | None:
    return next((key for key in keys if key.primary), None)


def new_keys(
    columns: pa.Schema, *, primary: Sequence[Sequence[str]] = (), unique: Sequence[Sequence[str]] = ()
) -> tuple[tuple[Key, ...], pa.Schema]:
    """The keys of a new table, and its columns: those of a primary key take no NULL."""
    keys: list[Key] = []
    if len(primary) > 1:
        raise InvalidArgument("a table has at most one PRIMARY KEY")
    # Before names are looked up, which takes a look at all columns for each of them.
    different = dict.fromkeys(map(tuple, unique))
    if len(primary) + len(different) > _MOST_KEYS:
        raise InvalidArgument(f"a table has at most {_MOST_KEYS} keys, not {len(primary) + len(different)}")
    for asked in (*(_Asked(names, True) for names in primary), *(_Asked(names, False) for names in different)):
        require_key_length(asked.columns)
        places = [find_column(columns, name) for name in asked.columns]
        key = Key(tuple(columns.names[place] for place in places), asked.primary)
        _require_key(key, columns)
        if not any(set(key.columns) == set(other.columns) for other in keys):
            keys.append(key)
        for place in places if asked.primary else ():
            columns = columns.set(place, columns.field(place).with_nullable(False))
    return tuple(keys), columns


def require_key_length(columns: Sequence[str]) -> None:
    if len(columns) > _MOST_COLUMNS:
        raise InvalidArgument(f"a key has at most {_MOST_COLUMNS} columns, not {len(columns)}")


def keys_after(change: Alteration, keys: tuple[Key, ...], before: pa.Schema, after: pa.Schema) -> tuple[Key, ...]:
    """The keys that a table has after a change of its columns.

    With CASCADE, a key goes with a column of it; without, the column cannot be dropped.
    """
    if not keys:
        return keys
    match change:
        case RenameColumn(name, new_name):
            old = before.names[find_column(before, name)]
            return tuple(
                Key(tuple(new_name if column == old else column for column in key.columns), key.primary) for key in keys
            )
        case DropColumn(name, _, cascade):
            kept = tuple(key for key in keys if set(key.columns) <= set(after.names))
            lost = [key for key in keys if key not in kept]
            if lost and not cascade:
                raise InvalidArgument(f"column '{name}' is part of {lost[0]}: DROP … CASCADE drops the key with it")
            return kept
        case DropNotNull(name):
            old = before.names[find_column(before, name)]
            if any(key.primary and old in key.columns for key in keys):
                raise InvalidArgument(f"column '{name}' is part of the PRIMARY KEY, which takes no NULL")
        case ChangeType(name):
            for key in keys:
                _require_key(key, after)
        case _:
            pass
    return keys


def is_comparable(arrow_type: pa.DataType) -> bool:
    """Whether two values of a type are either equal or not, for every reader alike: no floats, nothing nested."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return arrow_type.extension_name in ("arrow.uuid", "arrow.bool8")
    if pa.types.is_dictionary(arrow_type):
        return is_comparable(arrow_type.value_type)
    return any(
        test(arrow_type)
        for test in (
            pa.types.is_boolean,
            pa.types.is_integer,
            pa.types.is_decimal,
            pa.types.is_date,
            pa.types.is_time,
            pa.types.is_timestamp,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )


def _require_key(key: Key, columns: pa.Schema) -> None:
    if not key.columns:
        raise InvalidArgument("a key needs at least one column")
    if len(set(key.columns)) < len(key.columns):
        raise InvalidArgument(f"{key} has a column twice")
    for name in key.columns:
        column = columns.field(name)
        marked = (column.metadata or {}).get(b"ARROW:extension:name")
        if not is_comparable(column.type) or marked not in (None, b"arrow.uuid", b"arrow.bool8"):
            raise InvalidArgument(
                f"column '{name}' cannot be part of a key: values of type {column.type} do not compare"
            )
