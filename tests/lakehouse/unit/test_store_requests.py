"""What reading from an object store costs in requests: the size of a file is asked for once."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.s3 import object_store

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")


def test_the_size_of_a_file_is_asked_for_once_and_one_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    requests: Counter[str] = Counter()
    send = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **options: Any) -> Any:
        requests[method] += 1
        return await send(self, method, *args, **options)

    with object_store() as store:
        settings = LakehouseSettings(
            warehouse=f"s3://{store.bucket}/w", catalog_uri="sqlite:////none.db", properties=store.properties
        )
        files = FileSystem(settings.storage_options())
        content = io.BytesIO()
        pq.write_table(pa.table({"x": list(range(1_000))}), content)
        paths = [f"s3://{store.bucket}/w/{number}.parquet" for number in range(3)]
        for path in paths:
            files.write_new(path, content.getvalue())
        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
        with duckdb.connect() as connection:
            files.register(connection, paths[0])
            for _ in range(2):
                assert connection.sql(f"SELECT sum(x) FROM read_parquet({paths})").fetchall() == [(3 * 499_500,)]
            assert requests["head_object"] == len(paths)
            files.delete(paths[1])
            with pytest.raises(duckdb.Error, match="FileNotFound"):
                connection.sql(f"SELECT sum(x) FROM read_parquet({paths})").fetchall()
