"""Whatever files are like, reading them holds little in memory, and leaves little in it."""

from __future__ import annotations

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.unit.test_decoded_sizes import read_all, stream, write

from sparkport.catalog.memory_sizes import cuts
from sparkport.errors import ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.pages import longest_text
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID, read_footer
from sparkport.lakehouse.scan import decoded, direct, large_reads
from sparkport.lakehouse.scan.decoded import held_bytes, row_bytes
from sparkport.lakehouse.scan.duck import DUCKDB_MEMORY
from sparkport.lakehouse.scan.limits import Room
from sparkport.lakehouse.scan.read import Reader

pytestmark = pytest.mark.tier("fast")

MEGABYTE = 1 << 20


def test_sizes_of_many_columns_are_kept_without_their_names(tmp_path: Path) -> None:
    columns = 300
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"column_{number}": np.arange(10) for number in range(columns)}), path, row_group_size=1)
    footer, place = read_footer(str(path)), (str(path), path.stat().st_size)
    tracemalloc.start()
    try:
        for left_out in range(8):
            names = [f"column_{number}" for number in range(columns) if number != left_out]
            for group in range(footer.metadata.num_row_groups):
                row_bytes(place, footer, group, names=names)
                held_bytes(place, footer, group, names=names)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < MEGABYTE


def test_scans_that_begin_at_once_size_a_row_group_up_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "text", ["x"])
    footer, place = read_footer(file.path), (file.path, file.size)
    both, sizing = threading.Barrier(2), set[int]()

    class Names(list[str]):
        def __contains__(self, name: object) -> bool:
            sizing.add(threading.get_ident())
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            return super().__contains__(name)

    names = Names(["v"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: held_bytes(place, footer, 0, names=names), range(8)))

    assert len(sizing) == 1
    assert len(set(found)) == 1


