"""A pool of Spark's sessions. Each is lent for one statement, and no longer than that may take.

A statement that waits for Spark holds the turn of a table. So a statement has a limit: it is interrupted then, and if
Spark does not even answer to that, or a heartbeat shows that it does not, the connection is cut.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from sparkport.catalog.jobs import Job
from sparkport.errors import Unavailable
from sparkport.lakehouse.spark.connect import close_session, end_leftovers
from sparkport.lakehouse.spark.errors import translated

__all__ = ["Sessions", "Work"]

logger = logging.getLogger(__name__)

_INTERRUPT_SECONDS = 10.0
"""How long a statement that was interrupted may take to end."""
_ASK_AGAIN_SECONDS = 0.5
_LEFTOVER_SECONDS = 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0


class _Server(Protocol):
    @property
    def generation(self) -> int: ...

    def wait_ready(self, timeout: float | None = None) -> None: ...

    def open_session(self, same_as: Any = None) -> Any: ...

    def lost(self, generation: int) -> bool: ...

    def stuck(self, generation: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a session is lent for, as those see it who look after the server; ``tables`` by schema and name.

    ``patience`` is how long it may take to end when it is interrupted. After that the session is cut off, and Spark
    goes on with it for some minutes more. Work that others wait for must not be patient.
    """

    purpose: str
    tables: tuple[tuple[str, str], ...]
    owner: str = ""
    query: str | None = None
    progress: Callable[[], float | None] = lambda: None
    patience: float = _INTERRUPT_SECONDS

    def job(self, job_id: str, began: datetime) -> Job:
        return Job(
            id=job_id,
            purpose=self.purpose,
            tables=self.tables,
            began=began,
            owner=self.owner,
            query=self.query,
            progress=self.progress(),
        )


class _Loan:
    """A session in use. ``reason`` is why it was taken away, if it was."""

    def __init__(self, session: Any, work: Work | None = None, *, stuck: Callable[[], None] = lambda: None) -> None:
        """``stuck`` is called if what was interrupted does not end."""
        self._stuck = stuck
        self.id = uuid.uuid4().hex
        self.began = datetime.now(UTC)
        self.work = work
        self.session = session
        self.reason: str | None = None
        self._asked = threading.Lock()
        self._patience = _INTERRUPT_SECONDS if work is None else work.patience
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
        logger.warning("a statement has taken more than %g seconds on Spark and is interrupted", seconds)
        self.interrupt(f"Spark has not come to an end within {seconds:g} seconds, and the statement was interrupted")

    def interrupt(self, reason: str) -> None:
        """Have Spark asked to stop, by one thread however often this is called; cut the session off if that takes too
        long."""
        # In this order: who ends looks at the lock after that.
        if self._asked.acquire(blocking=False) and not self._over.is_set():
            self.reason = self.reason or reason
            threading.Thread(target=self._stop, name="sparkport-interrupt", daemon=True).start()

    def _stop(self) -> None:
        # A Spark that does not answer does not keep the other from cutting it off.
        threading.Thread(target=self._ask_to_stop, name="sparkport-interrupt-ask", daemon=True).start()
        if not self._over.wait(self._patience):
            logger.warning("Spark has not stopped within %g seconds, and is not waited for any longer", self._patience)
            close_session(self.session)
            self._stuck()

    def _ask_to_stop(self) -> None:
        """Again and again: what is asked of Spark may not have come there yet when the first try does."""
        give_up = time.monotonic() + self._patience
        while time.monotonic() < give_up:
            with contextlib.suppress(Exception):
                self.session.interruptAll()
            if self._over.wait(_ASK_AGAIN_SECONDS):
                return

    @property
    def was_interrupted(self) -> bool:
        return self._asked.locked()


