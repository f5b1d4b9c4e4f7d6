"""A catalog's rows as values: where tables are, what waits in the journal, what became of statements and transactions.

All of them are of one instant. Who is alive, who flushes and which folders are left of dropped tables is not among
them: that is about servers and places that another catalog does not have.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger_rows import ABORTED, OPEN
from sparkport.lakehouse.names import TableName

__all__ = ["Contents", "Pointer", "read_contents", "write_contents"]

_CATALOG = "catalog_name"
_TABLES = {
    "iceberg_namespace_properties": ("namespace", "property_key", "property_value"),
    "iceberg_tables": (
        "table_namespace",
        "table_name",
        "metadata_location",
        "previous_metadata_location",
        "iceberg_type",
    ),
    "sparkport_journal": ("revision", "next_id"),
    "sparkport_journal_tables": ("uuid", "table_namespace", "table_name", "flushed", "revision"),
    "sparkport_journal_entries": ("uuid", "revision", "sequence", "format", "row_count", "written_at", "body"),
    "sparkport_journal_flushes": (
        "uuid",
        "flushed",
        "format",
        "first_sequence",
        "last_sequence",
        "flushed_at",
        "body",
    ),
    "sparkport_statements": ("statement", "changed", "committed_at"),
    "sparkport_transactions": ("id", "server", "owner", "isolation", "state", "tables", "begun", "ended"),
}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where the metadata of a table is, or of a view."""

    table: TableName
    location: str
    is_view: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows by the table of the database that they are in, without the catalog's name."""

    rows: Mapping[str, tuple[tuple[Any, ...], ...]]

    @property
    def pointers(self) -> Iterator[Pointer]:
        for schema, name, location, _, entry_type in self.rows["iceberg_tables"]:
            if location is not None:
                yield Pointer(TableName(schema, name), location, entry_type not in (None, "TABLE"))

    def relocated(self, place: Callable[[str], str], folder: Callable[[str], str]) -> Contents:
        """With files at other places: ``place`` is that of a file, ``folder`` that of a schema's location."""
        rows = dict(self.rows)
        rows["iceberg_tables"] = tuple(
            (schema, name, *(None if path is None else place(path) for path in paths), entry_type)
            for schema, name, *paths, entry_type in rows["iceberg_tables"]
        )
        rows["iceberg_namespace_properties"] = tuple(
            (schema, key, folder(value) if key == "location" and value else value)
            for schema, key, value in rows["iceberg_namespace_properties"]
        )
        return Contents(rows)

    def as_json(self) -> dict[str, Any]:
        return {
            name: {"columns": list(_TABLES[name]), "rows": [[_plain(value) for value in row] for row in rows]}
            for name, rows in self.rows.items()
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Contents:
        """Raises ValueError for what is none."""
        rows = {}
        for name, columns in _TABLES.items():
            if list(columns) != json[name]["columns"]:
                raise ValueError(f"the columns of {name} are others")
            rows[name] = tuple(tuple(map(_value, row)) for row in json[name]["rows"])
            if any(len(row) != len(columns) for row in rows[name]):
                raise ValueError(f"a row of {name} is not whole")
        return cls(rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    return value


def _value(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value


def read_contents(database: Database, catalog: str) -> Contents:
    """All of it at one instant."""
    rows = {}
    with database.transaction() as work:
        for name, columns in _TABLES.items():
            found = work.query(f"SELECT {', '.join(columns)} FROM {name} WHERE {_CATALOG} = ?", [catalog])
            rows[name] = tuple(tuple(_owned(value) for value in row) for row in found)
    return Contents(rows)


def _owned(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def write_contents(database: Database, catalog: str, contents: Contents) -> None:
    """Into a catalog without any, whose tables in the database are there; whole or not at all.

    A transaction that was open can not be committed any more.
    """
    with database.transaction(write=True) as work:
        work.change(f"DELETE FROM sparkport_journal WHERE {_CATALOG} = ?", [catalog])
        for name, columns in _TABLES.items():
            sql = (
                f"INSERT INTO {name} ({_CATALOG}, {', '.join(columns)}) VALUES ({', '.join('?' * (len(columns) + 1))})"
            )
            for row in contents.rows[name]:
                work.change(sql, [catalog, *row])
        work.change(
            f"UPDATE sparkport_transactions SET state = '{ABORTED}', ended = begun WHERE {_CATALOG} = ? AND {OPEN}",
            [catalog],
        )
