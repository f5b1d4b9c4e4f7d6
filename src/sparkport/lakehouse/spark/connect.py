"""Opening a session of a Connect server, and keeping pyspark from what it does by itself and must not do here."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any

__all__ = ["Operations", "close_session", "end_leftovers", "open_session"]

_IDS_KEPT = 4
_importing = threading.Lock()


def _nothing(session: object) -> None:
    return None


def open_session(url: str, *, is_child: bool, same_as: Any = None) -> Any:
    """``is_child``: a server that we have started on this machine; once it does not answer it is gone for good.

    ``same_as`` is a session that this is another connection to.
    """
    with _importing:  # two threads at once meet in pyspark's circular imports, and one of them fails
        from pyspark.errors.exceptions.base import PySparkException
        from pyspark.sql.connect.client.core import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

    class Loopback(DefaultChannelBuilder):  # type: ignore[misc]
        """pyspark sends a token without TLS to "localhost" alone, and that may also be an address of IPv6, where
        anybody on the machine can listen."""

        @property
        def endpoint(self) -> str:
            return f"127.0.0.1:{self._port}"

    # The finalizer shuts a thread pool down, which locks up the whole process when the garbage collector happens to
    # run it inside ThreadPoolExecutor.submit. Sessions are closed by name here, so it has nothing to do.
    SparkSession.__del__ = _nothing
    # Every exception would also be printed on stderr by a logger of its own that takes handlers' formats away. The
    # errors are translated by us, who know which of them are worth a line in the log.
    PySparkException._log_exception = _nothing
    channel = Loopback(url) if is_child else DefaultChannelBuilder(url)
    if same_as is not None:
        channel.set(DefaultChannelBuilder.PARAM_SESSION_ID, same_as.session_id)
    session = SparkSession.builder.channelBuilder(channel).create()
    # By default a server that is gone is called for ten minutes. A child comes back at another address, so it is not
    # called again at all; a server elsewhere may just be out of reach for a moment.
    elsewhere = [DefaultPolicy(max_retries=6, max_backoff=2_000)]
    session.client.set_retry_policies([] if is_child else elsewhere)
    session.operations = Operations(session.client, () if same_as is None else same_as.operations.last)
    return session


class Operations:
    """The ids of what a session has asked of Spark lately: without this pyspark draws them and tells nobody."""

    def __init__(self, client: Any, last: Iterable[str] = ()) -> None:
        self.last = deque(last, maxlen=_IDS_KEPT)
        self._again: str | None = None
        self._request = client._execute_plan_request_with_metadata
        client._execute_plan_request_with_metadata = self._numbered

    def _numbered(self, operation_id: str | None = None) -> Any:
        if self._again is not None:
            return self._request(self._again)
        self.last.append(operation_id or str(uuid.uuid4()))
        return self._request(self.last[-1])

    def fail_again(self, session: Any) -> None:
        for operation_id in list(self.last):
            self._again = operation_id
            with contextlib.suppress(Exception):
                session.sql("")  # no statement at all
        self._again = None


def end_leftovers(session: Any) -> None:
    """End the jobs that an interrupted statement may have left behind; safe to repeat, and if there are none.

    Spark cancels the jobs of a statement when it is interrupted, and while it runs adaptively another thread of Spark
    may be about to start the next one: that one runs on, for nobody, on all cores. But whenever a statement fails Spark
    cancels all jobs of its id. So one of the same id is made to fail. A Spark of others forbids that to an id which was
    there before, unless it is set up as ours is.
    """
    session.operations.fail_again(session)


def close_session(session: Any) -> None:
    """Close the connection, whatever it is at: a caller that waits for an answer gets an error. Safe without a session.

    The client's own ``close`` waits for the last calls of all sessions, under a lock that every statement needs: with a
    server that hangs, for ever. So only the connection is closed.
    """
    if session is not None:
        with contextlib.suppress(Exception):
            channel = getattr(session.client, "_channel", None)
            (session.client if channel is None else channel).close()