def test_cutting_lists_of_numbers_takes_no_room_for_each_item() -> None:
    items = 4_000_000
    lists = pa.ListArray.from_arrays(pa.array(np.arange(5) * (items // 4), pa.int32()), pa.array(np.zeros(items)))
    tracemalloc.start()
    try:
        parts = list(cuts([lists], 1 << 10))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert parts == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert most < MEGABYTE


def test_reads_that_hold_little_are_counted_together(reader: Reader, tmp_path: Path) -> None:
    """The more of them run, the less is little: each has as much as it may when it begins."""
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "write_batch_size": 1 << 20}
    stalled = []
    before = pa.total_allocated_bytes()
    for number in range(1, 49):
        size = min(31, 255 // number)
        path = tmp_path / f"{size}.parquet"
        file = write(path, "text", ["x" * 10_000] * size * 100, **options)
        batches = iter(stream(reader, "text", file))
        next(batches)
        stalled.append(batches)

    held = pa.total_allocated_bytes() - before

    assert held <= reader.share.room.large_bytes + reader.share.room.small_bytes + 192 * MEGABYTE
    for batches in stalled:
        batches.close()  # type: ignore[attr-defined]
    assert reader.share.reserved == 0


def test_long_texts_in_a_page_of_short_ones_come_in_batches_of_few_bytes(reader: Reader, tmp_path: Path) -> None:
    values = ["s"] * 15_000 + ["x" * 50_000] * 1_000
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "write_batch_size": 1 << 20}
    file = write(tmp_path / "a.parquet", "text", values, **options)

    ids, largest = read_all(stream(reader, "text", file))

    assert ids == list(range(len(values)))
    assert largest <= 17 * MEGABYTE


def test_dictionaries_are_counted_among_what_reads_hold(reader: Reader, tmp_path: Path) -> None:
    texts = [f"{number:04}" * 50_000 for number in range(100)]
    file = write(tmp_path / "a.parquet", "text", texts * 3, dictionary_pagesize_limit=1 << 30)
    before = pa.total_allocated_bytes()
    stalled = [iter(stream(reader, "text", file)) for _ in range(16)]
    for batches in stalled:
        next(batches)

    held = pa.total_allocated_bytes() - before

    assert held <= reader.share.room.large_bytes + 16 * 8 * MEGABYTE
    for batches in stalled:
        batches.close()  # type: ignore[attr-defined]
    assert reader.share.reserved == 0


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_the_longest_text_of_a_dictionary_is_found_without_its_rows(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": ["a", "bb", None, "c" * 300, ""] * 10}), path, compression=codec)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    with path.open("rb") as file:
        assert longest_text(file, chunk.dictionary_page_offset, chunk.compression) == 300
        with pytest.raises(ValueError, match="no dictionary"):
            longest_text(file, chunk.data_page_offset, chunk.compression)
        with pytest.raises(ValueError, match="dictionary"):
            longest_text(file, chunk.dictionary_page_offset, "LZO")


def test_lists_of_texts_of_which_some_are_in_a_dictionary_are_counted_as_they_are(tmp_path: Path) -> None:
    long = ["y" * 1_000] * 2_000
    values: list[list[str]] = [[]] * 50_000 + [long] * 50
    many = [[str(number)] for number in range(30_000)]
    options = {"dictionary_pagesize_limit": 64 << 10}
    mixed = write(tmp_path / "a.parquet", "list", values + many, **options)
    even = write(tmp_path / "b.parquet", "list", values, **options)

    sizes = []
    for file in (mixed, even):
        footer = read_footer(file.path)
        assert "PLAIN" in footer.metadata.row_group(0).column(1).encodings
        path = footer.metadata.schema.column(1).path
        numbered = [path] if decoded.is_all_numbered((file.path, file.size), footer, 0, 1) else []
        sizes.append(held_bytes((file.path, file.size), footer, 0, names=["v"], numbered=numbered))

    assert sizes[0] >= 50 * 2_000 * 1_000
    assert sizes[1] < 10 * MEGABYTE


def test_footers_count_as_what_they_say(tmp_path: Path) -> None:
    texts = [f"{number}" * 700 for number in range(1_000, 1_020)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": texts}), path, row_group_size=1)
    footer = read_footer(str(path))

    assert footer.metadata.num_row_groups == 20
    assert footer.weight >= 20 * 4


def test_all_columns_of_a_struct_are_read_in_small_portions(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[int] = []

    def noted(*args: Any, **options: Any) -> pq.ParquetFile:
        buffers.append(options.get("buffer_size", 0))
        return pq.ParquetFile(*args, **options)

    monkeypatch.setattr(direct, "pq", SimpleNamespace(ParquetFile=noted))
    columns, names = 100, [f"f{number}" for number in range(100)]
    struct = {"type": "struct", "fields": [{"id": 3 + n, "name": names[n], "type": "long"} for n in range(columns)]}
    fields = [{"id": 2, "name": "v", "type": {**struct, "required": False}, "required": False}]
    kind = pa.struct([pa.field(n, pa.int64(), metadata={FIELD_ID: str(3 + i).encode()}) for i, n in enumerate(names)])
    schema = pa.schema([pa.field("v", kind, metadata={FIELD_ID: b"2"})])
    file = write(tmp_path / "a.parquet", "text", ["x"])
    pq.write_table(pa.table([pa.array([dict.fromkeys(names, 1)], kind)], schema=schema), file.path, store_schema=False)
    file = replace(file, size=Path(file.path).stat().st_size)
    metadata = TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": fields}]})

    assert sum(batch.num_rows for batch in reader.scan(metadata, SnapshotPlan(None, 0, 7, (file,)))) == 1
    assert buffers
    assert max(buffers) * columns <= 17 * MEGABYTE


def test_memory_of_large_reads_is_given_back_to_the_system(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(large_reads, "_release", lambda: released.append(pa.total_allocated_bytes()))
    file = write(tmp_path / "a.parquet", "list", [["x"]] * 100)
    before = pa.total_allocated_bytes()
    for small_shares, large, times in ((4, 1 << 20, 0), (0, 1 << 20, 1), (0, 0, 2)):
        reader.share.room = Room(small_shares=small_shares, large_bytes=large)
        assert len(read_all(stream(reader, "list", file))[0]) == 100
        assert len(released) == times
    assert max(released) - before < MEGABYTE


def nothing_is_left(reader: Reader, folder: Path) -> None:
    assert not reader.large_reads.turn.locked()
    assert (reader.large_reads.on_disk, reader.share.reserved, reader.share.scans) == (0, 0, 0)
    assert not list(folder.glob("sparkport-rows-*"))


@pytest.mark.parametrize("arrow", [True, False])
def test_a_folder_for_rows_that_is_gone_is_not_taken_for_a_table_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    monkeypatch.setattr(direct, "is_direct", lambda kind: arrow)
    file = write(tmp_path / "a.parquet", "list", [["x"]] * 100)
    gone, no_room = str(tmp_path / "gone"), Room(large_bytes=0, small_shares=0)
    with closing(Reader(FileSystem(), threads=2, temp_directory=gone, room=no_room)) as reader:
        with pytest.raises(Unavailable, match="wait for their reader"):
            read_all(stream(reader, "list", file))
        nothing_is_left(reader, tmp_path)


@pytest.mark.usefixtures("no_room")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no disk that is always full")
@pytest.mark.parametrize("arrow", [True, False])
def test_a_full_disk_ends_a_scan_and_leaves_nothing(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    def full(**options: Any) -> tuple[int, str]:
        path = tmp_path / "sparkport-rows-1"
        path.symlink_to("/dev/full")
        return os.open(path, os.O_WRONLY), str(path)

    monkeypatch.setattr(large_reads, "tempfile", SimpleNamespace(mkstemp=full))
    monkeypatch.setattr(direct, "is_direct", lambda kind: arrow)
    with pytest.raises(ResourceExhausted, match="the disk is full"):
        read_all(stream(reader, "list", write(tmp_path / "a.parquet", "list", [["x" * 100]] * 1_000)))
    nothing_is_left(reader, tmp_path)


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("arrow", [True, False])
def test_a_file_that_is_damaged_in_the_middle_leaves_nothing(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    monkeypatch.setattr(direct, "is_direct", lambda kind: arrow)
    file = write(tmp_path / "a.parquet", "list", [[str(n)] for n in range(9_000)], row_group_size=3_000)
    chunk = pq.read_metadata(file.path).row_group(1).column(1)
    with open(file.path, "r+b") as opened:
        opened.seek(chunk.data_page_offset)
        opened.write(b"\xff" * 200)
    with pytest.raises(SparkportError):
        read_all(stream(reader, "list", file))
    nothing_is_left(reader, tmp_path)


def test_rows_that_only_duckdb_reads_take_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    texts = ["s"] * 4_000 + ["x" * 100_000] * 3_000
    file = write(tmp_path / "a.parquet", "text", texts, use_dictionary=False)
    with closing(Reader(FileSystem(), memory_limit="64MB", threads=1)) as small:
        with pytest.raises(ResourceExhausted, match="more room"):
            read_all(stream(small, "text", file))
        nothing_is_left(small, tmp_path)
    assert DUCKDB_MEMORY == "640MB"  # with what else a server takes, less than a gigabyte
