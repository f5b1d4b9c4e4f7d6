"""Views as tables that can be read and not changed. Spark runs their queries, by the rights of each caller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import find_by_name
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.spark_sql import SparkQuery, SparkSql, SparkView
from sparkport.catalog.table import Table
from sparkport.errors import Conflict, InvalidArgument, PermissionDenied, SparkportError, TableNotFound, Unavailable
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.catalogs.view_records import ViewRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.text import names_in
from sparkport.lakehouse.query.view_definition import ViewDefinition, new_view
from sparkport.lakehouse.spark.sql import quoted

__all__ = ["LakeViews"]

logger = logging.getLogger(__name__)

_KEPT_BYTES = 64 << 20


class LakeViews:
    """The views of a catalog, and what each of them may read."""

    def __init__(self, records: ViewRecords, files: FileSystem, *, catalog: str) -> None:
        self._records = records
        self._files = files
        self._catalog = catalog
        self._kept: BoundedCache[str, ViewDefinition] = BoundedCache(_KEPT_BYTES, weigh=_bytes_of, name="views")
        self._names: BoundedCache[str, frozenset[str]] = BoundedCache(_KEPT_BYTES, weigh=lambda names: 100 * len(names))

    def locations(self, schemas: Collection[str]) -> Mapping[TableName, str]:
        """For listings: views that cannot be listed now are left out."""
        return self._records.shown(schemas)

    def definition(self, view: TableName, location: str) -> ViewDefinition:
        return self._kept.get(location, lambda: ViewDefinition.parse(self._files.read_bytes(location), str(view)))

    def named_by(
        self,
        names: frozenset[str],
        tables: Callable[[frozenset[str]], set[TableName]],
        *,
        schemas: Collection[str],
    ) -> set[TableName]:
        """All tables and views that go by ``names``, and all that the views among them may read in turn."""
        found = tables(names)
        known = list(self.locations(schemas))
        waiting = [view for view in known if view.name.casefold() in names]
        views: set[TableName] = set()
        while waiting:
            view = waiting.pop()
            if view in views:
                continue
            views.add(view)
            inner = self._names_in(view, self._location(view))
            found |= tables(inner)
            waiting += [other for other in known if other.name.casefold() in inner]
        return found | views

    def _location(self, view: TableName) -> str | None:
        try:
            return self._records.location(view)
        except Unavailable:
            raise
        except SparkportError as exc:  # it is in nobody's way whose query only has a word like its name
            logger.info("view '%s' is not seen: %s", view, exc.message)
            return None

    def _names_in(self, view: TableName, location: str | None) -> frozenset[str]:
        """None in a view that is gone, or cannot be used."""
        if location is None:
            return frozenset()

        def read() -> frozenset[str]:
            try:
                return names_in(self.definition(view, location).sql)
            except InvalidArgument as exc:
                logger.debug("view '%s' cannot be used: %s", view, exc)
                return frozenset()

        try:
            return self._names.get(location, read)
        except SparkportError as exc:
            logger.debug("view '%s' cannot be read: %s", view, exc)
            return frozenset()

    def usable(self, names: set[TableName]) -> dict[TableName, str]:
        """Where the metadata is of those views whose queries may be run; whoever has written the others.

        ``names`` are no tables: who reads tables alone does not depend on the views.
        """
        views = [view for view in self._records.locations({name.schema for name in names}) if view in names]
        found = {view: location for view in views if (location := self._location(view)) is not None}
        return {view: location for view, location in found.items() if self._names_in(view, location)}

    def create(self, view: TableName, sql: str, columns: pa.Schema) -> None:
        self._records.create(view, new_view(sql, columns, catalog=self._catalog, schema=view.schema))

    def drop(self, view: TableName) -> None:
        self._records.drop(view)

    def listed(self, spark_sql: SparkSql, schema: str) -> Iterator[Table]:
        """Those of a schema; one that cannot be read must not hide the others."""
        views = self.locations([schema])
        for view in views:
            table = self._table(view, views.get, spark_sql)
            if table is not None:
                yield table

    def find(self, spark_sql: SparkSql, schema: str, name: str) -> Table | None:
        """Unavailable where nobody can say now whether it is there, or what it is."""
        view = find_by_name(self._records.locations([schema]), name)
        return None if view is None else self._table(view, self._records.location, spark_sql, by_name=True)

    def _table(
        self,
        view: TableName,
        locate: Callable[[TableName], str | None],
        spark_sql: SparkSql,
        *,
        by_name: bool = False,
    ) -> LakeViewTable | None:
        try:
            location = locate(view)
            return None if location is None else LakeViewTable(view, self.definition(view, location), spark_sql)
        except SparkportError as exc:
            if by_name and isinstance(exc, Unavailable):
                raise
            logger.warning("view '%s' is left out of the listing: %s", view, exc)
            return None


def _bytes_of(view: ViewDefinition) -> int:
    return 4 * len(view.sql) + 500 * (1 + len(view.columns))


class LakeViewTable(SparkView):
    def __init__(
        self,
        view: TableName,
        definition: ViewDefinition,
        spark_sql: SparkSql,
        *,
        reader: tuple[str, frozenset[tuple[str, str]]] | None = None,
    ) -> None:
        """``reader`` is who reads it, and all that this caller may read."""
        self.name = view.name
        self.comment = definition.comment
        self._view = view
        self._definition = definition
        self._spark_sql = spark_sql
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        return self._definition.columns

    def reads(self, ctx: CallContext) -> list[tuple[str, str]]:
        names_in(self._definition.sql)  # says what is wrong with it
        named = self._spark_sql.named(ctx, f"TABLE {quoted(*self._view)}")
        return [table for table in named if table != self._view]

    def read_by(self, owner: str, tables: frozenset[tuple[str, str]]) -> Table:
        return LakeViewTable(self._view, self._definition, self._spark_sql, reader=(owner, tables))

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        owner, tables = self._reader or ("", frozenset())
        # A count wants no column at all, and a query has to have one.
        names = [name for name in self.schema.names if request.selects(name)] or self.schema.names[:1]
        expected = pa.schema([self.schema.field(name) for name in names])
        query = SparkQuery(
            text=f"SELECT {', '.join(quoted(name) for name in names)} FROM {quoted(*self._view)}",
            arguments=None,
            owner=owner,
            tables=tables | {(self._view.schema, self._view.name)},
        )
        try:
            columns = self._spark_sql.columns(ctx, query)
        except TableNotFound as exc:
            raise PermissionDenied(f"view '{self._view}' reads a table that is not there, or not for you") from exc
        if columns != expected:
            raise Conflict(f"view '{self._view}' gives other columns than it was made with: make it anew")
        return self._spark_sql.scan(ctx, query, columns)
