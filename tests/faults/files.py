"""What is in a warehouse and should not be, and what should be and is not: looked up past all of our code."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import fastavro

__all__ = ["left_in_staging", "leftovers", "missing_files", "pointer_of", "register_elsewhere"]

_NAMED = "catalog_name = 'lake' AND table_namespace = 'public' AND table_name = ?"
_SHADOW = "catalog_name = 'lake_sparkport_shadows'"
_WARM_UP = "warm-up-"
"""The folder in which a server's Spark makes itself warm, beside all else."""

_REMOVED = 2
"""The status of a manifest's entry for a file that is no longer part of the table."""


def leftovers(warehouse: Path, *, servers: int, catalog_uri: str | None = None) -> list[str]:
    """What a clean warehouse with so many living servers, none of which changes anything, would not hold."""
    known: dict[Path, set[Path]] = {}
    for path in map(_path, _pointers(warehouse, catalog_uri)):
        known.setdefault(path.parent, set()).update(_known(path))
    found = left_in_staging(warehouse, servers=servers)
    found += _query(f"SELECT metadata_location FROM iceberg_tables WHERE {_SHADOW}", warehouse, catalog_uri)
    for path in warehouse.rglob("metadata/*"):
        lost = path.name.endswith(".metadata.json") and path not in known.get(path.parent, {path})
        if lost or path.name.endswith(".tmp"):
            found.append(str(path))
    return found


def left_in_staging(warehouse: Path, *, servers: int) -> list[str]:
    found: list[str] = []
    staging = warehouse / ".staging"
    folders = [path.name for path in staging.iterdir() if path.is_dir()] if staging.exists() else []
    if len(folders) != servers:
        found.append(f"{len(folders)} staging folders for {servers} servers")
    rows = [path for path in staging.rglob("*.parquet") if not path.parent.name.startswith(_WARM_UP)]
    return found + [str(path) for path in rows]


def missing_files(warehouse: Path, *, catalog_uri: str | None = None, dropped: Iterable[str] = ()) -> list[str]:
    """Files that a pointer of any catalog leads to, and the last metadata of dropped tables, that are not there.

    Tables may change meanwhile: what is missing counts if the pointer is still the same afterwards.
    """
    found = [location for location in dropped if not _path(location).exists()]
    for location in _pointers(warehouse, catalog_uri):
        gone = [str(path) for path in _reachable(_path(location)) if not path.exists()]
        if gone and location in _pointers(warehouse, catalog_uri):
            found += gone
    return found


def pointer_of(warehouse: Path, table: str, *, catalog_uri: str | None = None) -> str | None:
    """Where the metadata of a table of schema ``public`` is."""
    found = _query(f"SELECT metadata_location FROM iceberg_tables WHERE {_NAMED}", warehouse, catalog_uri, table)
    return found[0] if found else None


def register_elsewhere(warehouse: Path, table: str, *, catalog_uri: str | None = None) -> None:
    """Let a table of schema ``public`` be in another catalog of the same database, too."""
    sql = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    sql += f"SELECT 'other', table_namespace, table_name, metadata_location, 'TABLE' FROM iceberg_tables WHERE {_NAMED}"
    _query(f"{sql} RETURNING metadata_location", warehouse, catalog_uri, table)


def _reachable(pointer: Path) -> Iterator[Path]:
    """All that the metadata names: of every snapshot the manifests, data files and deletes."""
    yield pointer
    with contextlib.suppress(FileNotFoundError):
        for snapshot in json.loads(pointer.read_text()).get("snapshots", []):
            manifests = _path(snapshot["manifest-list"])
            yield manifests
            for manifest in _listed(manifests):
                yield manifest
                yield from _files(manifest)


# Neither kind of file changes once it is written.


@lru_cache(maxsize=100_000)
def _listed(manifest_list: Path) -> tuple[Path, ...]:
    with manifest_list.open("rb") as file:
        return tuple(_path(entry["manifest_path"]) for entry in fastavro.reader(file))


@lru_cache(maxsize=100_000)
def _files(manifest: Path) -> tuple[Path, ...]:
    with manifest.open("rb") as file:
        entries = [entry for entry in fastavro.reader(file) if entry["status"] != _REMOVED]
        return tuple(_path(entry["data_file"]["file_path"]) for entry in entries)


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))


def _pointers(warehouse: Path, catalog_uri: str | None) -> list[str]:
    return _query(f"SELECT metadata_location FROM iceberg_tables WHERE NOT {_SHADOW}", warehouse, catalog_uri)


def _query(sql: str, warehouse: Path, catalog_uri: str | None, *values: str) -> list[str]:
    if catalog_uri is None:
        with contextlib.closing(sqlite3.connect(warehouse / "catalog.db", timeout=30)) as database, database:
            return [row[0] for row in database.execute(sql, values)]
    import psycopg

    with psycopg.connect(catalog_uri) as connection:
        return [row[0] for row in connection.execute(sql.replace("?", "%s"), values)]


def _known(pointer: Path) -> set[Path]:
    log = json.loads(pointer.read_text()).get("metadata-log", [])
    return {pointer, *(_path(entry["metadata-file"]) for entry in log)}
