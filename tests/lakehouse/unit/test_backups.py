"""Where backups are kept: what they share, what is refused, and what becomes of one that was not ended."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from tests.lakehouse.small import (
    SERVED,
    add_table,
    backed_up,
    checked,
    journal_rows,
    rows_of,
    small_lake,
    to_new,
)

from sparkport.errors import (
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from sparkport.lakehouse.backup.contents import read_contents
from sparkport.lakehouse.backup.rewriting import Rewriting
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def lake(tmp_path: Path) -> LakehouseSettings:
    return small_lake(tmp_path / "warehouse", ("evolved", "positions_v2"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def same_rows(one: LakehouseSettings, other: LakehouseSettings, *tables: str) -> None:
    for table in tables:
        assert rows_of(one, table).equals(rows_of(other, table)), table


def shared_files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in (place / "files").rglob("*") if path.is_file()}


def drop(settings: LakehouseSettings, table: str) -> None:
    with closing(open_database(settings.database_uri)) as database:
        SqlPointers(database, "lake").drop(TableName("public", table))


def test_tables_of_all_kinds_are_whole_in_another_place(tmp_path: Path, place: Path) -> None:
    lake = small_lake(tmp_path / "warehouse")
    journal_rows(lake, "evolved")
    # As Spark has left them, manifests are not as long as is said, because the fixtures were moved.
    first = to_new(place, tmp_path / "first") if backed_up(lake, place).number == 1 else None
    assert first is not None
    assert checked(first, deep=True).found == ()
    backed_up(first, tmp_path / "again")
    shutil.rmtree(tmp_path / "warehouse")
    second = to_new(tmp_path / "again", tmp_path / "second")
    same_rows(first, second, *(name for name in SERVED if name != "nested"))
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(place)
    report = checked(second, deep=True)
    assert report.found == ()
    assert report.tables == len(SERVED)


def test_a_second_backup_has_only_what_is_new_and_the_first_stays_good(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    one = backed_up(lake, place)
    assert (one.number, one.new_files) == (1, one.files)
    again = backed_up(lake, place)
    assert (again.number, again.new_files, again.files) == (2, 0, one.files)
    add_table(lake, "partitioned")
    drop(lake, "evolved")
    three = backed_up(lake, place)
    assert 0 < three.new_files < three.files
    assert checked(to_new(place, tmp_path / "one", number=1)).tables == 2
    last = to_new(place, tmp_path / "last")
    assert checked(last).found == ()
    same_rows(lake, last, "partitioned", "positions_v2")


def test_files_on_one_file_system_are_linked_unless_told_otherwise(lake: LakehouseSettings, tmp_path: Path) -> None:
    backed_up(lake, tmp_path / "linked")
    backed_up(lake, tmp_path / "copied", link=False)
    data = next((tmp_path / "warehouse").rglob("*.parquet"))
    links = {path.stat().st_ino for path in (tmp_path / "linked").rglob("*")}
    assert data.stat().st_ino in links
    assert data.stat().st_nlink == 2
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "copied" / "files").rglob("*") if path.is_file())
    restored = to_new(tmp_path / "linked", tmp_path / "restored")
    assert all(p.stat().st_nlink == 1 for p in Path(restored.warehouse).rglob("*") if p.is_file())


def test_where_linking_is_refused_files_are_copied(
    lake: LakehouseSettings, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", linking_fails_with(PermissionError(1, "Operation not permitted")))
    backed_up(lake, place)
    assert checked(to_new(place, tmp_path / "new"), deep=True).tables == 2


def linking_fails_with(error: OSError) -> Callable[[Path, Path], None]:
    """Of files into another folder; one that is written aside gets its name by a link, too."""
    link = os.link

    def fail(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise error
        link(source, target)

    return fail


def test_keep_removes_old_backups_and_what_only_they_have(lake: LakehouseSettings, place: Path, tmp_path: Path) -> None:
    backed_up(lake, place)
    before = shared_files(place)
    drop(lake, "evolved")
    add_table(lake, "partitioned")
    made = backed_up(lake, place, keep=1)
    assert made.forgotten == (1,)
    assert made.removed_files > 0
    assert before - shared_files(place)
    with pytest.raises(NotFound, match="there is 2"):
        to_new(place, tmp_path / "old", number=1)
    same_rows(lake, to_new(place, tmp_path / "new"), "partitioned", "positions_v2")
    with pytest.raises(InvalidArgument, match="at least one"):
        backed_up(lake, place, keep=0)


KILLED = """
import os, signal, sys
from sparkport.lakehouse.backup.backup import back_up
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.settings import LakehouseSettings

