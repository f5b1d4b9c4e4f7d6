"""How long a REST catalog's tables, and the database beside it, remember statements, transactions, stopped commits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.lakehouse.test_rest_pointers import Lake

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from sparkport.lakehouse.catalogs import open_catalog
from sparkport.lakehouse.catalogs import open_database as open_database_module
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_notes import STATEMENT, fence_name, fence_updates, fences, old_fences
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import set_properties
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.mounts import network_file_system
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep.maintenance import drop_fences

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

HOUR = 3600


@dataclass(frozen=True)
class Site:
    """A table in a REST catalog, and the database that a server keeps beside it."""

    lake: Lake
    table: TableName
    database: Database
    ledger: Ledger
    records: StatementRecords
    pointers: RestPointers

    def note(self, notes: Mapping[str, str]) -> None:
        """As other servers have left them."""
        location, before = self.lake.load(self.table)
        named = {STATEMENT + key: value for key, value in notes.items()}
        self.lake.pointers.commit([Edit(self.table, before, set_properties(before, named, previous=location))])

    def noted(self) -> set[str]:
        properties = self.lake.load(self.table)[1]["properties"]
        return {name.removeprefix(STATEMENT) for name in properties if name.startswith(STATEMENT)}

    def insert(
        self, pointers: RestPointers | None = None, *, key: str = "new", transactions: Sequence[str] = ()
    ) -> None:
        change = self.lake.publication(self.table, self.lake.stage(self.table))
        (pointers or self.pointers).commit([change], {key: 1}, transactions=transactions)


def _never(transaction_id: str, tables: Sequence[TableName]) -> bool:
    raise AssertionError(transaction_id)


@pytest.fixture
def site(rest_uri: str, tmp_path: Path) -> Iterator[Site]:
    lake = Lake(rest_uri, tmp_path)
    with closing(open_database(f"sqlite:///{tmp_path}/ledger.db")) as database:
        ledger, records = Ledger(database, "lake", resolve=_never), StatementRecords(database, "lake")
        pointers = RestPointers(lake.client, ledger=ledger, statements=records)
        yield Site(lake, lake.table("t"), database, ledger, records, pointers)


# Statements


def test_a_statement_is_known_for_a_day_however_many_come_after_it(site: Site) -> None:
    now = int(time.time())
    recent = {f"s{age}": f"{age} {now - HOUR - age}" for age in range(600)}
    site.note({**recent, "old": f"1 {now - 25 * HOUR}", "foreign": "words"})
    site.insert()
    assert site.noted() == {"new", "foreign", *(f"s{age}" for age in range(500))}
    assert [site.pointers.statement(f"s{age}", site.table) for age in (0, 499, 500, 599)] == [0, 499, 500, 599]
    assert (site.pointers.statement("new"), site.pointers.statement("old", site.table)) == (1, None)
    for key in ("s0", "s599", "new"):
        with pytest.raises(AlreadyExists):
            site.insert(key=key)
    assert site.pointers.forget_statements(now - HOUR - 550) == 49


def test_without_a_database_the_table_keeps_all_statements_of_a_day(site: Site) -> None:
    now = int(time.time())
    site.note({f"s{age}": f"1 {now - age * 60}" for age in range(600)})
    site.insert(site.lake.pointers)
    assert len(site.noted()) == 601


def test_statements_that_the_database_does_not_take_stay_in_the_table(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(site.records, "add", full)
    now = int(time.time())
    site.note({f"s{age}": f"1 {now - age * 60}" for age in range(600)})
    site.insert()
    assert len(site.noted()) == 601
    assert "noted in their tables alone" in caplog.text


def test_a_statement_that_only_the_table_knows_is_told_with_its_count(site: Site) -> None:
    """Its server was gone before it could write it down."""
    site.note({"s": f"7 {int(time.time())}"})
    assert (site.pointers.statement("s"), site.pointers.statement("s", site.table)) == (None, 7)
    with pytest.raises(AlreadyExists):
        site.insert(key="s")
    assert site.pointers.statement("s") == 7


# Transactions


def test_the_note_of_a_transaction_stays_until_its_end_is_recorded(site: Site) -> None:
    now = int(time.time())
    ids = {name: str(uuid.uuid4()) for name in ("known", "open", "unknown", "ancient")}
    for name in ("known", "open"):
        site.ledger.begin(ids[name], owner="anna", isolation=Isolation.SNAPSHOT)
    site.ledger.publishing([ids["open"]], [site.table])
    site.ledger.end(ids["known"], TransactionState.COMMITTED)
    days = {"known": 0, "open": 20, "unknown": 20, "ancient": 40}
    site.note({f"tx:{ids[name]}": f"0 {now - age * 24 * HOUR}" for name, age in days.items()})
    site.insert()
    assert site.noted() == {"new", f"tx:{ids['open']}", f"tx:{ids['unknown']}"}


# Stopped commits


def test_a_stopped_commit_is_kept_in_mind_for_as_long_as_is_asked_for() -> None:
    main, snapshots = {"main": {"snapshot-id": 5}}, [{"snapshot-id": 5}, {"snapshot-id": 6}]
    updates = fence_updates({"refs": main, "snapshots": snapshots}, ["x"])
    assert updates is not None
    assert updates[0] == {"action": "set-snapshot-ref", "ref-name": fence_name("x"), "type": "tag", "snapshot-id": 5}
    stopped = {"refs": {**main, fence_name("x"): {}}, "properties": updates[1]["updates"]}
    assert fences(stopped, ["x", "y"]) == ["x"]
    assert old_fences(stopped, before=time.time() - HOUR) == ([], [])
    assert old_fences(stopped, before=time.time() + HOUR) == ([fence_name("x")], ["sparkport.aborted.x"])
    staged = fence_updates({"refs": {}, "snapshots": snapshots}, ["x"])
    assert staged is not None
    assert staged[0]["snapshot-id"] == 6
    assert fence_updates({"refs": {}, "snapshots": []}, ["x"]) is None


def test_maintenance_removes_the_tag_of_a_stopped_commit_after_a_day(site: Site) -> None:
    site.insert()
    stopped = str(uuid.uuid4())
    assert site.pointers.settle(stopped, [site.table]) is False
    for hours, refs in ((1, {"main", fence_name(stopped)}), (25, {"main"})):
        metadata = load(FileSystem(), site.pointers.location(site.table) or "")
        drop_fences(site.pointers, metadata, site.table, now=time.time() + hours * HOUR)
        assert set(site.lake.load(site.table)[1]["refs"]) == refs
    assert not [name for name in site.lake.load(site.table)[1]["properties"] if stopped in name]


# Where the database is

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:30 / /mnt rw - tmpfs tmpfs rw
24 23 0:31 / /mnt/shared\\040disk rw,relatime shared:1 - nfs4 server:/disk rw,vers=4.2
25 24 0:32 / /mnt/shared\\040disk/local rw - xfs /dev/vdb rw
26 22 0:33 / /over rw - fuse.sshfs me@there:/ rw
27 22 0:34 / /over rw - fuse.fuse-overlayfs overlay rw
damaged
"""


