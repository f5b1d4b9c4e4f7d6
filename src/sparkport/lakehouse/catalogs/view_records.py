"""The views of a catalog: which there are, and where the metadata of each is."""

from __future__ import annotations

import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from sparkport.errors import AlreadyExists, TableNotFound
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.warehouse import new_folder

__all__ = ["SqlViewRecords", "ViewRecords"]

_VIEW = "catalog_name = ? AND iceberg_type = 'VIEW'"


class ViewRecords(ABC):
    """Called from several threads at once."""

    @abstractmethod
    def locations(self, schemas: Collection[str]) -> Mapping[TableName, str]:
        """Where the metadata of all views in these schemas is, as of a short while ago; the names are those of now."""

    def shown(self, schemas: Collection[str]) -> Mapping[TableName, str]:
        """The same for listings: without those of schemas whose views cannot be listed now, which hide no tables."""
        return self.locations(schemas)

    @abstractmethod
    def location(self, view: TableName) -> str | None:
        """Where a view's metadata is now."""

    @abstractmethod
    def create(self, view: TableName, metadata: Mapping[str, Any]) -> None:
        """``metadata`` says nothing of a place. Tables have no other names than views: AlreadyExists for those too."""

    @abstractmethod
    def drop(self, view: TableName) -> None: ...


class SqlViewRecords(ViewRecords):
    """Rows beside those of tables, as Spark's JdbcCatalog writes and reads them, too."""

    def __init__(self, database: Database, catalog: str, *, files: FileSystem, warehouse: str) -> None:
        self._database = database
        self._catalog = catalog
        self._files = files
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._known: tuple[object, dict[TableName, str]] | None = None

    def locations(self, schemas: Collection[str]) -> dict[TableName, str]:
        return {view: location for view, location in self._all().items() if view.schema in schemas}

    def location(self, view: TableName) -> str | None:
        return self._all().get(view)

    def _all(self) -> dict[TableName, str]:
        mark = self._database.mark()
        with self._lock:
            if self._known is not None and mark is not None and self._known[0] == mark:
                return self._known[1]
        with self._database.transaction() as work:
            rows = work.query(
                f"SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE {_VIEW}",
                [self._catalog],
            )
        views = {TableName(schema, name): str(location) for schema, name, location in sorted(rows)}
        with self._lock:
            self._known = mark, views
        return views

    def create(self, view: TableName, metadata: Mapping[str, Any]) -> None:
        folder = f"{self._warehouse}/{new_folder(*view)}"
        location = f"{folder}/metadata/00000-{uuid.uuid4()}.metadata.json"
        self._files.write_new(location, json.dumps({**metadata, "location": folder}).encode())
        try:
            with self._database.transaction(write=True) as work:
                work.change(
                    "INSERT INTO iceberg_tables "
                    "(catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
                    "VALUES (?, ?, ?, ?, 'VIEW')",
                    [self._catalog, *view, location],
                )
        except Exception as exc:
            if self._database.is_duplicate(exc):
                self._files.delete(location)
                raise AlreadyExists(f"'{view}' already exists") from exc
            raise  # the row may be there: recovery finds out whether the file is needed
        self._files.published([location])

    def drop(self, view: TableName) -> None:
        with self._database.transaction(write=True) as work:
            dropped = work.change(
                f"DELETE FROM iceberg_tables WHERE {_VIEW} AND table_namespace = ? AND table_name = ?",
                [self._catalog, *view],
            )
            if not dropped:
                raise TableNotFound(*view)
