"""What the console does for a caller, recorded as Flight's calls are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkport.catalog.context import CallContext
from sparkport.errors import Cancelled, InternalError, SparkportError
from sparkport.observe.calls import Calls

__all__ = ["recorded"]


@contextmanager
def recorded(calls: Calls, ctx: CallContext, peer: str) -> Iterator[None]:
    """A call from here to the end of the block; ``ctx`` carries its record."""
    record = calls.begin("Console", peer, ctx.cancellation.set)
    record.user = ctx.identity.subject
    ctx.record = record
    error: SparkportError | None = InternalError("internal error; the log has more")
    try:
        yield
        error = None
    except SparkportError as exc:
        error = exc
        raise
    except GeneratorExit:
        error = Cancelled("the call was cancelled")
        raise
    finally:
        calls.end(record, error)
