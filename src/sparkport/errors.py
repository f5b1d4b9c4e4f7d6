"""Every failure a caller can see is one of these, so that no layer has to know gRPC to fail well.

Engines and handlers raise them; ``wire/status.py`` alone turns them into gRPC statuses. Each class
carries its status code and, where DuckDB has one, the name of the exception that DuckDB raises for it.

    SparkportError
    ├── InvalidArgument             the caller sent something that can never work
    │   ├── SchemaMismatch          other columns, names or types than the table's
    │   └── ConstraintViolation     NOT NULL or CHECK does not hold
    ├── NotFound
    │   ├── CatalogNotFound
    │   ├── SchemaNotFound
    │   ├── TableNotFound
    │   ├── FunctionNotFound
    │   ├── RowNotFound
    │   ├── TransactionNotFound
    │   └── VersionNotFound         a snapshot that never was, or is expired
    ├── AlreadyExists
    │   └── DuplicateKey            a row has the PRIMARY KEY or UNIQUE values of another
    ├── FailedPrecondition          right call, wrong state
    │   └── TransactionNotActive
    ├── Unsupported                 UNIMPLEMENTED: known, but not done here
    ├── Conflict                    ABORTED: another transaction was first; run again from the start
    ├── ResourceExhausted
    ├── Unauthenticated
    ├── PermissionDenied
    ├── Unavailable                 the same call may work later
    ├── Cancelled
    ├── DeadlineExceeded
    └── InternalError               a defect of ours; the log has the details
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "CatalogNotFound",
    "Code",
    "Conflict",
    "ConstraintViolation",
    "DeadlineExceeded",
    "DuplicateKey",
    "FailedPrecondition",
    "FunctionNotFound",
    "InternalError",
    "InvalidArgument",
    "MESSAGE_LENGTH",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "RowNotFound",
    "SchemaMismatch",
    "SchemaNotFound",
    "SparkportError",
    "TableNotFound",
    "TransactionNotActive",
    "TransactionNotFound",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "VersionNotFound",
    "rows_changed",
    "without_places",
]


class Code(IntEnum):
    """The gRPC status codes in use, by their numbers on the wire."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class SparkportError(Exception):
    """Base of all. Its text is shown to the caller: no secrets, no tracebacks in it."""

    code: ClassVar[Code] = Code.INTERNAL
    duckdb_exception: ClassVar[str | None] = None
    error_id: str | None = None
    """Where the log has more of it than the caller is told."""

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidArgument(SparkportError):
    code = Code.INVALID_ARGUMENT
    duckdb_exception = "InvalidInputException"


class SchemaMismatch(InvalidArgument):
    pass


class ConstraintViolation(InvalidArgument):
    """``table`` and ``check`` are the table and the CHECK that does not hold; None where it is something else."""

    duckdb_exception = "ConstraintException"
    table: str | None = None
    check: str | None = None

    def __init__(self, message: str, *, table: str | None = None, check: str | None = None) -> None:
        super().__init__(message)
        self.table, self.check = table, check


class NotFound(SparkportError):
    code = Code.NOT_FOUND


class CatalogNotFound(NotFound):
    pass


class SchemaNotFound(NotFound):
    def __init__(self, schema: str) -> None:
        super().__init__(f"schema '{schema}' not found")


class TableNotFound(NotFound):
    def __init__(self, schema: str, table: str) -> None:
        super().__init__(f"table '{schema}.{table}' not found")
        self.schema = schema
        self.table = table


class FunctionNotFound(NotFound):
    def __init__(self, schema: str, function: str) -> None:
        super().__init__(f"function '{schema}.{function}' not found")


class RowNotFound(NotFound):
    def __init__(self, row_id: int) -> None:
        super().__init__(f"row_id {row_id} not found in table")


class TransactionNotFound(NotFound):
    def __init__(self, transaction_id: str) -> None:
        super().__init__(f"transaction '{transaction_id}' not found")


class VersionNotFound(NotFound):
    pass


class AlreadyExists(SparkportError):
    code = Code.ALREADY_EXISTS


class DuplicateKey(AlreadyExists):
    """``columns`` are those of the key that does not hold; None where it is not told."""

    duckdb_exception = "ConstraintException"
    table: str | None = None
    columns: tuple[str, ...] | None = None
    primary: bool = False

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        columns: tuple[str, ...] | None = None,
        primary: bool = False,
    ) -> None:
        super().__init__(message)
        self.table, self.columns, self.primary = table, columns, primary


class FailedPrecondition(SparkportError):
    code = Code.FAILED_PRECONDITION


class TransactionNotActive(FailedPrecondition):
    def __init__(self, transaction_id: str, state: str) -> None:
        super().__init__(f"transaction '{transaction_id}' is not active (state: {state})")
        self.transaction_id = transaction_id


class Unsupported(SparkportError):
    code = Code.UNIMPLEMENTED


class Conflict(SparkportError):
    code = Code.ABORTED


def rows_changed(table: str, rows: int) -> Conflict:
    """The conflict of a transaction that was not the first to change some rows, as the contract asks for it."""
    noun = "row" if rows == 1 else "rows"
    return Conflict(f"table '{table}': {rows} {noun} changed by another transaction; run this one again")


class ResourceExhausted(SparkportError):
    code = Code.RESOURCE_EXHAUSTED


class Unauthenticated(SparkportError):
    code = Code.UNAUTHENTICATED
    duckdb_exception = "PermissionException"


class PermissionDenied(SparkportError):
    code = Code.PERMISSION_DENIED
    duckdb_exception = "PermissionException"


class Unavailable(SparkportError):
    code = Code.UNAVAILABLE


class Cancelled(SparkportError):
    code = Code.CANCELLED


class DeadlineExceeded(SparkportError):
    code = Code.DEADLINE_EXCEEDED


class InternalError(SparkportError):
    code = Code.INTERNAL


MESSAGE_LENGTH = 2_000
"""What is told of a message; the log has all of it."""

# Between quotes a path may have blanks. Nothing is tried twice: the time grows with the text and not with its square.
_PLACE = re.compile(
    r"(?<=')/[^'\n/]*+/[^'\n]*+(?=')"
    r"|\b[a-z][a-z0-9+.-]{0,20}:/{1,3}[^\s'\",;)\]]+"
    r"|(?<![\w.~*/-])/(?:[\w.@%+~=:-]+/)+[\w.@%+~=:-]*",
    re.IGNORECASE,
)
_STACK = re.compile(r"(?<!\s)[^\S\n]*+\n\s*+(?:at [\w$.]+\(|Traceback |JVM stacktrace|Caused by: ).*", re.DOTALL)


def without_places(message: str) -> str:
    """What clients are told of a message: where the server keeps its files and whom it talks to is not for them."""
    return _PLACE.sub("…", _STACK.sub("", message[:MESSAGE_LENGTH]))
