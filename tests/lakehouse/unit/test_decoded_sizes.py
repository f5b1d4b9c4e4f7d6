"""However little rows take in a file, a scan has few bytes of them in memory at a time; and they are the same rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.unit.kept import KEPT_BYTES, kept

from sparkport.catalog.memory_sizes import cuts
from sparkport.errors import Cancelled, ResourceExhausted
from sparkport.filters.expressions import Column, Comparison, Expression, Literal, SqlType
from sparkport.lakehouse.iceberg.manifests import DataFile, DeleteFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.pages import page_sizes
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.scan import deleted_rows, direct, query, read
from sparkport.lakehouse.scan.decoded import Share, file_row_bytes
from sparkport.lakehouse.scan.read import Reader, RowStream

pytestmark = pytest.mark.tier("fast")

ROWS = 6_000
TEXT = "x" * 10_000
MEGABYTE = 1 << 20
BIGINT = SqlType("BIGINT")
TYPES: dict[str, Any] = {
    "text": "string",
    "bytes": "binary",
    "list": {"type": "list", "element-id": 3, "element": "string", "element-required": False},
    "struct": {"type": "struct", "fields": [{"id": 3, "name": "a", "type": "string", "required": False}]},
    "map": {"type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": "string", "value-required": False},
}
VALUES: dict[str, Any] = {
    "text": TEXT,
    "bytes": TEXT.encode(),
    "list": [TEXT],
    "struct": {"a": TEXT},
    "map": [("k", TEXT)],
}
ARROW: dict[str, pa.DataType] = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "list": pa.list_(pa.string()),
    "struct": pa.struct([("a", pa.string())]),
    "map": pa.map_(pa.string(), pa.string()),
}


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What DuckDB is asked. Arrow reads nothing."""
    found: list[str] = []

    def noted(*args: Any, **options: Any) -> str:
        found.append(query.group_sql(*args, **options))
        return found[-1]

    monkeypatch.setattr(read, "group_sql", noted)
    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    return found


def metadata(kind: str) -> TableMetadata:
    fields = [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "v", "type": TYPES[kind], "required": False},
    ]
    return TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": fields}]})


