"""Finding out that Spark runs but has ceased to answer: a caller that waits for it would wait for ever.

Its parent and every call notice a process that has ended. Nobody notices one that hangs, or was stopped: its sockets
are open, and a statement may rightly take hours. So the server asks it something that takes no time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkport.lakehouse.spark.connect import close_session

__all__ = ["TaskWatch", "wait_for_answer", "watch"]

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_PATIENT_SECONDS = 30.0
_TASK_EVERY_SECONDS = 10.0
_TASK_SECONDS = 30.0
_QUESTION = "spark.sql.session.timeZone"


def watch(open_session: Callable[[], Any], silence: Callable[[], float], *, ended: threading.Event) -> bool:
    """Ask until ``ended``, or until there was no answer for so many seconds: then it is True. 0 asks nothing."""
    asking = _Asking(open_session)
    try:
        while not ended.wait(_EVERY_SECONDS):
            seconds = silence()
            if seconds <= 0:
                continue
            if not asking.is_answered(seconds, ended) and not ended.is_set():
                logger.error("Spark has not answered for %g seconds", seconds)
                return True
    finally:
        asking.close()
    return False


def wait_for_answer(open_session: Callable[[], Any], *, ended: threading.Event) -> None:
    """Return when Spark answers again, or at the end. Each question has a connection of its own."""
    while not ended.is_set():
        asking = _Asking(open_session)
        answered = asking.is_answered(_PATIENT_SECONDS, ended)
        asking.close()
        if answered:
            logger.info("Spark answers again")
            return


class TaskWatch:
    """Whether Spark finds a place for a task: an answer to a question needs none, and a statement that writes does.

    Nobody ends a Spark for that: tasks that take long may hold all places, and rightly so.
    """

    def __init__(self) -> None:
        self._waiting_since: float | None = None

    @property
    def is_late(self) -> bool:
        since = self._waiting_since
        return since is not None and time.monotonic() - since > _TASK_SECONDS

    def watch(self, open_session: Callable[[], Any], *, ended: threading.Event) -> None:
        session = None
        while not ended.wait(_TASK_EVERY_SECONDS):
            self._waiting_since = time.monotonic()
            try:
                session = open_session() if session is None else session
                session.sql("SELECT id FROM range(0, 1, 1, 1)").collect()
            except Exception as exc:  # one that is gone, or does not answer, is found by the other questions
                logger.debug("Spark runs no task: %s", exc)
                close_session(session)
                session = None
            self._waiting_since = None
        close_session(session)


class _Asking:
    """Calls have no time limit of their own, so each is made in a thread, which ends with Spark at the latest."""

    def __init__(self, open_session: Callable[[], Any]) -> None:
        self._open_session = open_session
        self._session: Any = None

    def is_answered(self, seconds: float, ended: threading.Event) -> bool:
        """Ask, and wait for so long, or until ``ended``."""
        answered = threading.Event()
        threading.Thread(target=self._ask, args=[answered], name="sparkport-heartbeat-ask", daemon=True).start()
        # In parts: if it was this process that stood still, one of them is over at once, and then the answer is there.
        parts = max(round(seconds), 2)
        return any(answered.wait(seconds / parts) for _ in range(parts) if not ended.is_set())

    def _ask(self, answered: threading.Event) -> None:
        try:
            if self._session is None:
                self._session = self._open_session()
            self._session.conf.get(_QUESTION)
        except Exception as exc:  # an error is an answer; one that is gone is not ours to notice
            logger.debug("Spark answers with an error: %s", exc)
            self.close()
        finally:
            answered.set()

    def close(self) -> None:
        session, self._session = self._session, None
        close_session(session)
