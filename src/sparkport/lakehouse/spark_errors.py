"""What Spark raises, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkport.errors import Conflict, InternalError, PermissionDenied, ResourceExhausted, SparkportError, Unavailable

__all__ = ["LostRace", "translated"]

_NO_SPARK = ("UNAVAILABLE", "failed to connect", "Connection refused", "Socket closed", "CANNOT_ESTABLISH")
_NO_CATALOG = (
    "UncheckedSQLException",
    "PSQLException",
    "SQLTransientConnectionException",
    "ServiceUnavailableException",
)
_LOST_RACE = ("ValidationException", "CommitFailedException")


class LostRace(Conflict):
    """Somebody else has committed to the table meanwhile: look at it again and decide again."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns what Spark raises into errors of ours."""
    try:
        yield
    except SparkportError:
        raise
    except Exception as exc:
        text = str(exc)
        if any(mark in text for mark in _LOST_RACE):
            raise LostRace(f"{what}: others have changed it meanwhile; run the statement again") from exc
        if "No space left on device" in text or "database or disk is full" in text:
            raise ResourceExhausted(f"{what}: the disk is full") from exc
        if "Read-only file system" in text or "attempt to write a readonly database" in text:
            raise PermissionDenied(f"{what}: the warehouse is read-only") from exc
        if any(mark in text for mark in _NO_CATALOG):
            raise Unavailable(f"{what}: Spark cannot reach the catalog; try again") from exc
        name = type(exc).__name__
        if any(mark in text for mark in _NO_SPARK) or name in ("_MultiThreadedRendezvous", "_InactiveRpcError"):
            raise Unavailable(f"{what}: Spark is not there; try again") from exc
        raise InternalError(f"{what}: Spark failed: {_condition(exc)}") from exc


def _condition(exc: Exception) -> str:
    """What kind of failure it is. Texts of Spark's tell of files, classes and statements, and so are for the log."""
    named = re.match(r"\[([A-Z][A-Z0-9_.]*)\]", str(exc).strip())
    return named[1] if named else type(exc).__name__
