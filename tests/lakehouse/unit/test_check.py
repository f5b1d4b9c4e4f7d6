"""``check`` finds what is wrong with files of every kind, and names them; of a whole lakehouse it finds nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.lakehouse.small import backed_up, checked, journal_rows, small_lake, to_new

from sparkport.cli.main import main
from sparkport.errors import NotFound, TableNotFound
from sparkport.lakehouse.backup.avro import rewrite
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.verify.findings import Finding

pytestmark = pytest.mark.tier("fast")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse in which nothing is wrong. Its files are at the same place for every test."""
    folder = tmp_path_factory.mktemp("whole")
    lake = small_lake(folder / "moved", ("changes", "positions_v2"))
    journal_rows(lake, "changes")
    backed_up(lake, folder / "backups")
    to_new(folder / "backups", folder / "warehouse")
    shutil.rmtree(folder / "moved")
    add_history(folder / "warehouse" / "public" / "changes")
    shutil.copytree(folder / "warehouse", folder / "kept")
    return folder


@pytest.fixture
def warehouse(whole: Path) -> Path:
    shutil.rmtree(whole / "warehouse")
    shutil.copytree(whole / "kept", whole / "warehouse")
    return whole / "warehouse"


def add_history(table: Path) -> None:
    """Old metadata, and statistics, which the fixtures have none of."""
    metadata = next((table / "metadata").glob("*.metadata.json"))
    value = json.loads(metadata.read_text())
    old = table / "metadata" / "00000-11111111-1111-1111-1111-111111111111.metadata.json"
    old.write_text(metadata.read_text())
    statistics = table / "metadata" / "20240101-22222222.stats"
    statistics.write_bytes(b'PFA1PFA1{"blobs":[]}\x0c\0\0\0\0\0\0\0PFA1')
    value["metadata-log"] = [{"metadata-file": str(old), "timestamp-ms": 1}]
    value["statistics"] = [
        {
            "snapshot-id": value["current-snapshot-id"],
            "statistics-path": str(statistics),
            "file-size-in-bytes": statistics.stat().st_size,
            "file-footer-size-in-bytes": 28,
            "blob-metadata": [],
        }
    ]
    metadata.write_text(json.dumps(value))


def settings(warehouse: Path) -> LakehouseSettings:
    return LakehouseSettings(warehouse=str(warehouse))


def found_in(warehouse: Path, *, deep: bool = False) -> list[Finding]:
    return list(checked(settings(warehouse), deep=deep).found)


def only(warehouse: Path, pattern: str) -> Path:
    return sorted(warehouse.glob(pattern))[0]


def metadata_of(warehouse: Path) -> Path:
    return sorted((warehouse / "public" / "changes" / "metadata").glob("*.metadata.json"))[-1]


