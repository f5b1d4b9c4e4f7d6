"""Where queries run: a few sessions of Spark's that are for queries alone, so that writers never wait for them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sparkport.catalog.context import CallContext
from sparkport.catalog.jobs import Job
from sparkport.errors import FailedPrecondition, ResourceExhausted
from sparkport.lakehouse.query.private_catalog import PrivateCatalog
from sparkport.lakehouse.query.reasons import NO_CATALOG
from sparkport.lakehouse.settings import QUERY_GUARD
from sparkport.lakehouse.spark.sessions import Sessions, Work

__all__ = ["Place", "Places"]

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0
_ASK_SECONDS = 0.2
_CATALOG = "spark.sql.catalog."


class Place:
    """One session, and the catalog that its queries see."""

    def __init__(self, catalog: PrivateCatalog, sessions: Sessions, own_catalogs: frozenset[str]) -> None:
        self.catalog = catalog
        self.sessions = sessions
        self._own_catalogs = own_catalogs
        self._closed_off: Any = None

    @contextmanager
    def session(self, ctx: CallContext, work: Work) -> Iterator[Any]:
        with self.sessions.session(timeout=ctx.remaining(), work=work) as session:
            if self._closed_off is not session:
                self._close_off(session)
                self._closed_off = session
            yield session

    @contextmanager
    def limited(self, work: Work, seconds: float) -> Iterator[None]:
        """Interrupt what the session is lent for after so many seconds; 0 never does."""
        reason = f"Spark has not come to an end with looking at the query within {seconds:g} seconds"
        timer = threading.Timer(seconds, self.sessions.end_work, [work, reason])
        timer.daemon = True
        if seconds:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _close_off(self, session: Any) -> None:
        """A Spark may know other catalogs, of whoever has set it up. A query must not reach them."""
        _require_guard(session)
        for key in list(session.conf.getAll):
            name = key.removeprefix(_CATALOG)
            if key.startswith(_CATALOG) and "." not in name and name not in self._own_catalogs:
                session.conf.set(key, NO_CATALOG)


def _require_guard(session: Any) -> None:
    """What Spark cannot load of its extensions it leaves out: so it is asked for something that it has to refuse."""
    from pyspark.errors import AnalysisException

    try:
        session.sql("SELECT input_file_name()").schema  # noqa: B018
    except AnalysisException:
        session.sql("SELECT version()").schema  # noqa: B018
        return
    raise FailedPrecondition(
        f"this Spark does not check what queries do, so none are run on it: start it with {QUERY_GUARD} among "
        "spark.sql.extensions and its jar, which 'sparkport jars FOLDER' makes"
    )


class Places:
    def __init__(
        self,
        new_catalog: Callable[[], PrivateCatalog],
        new_sessions: Callable[[dict[str, str]], Sessions],
        *,
        size: int,
    ) -> None:
        self._new_catalog = new_catalog
        self._new_sessions = new_sessions
        self._lock = threading.Lock()
        self._all: list[Place] = []
        self._size = size
        self._free: queue.LifoQueue[Place] = queue.LifoQueue()

    @contextmanager
    def take(self, ctx: CallContext) -> Iterator[Place]:
        """One for a query; it waits for a while, and no longer than the caller does."""
        place = self._take(ctx)
        try:
            yield place
        finally:
            self._free.put(place)

    def _take(self, ctx: CallContext) -> Place:
        give_up = time.monotonic() + _WAIT_SECONDS
        while True:
            with self._lock:
                if self._free.empty() and len(self._all) < self._size:
                    catalog = self._new_catalog()
                    conf = catalog.session_conf()
                    own = frozenset({conf["spark.sql.defaultCatalog"], "spark_catalog"})
                    self._all.append(Place(catalog, self._new_sessions(conf), own))
                    return self._all[-1]
            try:
                return self._free.get(timeout=_ASK_SECONDS)
            except queue.Empty:
                ctx.check()
                if time.monotonic() > give_up:
                    raise ResourceExhausted(
                        f"{self._size} queries are running on Spark, as many as may; try again"
                    ) from None

    def jobs(self) -> list[Job]:
        with self._lock:
            places = list(self._all)
        return [job for place in places for job in place.sessions.jobs()]

    def end(self, job_id: str, reason: str) -> bool:
        with self._lock:
            places = list(self._all)
        return any(place.sessions.end(job_id, reason) for place in places)

    def close(self) -> None:
        with self._lock:
            for place in self._all:
                place.sessions.close()
