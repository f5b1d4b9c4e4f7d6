"""Of which kind an error of DuckDB's is, also in the middle of a stream.

A stream in Arrow's C interface hands on the text of an error and nothing else. It begins with the error's kind, and
only that is looked at: what follows has names and values of callers in it.
"""

from __future__ import annotations

import duckdb

__all__ = ["is_broken", "is_interrupted", "is_out_of_room", "is_unreadable"]

_KINDS: dict[str, type[Exception]] = {
    "FATAL Error": duckdb.FatalException,
    "INTERNAL Error": duckdb.InternalException,
    "INTERRUPT Error": duckdb.InterruptException,
    "IO Error": duckdb.IOException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
}
_NO_SPACE = "No space left"


def is_broken(exc: BaseException) -> bool:
    """Whether an error has ruined the instance for everybody."""
    return issubclass(_kind(exc), duckdb.InternalException | duckdb.FatalException)


def is_interrupted(exc: BaseException) -> bool:
    return issubclass(_kind(exc), duckdb.InterruptException)


def is_unreadable(exc: BaseException) -> bool:
    """Whether a file, or what it is on, is to blame."""
    return issubclass(_kind(exc), duckdb.IOException | OSError)


def is_out_of_room(exc: BaseException) -> bool:
    """Memory, or the disk that stands in for it: of that DuckDB keeps only what the system has said."""
    return issubclass(_kind(exc), duckdb.OutOfMemoryException) or (is_unreadable(exc) and _NO_SPACE in str(exc))


def _kind(exc: BaseException) -> type[BaseException]:
    if isinstance(exc, duckdb.Error) or getattr(exc, "errno", None) is not None:
        return type(exc)
    head = str(exc).partition(":")[0]
    return _KINDS.get(head) or (duckdb.Error if head.endswith(" Error") else type(exc))
