"""Opening a session of a Connect server, with what pyspark does by itself and must not do here kept from it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

__all__ = ["close_session", "open_session"]

_importing = threading.Lock()


def _nothing(session: object) -> None:
    return None


def open_session(url: str, *, is_child: bool) -> Any:
    """``is_child``: a server that we have started on this machine; once it does not answer it is gone for good."""
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
    session = SparkSession.builder.channelBuilder(channel).create()
    # By default a server that is gone is called for ten minutes. A child comes back at another address, so it is not
    # called again at all; a server elsewhere may just be out of reach for a moment.
    elsewhere = [DefaultPolicy(max_retries=6, max_backoff=2_000)]
    session.client.set_retry_policies([] if is_child else elsewhere)
    return session


def close_session(session: Any) -> None:
    """Let its connection go, whatever it is at: whoever waits for an answer gets an error. Safe without a session.

    The client's own ``close`` waits for the last calls of all sessions, under a lock that every statement needs: with a
    server that hangs, for ever. So only the connection is closed.
    """
    if session is not None:
        with contextlib.suppress(Exception):
            channel = getattr(session.client, "_channel", None)
            (session.client if channel is None else channel).close()
