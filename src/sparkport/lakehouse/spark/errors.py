"""Spark's exceptions as errors of ours.

gRPC's status, Spark's error conditions and the classes of Java's exceptions say what has failed; words in a text never
do, because a table's name or a value can have them as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sparkport.errors import Conflict, InternalError, PermissionDenied, ResourceExhausted, SparkportError, Unavailable

__all__ = ["LostRace", "NoTable", "translated"]

_NO_SPARK = frozenset({"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"})
_OTHER_SPARK = ("INVALID_HANDLE.", "OPERATION_CANCELED")
"""Conditions of a Spark that was started anew and does not know the session, or that others have stopped."""

_NO_CATALOG = frozenset(
    {
        "UncheckedSQLException",
        "PSQLException",
        "SQLTransientConnectionException",
        "ServiceUnavailableException",
    }
)
_LOST_RACE = frozenset({"ValidationException", "CommitFailedException"})
_NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
_OF_EXECUTORS = "SparkException"
"""How a failed task ends. The driver meets others' commits, and these fail no task."""

_OF_FILES = ("java.io.", "java.nio.file.", "org.apache.hadoop.fs.")
_OF_SQLITE = "org.sqlite."


class LostRace(Conflict):
    """Somebody else has committed to the table meanwhile: look at it again and decide again."""


class NoTable(InternalError):
    """Spark does not find a table. One that we saw was renamed or dropped since, and may have its name again by now."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns what Spark raises into errors of ours."""
    try:
        yield
    except SparkportError:
        raise
    except Exception as exc:
        raise _translation(what, exc) from exc


def _translation(what: str, exc: Exception) -> SparkportError:
    condition, causes = _asked(exc, "getCondition"), _causes(exc)
    names = {cause.name for cause in causes}
    if names & _LOST_RACE and causes[0].name != _OF_EXECUTORS:
        return LostRace(f"{what}: others have changed it meanwhile; run the statement again")
    if any(cause.is_full for cause in causes):
        return ResourceExhausted(f"{what}: the disk is full")
    if any(cause.is_read_only for cause in causes):
        return PermissionDenied(f"{what}: the warehouse is read-only")
    if names & _NO_CATALOG:
        return Unavailable(f"{what}: Spark cannot reach the catalog; try again")
    if _status(exc) in _NO_SPARK or str(condition).startswith(_OTHER_SPARK):
        return Unavailable(f"{what}: Spark is not there; try again")
    # Spark's texts name files, classes and statements, and so are for the log.
    kind = NoTable if condition == _NO_TABLE else InternalError
    return kind(f"{what}: Spark failed: {condition or type(exc).__name__}")


class _Cause(NamedTuple):
    """An exception in the JVM."""

    java_class: str
    message: str

    @property
    def name(self) -> str:
        return self.java_class.rpartition(".")[2]

    @property
    def is_full(self) -> bool:
        return self._ends_with("No space left on device") or self._is_of_sqlite("[SQLITE_FULL]")

    @property
    def is_read_only(self) -> bool:
        return self._ends_with("Read-only file system") or self._is_of_sqlite("[SQLITE_READONLY")

    def _ends_with(self, words: str) -> bool:
        """What the system says is at the end, after the path."""
        return self.java_class.startswith(_OF_FILES) and self.message.rstrip(")").endswith(words)

    def _is_of_sqlite(self, code: str) -> bool:
        return self.java_class.startswith(_OF_SQLITE) and self.message.startswith(code)


_CAUSED_BY = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)
_REASON = re.compile(r"\(([\w.$]+)\) ")


def _causes(exc: Exception) -> list[_Cause]:
    """The exception that was thrown in the JVM, and those that led to it."""
    stack = _asked(exc, "getStackTrace")
    if isinstance(stack, str) and stack:
        first = stack.partition("\n")[0]
        return [_Cause(first, ""), *(_Cause(name, text) for name, text in _CAUSED_BY.findall(stack))]
    # A server that sends no stack names the class at the beginning, if pyspark does not know it.
    match = _REASON.match(str(exc))
    return [_Cause(match[1], "")] if match and hasattr(exc, "getCondition") else []


def _status(exc: Exception) -> str | None:
    """The status that the call has ended with."""
    code = _asked(exc, "getGrpcStatusCode") or _asked(exc, "code")
    return getattr(code, "name", None)


def _asked(exc: Exception, method: str) -> Any:
    """What an exception of pyspark's, or of gRPC's, says of itself."""
    ask = getattr(exc, method, None)
    return ask() if callable(ask) else None
