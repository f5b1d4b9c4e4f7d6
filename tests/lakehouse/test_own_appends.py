"""New rows that we put into tables ourselves, while others change the same tables by other means."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.statement import Change, StatementRequest
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.appends import Append, append_files
from sparkport.lakehouse.iceberg.manifest_writer import AddedFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.write import appends

pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(300)]

_numbers = count()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_what_was_read_of_a_table_may_be_gone_when_another_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server commits, and its maintenance expires the version that this one was about to build upon."""
    bases: list[int | None] = []
    with lakehouse(tmp_path / "warehouse") as one, lakehouse(tmp_path / "warehouse") as other:
        table = create(Lake(one), "t", rows(1))

        def late(
            fs: FileSystem, metadata: TableMetadata, added: Sequence[AddedFile], *, notes: Mapping[str, str]
        ) -> Append | None:
            bases.append(metadata.main_snapshot_id)
            if len(bases) == 1:
                Handle(Lake(other), "t").insert(rows(2))
                assert metadata.main_snapshot_id is not None
                fs.delete(metadata.snapshot(metadata.main_snapshot_id).manifest_list)
            return append_files(fs, metadata, added, notes=notes)

        monkeypatch.setattr(appends, "append_files", late)
        table.insert(rows(3))
        found: list[dict[str, Any]] = list(table.sparkport().values())
    assert len(set(bases)) == 2
    assert sorted(row["id"] for row in found) == [1, 2, 3]


def test_a_file_is_as_new_as_the_place_that_it_is_given(tmp_path: Path) -> None:
    """One that was staged long ago must not be taken for one that nobody wants."""
    staged = tmp_path / "staged"
    staged.write_bytes(b"x")
    os.utime(staged, (1_000_000, 1_000_000))
    began = time.time()
    FileSystem().place(staged, str(tmp_path / "table" / "data" / "x"))
    assert (tmp_path / "table" / "data" / "x").stat().st_mtime > began - 10


@pytest.mark.parametrize("alteration", ["ADD PARTITION FIELD bucket(4, id)", "WRITE ORDERED BY id"])
def test_rows_of_a_table_that_is_plain_no_longer_when_they_are_there_are_written_by_spark(
    lake: Lake, alteration: str
) -> None:
    table = create(lake, f"t{next(_numbers)}", rows(1))
    request = StatementRequest(change=Change.INSERT, columns=rows().schema)
    statement = table.table().open_statement(NOBODY, request)
    statement.push(rows(2, 3).to_batches()[0], None)
    table.sql(f"ALTER TABLE {{t}} {alteration}")
    assert statement.finish() == 2
    assert sorted(row["id"] for row in table.agreed().values()) == [1, 2, 3]
    table.insert(rows(4))
    assert len(table.agreed()) == 4


@pytest.mark.tier("thorough")
def test_two_servers_that_insert_side_by_side_give_each_row_an_id_of_its_own(tmp_path: Path) -> None:
    with lakehouse(tmp_path / "warehouse") as one, lakehouse(tmp_path / "warehouse") as other:
        table = create(Lake(one), "t", rows(0))
        handles = (table, Handle(Lake(other), "t"))

        def insert(number: int) -> int:
            return handles[number % 2].insert(rows(number)).affected_rows

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(insert, range(1, 31))) == [1] * 30
        assert sorted(row["id"] for row in table.agreed().values()) == list(range(31))
        left = [path.name for path in (tmp_path / "warehouse").rglob("data/*.parquet")]
    assert len(left) == len(set(left)) <= 31
