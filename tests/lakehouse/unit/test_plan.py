"""From a snapshot to its files, with all that manifests leave to be inherited."""

from __future__ import annotations

import io
import json
import struct
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.lakehouse.fixtures import Fixture, materialise, with_equality_deletes

from sparkport.errors import Conflict, InternalError
from sparkport.lakehouse.iceberg import avro
from sparkport.lakehouse.iceberg.bounds import decode
from sparkport.lakehouse.iceberg.deletes import decode_vector, deleted_positions
from sparkport.lakehouse.iceberg.manifests import DataFile, read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.plan import plan, split

pytestmark = pytest.mark.tier("fast")


def main_plan(found: Fixture) -> Any:
    return plan(found.fs, found.metadata, found.metadata.main_snapshot_id)


def test_an_empty_table_has_no_files(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    assert plan(found.fs, found.metadata, None).files == ()


def test_a_plan_is_made_once(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    assert main_plan(found) is main_plan(found)


def test_files_come_in_the_order_of_their_rows_with_row_ids_side_by_side(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    third = plan(found.fs, found.metadata, found.metadata.snapshots[2].id)
    assert third.sequence_number == 3
    assert [file.sequence_number for file in third.files] == sorted(file.sequence_number for file in third.files)
    covered = [file.row_id_bounds for file in third.files]
    assert [bounds[0] for bounds in covered if bounds] == sorted({bounds[0] for bounds in covered if bounds})
    assert sum(file.record_count for file in third.files) == third.record_count == 30


def test_rewritten_files_cover_the_row_ids_that_they_hold(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    merged = plan(found.fs, found.metadata, found.metadata.snapshots[3].id)
    assert merged.files[-1].row_id_bounds == (2, 12)
    assert sum(file.deleted_rows for file in merged.files) == 3
    assert merged.record_count == 30


def test_row_ids_are_inherited_by_files_that_have_none(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    entry = read_manifest_list(found.fs, found.metadata.snapshots[0].manifest_list)[0]
    reader: Any = fastavro.reader(io.BytesIO(Path(entry["manifest_path"]).read_bytes()))
    record = next(reader)
    count = record["data_file"]["record_count"]
    # Without an id, with one, deleted, and without again.
    records = [
        {**record, "status": status, "data_file": {**record["data_file"], "first_row_id": first_row_id}}
        for status, first_row_id in ((1, None), (0, 7000), (2, None), (1, None))
    ]
    other = tmp_path / "manifest.avro"
    with other.open("wb") as file:
        fastavro.writer(file, json.loads(reader.metadata["avro.schema"]), records)
    files = read_manifest(found.fs, {**entry, "manifest_path": str(other), "first_row_id": 100})
    assert [file.first_row_id for file in files if isinstance(file, DataFile)] == [100, 7000, 100 + count]
    without = read_manifest(found.fs, {**entry, "manifest_path": str(other), "first_row_id": None})
    assert {file.first_row_id for file in without if isinstance(file, DataFile)} == {None}


def test_deletion_vectors_belong_to_their_files(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    deleted = plan(found.fs, found.metadata, found.metadata.snapshots[4].id)
    gone = {
        file.first_row_id + position
        for file in deleted.files
        if file.first_row_id is not None
        for position in deleted_positions(found.fs, file).tolist()
    }
    assert {2, 3, 5, 12, 13} <= gone
    assert len(gone) == 6  # row 3 was deleted in its first file and again in the one that it was rewritten to


def test_lists_of_positions_are_for_files_written_before_them(tmp_path: Path) -> None:
    found = materialise("positions_v2", tmp_path)
    last = main_plan(found)
    assert not last.needs_spark
    assert sum(len(deleted_positions(found.fs, file)) for file in last.files) == 6
    assert plan(found.fs, found.metadata, found.metadata.snapshots[1].id).record_count == 20


def test_equality_deletes_are_left_to_spark(tmp_path: Path) -> None:
    found = with_equality_deletes(materialise("positions_v2", tmp_path))
    last = main_plan(found)
    assert last.needs_spark
    # An equality delete is only for rows that were there before it.
    newest = max(file.sequence_number for file in last.files)
    assert {file.equality_deletes for file in last.files if file.sequence_number < newest} == {True}


def test_an_expired_snapshot_is_a_conflict(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    for path in (found.folder / "metadata").glob("*-m*.avro"):
        path.unlink()
    with pytest.raises(Conflict, match="expired"):
        main_plan(found)


def test_a_damaged_manifest_is_said_to_be_one(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    for path in (found.folder / "metadata").glob("*-m*.avro"):
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InternalError, match="cannot be read"):
        main_plan(found)


@pytest.mark.parametrize("parts", [1, 2, 3, 100])
def test_a_plan_splits_into_runs_of_files(tmp_path: Path, parts: int) -> None:
    files = main_plan(materialise("partitioned", tmp_path)).files
    runs = split(files, parts)
    assert tuple(file for run in runs for file in run) == files
    assert len(runs) == min(parts, len(files))


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("boolean", b"\x01", True),
        ("int", struct.pack("<i", -5), -5),
        ("long", struct.pack("<q", 1 << 40), 1 << 40),
        ("long", struct.pack("<i", 7), 7),
        ("double", struct.pack("<f", 0.5), 0.5),
        ("double", struct.pack("<d", 0.1), 0.1),
        ("date", struct.pack("<i", 18000), 18000),
        ("timestamp", struct.pack("<q", 123), 123),
        ("timestamptz", struct.pack("<i", 1), 86_400_000_000),
        ("string", "né".encode(), "né"),
        ("string", b"\xff", None),
        ("uuid", bytes(range(16)), UUID(bytes=bytes(range(16)))),
        ("fixed[2]", b"\x00\x01", b"\x00\x01"),
        ("decimal(10, 2)", b"\xff\x38", Decimal("-2.00")),
        ("int", b"\x00", None),
        ("variant", b"\x00", None),
        ({"type": "struct", "fields": []}, b"\x00", None),
        ("int", None, None),
    ],
)
def test_bounds_are_decoded_by_the_type_of_today(kind: Any, data: bytes | None, value: Any) -> None:
    assert decode(kind, data) == value


def blob(positions: list[int]) -> bytes:
    bitmaps: dict[int, BitMap] = {}
    for position in positions:
        bitmaps.setdefault(position >> 32, BitMap()).add(position & 0xFFFFFFFF)
    body = b"\xd1\xd3\x39\x64" + struct.pack("<q", len(bitmaps))
    for key in sorted(bitmaps):
        bitmaps[key].run_optimize()
        body += struct.pack("<i", key) + bitmaps[key].serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@given(
    st.lists(
        st.one_of(st.integers(0, 300_000), st.integers(0, 1 << 40)).flatmap(
            lambda start: st.integers(1, 3000).map(lambda length: range(start, start + length))
        ),
        max_size=5,
    )
)
def test_deletion_vectors_of_any_size_are_decoded(runs: list[range]) -> None:
    positions = sorted({position for run in runs for position in run})
    assert decode_vector(blob(positions)).tolist() == positions


def test_a_damaged_deletion_vector_is_noticed() -> None:
    good = blob([1, 5, 9])
    assert np.array_equal(decode_vector(good), [1, 5, 9])
    for bad in (b"", good[:10], good[:-1], good[:12] + b"\x07" + good[13:], b"\x00" * len(good)):
        with pytest.raises(InternalError, match="damaged"):
            decode_vector(bad)


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31), 3_000_000, 106_751_991, 0, None])
def test_a_partition_of_a_day_that_python_has_not_is_read(tmp_path: Path, day: int | None) -> None:
    """Such as DuckDB's infinity, and the day of an infinite timestamp."""
    found = materialise("changes", tmp_path)
    entry = read_manifest_list(found.fs, found.metadata.snapshots[0].manifest_list)[0]
    source: Any = fastavro.reader(io.BytesIO(Path(entry["manifest_path"]).read_bytes()))
    record = next(source)
    schema = json.loads(source.metadata["avro.schema"])
    (file,) = (field for field in schema["fields"] if field["name"] == "data_file")
    (partition,) = (field for field in file["type"]["fields"] if field["name"] == "partition")
    partition["type"]["fields"] = [{"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]}]
    data = {**record["data_file"], "partition": {"day": day}}
    written = io.BytesIO()
    fastavro.writer(written, avro.plain(schema), [{**record, "data_file": data}])
    header, rest = avro.split(written.getvalue())
    other = tmp_path / "days.avro"
    other.write_bytes(avro.joined({**header, avro.SCHEMA: json.dumps(schema).encode()}, rest))
    assert [item.partition for item in read_manifest(found.fs, {**entry, "manifest_path": str(other)})] == [(day,)]
