"""Queries in Spark's SQL, from their text to their rows."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scan
from sparkport.catalog.spark_sql import SparkQuery, SparkSql
from sparkport.errors import Cancelled, Conflict, InvalidArgument, ResourceExhausted, Unavailable, Unsupported
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.arguments import arguments_of
from sparkport.lakehouse.query.columns import arrow_schema
from sparkport.lakehouse.query.places import Place, Places
from sparkport.lakehouse.query.private_catalog import PrivateCatalog
from sparkport.lakehouse.query.reasons import reasons
from sparkport.lakehouse.query.run import Progress, QueryRun, write_rows
from sparkport.lakehouse.query.text import QueryText, as_query, names_in
from sparkport.lakehouse.query.views import LakeViews
from sparkport.lakehouse.scan.read import Reader
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.spark.sessions import Sessions, Work
from sparkport.lakehouse.tables.engine import LakeEngine

__all__ = ["SparkQueries"]

_KEPT_BYTES = 16 << 20
_PATIENT_SECONDS = 15.0
_LOOK_SECONDS = 60.0
"""To look at a query takes a second; but Spark computes what is constant in it, and that may be anything."""
_LEAST_FREE_BYTES = 1 << 30
_FULL = "the disk of the staging folder is nearly full: the query was interrupted"


@dataclass(frozen=True, slots=True)
class _Opened:
    """A query in a session, analysed and not run."""

    session: Any
    frame: Any
    columns: pa.Schema


class SparkQueries(SparkSql):
    def __init__(
        self,
        engine: LakeEngine,
        spark: SparkServer,
        reader: Reader,
        *,
        settings: LakehouseSettings,
        default_schema: str,
        views: LakeViews,
    ) -> None:
        self._views = views
        self._known: BoundedCache[bytes, pa.Schema] = BoundedCache(_KEPT_BYTES, weigh=_bytes_of, name="queries")
        self._engine = engine
        self._reader = reader
        self._settings = settings
        self._default_schema = default_schema
        self._staging = engine.storage.staging.folder
        self.places = Places(
            lambda: PrivateCatalog(self._staging, settings, default_schema=default_schema),
            lambda conf: _sessions(spark, conf),
            size=settings.sessions,
        )

    # SparkSql

    def named(self, ctx: CallContext, text: str) -> list[tuple[str, str]]:
        names = names_in(text)
        cut = self._engine.storage.pointers.cut()

        def tables(wanted: frozenset[str]) -> set[TableName]:
            return {table for table in cut.tables if table.name.casefold() in wanted}

        found = self._views.named_by(names, tables, schemas=set(cut.schemas))
        return [(table.schema, table.name) for table in sorted(found)]

    def columns(self, ctx: CallContext, query: SparkQuery) -> pa.Schema:
        text = as_query(query.text, arguments_of(query.arguments))
        tables = self._locations(ctx, query)
        seen = *tables.items(), *self._usable_views(query, tables).items()

        def analyse() -> pa.Schema:
            work = _look("analyse", query)
            with self.places.take(ctx) as place, self._opened(ctx, place, query, text, work, _LOOK_SECONDS) as opened:
                return opened.columns

        return self._known.get(_key(text, seen), analyse)

    def explain(self, ctx: CallContext, query: SparkQuery) -> str:
        text = as_query(query.text, arguments_of(query.arguments))
        work = _look("explain", query)
        with self.places.take(ctx) as place, self._opened(ctx, place, query, text, work, _LOOK_SECONDS) as opened:
            explained: str = opened.frame._explain_string(mode="formatted")
            return explained

    def scan(self, ctx: CallContext, query: SparkQuery, columns: pa.Schema) -> Scan:
        text = as_query(query.text, arguments_of(query.arguments))
        progress, gone, places = Progress(), CallContext(identity=ctx.identity, deadline=ctx.deadline), self.places
        tables = tuple(sorted(query.tables))
        work = Work("query", tables, query.owner, query.text, progress, patience=_PATIENT_SECONDS)
        running: list[Place] = []
        full = threading.Event()

        def run(folder: Path) -> None:
            with places.take(gone) as place:
                running.append(place)
                try:
                    with self._opened(gone, place, query, text, work) as opened:
                        if not opened.columns.equals(columns):
                            raise Conflict("the tables of the query have changed since it was prepared; run it again")
                        gone.check()
                        write_rows(opened.session, opened.frame, columns, folder, heard)
                except Unavailable as exc:
                    if full.is_set():
                        raise ResourceExhausted(_FULL) from exc
                    raise
                finally:
                    running.clear()

        def heard(**report: Any) -> None:
            progress.heard(**report)
            if shutil.disk_usage(self._staging).free < _LEAST_FREE_BYTES and not full.is_set():
                full.set()
                for place in list(running):
                    place.sessions.end_work(work, _FULL)

        def stop() -> None:
            gone.cancellation.set()
            for place in list(running):
                place.sessions.end_work(work, "the query was cancelled")

        started = QueryRun(self._staging, columns, is_ordered=text.is_ordered, work=run, stop=stop)
        return Scan(started, close=started.close, progress=progress)

    def create_view(self, ctx: CallContext, schema: str, name: str, query: SparkQuery) -> None:
        if query.arguments is not None:
            raise InvalidArgument("a view takes no arguments")
        columns = self.columns(ctx, query)
        self._views.create(TableName(schema, name), as_query(query.text).sql, columns)

    def drop_view(self, ctx: CallContext, schema: str, name: str) -> None:
        self._views.drop(TableName(schema, name))

    # How

    def _usable_views(self, query: SparkQuery, tables: Collection[TableName]) -> dict[TableName, str]:
        return self._views.usable({TableName(*name) for name in query.tables}.difference(tables))

    @contextlib.contextmanager
    def _opened(
        self, ctx: CallContext, place: Place, query: SparkQuery, text: QueryText, work: Work, seconds: float = 0.0
    ) -> Iterator[_Opened]:
        """Interrupted after so many seconds, if any are given."""
        tables = self._locations(ctx, query)
        with self._held(tables), place.session(ctx, work) as session, place.limited(work, seconds):
            place.catalog.fill(tables, self._usable_views(query, tables))
            if ctx.cancelled:
                raise Cancelled("the query was cancelled")
            with reasons(self._settings.catalog_name, self._default_schema):
                # Between brackets nothing is a query but a query, by Spark's own grammar.
                frame = session.sql(f"SELECT * FROM ({text.sql}\n)")
                columns = arrow_schema(frame.schema)
                if not len(columns):
                    raise Unsupported("the query has no columns")
                yield _Opened(session, frame, columns)

    def _locations(self, ctx: CallContext, query: SparkQuery) -> dict[TableName, str]:
        """All at one instant, with what the journal holds of them by now."""
        named = [TableName(*table) for table in sorted(query.tables)]
        self._engine.flush_of(named, ctx.remaining(), check=ctx.check)
        cut = self._engine.storage.pointers.cut()
        found = ((table, cut.tables.get(table)) for table in named)
        return {table: location for table, location in found if location is not None}

    @contextlib.contextmanager
    def _held(self, tables: dict[TableName, str]) -> Iterator[None]:
        """Maintenance leaves these snapshots alone."""
        with contextlib.ExitStack() as held:
            for table, location in tables.items():
                version = self._engine.versions.at(table, location)
                if version.snapshot_id is not None:
                    held.enter_context(contextlib.closing(self._reader.hold(version.uuid, {version.snapshot_id})))
            yield


def _sessions(spark: SparkServer, conf: dict[str, str]) -> Sessions:
    """A Spark that is for queries alone is started with the first of them."""
    spark.start()
    return spark.sessions(conf, 1)


def _key(text: QueryText, seen: object) -> bytes:
    """The same for the same query over the same tables. With its arguments a query may be long, and is not kept."""
    return hashlib.sha256(repr((text.sql, seen)).encode()).digest()


def _bytes_of(columns: pa.Schema) -> int:
    return int(columns.serialize().size)


def _look(purpose: str, query: SparkQuery) -> Work:
    return Work(purpose, tuple(sorted(query.tables)), query.owner, query.text)
