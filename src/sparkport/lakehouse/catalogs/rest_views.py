"""Views in an Iceberg REST catalog: listed, loaded, made and dropped by its endpoints, where it has them.

A list has names only, so that each view has to be loaded to know where its metadata is. For listings what was loaded
is kept for a while; who reads a view has it loaded anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkport.errors import PermissionDenied, SparkportError, TableNotFound, Unsupported
from sparkport.lakehouse.catalogs.looked_up import LookedUp
from sparkport.lakehouse.catalogs.rest_client import RequestRefused, RestClient
from sparkport.lakehouse.catalogs.rest_names import change_names, listed_names, unexpected
from sparkport.lakehouse.catalogs.view_records import ViewRecords
from sparkport.lakehouse.names import TableName

__all__ = ["RestViewRecords"]

logger = logging.getLogger(__name__)

_LIST = "GET /v1/{prefix}/namespaces/{namespace}/views"
_OFFERED = "view-endpoints-supported"
"""How a catalog that does not list its endpoints says that it has those of views, to Iceberg's own client too."""

_MADE = "sparkport.view-uuid"
"""A property by which a view is known again: catalogs give views other ids and times than they were asked for with."""

_KEPT_SECONDS = 30.0
"""How long a listing may show the columns of a view that others have replaced meanwhile."""


class RestViewRecords(ViewRecords):
    def __init__(self, client: RestClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[TableName, tuple[float, str]] = {}
        """When each view was loaded, and where its metadata was then."""

    def locations(self, schemas: Collection[str]) -> Mapping[TableName, str]:
        return LookedUp([view for schema in sorted(schemas) for view in self._names(schema)], self._kept_location)

    def shown(self, schemas: Collection[str]) -> Mapping[TableName, str]:
        def names(schema: str) -> list[TableName]:
            try:
                return self._names(schema)
            except SparkportError as exc:
                logger.warning("the views of schema '%s' are left out: %s", schema, exc.message)
                return []

        return LookedUp([view for schema in sorted(schemas) for view in names(schema)], self._kept_location)

    def location(self, view: TableName) -> str | None:
        loaded = self._load(view) if self._offered() else None
        told = None if loaded is None else loaded.get("metadata-location")
        location = told if isinstance(told, str) and told else None
        with self._lock:
            if location is None:
                self._kept.pop(view, None)
            else:
                self._kept[view] = self._clock(), location
        if loaded is not None and location is None:
            logger.warning("the catalog does not say where the metadata of view '%s' is", view)
        return location

    def create(self, view: TableName, metadata: Mapping[str, Any]) -> None:
        if not self._offered():
            raise Unsupported("this catalog has no views")
        made = str(metadata["view-uuid"])
        body = {
            "name": view.name,
            "schema": metadata["schemas"][0],
            "view-version": metadata["versions"][0],
            "properties": {**metadata["properties"], _MADE: made},
        }

        def is_there() -> bool:
            loaded = self._load(view)
            return loaded is not None and _properties(loaded).get(_MADE) == made

        change_names(
            lambda: self._client.post("namespaces", view.schema, "views", body=body),
            done=is_there,
            exists=f"'{view}' already exists",
            schema=view.schema,
            table=view,
        )

    def drop(self, view: TableName) -> None:
        if self.location(view) is None:
            raise TableNotFound(*view)
        change_names(
            lambda: self._client.delete(*_path(view)),
            done=lambda: self._load(view) is None,
            table=view,
        )

    def _offered(self) -> bool:
        return self._client.offers(_LIST, unlisted=self._client.property(_OFFERED) == "true")

    def _names(self, schema: str) -> list[TableName]:
        """None in a schema that was dropped since it was listed, or whose views the catalog refuses to list."""
        if not self._offered():
            return []
        try:
            names = listed_names(schema, self._client.pages("identifiers", "namespaces", schema, "views"))
        except RequestRefused as exc:
            if exc.status != 404:
                logger.warning("the catalog refuses to list the views of schema '%s': %s", schema, exc.message)
            names = []
        except (PermissionDenied, Unsupported) as exc:
            logger.info("the views of schema '%s' are not seen: %s", schema, exc.message)
            names = []
        with self._lock:
            for view in {view for view in self._kept if view.schema == schema} - set(names):
                del self._kept[view]
        return names

    def _kept_location(self, view: TableName) -> str | None:
        with self._lock:
            loaded_at, location = self._kept.get(view, (0.0, None))
        if location is not None and self._clock() - loaded_at < _KEPT_SECONDS:
            return location
        try:
            return self.location(view)
        except SparkportError as exc:  # it must not hide the others
            logger.warning("view '%s' is left out of the listing: %s", view, exc.message)
            return None

    def _load(self, view: TableName) -> dict[str, Any] | None:
        try:
            return self._client.get(*_path(view))
        except RequestRefused as exc:
            if exc.status == 404:
                return None
            raise unexpected(exc) from exc


def _path(view: TableName) -> tuple[str, ...]:
    return ("namespaces", view.schema, "views", view.name)


def _properties(loaded: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = loaded.get("metadata")
    properties = metadata.get("properties") if isinstance(metadata, dict) else None
    return properties if isinstance(properties, dict) else {}
