"""A full, a forbidden and a broken disk mean the same to clients, whoever met them."""

from __future__ import annotations

import errno
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import InternalError, PermissionDenied, ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.scan.duck import duckdb_error, translate
from sparkport.lakehouse.spark import staging

pytestmark = pytest.mark.tier("fast")


def failing(number: int) -> OSError:
    return OSError(number, "as the system says")


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (failing(errno.ENOSPC), ResourceExhausted),
        (failing(errno.EDQUOT), ResourceExhausted),
        (OSError("[Errno 28] Error writing: No space left on device"), ResourceExhausted),
        (failing(errno.EROFS), PermissionDenied),
        (failing(errno.EACCES), PermissionDenied),
        (PermissionError("Access Denied"), PermissionDenied),
        (failing(errno.EIO), Unavailable),
    ],
    ids=str,
)
def test_an_error_of_a_disk_has_one_meaning(
    exc: OSError, expected: type[SparkportError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise exc

    assert type(disk_error(exc, "it")) is expected
    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(expected, match="json"):
        FileSystem().write_new(str(tmp_path / "x.json"), b"{}")
    rows = staging.StagedRows(tmp_path / "x.parquet", pa.schema([("v", pa.int64())]))
    monkeypatch.setattr(staging.StagedRows, "_open", fails)
    rows.append(pa.record_batch({"v": [1]}))
    with pytest.raises(expected, match="staging folder"):
        rows.finish()


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (duckdb.OutOfMemoryException("Out of Memory Error: no"), ResourceExhausted),
        (duckdb.IOException('IO Error: Could not write file "x": No space left on device'), ResourceExhausted),
        (OSError("Out of Memory Error: in the middle of a stream"), ResourceExhausted),
        (duckdb.IOException("IO Error: Input/output error"), Unavailable),
        (pa.ArrowInvalid("odd"), InternalError),
    ],
    ids=str,
)
def test_duckdb_has_no_other_meanings(exc: Exception, expected: type[SparkportError]) -> None:
    assert [type(translate(exc)), type(duckdb_error(exc, "the work"))] == [expected, expected]
