"""Whatever files are like, reading them holds little in memory, and leaves little in it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.row_groups import read_footer
from sparkport.lakehouse.scan.decoded import held_bytes, row_bytes
from sparkport.lakehouse.scan.read import Reader

MEGABYTE = 1 << 20


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader(FileSystem(), threads=2)
    yield found
    found.close()


def test_sizes_of_many_columns_are_kept_without_their_names(tmp_path: Path) -> None:
    columns = 400
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"column_{number}": np.arange(10) for number in range(columns)}), path, row_group_size=1)
    footer, place = read_footer(str(path)), (str(path), path.stat().st_size)
    tracemalloc.start()
    try:
        for left_out in range(10):
            names = [f"column_{number}" for number in range(columns) if number != left_out]
            for group in range(footer.metadata.num_row_groups):
                row_bytes(place, footer, group, names=names)
                held_bytes(place, footer, group, names=names)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < MEGABYTE
