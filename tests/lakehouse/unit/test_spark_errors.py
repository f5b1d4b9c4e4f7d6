"""What Spark's exceptions come to: by their status, condition and classes, whatever words are in them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    SparkConnectGrpcException,
    SparkException,
    SparkRuntimeException,
    UnknownException,
)

from sparkport.errors import (
    InternalError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    SparkportError,
    Unavailable,
)
from sparkport.lakehouse.query.reasons import reasons
from sparkport.lakehouse.spark.errors import LostRace, NoTable, translated

pytestmark = pytest.mark.tier("fast")

AT = "\n\tat org.apache.iceberg.SnapshotProducer.commit(SnapshotProducer.java:501)"
ICEBERG = "org.apache.iceberg.exceptions."
WORDS = (
    "CommitFailedException ValidationException UNAVAILABLE failed to connect Connection refused Socket closed "
    "UncheckedSQLException PSQLException No space left on device Read-only file system database or disk is full"
)


def raised(kind: type[SparkConnectGrpcException], message: str, *stack: str, **more: Any) -> SparkConnectGrpcException:
    return kind(message, server_stacktrace=AT.join(stack) + AT if stack else None, **more)


def outcome(exc: Exception) -> type[SparkportError]:
    with pytest.raises(SparkportError) as failure, translated("changing 't'"):
        raise exc
    assert failure.value.message.startswith("changing 't': ")
    assert failure.value.__cause__ is exc
    return type(failure.value)


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (raised(UnknownException, "x", f"{ICEBERG}CommitFailedException"), LostRace),
        (raised(UnknownException, "x", f"{ICEBERG}ValidationException"), LostRace),
        (UnknownException("Failed to update table", reason=f"{ICEBERG}CommitFailedException"), LostRace),
        (
            raised(
                UnknownException,
                "Cannot commit rewrite",
                "java.lang.RuntimeException",
                f"\nCaused by: {ICEBERG}CommitFailedException: Cannot commit public.t",
            ),
            LostRace,
        ),
        (
            raised(
                SparkException,
                "Job aborted due to stage failure",
                "org.apache.spark.SparkException",
                f"\nCaused by: {ICEBERG}ValidationException: Cannot find source column for sort field",
            ),
            InternalError,
        ),
        (
            raised(
                SparkException,
                "Job aborted due to stage failure",
                "org.apache.spark.SparkException",
                "\nCaused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
                "\nCaused by: java.io.IOException: No space left on device",
            ),
            ResourceExhausted,
        ),
        (
            raised(
                UnknownException,
                "Failed to commit",
                "org.apache.iceberg.jdbc.UncheckedSQLException",
                "\nCaused by: org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed (database or disk is full)",
            ),
            ResourceExhausted,
        ),
        (
            raised(
                UnknownException,
                "Failed to open",
                "org.apache.iceberg.exceptions.RuntimeIOException",
                "\nCaused by: java.io.FileNotFoundException: /srv/lake/t/data/x.parquet (Read-only file system)",
            ),
            PermissionDenied,
        ),
        (
            raised(
                UnknownException,
                "Failed",
                "org.apache.iceberg.jdbc.UncheckedSQLException",
                "\nCaused by: org.postgresql.util.PSQLException: Connection to db:5432 refused.",
            ),
            Unavailable,
        ),
        (SparkConnectGrpcException("Stream removed", grpc_status_code=grpc.StatusCode.UNAVAILABLE), Unavailable),
        (UnknownException("gone", errorClass="INVALID_HANDLE.SESSION_NOT_FOUND", messageParameters={}), Unavailable),
        (UnknownException("canceled", errorClass="OPERATION_CANCELED", messageParameters={}), Unavailable),
    ],
)
def test_failures_are_told_apart(exc: Exception, expected: type[SparkportError]) -> None:
    assert outcome(exc) is expected


@pytest.mark.parametrize(
    "exc",
    [
        raised(
            AnalysisException,
            f"[UNRESOLVED_COLUMN] A column `{WORDS}` cannot be resolved.",
            "org.apache.spark.sql.catalyst.ExtendedAnalysisException",
            errorClass="UNRESOLVED_COLUMN",
            messageParameters={},
        ),
        raised(
            SparkRuntimeException,
            f"[CAST_INVALID_INPUT] The value '{WORDS}' cannot be cast to BIGINT.",
            "org.apache.spark.SparkRuntimeException",
            f"\nCaused by: java.lang.NumberFormatException: For input string: {WORDS}",
            errorClass="CAST_INVALID_INPUT",
            messageParameters={},
        ),
        raised(UnknownException, WORDS, "org.apache.iceberg.exceptions.NoSuchTableException"),
        UnknownException(WORDS, reason="org.apache.iceberg.exceptions.NoSuchTableException"),
        RuntimeError(WORDS),
    ],
)
def test_a_table_or_a_value_may_be_called_like_any_failure(exc: Exception) -> None:
    assert outcome(exc) is InternalError


def test_a_table_that_is_not_found_is_told_from_other_failures() -> None:
    words = f"[TABLE_OR_VIEW_NOT_FOUND] The table or view `{WORDS}` cannot be found."
    stack = "org.apache.spark.sql.catalyst.ExtendedAnalysisException"
    exc = raised(AnalysisException, words, stack, errorClass="TABLE_OR_VIEW_NOT_FOUND", messageParameters={})
    assert outcome(exc) is NoTable


def test_the_condition_is_told_and_no_more() -> None:
    exc = AnalysisException("[X] /srv/lake/secret", errorClass="TABLE_OR_VIEW_NOT_FOUND", messageParameters={})
    with pytest.raises(InternalError) as failure, translated("reading 't'"):
        raise exc
    assert failure.value.message == "reading 't': Spark failed: TABLE_OR_VIEW_NOT_FOUND"


def test_a_query_changes_nothing_and_so_loses_no_race() -> None:
    """Iceberg says of a branch that is not there what it says of a lost race."""
    with pytest.raises(InvalidArgument, match="no such branch"), reasons("lake", "public"):
        raise raised(UnknownException, "Cannot use branch (does not exist): x", f"{ICEBERG}ValidationException")
