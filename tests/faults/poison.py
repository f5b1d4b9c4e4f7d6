"""Ways in which a table comes to a state that Spark cannot apply changes to, each with its mending."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from sparkport.errors import TableNotFound
from sparkport.lakehouse.catalogs.pointers import Edit, Pointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.names import TableName

__all__ = ["Mend", "lose_data", "lose_metadata", "require_column"]

Mend = Callable[[], None]


def lose_data(pointers: Pointers, table: TableName) -> Mend:
    """All its data files are gone."""
    folder = Path(_metadata(pointers, table).location.removeprefix("file:"))
    mends = [_taken(path) for path in sorted(folder.glob("data/**/*.parquet"))]
    if not mends:
        raise AssertionError(f"'{table}' has no data file")

    def mend() -> None:
        for one in mends:
            one()

    return mend


def lose_metadata(pointers: Pointers, table: TableName) -> Mend:
    """Its metadata file is gone."""
    return _taken(Path(_location(pointers, table).removeprefix("file:")))


def require_column(pointers: Pointers, table: TableName, column: str) -> Mend:
    """Others say that the column has a value in every row, and go past all checks: Spark refuses rows without one."""
    _set_required(pointers, table, column, required=True)
    return lambda: _set_required(pointers, table, column, required=False)


def _set_required(pointers: Pointers, table: TableName, column: str, *, required: bool) -> None:
    location, before = _location(pointers, table), _metadata(pointers, table).json
    after = copy.deepcopy(dict(before))
    for schema in after["schemas"]:
        for field in schema["fields"]:
            if field["name"] == column:
                field["required"] = required
    pointers.commit([Edit(table, before, after, location)])


def _location(pointers: Pointers, table: TableName) -> str:
    location = pointers.location(table)
    if location is None:
        raise TableNotFound(*table)
    return location


def _metadata(pointers: Pointers, table: TableName) -> TableMetadata:
    return load(FileSystem(), _location(pointers, table))


def _taken(path: Path) -> Mend:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)

    def mend() -> None:
        aside.rename(path)

    return mend