class Sessions:
    """A fixed number of Connect sessions, made when they are first needed."""

    def __init__(
        self,
        server: _Server,
        conf: Mapping[str, str],
        size: int,
        *,
        limit: Callable[[], float] = lambda: 0.0,
        leftovers: Sequence[float] = _LEFTOVER_SECONDS,
    ) -> None:
        """``limit``: how many seconds a statement may take; 0: as long as it likes. ``leftovers`` of what was
        interrupted are ended several times, each so many seconds after the last: Spark may be slow to start them."""
        self._server = server
        self._conf = dict(conf)
        self._size = size
        self._limit = limit
        self._leftovers = leftovers
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._loans: set[_Loan] = set()
        self._pool: queue.LifoQueue[tuple[int, Any]] = queue.LifoQueue()
        for _ in range(size):
            self._pool.put((0, None))

    @contextmanager
    def session(
        self,
        conf: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        limited: bool = True,
        work: Work | None = None,
    ) -> Iterator[Any]:
        """A session with settings that hold for the block only.

        ``timeout`` is how long to wait for one. Without ``limited`` the block may take as long as Spark is alive.
        With ``work`` the block is a job, which ``jobs`` lists and ``end`` interrupts.
        """
        generation, session = self._take(conf or {}, timeout)
        loan = _Loan(session, work, stuck=partial(self._server.stuck, generation))
        good = False
        try:
            with self._lent(loan, self._limit() if limited else 0.0):
                yield session
                # What the block did is done, whatever becomes of the session.
                good = self._reset(session, conf or {})
        finally:
            # A session that failed may hold settings of a statement that is over, and one that is just being
            # interrupted would be so in the hands of the next: its place gets a new one.
            good = good and not loan.was_interrupted
            self._pool.put((generation, session if good else None))
            if not good:
                close_session(session)
                if loan.was_interrupted:
                    self._clean_up_after(session)

    @contextmanager
    def _lent(self, loan: _Loan, seconds: float) -> Iterator[None]:
        """Limit what the session is asked here: it ends in time, or when Spark turns out to give no answer."""
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

    def jobs(self) -> list[Job]:
        """The work under way, oldest first."""
        with self._lock:
            lent = [(loan, loan.work) for loan in self._loans if loan.work is not None]
        return sorted((work.job(loan.id, loan.began) for loan, work in lent), key=lambda job: job.began)

    def end(self, job_id: str, reason: str) -> bool:
        """Interrupt a job; who runs it gets Unavailable with the reason. False if there is none of this id."""
        return self._end(lambda loan: loan.id == job_id and loan.work is not None, reason)

    def end_work(self, work: Work, reason: str) -> bool:
        """The same for who knows what a session was lent for."""
        return self._end(lambda loan: loan.work is work, reason)

    def _end(self, is_meant: Callable[[_Loan], bool], reason: str) -> bool:
        with self._lock:
            loan = next((loan for loan in self._loans if is_meant(loan)), None)
        if loan is None:
            return False
        loan.interrupt(reason)
        return True

    def wait_ready(self, timeout: float | None = None) -> None:
        self._server.wait_ready(timeout)

    def close(self) -> None:
        """Give back those that nobody uses: a Spark that goes on without us would keep them for an hour."""
        self._closing.set()
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
        """A session of the server that runs. If that dies, this waits for the next: nothing has been asked yet."""
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
        with self._lent(_Loan(session), self._limit()):
            for key, value in conf.items():
                session.conf.set(key, value)

    def _clean_up_after(self, session: Any) -> None:
        """End what an interrupted statement leaves behind, beside all else."""

        def work() -> None:
            with contextlib.suppress(Exception), self._cleaning_up(session) as again:  # one that is gone has none
                for seconds in self._leftovers:
                    closing = self._closing.wait(seconds)
                    end_leftovers(again)
                    if closing:
                        break
                again.client.release_session()

        threading.Thread(target=work, name="sparkport-leftovers", daemon=True).start()

    @contextmanager
    def _cleaning_up(self, session: Any) -> Iterator[Any]:
        """Another connection to a session, which is cut with all others if Spark gives no answer."""
        again = self._server.open_session(session)
        loan = _Loan(again)
        with self._lock:
            self._loans.add(loan)
        try:
            yield again
        finally:
            with self._lock:
                self._loans.discard(loan)
            close_session(again)

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
