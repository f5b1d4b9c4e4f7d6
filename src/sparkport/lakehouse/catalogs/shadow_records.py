"""Shadows in a catalog's database: a table's second row, which Spark changes in the place of the first.

They are under a catalog name of their own, by the server that made them and a name drawn by lot. A shadow's row goes in
the very transaction that publishes what was made of it. So one that is there is not published, and one that somebody
has removed cannot be published any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkport.errors import InternalError
from sparkport.lakehouse.catalogs.database import Database, Work
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.names import is_shadow_catalog, shadow_catalog

__all__ = ["ShadowRecord", "ShadowRecords"]


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """``is_left``: its server has ended, or can change nothing any more."""

    server: str
    name: str
    location: str
    is_left: bool


class ShadowRecords:
    def __init__(
        self, database: Database, catalog: str, *, server: str | None, require_unfenced: Callable[[Work], None]
    ) -> None:
        """``require_unfenced`` raises, in a transaction, if others have taken this ``server`` for dead."""
        self._database = database
        self._owner = catalog
        self._catalog = shadow_catalog(catalog)
        self._server = server
        self._require_unfenced = require_unfenced

    @property
    def server(self) -> str:
        """The namespace that Spark finds this server's shadows in."""
        if self._server is None:
            raise InternalError("shadows belong to a server, and this is none")
        return self._server

    def add(self, name: str, location: str) -> None:
        fault("shadow.before")
        with self._database.transaction(write=True) as work:
            self._require_unfenced(work)
            work.change(
                "INSERT INTO iceberg_tables "
                "(catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
                "VALUES (?, ?, ?, ?, 'TABLE')",
                [self._catalog, self.server, name, location],
            )
        fault("shadow.after")

    def location(self, name: str) -> str | None:
        with self._database.transaction() as work:
            named = [self._catalog, self.server, name]
            rows = work.query(f"SELECT metadata_location FROM iceberg_tables WHERE {_NAMED}", named)
        return str(rows[0][0]) if rows else None

    def remove(self, name: str, *, server: str | None = None) -> str | None:
        """Where it was: nothing of it is published, nor will be. None for one that is not there any more."""
        with self._database.transaction(write=True) as work:
            return self.remove_in(work, name, server=server)

    def remove_in(self, work: Work, name: str, *, server: str | None = None) -> str | None:
        """The same in a transaction that goes on. Spark may just be about to move it: one waits for the other."""
        named = [self._catalog, server or self.server, name]
        rows = work.query(f"DELETE FROM iceberg_tables WHERE {_NAMED} RETURNING metadata_location", named)
        return str(rows[0][0]) if rows else None

    def everyone(self) -> list[ShadowRecord]:
        """Those of all servers of this catalog."""
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ?",
                [self._catalog],
            )
            fences = work.query("SELECT server FROM sparkport_fences WHERE catalog_name = ?", [self._owner])
        alive = {server for (server,) in fences}
        return [ShadowRecord(str(server), str(name), str(at), server not in alive) for server, name, at in rows]

    def locations(self) -> list[str]:
        """Where the metadata of all shadows is, whichever server or catalog of this database they belong to."""
        with self._database.transaction() as work:
            sql = "SELECT catalog_name, metadata_location FROM iceberg_tables WHERE catalog_name LIKE ?"
            rows = work.query(sql, [shadow_catalog("%")])
        return [str(location) for catalog, location in rows if is_shadow_catalog(catalog) and location is not None]


_NAMED = "catalog_name = ? AND table_namespace = ? AND table_name = ?"
