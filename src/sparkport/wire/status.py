"""The one map from our errors to gRPC statuses, and the only place that knows what else clients read from them."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import NoReturn

import grpc
import pyarrow as pa

from sparkport.errors import MESSAGE_LENGTH, Cancelled, Code, InternalError, SparkportError, without_places
from sparkport.protocol.maps import pack

__all__ = ["GRPC_CODES", "abort", "abort_with", "translate"]

logger = logging.getLogger(__name__)

GRPC_CODES: dict[Code, grpc.StatusCode] = {code: grpc.StatusCode[code.name] for code in Code}

# Arrow clients read the extra info below only next to a status code of Arrow's own: 4 is Invalid, 5 is IOError. An
# IOError makes the DuckDB client try an action again, so it is kept for what a new token could mend.
_ARROW_STATUS = {
    Code.INVALID_ARGUMENT: "4",
    Code.ALREADY_EXISTS: "4",
    Code.UNAUTHENTICATED: "5",
    Code.PERMISSION_DENIED: "5",
}

# A message goes out up to three times, once with three bytes for each odd one: all within the 8 KiB that clients take.
_MAX_MESSAGE_BYTES = 1_200


@dataclass(frozen=True, slots=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def translate(exc: BaseException) -> SparkportError:
    """Any exception as one of ours. What was not foreseen becomes INTERNAL with an id that also stands in the log."""
    if isinstance(exc, SparkportError):
        if exc.code is Code.INTERNAL:
            return _internal(exc, without_places(exc.message))
        return _discreet(exc)
    if isinstance(exc, grpc.RpcError):
        return Cancelled("the call was cancelled")
    if isinstance(exc, pa.ArrowCancelled):
        return Cancelled("the call was cancelled")
    return _internal(exc, None)


def _discreet(exc: SparkportError) -> SparkportError:
    """The same error without places of the server: the log has them, by an id."""
    message = without_places(exc.message)
    if message == exc.message[:MESSAGE_LENGTH]:
        return exc
    error_id = uuid.uuid4().hex[:12]
    logger.warning("error %s: %s", error_id, exc.message, exc_info=exc.__cause__)
    told = type(exc).__new__(type(exc))
    told.args = (f"{message} (error id {error_id})",)
    told.error_id = error_id
    return told


def _internal(exc: BaseException, said: str | None) -> InternalError:
    error_id = uuid.uuid4().hex[:12]
    logger.error("internal error %s", error_id, exc_info=exc)
    told = InternalError(f"{said or 'internal error'} (error id {error_id})")
    told.error_id = error_id
    return told


def abort(context: grpc.ServicerContext, exc: BaseException) -> NoReturn:
    """End the call with the status of ``exc``."""
    abort_with(context, translate(exc))


def abort_with(context: grpc.ServicerContext, error: SparkportError) -> NoReturn:
    """End the call with the status of an error as it is told."""
    message = _shortened(error.message)
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    if error.duckdb_exception is not None and error.code in _ARROW_STATUS:
        metadata = (
            ("x-arrow-status", _ARROW_STATUS[error.code]),
            ("x-arrow-status-message-bin", message.encode()),
            (
                "grpc-status-details-bin",
                pack({"exception_type": error.duckdb_exception, "message": message}),
            ),
        )
    context.abort_with_status(_Status(GRPC_CODES[error.code], message, metadata))
    raise AssertionError("abort_with_status returned")


def _shortened(message: str) -> str:
    data = message[: _MAX_MESSAGE_BYTES + 1].encode("utf-8", "replace")  # a name in it may be of many megabytes
    if len(data) <= _MAX_MESSAGE_BYTES:
        return data.decode()
    return data[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
