"""Which database the address of a catalog means."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.database import Database, SqliteDatabase
from sparkport.lakehouse.modes import FileMode
from sparkport.lakehouse.postgres import PostgresDatabase

__all__ = ["open_database"]


def open_database(uri: str, mode: FileMode = FileMode.PRIVATE) -> Database:
    """``sqlite:///`` and a path, which is absolute when it begins with a slash of its own; or ``postgresql://…``."""
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite":
        return SqliteDatabase(Path(uri.removeprefix("sqlite:///")), mode=mode)
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(uri)
    raise InvalidArgument(f"catalog uri must begin with sqlite:, postgresql: or http, not '{scheme}:'")
