"""The one map from our errors to gRPC statuses, and the only place that knows what else clients read from them."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass
from typing import NoReturn

import grpc
import pyarrow as pa

from sparkport.errors import Cancelled, Code, InternalError, SparkportError
from sparkport.protocol.maps import pack

__all__ = ["GRPC_CODES", "abort", "translate"]

logger = logging.getLogger(__name__)

GRPC_CODES: dict[Code, grpc.StatusCode] = {code: grpc.StatusCode[code.name] for code in Code}

# Arrow clients read the extra info below only next to a status code of Arrow's own: 4 is Invalid, 5 is IOError. An
# IOError makes the DuckDB client try an action again, so it is kept for what a new token could mend.
_ARROW_STATUS = {Code.INVALID_ARGUMENT: "4", Code.UNAUTHENTICATED: "5", Code.PERMISSION_DENIED: "5"}

# A message goes out up to three times, once with three bytes for each odd one: all within the 8 KiB that clients take.
_MAX_MESSAGE_BYTES = 1_200
_LOOKED_AT = 2_000


# Where the server keeps its files and whom it talks to is not for clients. Between quotes a path may have blanks.
_PLACE = re.compile(
    r"(?<=')/[^'\n]*/[^'\n]*(?=')"
    r"|\b[a-z][a-z0-9+.-]{0,20}:/{1,3}[^\s'\",;)\]]+"
    r"|(?<![\w.~*/-])/(?:[\w.@%+~=:-]+/)+[\w.@%+~=:-]*",
    re.IGNORECASE,
)
_STACK = re.compile(r"\n\s*(?:at [\w$.]+\(|Traceback |JVM stacktrace|Caused by: ).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def translate(exc: BaseException) -> SparkportError:
    """Any exception as one of ours. What was not foreseen becomes INTERNAL with an id that also stands in the log."""
    if isinstance(exc, SparkportError):
        if exc.code is Code.INTERNAL:
            return _internal(exc, _without_places(exc.message))
        return _discreet(exc)
    if isinstance(exc, grpc.RpcError):
        return Cancelled("the call was cancelled")
    if isinstance(exc, pa.ArrowCancelled):
        return Cancelled("the call was cancelled")
    return _internal(exc, None)


def _discreet(exc: SparkportError) -> SparkportError:
    """The same error without places of the server: the log has them, by an id."""
    message = _without_places(exc.message)
    if message == exc.message[:_LOOKED_AT]:
        return exc
    error_id = uuid.uuid4().hex[:12]
    logger.warning("error %s: %s", error_id, exc.message, exc_info=exc.__cause__)
    told = type(exc).__new__(type(exc))
    told.args = (f"{message} (error id {error_id})",)
    return told


def _without_places(message: str) -> str:
    return _PLACE.sub("…", _STACK.sub("", message[:_LOOKED_AT]))


def _internal(exc: BaseException, said: str | None) -> InternalError:
    error_id = uuid.uuid4().hex[:12]
    logger.error("internal error %s", error_id, exc_info=exc)
    return InternalError(f"{said or 'internal error'} (error id {error_id})")


def abort(context: grpc.ServicerContext, exc: BaseException) -> NoReturn:
    """End the call with the status of ``exc``."""
    error = translate(exc)
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
    data = message.encode("utf-8", "replace")
    if len(data) <= _MAX_MESSAGE_BYTES:
        return data.decode()
    return data[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
