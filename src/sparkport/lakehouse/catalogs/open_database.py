"""Which database the address of a catalog means."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import urlsplit

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.catalogs.database import Database, SqliteDatabase
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase
from sparkport.lakehouse.file_modes import FileMode
from sparkport.lakehouse.mounts import network_file_system

__all__ = ["open_database"]

logger = logging.getLogger(__name__)


def open_database(uri: str, mode: FileMode = FileMode.PRIVATE) -> Database:
    """``sqlite:///`` and a path, which is absolute when it begins with a slash of its own; or ``postgresql://…``."""
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite":
        path = Path(uri.removeprefix("sqlite:///"))
        if (file_system := network_file_system(path.parent)) is not None:
            logger.warning(
                "%s is on a network file system (%s), where SQLite can be damaged: use PostgreSQL", path, file_system
            )
        return SqliteDatabase(path, mode=mode)
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(uri)
    raise InvalidArgument(f"catalog uri must begin with sqlite:, postgresql: or http, not '{scheme}:'")
