"""Finding out that Spark, though it runs, has ceased to answer: whoever waits for it would wait for ever.

A process that has ended is noticed by its parent and by every call. One that hangs, or was stopped, is noticed by
nobody: its sockets are open, and a statement may rightly take hours. So it is asked something that takes no time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["watch"]

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_QUESTION = "spark.sql.session.timeZone"


def watch(
    open_session: Callable[[], Any],
    silence: Callable[[], float],
    *,
    ended: threading.Event,
    lost: Callable[[], None],
) -> None:
    """Ask until ``ended``; call ``lost`` and return when there was no answer for so many seconds. 0 asks nothing."""
    asking = _Asking(open_session)
    try:
        while not ended.wait(_EVERY_SECONDS):
            seconds = silence()
            if seconds <= 0:
                continue
            answered = asking.ask()
            # In two parts: if it was this process that stood still, the first is over at once and the answer is there.
            if not answered.wait(seconds / 2) and not answered.wait(seconds / 2) and not ended.is_set():
                logger.error("Spark has not answered for %g seconds and is started again", seconds)
                lost()
                return
    finally:
        asking.close()


class _Asking:
    """Calls have no time limit of their own, so each is made in a thread, which ends with Spark at the latest."""

    def __init__(self, open_session: Callable[[], Any]) -> None:
        self._open_session = open_session
        self._session: Any = None

    def ask(self) -> threading.Event:
        answered = threading.Event()
        threading.Thread(target=self._ask, args=[answered], name="sparkport-heartbeat-ask", daemon=True).start()
        return answered

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
        if session is not None:
            with contextlib.suppress(Exception):
                session.client.close()