def test_network_file_systems_are_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = {
        folder: network_file_system(Path(folder), mounts=mounts)
        for folder in ("/", "/mnt/x", "/mnt/shared disk", "/mnt/shared disk/a/b", "/mnt/shared disk/local/a", "/over/a")
    }
    assert list(found.values()) == [None, None, "nfs4", "nfs4", None, None]
    assert network_file_system(tmp_path, mounts=tmp_path / "none") is None


def test_a_ledger_on_a_network_file_system_is_refused_unless_it_was_chosen(
    rest_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (open_catalog, open_database_module):
        monkeypatch.setattr(module, "network_file_system", lambda folder: "nfs4")
    folder, chosen = str(tmp_path / "warehouse"), f"sqlite:///{tmp_path}/chosen.db"
    with pytest.raises(FailedPrecondition, match=r"network file system \(nfs4\).*set ledger_uri"):
        Lakehouse(LakehouseSettings(warehouse=folder, catalog_uri=rest_uri))
    assert not list(Path(folder).rglob("*.db"))
    opened = Lakehouse(LakehouseSettings(warehouse=folder, catalog_uri=rest_uri, ledger_uri=chosen))
    opened.stop()
    assert (tmp_path / "chosen.db").exists()
    assert "network file system" in caplog.text
    with pytest.raises(InvalidArgument, match="ledger uri"):
        LakehouseSettings(ledger_uri="http://there")