def edit_metadata(warehouse: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = metadata_of(warehouse)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return path


def current_list(warehouse: Path) -> Path:
    value = json.loads(metadata_of(warehouse).read_text())
    current = next(s for s in value["snapshots"] if s["snapshot-id"] == value["current-snapshot-id"])
    return Path(current["manifest-list"])


def data_file(warehouse: Path) -> Path:
    return max((warehouse / "public" / "changes" / "data").glob("*.parquet"), key=lambda path: path.stat().st_size)


FILES: dict[str, Callable[[Path], Path]] = {
    "metadata": metadata_of,
    "old metadata": lambda warehouse: only(warehouse, "public/changes/metadata/00000-*.json"),
    "statistics": lambda warehouse: only(warehouse, "public/changes/metadata/*.stats"),
    "manifest list": lambda warehouse: only(warehouse, "public/changes/metadata/snap-*.avro"),
    "manifest": lambda warehouse: only(warehouse, "public/changes/metadata/*-m0.avro"),
    "data": data_file,
    "deletion vectors": lambda warehouse: only(warehouse, "public/changes/data/*.puffin"),
    "position deletes": lambda warehouse: only(warehouse, "public/positions_v2/data/*-deletes.parquet"),
}
every_kind = pytest.mark.parametrize("kind", FILES)


def test_nothing_is_wrong_with_a_whole_one(warehouse: Path) -> None:
    for deep in (False, True):
        report = checked(settings(warehouse), deep=deep)
        assert report.found == ()
        assert report.tables == 2
        assert report.files > 50


def test_a_whole_one_is_told_in_one_line(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--warehouse", str(warehouse)], environ={}) == 0
    told = capsys.readouterr()
    assert told.out.startswith("all is well (2 tables, ")
    assert told.err == ""
    assert main(["check", "public.changes", "--deep", "--warehouse", str(warehouse)], environ={}) == 0
    assert capsys.readouterr().out.startswith("all is well (1 table, ")


@every_kind
def test_a_missing_file_is_found_and_named(warehouse: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    victim = FILES[kind](warehouse)
    victim.unlink()
    found = [finding for finding in found_in(warehouse) if finding.path == str(victim)]
    assert [(finding.kind, finding.problem) for finding in found] == [(kind, "is missing")]
    assert main(["check", "--warehouse", str(warehouse)], environ={}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(f"{kind} {victim}: is missing" in line for line in lines)
    assert " wrong (2 tables, " in lines[-1]


@every_kind
def test_a_file_that_was_cut_off_is_found_and_named(warehouse: Path, kind: str) -> None:
    victim = FILES[kind](warehouse)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    assert {(finding.kind, finding.path) for finding in found_in(warehouse)} >= {(kind, str(victim))}


@every_kind
def test_a_file_full_of_zeros_is_found_and_named(warehouse: Path, kind: str) -> None:
    """As a loss of power may leave it: its size is right."""
    victim = FILES[kind](warehouse)
    victim.write_bytes(bytes(victim.stat().st_size))
    assert {(finding.kind, finding.path) for finding in found_in(warehouse)} >= {(kind, str(victim))}


def test_a_changed_page_is_found_by_reading_all_rows(warehouse: Path) -> None:
    victim = data_file(warehouse)
    place = pq.ParquetFile(victim).metadata.row_group(0).column(0).data_page_offset
    data = bytearray(victim.read_bytes())
    for offset in range(place + 40, place + 60):
        data[offset] ^= 0xFF
    victim.write_bytes(data)
    assert found_in(warehouse) == []
    assert [(finding.kind, finding.path) for finding in found_in(warehouse, deep=True)] == [("data", str(victim))]


def test_a_file_of_another_number_of_rows_is_found(warehouse: Path) -> None:
    victim = data_file(warehouse)
    table = pq.read_table(victim)
    size = victim.stat().st_size
    pq.write_table(table.slice(1), victim)
    data = victim.read_bytes()
    if len(data) < size:
        # The footer stays at the end: what is between it and the rows is nobody's.
        footer = int.from_bytes(data[-8:-4], "little") + 8
        victim.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])
        assert [finding.problem for finding in found_in(warehouse)] == [
            f"it has {table.num_rows - 1:,} rows, not {table.num_rows:,}"
        ]
    else:
        assert "bytes, not" in found_in(warehouse)[0].problem


def test_a_changed_bit_of_a_deletion_vector_is_found(warehouse: Path) -> None:
    for victim in sorted((warehouse / "public" / "changes" / "data").glob("*.puffin")):
        data = bytearray(victim.read_bytes())
        data[20] ^= 1
        victim.write_bytes(data)
    found = found_in(warehouse)
    assert {finding.kind for finding in found} == {"deletion vectors"}
    assert all("checksum" in finding.problem for finding in found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda value: value.update({"next-row-id": 3}), "and the next is 3"),
        (lambda value: value.pop("next-row-id"), "it has no next row id"),
        (lambda value: value.update({"current-snapshot-id": 5, "refs": {}}), "the current snapshot 5 is not there"),
        (lambda value: value["refs"].update({"x": {"snapshot-id": 5, "type": "tag"}}), "'x' points to snapshot 5"),
        (lambda value: value.update({"current-schema-id": 77}), "the current schema"),
        (lambda value: value.update({"default-spec-id": 77}), "the current partition spec"),
        (lambda value: value.update({"last-sequence-number": 0}), "after the last, 0"),
    ],
)
def test_metadata_that_contradicts_itself_is_found(
    warehouse: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    path = edit_metadata(warehouse, change)
    found = found_in(warehouse)
    assert any(finding.kind == "metadata" and problem in finding.problem for finding in found)
    assert {finding.path for finding in found if finding.kind == "metadata"} == {str(path)}


def test_row_ids_that_two_files_have_are_found(warehouse: Path) -> None:
    path = current_list(warehouse)

    def same(record: dict[str, Any]) -> None:
        if record["first_row_id"] is not None:
            record["first_row_id"] = 0

    path.write_bytes(rewrite(path.read_bytes(), same, what="list"))
    assert any("are another file's too ('main')" in finding.problem for finding in found_in(warehouse))
    assert any("are of two rows" in finding.problem for finding in found_in(warehouse, deep=True))


def test_row_ids_beyond_the_tables_next_one_are_found(warehouse: Path) -> None:
    path = current_list(warehouse)

    def far(record: dict[str, Any]) -> None:
        if record["first_row_id"] is not None:
            record["first_row_id"] += 1_000_000

    path.write_bytes(rewrite(path.read_bytes(), far, what="list"))
    assert any("beyond the table's next" in finding.problem for finding in found_in(warehouse))


def test_a_manifest_that_is_not_what_its_list_says_is_found(warehouse: Path) -> None:
    path = current_list(warehouse)

    def more(record: dict[str, Any]) -> None:
        record["added_files_count"] += 1

    path.write_bytes(rewrite(path.read_bytes(), more, what="list"))
    found = found_in(warehouse)
    assert {finding.kind for finding in found} == {"manifest"}
    assert all("added files, not" in finding.problem for finding in found)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE sparkport_journal_entries SET body = x'00'", "cannot be read"),
        ("UPDATE sparkport_journal_entries SET row_count = 7", "it has 1 rows, not 7"),
        ("UPDATE sparkport_journal_entries SET format = 99", "a newer sparkport"),
        ("UPDATE sparkport_journal_entries SET uuid = 'gone'", "there is no such table"),
        ("UPDATE sparkport_journal_entries SET sequence = 1000", "which the table has not got"),
        ("UPDATE sparkport_journal SET revision = 0", "its place in the order"),
    ],
)
def test_a_damaged_journal_is_found(warehouse: Path, statement: str, problem: str) -> None:
    with sqlite3.connect(warehouse / "catalog.db") as connection:
        connection.execute(statement)
    connection.close()
    found = found_in(warehouse)
    assert [(finding.where, finding.kind) for finding in found] == [("journal", "journal entry")]
    assert problem in found[0].problem


def test_a_pointer_to_nowhere_is_found(warehouse: Path) -> None:
    with sqlite3.connect(warehouse / "catalog.db") as connection:
        connection.execute(
            "UPDATE iceberg_tables SET metadata_location = '/no/where' WHERE table_name = 'positions_v2'"
        )
    connection.close()
    assert [str(finding) for finding in found_in(warehouse)] == ["public.positions_v2: metadata /no/where: is missing"]


def test_a_damaged_database_is_an_error(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (warehouse / "catalog.db").write_bytes(b"no database" * 1000)
    assert main(["check", "--warehouse", str(warehouse)], environ={}) == 1
    assert "catalog's database" in capsys.readouterr().err


def test_one_table_alone_is_checked_by_its_name_in_any_case(warehouse: Path) -> None:
    data_file(warehouse).unlink()
    assert checked(settings(warehouse), "POSITIONS_V2").found == ()
    assert checked(settings(warehouse), "Changes").found != ()
    with pytest.raises(TableNotFound):
        checked(settings(warehouse), "none")
    with pytest.raises(NotFound, match="no catalog"):
        checked(settings(warehouse / "nothing"))
