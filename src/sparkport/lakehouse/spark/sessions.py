"""A pool of Spark's sessions, which are lent for a statement each, and no longer than that may take.

Whoever waits for Spark holds the turn of a table. So a statement has a limit: it is interrupted then, and where Spark
does not even answer to that, or a heartbeat has found out that it does not, the connection is cut.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from sparkport.errors import Unavailable
from sparkport.lakehouse.spark.connect import close_session
from sparkport.lakehouse.spark.errors import translated

__all__ = ["Sessions"]

logger = logging.getLogger(__name__)

_INTERRUPT_SECONDS = 10.0
"""How long a statement that was interrupted may take to end."""


class _Server(Protocol):
    @property
    def generation(self) -> int: ...

    def wait_ready(self, timeout: float | None = None) -> None: ...

    def open_session(self) -> Any: ...

    def lost(self, generation: int) -> bool: ...


class _Loan:
    """A session in use. ``reason`` is why it was taken away, if it was."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.reason: str | None = None
        self._over = threading.Event()
        self._timer: threading.Timer | None = None

    def limit(self, seconds: float) -> None:
        if seconds > 0:
            self._timer = threading.Timer(seconds, self._interrupt, [seconds])
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def cut_off(self, reason: str) -> None:
        if not self._over.is_set():
            self.reason = self.reason or reason
            close_session(self.session)

    def _interrupt(self, seconds: float) -> None:
        if self._over.is_set():
            return
        self.reason = f"Spark has not come to an end within {seconds:g} seconds, and the statement was interrupted"
        logger.warning("a statement has taken more than %g seconds on Spark and is interrupted", seconds)
        threading.Thread(target=self._ask_to_stop, name="sparkport-interrupt", daemon=True).start()
        if not self._over.wait(_INTERRUPT_SECONDS):
            close_session(self.session)

    def _ask_to_stop(self) -> None:
        with contextlib.suppress(Exception):  # one that does not answer is cut off
            self.session.interruptAll()


class Sessions:
    """A fixed number of Connect sessions, made when they are first needed."""

    def __init__(
        self, server: _Server, conf: Mapping[str, str], size: int, *, limit: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``limit``: how many seconds a statement may take; 0: as long as it likes."""
        self._server = server
        self._conf = dict(conf)
        self._size = size
        self._limit = limit
        self._lock = threading.Lock()
        self._loans: set[_Loan] = set()
        self._pool: queue.LifoQueue[tuple[int, Any]] = queue.LifoQueue()
        for _ in range(size):
            self._pool.put((0, None))

    @contextmanager
    def session(
        self, conf: Mapping[str, str] | None = None, *, timeout: float | None = None, limited: bool = True
    ) -> Iterator[Any]:
        """A session with settings that hold for the block only.

        ``timeout`` is how long to wait for one. Without ``limited`` the block may take as long as Spark is alive.
        """
        generation, session = self._take(conf or {}, timeout)
        good = False
        try:
            with self._lent(session, self._limit() if limited else 0.0):
                yield session
                # What the block did is done, whatever becomes of the session.
                good = self._reset(session, conf or {})
        finally:
            # A session that failed may hold settings of a statement that is over: its place gets a new one.
            self._pool.put((generation, session if good else None))
            if not good:
                close_session(session)

    @contextmanager
    def _lent(self, session: Any, seconds: float) -> Iterator[None]:
        """What is asked of the session here is over in time, or when Spark turns out to give no answer."""
        loan = _Loan(session)
        with self._lock:
            self._loans.add(loan)
        try:
            # Whoever finds that Spark gives no answer says so first, and then takes sessions away: of both, one is met.
            self._server.wait_ready(0)
            loan.limit(seconds)
            yield
        except Exception as exc:
            if loan.reason is not None:
                raise Unavailable(loan.reason) from exc
            raise
        finally:
            with self._lock:
                self._loans.discard(loan)
            loan.end()

    def cut_off(self, reason: str) -> None:
        """Spark gives no answer: nobody waits for it any longer."""
        with self._lock:
            loans = list(self._loans)
        for loan in loans:
            loan.cut_off(reason)

    def wait_ready(self, timeout: float | None = None) -> None:
        self._server.wait_ready(timeout)

    def close(self) -> None:
        """Give back those that nobody uses: a Spark that goes on without us would keep them for an hour."""
        while True:
            try:
                generation, session = self._pool.get_nowait()
            except queue.Empty:
                return
            if session is not None and generation == self._server.generation:
                with contextlib.suppress(Exception):
                    session.client.release_session()
            close_session(session)

    @property
    def in_use(self) -> int:
        """How many of them are taken."""
        return self._size - self._pool.qsize()

    def _take(self, conf: Mapping[str, str], timeout: float | None) -> tuple[int, Any]:
        """A session of the server that runs. One that dies is waited for, since nothing has been asked of it yet."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._server.wait_ready(_left(deadline))
            try:
                generation, session = self._pool.get(timeout=_left(deadline))
            except queue.Empty as exc:
                raise Unavailable("all Spark sessions are busy; try again") from exc
            try:
                return self._prepared(generation, session, conf)
            except BaseException as exc:
                self._pool.put((0, None))
                if not isinstance(exc, Unavailable) or not self._server.lost(self._server.generation):
                    raise

    def _prepared(self, generation: int, session: Any, conf: Mapping[str, str]) -> tuple[int, Any]:
        current = self._server.generation
        if session is not None and generation == current:
            try:
                self._configure(session, conf or {"spark.sql.session.timeZone": "UTC"})
                return current, session
            except Unavailable:
                close_session(session)
                raise
            except Exception as exc:  # Spark closes sessions that were silent for an hour
                logger.debug("a session is replaced: %s", exc)
        close_session(session)
        with translated("opening a session"):
            session = self._server.open_session()
            self._configure(session, {**self._conf, **conf})
        return current, session

    def _configure(self, session: Any, conf: Mapping[str, str]) -> None:
        with self._lent(session, self._limit()):
            for key, value in conf.items():
                session.conf.set(key, value)

    def _reset(self, session: Any, conf: Mapping[str, str]) -> bool:
        try:
            for key in conf:
                session.conf.unset(key)
        except Exception as exc:
            logger.debug("a session is given up: %s", exc)
            return False
        return True


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
