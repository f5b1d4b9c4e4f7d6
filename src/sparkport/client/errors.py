"""gRPC failures as the errors of ``sparkport.errors``: the one map of the client, the mirror of the server's own.

The server's sentence is passed on as it came. Only failures that no server has spoken about, such as a refused
connection, get a sentence of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from sparkport.errors import (
    AlreadyExists,
    Cancelled,
    Code,
    Conflict,
    ConstraintViolation,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SparkportError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from sparkport.protocol.maps import MapReader

__all__ = ["ERRORS", "OutcomeUnknown", "Unreachable", "from_status", "is_unreachable", "translated"]


class OutcomeUnknown(SparkportError):
    """The server got the request, and nobody could say whether it did it. Doing it again MAY do it twice."""

    code = Code.UNAVAILABLE


class Unreachable(Unavailable):
    """There was no connection: no server has heard of the call."""


ERRORS: dict[Code, type[SparkportError]] = {
    error_class.code: error_class
    for error_class in (
        AlreadyExists,
        Cancelled,
        Conflict,
        DeadlineExceeded,
        FailedPrecondition,
        InternalError,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unsupported,
    )
}
"""The class for each status code. Codes that Sparkport does not use become InternalError."""

# How gRPC words its own failures to get a connection; whatever else is UNAVAILABLE was said by the server.
_UNREACHABLE = ("failed to connect", "DNS resolution failed", "connections to all backends failing", "Name resolution")
_DETAILS_HEADER = "grpc-status-details-bin"


def from_status(exc: grpc.RpcError, location: str) -> SparkportError:
    """The error that a failed call stands for."""
    if not isinstance(exc, grpc.Call):
        return InternalError(f"the call to {location} failed: {exc}")
    details = exc.details() or ""
    try:
        code = Code[exc.code().name]
    except KeyError:  # UNKNOWN, OUT_OF_RANGE, DATA_LOSS: nothing of ours says so
        return InternalError(details or f"the call to {location} failed with {exc.code().name}")
    if code is Code.UNAVAILABLE and is_unreachable(details):
        return Unreachable(f"cannot reach a server at {location}: {details}")
    if code is Code.INVALID_ARGUMENT and _duckdb_exception(exc) == ConstraintViolation.duckdb_exception:
        return ConstraintViolation(details)
    return ERRORS[code](details or f"the call to {location} failed with {code.name}")


def is_unreachable(details: str) -> bool:
    """Whether a call that is UNAVAILABLE never came to a server: gRPC's own words say so."""
    return any(words in details for words in _UNREACHABLE)


def _duckdb_exception(exc: grpc.Call) -> str | None:
    for key, value in exc.trailing_metadata() or ():
        if key == _DETAILS_HEADER and isinstance(value, bytes):
            try:
                return MapReader.from_msgpack(value).optional_text("exception_type")
            except InvalidArgument:  # another server's details: nothing is lost but the finer class
                return None
    return None


@contextmanager
def translated(location: str, *, what: str = "answer") -> Iterator[None]:
    """Around everything that calls the server or decodes what it sent.

    The decoders blame a bad message on its sender with InvalidArgument; here the sender is the server.
    """
    try:
        yield
    except grpc.RpcError as exc:
        raise from_status(exc, location) from exc
    except InvalidArgument as exc:
        raise InternalError(f"the server's {what} cannot be read: {exc.message}") from exc