def with_ids(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    mark = {b"PARQUET:field_id": str(next(ids)).encode()}
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([with_ids(inner, ids) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(with_ids(kind.key_field, ids), with_ids(kind.item_field, ids))
    elif pa.types.is_list(kind):
        kind = pa.list_(with_ids(kind.value_field, ids))
    return pa.field(field.name, kind, field.nullable, mark)


def write(path: Path, kind: str, values: list[Any] | None = None, **options: Any) -> DataFile:
    column = pa.array([VALUES[kind]] * ROWS if values is None else values, ARROW[kind])
    schema = pa.schema([("id", pa.int64()), ("v", ARROW[kind])])
    ids = iter(range(1, 10))
    schema = pa.schema([with_ids(field, ids) for field in schema])
    table = pa.table([pa.array(range(len(column)), pa.int64()), column.cast(schema.field("v").type)], schema=schema)
    pq.write_table(table, path, store_schema=False, compression="zstd", **options)
    return DataFile(
        path=str(path),
        format="parquet",
        record_count=table.num_rows,
        size=path.stat().st_size,
        sequence_number=7,
        file_sequence_number=7,
        first_row_id=100,
        spec_id=0,
        partition=(),
        lower_bounds={},
        upper_bounds={},
        null_counts={},
        nan_counts={},
        value_counts={},
    )


def stream(reader: Reader, kind: str, *files: DataFile, **options: Any) -> RowStream:
    return reader.scan(metadata(kind), SnapshotPlan(None, 0, 7, files), **options)


def read_all(found: RowStream) -> tuple[list[int], int]:
    """The ids in their order, and the bytes of the largest batch."""
    ids: list[int] = []
    largest = 0
    for batch in found:
        ids += batch.column("id").to_pylist()
        largest = max(largest, batch.get_total_buffer_size())
    return ids, largest


def less(limit: int) -> Expression:
    return Comparison("<", Column("id", BIGINT), Literal(limit, BIGINT))


@pytest.mark.parametrize("kind", TYPES)
def test_equal_values_come_in_batches_of_few_bytes(reader: Reader, tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "a.parquet", kind)
    assert file.size < MEGABYTE

    ids, largest = read_all(stream(reader, kind, file))

    assert ids == list(range(ROWS))
    assert largest <= 17 * MEGABYTE


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_a_query_over_large_rows_is_over_before_its_rows_go_out_when_there_is_no_room(
    reader: Reader, tmp_path: Path, queries: list[str], kind: str
) -> None:
    file = write(tmp_path / "a.parquet", kind)
    stalled = [iter(stream(reader, kind, file)) for _ in range(3)]
    for batches in stalled:
        assert next(batches).num_rows

    ids, largest = read_all(stream(reader, kind, file))

    assert ids == list(range(ROWS))
    assert largest <= 17 * MEGABYTE
    assert len(queries) == 4
    assert not list(tmp_path.glob("sparkport-rows-*"))
    for batches in stalled:
        batches.close()  # type: ignore[attr-defined]
    assert reader.large_reads.on_disk == 0


@pytest.mark.usefixtures("no_room")
def test_rows_that_went_by_way_of_disk_are_those_that_were_asked_for(
    reader: Reader, tmp_path: Path, queries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = np.array([0, 3, 900, 901, ROWS - 1], np.int64)
    delete = DeleteFile("/x/dv", 8, len(gone), 0, (), offset=4, length=40)
    files = [replace(write(tmp_path / f"{name}.parquet", "list"), deletes=(delete,)) for name in "ab"]
    left = [number for number in range(ROWS) if number not in gone]
    for arrow in (False, True):
        monkeypatch.setattr(direct, "is_direct", lambda kind, arrow=arrow: arrow)
        for module in (deleted_rows, direct):
            monkeypatch.setattr(module, "deleted_positions", lambda fs, file: gone)
        assert read_all(stream(reader, "list", *files))[0] == left * 2
        assert read_all(stream(reader, "list", files[0], filter=less(1_000)))[0] == [n for n in left if n < 1_000]
        wanted = np.arange(100, 100 + ROWS, 2, dtype=np.int64)
        assert read_all(stream(reader, "list", files[0], row_ids=wanted))[0] == [n for n in left if n % 2 == 0]
        without = np.array([105, 1_105], np.int64)
        rest = [n for n in left if n not in (5, 1_005)]
        assert read_all(stream(reader, "list", files[0], without=without, row_id=True))[0] == rest
        assert read_all(stream(reader, "list", files[0], filter=less(-1)))[0] == []
    assert len(queries) == 6


@pytest.mark.usefixtures("no_room")
def test_rows_that_wait_on_disk_have_a_limit(reader: Reader, tmp_path: Path) -> None:
    reader.share.room = replace(reader.share.room, disk_bytes=10 * MEGABYTE)
    with pytest.raises(ResourceExhausted, match="read fewer at once"):
        read_all(stream(reader, "list", write(tmp_path / "a.parquet", "list")))
    assert reader.large_reads.on_disk == 0
    few = stream(reader, "list", write(tmp_path / "b.parquet", "list", [[TEXT]] * 900))
    assert len(read_all(few)[0]) == 900


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_long_lists_after_very_many_short_ones_are_bounded(reader: Reader, tmp_path: Path, encoding: str) -> None:
    """As many rows as DuckDB reads at a time would be 100 MB and more."""
    values: list[list[str]] = [[]] * 10_000 + [[f"{number % 5}{TEXT}", TEXT] * 4 for number in range(2_000)]
    options = {"use_dictionary": False, "column_encoding": {"v.list.element": encoding}}
    file = write(tmp_path / "a.parquet", "list", values, **options)
    before = pa.total_allocated_bytes()
    held = 0
    ids: list[int] = []
    for batch in stream(reader, "list", file):
        held = max(held, pa.total_allocated_bytes() - before)
        ids += batch.column("id").to_pylist()

    assert ids == list(range(len(values)))
    assert held <= 64 * MEGABYTE


def test_a_page_that_is_large_is_not_held_while_readers_do_something_else(reader: Reader, tmp_path: Path) -> None:
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "write_batch_size": 1 << 20}
    file = write(tmp_path / "a.parquet", "text", [TEXT] * 15_000, **options)
    before = pa.total_allocated_bytes()
    stalled = [iter(stream(reader, "text", file)) for _ in range(6)]
    for batches in stalled:
        next(batches)

    held = pa.total_allocated_bytes() - before

    assert held <= reader.share.room.large_bytes + 6 * 20 * MEGABYTE
    for batches in stalled:
        batches.close()  # type: ignore[attr-defined]


def test_texts_of_which_some_are_in_a_dictionary_are_bounded_too(reader: Reader, tmp_path: Path) -> None:
    values = [TEXT] * ROWS + [str(number) for number in range(60_000)]
    file = write(tmp_path / "a.parquet", "text", values, dictionary_pagesize_limit=64 << 10)
    encodings = pq.read_metadata(file.path).row_group(0).column(1).encodings
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(encodings)

    ids, largest = read_all(stream(reader, "text", file))

    assert ids == list(range(len(values)))
    assert largest <= 17 * MEGABYTE


def test_large_rows_after_many_small_ones_are_bounded_too(reader: Reader, tmp_path: Path) -> None:
    values = [None] * 200_000 + [TEXT] * ROWS
    for kind, name in (("text", "a"), ("list", "b")):
        file = write(tmp_path / f"{name}.parquet", kind, [v and (v if kind == "text" else [v]) for v in values])
        ids, largest = read_all(stream(reader, kind, file))
        assert ids == list(range(len(values)))
        assert largest <= 17 * MEGABYTE


def test_long_texts_after_very_many_short_ones_are_bounded_without_a_dictionary(reader: Reader, tmp_path: Path) -> None:
    long = [f"{number:06}{TEXT}" for number in range(ROWS)]
    plain = {"use_dictionary": False, "data_page_size": MEGABYTE, "write_batch_size": 16}
    for values in (["s"] * 700_000 + long, long + ["s"] * 700_000):
        file = write(tmp_path / "a.parquet", "text", values, **plain)
        assert pq.read_metadata(file.path).num_row_groups == 1

        ids, largest = read_all(stream(reader, "text", file))

        assert ids == list(range(len(values)))
        assert largest <= 17 * MEGABYTE


def test_texts_that_share_their_beginnings_are_bounded(reader: Reader, tmp_path: Path) -> None:
    """A page has of each text only what the one before it has not."""
    values = [f"{TEXT}{number:06}" for number in range(ROWS)]
    options = {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}
    file = write(tmp_path / "a.parquet", "text", values, **options)
    assert file.size < MEGABYTE // 8

    ids, largest = read_all(stream(reader, "text", file))

    assert ids == list(range(ROWS))
    assert largest <= 4 * 9 * MEGABYTE


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_headers_of_pages_tell_what_the_footer_does_not(tmp_path: Path, version: str) -> None:
    values = [None] * 1_000 + ["s"] * 50_000 + [TEXT] * 320
    options = {"use_dictionary": False, "data_page_version": version, "write_batch_size": 16}
    file = write(tmp_path / "a.parquet", "text", values, data_page_size=MEGABYTE, **options)
    chunk = pq.read_metadata(file.path).row_group(0).column(1)
    with open(file.path, "rb") as opened:
        sizes = page_sizes(opened, chunk.data_page_offset, chunk.total_compressed_size)
        with pytest.raises(ValueError, match="header"):
            page_sizes(opened, file.size - 2, 100)

    assert MEGABYTE <= sizes.largest <= 2 * MEGABYTE
    assert len(TEXT) <= sizes.densest <= len(TEXT) + 20


@pytest.mark.parametrize(
    "data", [b"\x15" + b"\x80" * 5_000, b"\x1c" * 5_000, b"\x19" * 40, b"\x15\x00\x15\x01\x00", b""]
)
def test_what_is_no_header_of_a_page_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        page_sizes(BytesIO(data), 0, 1 << 30)


def test_a_filter_that_keeps_all_rows_leaves_batches_small(reader: Reader, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "text")

    ids, largest = read_all(stream(reader, "text", file, filter=less(ROWS)))

    assert ids == list(range(ROWS))
    assert largest <= 17 * MEGABYTE


def test_what_small_reads_keep_is_counted_as_it_is(reader: Reader, tmp_path: Path) -> None:
    before = kept("fill_ratio")
    read_all(stream(reader, "text", write(tmp_path / "a.parquet", "text", [TEXT] * 600)))

    assert kept("fill_ratio") - before < MEGABYTE / KEPT_BYTES


def test_the_more_scans_run_the_less_each_holds(reader: Reader, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "text")
    running = [iter(stream(reader, "text", file)) for _ in range(63)]
    for batches in running:
        next(batches)
    _, largest = read_all(stream(reader, "text", file))

    assert largest <= 3 * MEGABYTE
    assert reader.share.scans == 63
    for batches in running:
        batches.close()  # type: ignore[attr-defined]
    assert reader.share.scans == 0


@pytest.mark.usefixtures("no_room")
def test_a_scan_that_waits_for_its_turn_ends_when_it_is_closed(reader: Reader, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "list")
    for arrow in (True, False):
        with reader.large_reads.turn:
            found = stream(reader, "list", file, filter=None if arrow else less(ROWS))
            batches = iter(found)
            threading.Timer(0.2, found.close).start()
            with pytest.raises(Cancelled):
                next(batches)


def test_a_query_gives_its_room_back(reader: Reader, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "list")
    read_all(stream(reader, "list", file))
    batches = iter(stream(reader, "list", file))
    next(batches)
    batches.close()  # type: ignore[attr-defined]

    assert reader.share.reserved == 0


def test_a_row_counts_as_its_longest_text(tmp_path: Path) -> None:
    numbers = file_row_bytes(write(tmp_path / "a.parquet", "text"), {1}) or 0
    texts = file_row_bytes(write(tmp_path / "b.parquet", "text", [None] * 1_000 + ["y", TEXT] * 400), {2}) or 0
    lists = file_row_bytes(write(tmp_path / "c.parquet", "list", [None] * 1_000 + [[TEXT]] * 400), {2}) or 0

    assert 8 <= numbers <= 20
    assert len(TEXT) <= texts <= 2 * len(TEXT)
    assert len(TEXT) <= lists <= 3 * len(TEXT)


def test_parts_of_a_dictionary_column_take_no_more_than_they_may() -> None:
    texts = pa.array(["a" * 10, "b" * 1_000, None] * 100).dictionary_encode()
    numbers = pa.array(range(300))

    parts = list(cuts([numbers, texts], 2_500))

    assert sum(count for _, count in parts) == 300
    assert all(texts.slice(start, count).dictionary_decode().nbytes < 4_000 for start, count in parts)
    assert list(cuts([pa.array(["c" * 50] * 3).dictionary_encode()], 10)) == [(0, 1), (1, 1), (2, 1)]


def test_a_share_is_never_nothing() -> None:
    share = Share()
    for _ in range(10_000):
        share.enter()
    assert share.bytes == 512 << 10