def tell(what, done, total):
    if what == "copying files" and done >= 5:
        os.kill(os.getpid(), signal.SIGKILL)

with hold(LakehouseSettings(warehouse=sys.argv[1])) as catalog:
    back_up(catalog, sys.argv[2], tell=tell)
"""


def test_one_that_was_killed_is_no_backup_and_the_next_one_is_whole(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    def killed() -> None:
        command = [sys.executable, "-c", KILLED, lake.warehouse, str(place)]
        ended = subprocess.run(command, env={**os.environ}, timeout=60)
        assert ended.returncode == -signal.SIGKILL

    killed()
    assert shared_files(place)
    with pytest.raises(FailedPrecondition, match=r"no backup .* is whole"):
        to_new(place, tmp_path / "early")
    assert backed_up(lake, place).number == 1
    add_table(lake, "partitioned")
    whole = shared_files(place)
    # What is half there under a name that the next one wants must not be taken for whole.
    killed()
    for path in shared_files(place) - whole:
        (place / path).unlink()
        (place / path).write_bytes(b"half")
    (place / "files" / "ab").mkdir(exist_ok=True)
    (place / "files" / "ab" / ("0" * 38)).write_bytes(b"of one that died")
    made = backed_up(lake, place)
    assert made.number == 2
    assert not (place / "files" / "ab" / ("0" * 38)).exists()
    same_rows(lake, to_new(place, tmp_path / "new"), "evolved", "partitioned", "positions_v2")
    assert checked(to_new(place, tmp_path / "first", number=1)).tables == 2


def test_two_at_once_into_one_place_are_refused(lake: LakehouseSettings, place: Path) -> None:
    refused: list[str] = []

    def tell(what: str, done: int, total: int) -> None:
        if what == "reading metadata of tables" and not refused:
            with pytest.raises(FailedPrecondition, match="another backup") as caught:
                backed_up(lake, place)
            refused.append(caught.value.message)

    assert backed_up(lake, place, tell=tell).number == 1
    assert refused


@pytest.mark.parametrize("target", ["warehouse", "warehouse/backups", ".", "link/backups"])
def test_a_place_in_the_warehouse_or_around_it_is_refused(lake: LakehouseSettings, tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "warehouse")
    with pytest.raises(InvalidArgument, match="choose another place"):
        backed_up(lake, tmp_path / target)


def test_a_folder_of_something_else_is_left_alone(lake: LakehouseSettings, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(FailedPrecondition, match="not empty"):
        backed_up(lake, tmp_path / "photos")
    other = small_lake(tmp_path / "other", ("nested",))
    backed_up(other, tmp_path / "theirs")
    with pytest.raises(FailedPrecondition, match="another catalog"):
        backed_up(lake, tmp_path / "theirs")


def test_what_is_there_is_never_restored_over(lake: LakehouseSettings, place: Path, tmp_path: Path) -> None:
    backed_up(lake, place)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("full", "file", "warehouse"):
        with pytest.raises(FailedPrecondition, match="not empty"):
            to_new(place, tmp_path / target)
    with pytest.raises(InvalidArgument, match="different places"):
        to_new(place, place / "files" / "new")
    with pytest.raises(FailedPrecondition, match="has a catalog 'lake' already"):
        to_new(place, tmp_path / "new", catalog_uri=lake.database_uri)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.MonkeyPatch.context() as mounted:
        mounted.setattr(Path, "is_mount", lambda path: path.name == "empty")
        with pytest.raises(FailedPrecondition, match="mount point"):
            to_new(place, tmp_path / "empty")
    same_rows(lake, to_new(place, tmp_path / "empty"), "evolved", "positions_v2")


@pytest.mark.parametrize("name", ["it's a b;c", 'say "so" #1', "50%20off ünï", "a%b=1&y"])
def test_a_warehouse_may_have_any_name(lake: LakehouseSettings, place: Path, tmp_path: Path, name: str) -> None:
    backed_up(lake, place)
    new = to_new(place, tmp_path / name / name)
    shutil.rmtree(tmp_path / "warehouse")
    assert checked(new, deep=True).found == ()
    backed_up(new, tmp_path / "again")
    assert checked(to_new(tmp_path / "again", tmp_path / "third"), deep=True).found == ()


def test_a_damaged_backup_is_not_restored(lake: LakehouseSettings, place: Path, tmp_path: Path) -> None:
    backed_up(lake, place, link=False)
    victim = max((place / "files").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(InternalError, match="is damaged: it has"):
        to_new(place, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir() if "restoring" in path.name or path.name == "new"] == []
    listed = place / "backups" / "000001.json.gz"
    packed = gzip.compress(b'{"format": 1}' * 100, mtime=0)
    for damaged in (listed.read_bytes()[:-20], packed[:12] + b"\xff\xff\xff" + packed[15:]):
        listed.write_bytes(damaged)
        with pytest.raises(InternalError, match=r"list .* is damaged"):
            to_new(place, tmp_path / "new")


def test_what_a_newer_sparkport_has_written_is_refused(lake: LakehouseSettings, place: Path, tmp_path: Path) -> None:
    backed_up(lake, place)
    listed = place / "backups" / "000001.json.gz"
    value = json.loads(gzip.decompress(listed.read_bytes()))
    listed.write_bytes(gzip.compress(json.dumps({**value, "format": 2}).encode()))
    with pytest.raises(FailedPrecondition, match="newer sparkport"):
        to_new(place, tmp_path / "new")
    with pytest.raises(FailedPrecondition, match="newer sparkport"):
        backed_up(lake, place, keep=1)
    marker = place / "sparkport-backups.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 2}))
    with pytest.raises(FailedPrecondition, match="newer sparkport"):
        backed_up(lake, place)


def test_a_list_that_leads_out_of_the_new_warehouse_is_refused(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    backed_up(lake, place)
    listed = place / "backups" / "000001.json.gz"
    value = json.loads(gzip.decompress(listed.read_bytes()))
    value["files"][0][1] = f"{lake.warehouse}/../../../{tmp_path}/escaped"
    listed.write_bytes(gzip.compress(json.dumps(value).encode()))
    with pytest.raises(InternalError, match="leads elsewhere"):
        to_new(place, tmp_path / "new")


def test_a_full_disk_ends_the_backup_with_its_reason(
    lake: LakehouseSettings, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    create = FileSystem.create

    @contextmanager
    def no_room(files: FileSystem, path: str) -> Iterator[IO[bytes]]:
        with create(files, path), full.open("wb", buffering=0) as file:
            yield file

    monkeypatch.setattr(FileSystem, "create", no_room)
    with pytest.raises(ResourceExhausted, match="full"):
        backed_up(lake, place, link=False)
    monkeypatch.undo()
    assert backed_up(lake, place).number == 1


def test_a_file_outside_the_warehouse_is_brought_into_the_new_one(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    folder = add_table(lake, "partitioned", folder=tmp_path / "out side")
    (tmp_path / "target").mkdir()
    shutil.move(tmp_path / "warehouse" / "public" / "evolved" / "data", tmp_path / "target" / "data")
    (tmp_path / "warehouse" / "public" / "evolved" / "data").symlink_to(tmp_path / "target" / "data")
    before = {name: rows_of(lake, name) for name in ("evolved", "partitioned")}
    backed_up(lake, place)
    for gone in (folder, tmp_path / "target", tmp_path / "warehouse"):
        shutil.rmtree(gone)
    new = to_new(place, tmp_path / "new")
    assert checked(new, deep=True).found == ()
    assert {name: rows_of(new, name) for name in before} == before
    assert list((tmp_path / "new" / "outside").iterdir())


def test_a_table_that_is_dropped_or_renamed_meanwhile_is_in_the_backup_as_it_was(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    once = threading.Lock()
    before = rows_of(lake, "evolved")

    def tell(what: str, done: int, total: int) -> None:
        if what == "copying files" and once.acquire(blocking=False):
            with closing(open_database(lake.database_uri)) as database:
                pointers = SqlPointers(database, "lake")
                pointers.rename(TableName("public", "evolved"), TableName("public", "other"))
                pointers.drop(TableName("public", "positions_v2"))

    backed_up(lake, place, tell=tell)
    new = to_new(place, tmp_path / "new")
    assert rows_of(new, "evolved").equals(before)
    assert checked(new).tables == 2
    assert checked(lake, "other").tables == 1


def test_a_file_that_somebody_removes_meanwhile_makes_it_begin_again(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    """As a job of another tool does, which knows nothing of who reads: the table is another afterwards."""
    once = threading.Lock()

    def tell(what: str, done: int, total: int) -> None:
        if what == "reading metadata of tables" and done == 1 and once.acquire(blocking=False):
            drop(lake, "evolved")
            shutil.rmtree(tmp_path / "warehouse" / "public" / "evolved" / "data")

    made = backed_up(lake, place, tell=tell)
    assert made.tables == 1
    same_rows(lake, to_new(place, tmp_path / "new"), "positions_v2")


def test_a_lakehouse_that_lacks_a_file_is_not_backed_up_as_if_it_were_whole(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    next((tmp_path / "warehouse").rglob("*.parquet")).unlink()
    with pytest.raises(FailedPrecondition, match="sparkport check"):
        backed_up(lake, place)


def test_servers_are_told_to_keep_all_versions_while_it_lasts(lake: LakehouseSettings, place: Path) -> None:
    from sparkport.lakehouse.catalogs.ledger import Ledger
    from sparkport.lakehouse.catalogs.ledger_rows import UNKNOWN

    with closing(open_database(lake.database_uri)) as database:
        server = Ledger(database, "lake", server="a server")
        seen: list[tuple[set[int], float | None]] = []

        def tell(what: str, done: int, total: int) -> None:
            seen.append((server.needed_elsewhere("any"), server.oldest_report_elsewhere()))

        backed_up(lake, place, tell=tell)
        assert seen
        assert all(told == ({UNKNOWN}, 0) for told in seen)
        assert server.needed_elsewhere("any") == set()
        server.stop()


def test_a_transaction_that_was_open_is_aborted_in_the_new_lakehouse(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    from sparkport.catalog.transaction import Isolation, TransactionState
    from sparkport.lakehouse.catalogs.ledger import Ledger

    with closing(open_database(lake.database_uri)) as database:
        ledger = Ledger(database, "lake", server="a server")
        for name in ("open", "done"):
            ledger.begin(name, owner="me", isolation=Isolation.SNAPSHOT)
        with database.transaction(write=True) as work:
            ledger.committing(work, ["done"])
        backed_up(lake, place)
        ledger.stop()
    new = to_new(place, tmp_path / "new")
    with closing(open_database(new.database_uri)) as database:
        ledger = Ledger(database, "lake", server="another")
        states = {name: found.state for name in ("open", "done") if (found := ledger.find(name)) is not None}
        assert states == {"open": TransactionState.ABORTED, "done": TransactionState.COMMITTED}
        ledger.stop()


def test_the_catalog_can_have_another_name_and_its_journal_is_there(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    journal_rows(lake, "evolved")
    backed_up(lake, place)
    new = to_new(place, tmp_path / "new", catalog_name="copy")
    with closing(open_database(new.database_uri)) as database, closing(open_database(lake.database_uri)) as old:
        assert read_contents(database, "lake").rows["iceberg_tables"] == ()
        ours, theirs = read_contents(database, "copy"), read_contents(old, "lake")
    assert {pointer.table for pointer in ours.pointers} == {pointer.table for pointer in theirs.pointers}
    for table in ("sparkport_journal_entries", "sparkport_journal_tables", "sparkport_journal"):
        assert ours.rows[table] == theirs.rows[table]
        assert ours.rows[table]


def test_there_is_no_catalog_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no catalog"):
        backed_up(LakehouseSettings(warehouse=str(tmp_path / "nowhere")), tmp_path / "backups")
    assert list(tmp_path.iterdir()) == []
    lake = small_lake(tmp_path / "warehouse", ())
    with pytest.raises(NotFound, match="no catalog 'lakes'; it has: lake"):
        backed_up(replace(lake, catalog_name="lakes"), tmp_path / "backups")
    with closing(open_database(lake.database_uri)) as database, database.transaction() as work:
        assert work.query("SELECT catalog_name FROM sparkport_journal") == [("lake",)]
    with pytest.raises(NotFound, match="no backups"):
        to_new(tmp_path / "backups", tmp_path / "new")


class Spelling:
    """A relocation that only spells addresses as Hadoop does; those of manifests not every time."""

    def __init__(self) -> None:
        self._times = 0

    def file(self, address: str) -> str:
        self._times += 1
        return f"file:{address}" if self._times % 3 or not address.endswith(".avro") else address

    def folder(self, address: str) -> str:
        return f"file:{address}"


def test_addresses_of_any_spelling_lead_to_their_files(lake: LakehouseSettings, place: Path, tmp_path: Path) -> None:
    """Hadoop writes ``file:/x``; both may be in one table, and mean the same file."""
    backed_up(lake, place)
    plain = to_new(place, tmp_path / "plain one")
    before = {name: rows_of(plain, name) for name in ("evolved", "positions_v2")}
    sizes: dict[str, int] = {}
    rewriting = Rewriting(Spelling(), sizes)  # type: ignore[arg-type]
    kinds = {
        "*-deletes.parquet": rewriting.positions,
        "*.puffin": rewriting.vectors,
        "*-m?.avro": rewriting.manifest,
        "snap-*.avro": rewriting.manifest_list,
        "*.metadata.json": rewriting.metadata,
    }
    for pattern, rewrite in kinds.items():
        for path in (tmp_path / "plain one").rglob(pattern):
            path.write_bytes(rewrite(path.read_bytes(), str(path)))
            sizes[str(path)] = path.stat().st_size
    assert checked(plain, deep=True).found == ()
    backed_up(plain, tmp_path / "again")
    shutil.rmtree(tmp_path / "plain one")
    new = to_new(tmp_path / "again", tmp_path / "new")
    assert checked(new, deep=True).found == ()
    assert {name: rows_of(new, name) for name in before} == before
    assert b"file:" not in b"".join(path.read_bytes() for path in (tmp_path / "new").rglob("*.metadata.json"))


def test_one_restored_to_where_it_was_is_the_same_to_the_last_byte(
    lake: LakehouseSettings, place: Path, tmp_path: Path
) -> None:
    backed_up(lake, place)
    moved = (tmp_path / "warehouse").rename(tmp_path / "moved")
    new = to_new(place, tmp_path / "warehouse")
    same_rows(lake, new, "evolved", "positions_v2")
    for path in moved.rglob("*"):
        if path.suffix in (".json", ".avro", ".parquet", ".puffin") and path.name != "expected.json":
            assert (tmp_path / "warehouse" / path.relative_to(moved)).read_bytes() == path.read_bytes(), path


def test_a_place_that_cannot_be_written_to_is_told(lake: LakehouseSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPrecondition, match="is no folder"):
        backed_up(lake, tmp_path / "file")
    with pytest.raises(Unavailable, match="Not a directory"):
        backed_up(lake, tmp_path / "file" / "below")


def test_no_room_for_a_name_is_a_full_disk(
    lake: LakehouseSettings, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", linking_fails_with(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ResourceExhausted, match="the disk is full"):
        backed_up(lake, place)
