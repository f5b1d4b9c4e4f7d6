"""Metadata files: read once, looked at from many places; and the files underneath them."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import pytest
from tests.lakehouse.fixtures import materialise

from sparkport.errors import AlreadyExists, InternalError, NotFound, VersionNotFound
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem, local_path, protocol_of
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load, parse

pytestmark = pytest.mark.tier("fast")


def test_a_table_tells_its_snapshots_schemas_and_properties(tmp_path: Path) -> None:
    metadata = materialise("evolved", tmp_path).metadata
    assert metadata.format_version == 3
    assert metadata.location == str(tmp_path / "evolved")
    assert metadata.metadata_location == str(tmp_path / "evolved" / "metadata.json")
    assert [field["name"] for field in metadata.current_schema["fields"]] == ["id", "renamed", "c", "b"]
    assert metadata.main_snapshot_id == metadata.snapshots[-1].id == metadata.snapshot_log[-1]["snapshot-id"]
    assert metadata.properties["write.delete.mode"] == "merge-on-read"
    assert [snapshot.sequence_number for snapshot in metadata.ancestors(metadata.main_snapshot_id)] == [5, 4, 3, 2, 1]


def test_an_old_snapshot_has_the_schema_it_was_written_with(tmp_path: Path) -> None:
    metadata = materialise("evolved", tmp_path).metadata
    first = metadata.snapshots[0]
    assert [field["name"] for field in metadata.schema_of(first.id)["fields"]] == ["id", "a", "b"]
    assert metadata.schema_of(metadata.main_snapshot_id) is metadata.current_schema
    assert metadata.schema_of(None) is metadata.current_schema


def test_metadata_is_read_once_per_location(tmp_path: Path) -> None:
    found = materialise("evolved", tmp_path)
    assert load(found.fs, found.metadata.metadata_location) is found.metadata


def test_metadata_may_be_compressed(tmp_path: Path) -> None:
    text = (materialise("evolved", tmp_path).folder / "metadata.json").read_bytes()
    assert parse(gzip.compress(text)).json == parse(text).json


def test_keys_that_nobody_knows_are_kept() -> None:
    metadata = parse(json.dumps({"location": "/x", "schemas": [{"schema-id": 0, "fields": []}], "new": 1}).encode())
    assert metadata.json["new"] == 1
    assert metadata.main_snapshot_id is None


_PACKED = gzip.compress(b'{"format-version": 2}' * 100, mtime=0)
_DAMAGED = _PACKED[:12] + b"\xff\xff\xff" + _PACKED[15:]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b"\x1f\x8bnot gzip", b"[" * 100_000, pytest.param(_DAMAGED, id="damaged")]
)
def test_what_is_no_metadata_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(InternalError, match="cannot be read"):
        parse(data, "m.json")


@pytest.mark.parametrize("path", ["/a\0b", "file:///a\0b", "/a\ud800b"])
def test_no_file_has_a_name_that_none_can_have(path: str) -> None:
    with pytest.raises(NotFound):
        FileSystem().read_bytes(path)


_INJECTED = "1 AS v0 FROM read_text('/etc/passwd') --"


@pytest.mark.parametrize(
    "field",
    [
        {"id": _INJECTED, "name": "a", "type": "long"},
        {"id": True, "name": "a", "type": "long"},
        {"id": 1.5, "name": "a", "type": "long"},
        {"id": 1, "name": "a", "type": {"type": "list", "element-id": _INJECTED, "element": "long"}},
        {"id": 1, "name": "a", "type": {"type": "struct", "fields": [{"id": _INJECTED, "name": "b", "type": "long"}]}},
    ],
)
def test_an_id_that_is_no_number_is_refused_because_ids_go_into_queries(field: dict[str, object]) -> None:
    with pytest.raises(InternalError, match=r"id is .*, not a number"):
        parse(json.dumps({"location": "/x", "schemas": [{"schema-id": 0, "fields": [field]}]}).encode())


def test_a_snapshot_whose_id_is_no_number_is_refused() -> None:
    snapshots = [{"snapshot-id": _INJECTED, "timestamp-ms": 1, "manifest-list": "m"}]
    schemas = [{"schema-id": 0, "fields": []}]
    with pytest.raises(InternalError, match="a snapshot's id is not a number"):
        parse(json.dumps({"location": "/x", "schemas": schemas, "snapshots": snapshots}).encode())


def test_an_unknown_snapshot_is_not_found() -> None:
    metadata = TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": []}]})
    with pytest.raises(VersionNotFound, match="snapshot 7 not found: none is left"):
        metadata.snapshot(7)


@pytest.mark.parametrize(
    ("address", "protocol", "path"),
    [
        ("/a/b", "file", "/a/b"),
        ("file:/a/b", "file", "/a/b"),
        ("file:///a/b", "file", "/a/b"),
        ("file://localhost/a/b", "file", "/a/b"),
        ("relative/b", "file", "relative/b"),
        ("/a/x=1:2/b", "file", "/a/x=1:2/b"),
        ("s3://bucket/a", "s3", None),
        ("s3a://bucket/a", "s3a", None),
    ],
)
def test_addresses_of_all_kinds_are_understood(address: str, protocol: str, path: str | None) -> None:
    assert protocol_of(address) == protocol
    assert local_path(address) == (None if path is None else Path(path))


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_a_file_is_written_once(place: str) -> None:
    fs = FileSystem()
    fs.write_new(f"{place}/deep/file", b"0123456789")
    with pytest.raises(AlreadyExists):
        fs.write_new(f"{place}/deep/file", b"other")
    assert fs.read_bytes(f"{place}/deep/file") == b"0123456789"
    assert fs.read_range(f"{place}/deep/file", 2, length=3) == b"234"
    assert [(info.path.removeprefix(place), info.size) for info in fs.list(place)] == [("/deep/file", 10)]


def test_deleting_what_is_gone_is_no_error(place: str) -> None:
    fs = FileSystem()
    fs.write_new(f"{place}/d/a", b"")
    fs.write_new(f"{place}/d/b", b"")
    fs.delete(f"{place}/d/a")
    fs.delete(f"{place}/d/a")
    assert not fs.exists(f"{place}/d/a")
    assert fs.exists(f"{place}/d/b")
    fs.delete_tree(f"{place}/d")
    fs.delete_tree(f"{place}/d")
    assert fs.list(f"{place}/d") == []
    with pytest.raises(NotFound):
        fs.read_bytes(f"{place}/d/b")


def test_paths_for_duckdb_are_no_patterns(tmp_path: Path) -> None:
    assert FileSystem().duckdb_path("file:/a[1]/b*c?.parquet") == "/a[[]1]/b[*]c[?].parquet"


def test_a_cache_forgets_what_was_used_longest_ago() -> None:
    cache: BoundedCache[str, str] = BoundedCache(10, weigh=len)
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    for key in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb", "much too long"):
        assert cache.get(key, partial(make, key)) == key
    assert made == ["aaaa", "bbbb", "cccc", "bbbb", "much too long"]
    assert len(cache) == 2


# Where main came from


def _history(snapshots: list[tuple[int, int | None]], moves: list[int]) -> TableMetadata:
    """Snapshots by id and parent, numbered in their order, and the moves of ``main``."""
    made = [
        {"snapshot-id": number, "sequence-number": place, "timestamp-ms": place, "manifest-list": "m"}
        | ({} if parent is None else {"parent-snapshot-id": parent})
        for place, (number, parent) in enumerate(snapshots, 1)
    ]
    return TableMetadata(
        {
            "location": "here",
            "schema": {"fields": []},
            "snapshots": made,
            "refs": {"main": {"snapshot-id": moves[-1], "type": "branch"}},
            "snapshot-log": [{"snapshot-id": move, "timestamp-ms": 0} for move in moves],
        }
    )


LINE: list[tuple[int, int | None]] = [(11, None), (12, 11), (13, 12)]


@pytest.mark.parametrize(
    ("metadata", "pinned", "expected"),
    [
        (_history(LINE, [11, 12, 13]), 13, True),
        (_history(LINE, [11, 12, 13]), 11, True),
        (_history(LINE, [11, 12, 13, 12]), 13, False),
        (_history([*LINE, (14, 12)], [11, 12, 13, 12, 14]), 13, False),
        (_history([*LINE, (14, 13)], [11, 12, 13, 12, 14]), 13, True),
        (_history([(20, None)], [20]), 13, False),
    ],
    ids=["itself", "earlier", "rolled back", "and written since", "and brought back", "another line"],
)
def test_what_main_came_from(metadata: TableMetadata, pinned: int, expected: bool) -> None:
    assert metadata.descends_from(pinned, pinned - 10) is expected


def test_where_snapshots_in_between_have_expired_the_log_tells() -> None:
    left: list[tuple[int, int | None]] = [(11, None), (13, 12), (14, 13)]
    on = _history(left, [13, 14])
    assert on.descends_from(11, 1)
    back = _history([(11, None), (12, 11), (14, 99)], [12, 11, 14])
    assert not back.descends_from(12, 2)


def test_a_table_without_rows_is_what_all_came_from() -> None:
    assert _history(LINE, [11]).descends_from(None, 0)
