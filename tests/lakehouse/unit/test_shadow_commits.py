"""What becomes of a shadow whose commit is not answered, is refused or meets others: published once or not at all.

Spark is played, by what it does to the shadow's row and metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sparkport.errors import Conflict, InternalError, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.database import SqliteDatabase
from sparkport.lakehouse.catalogs.pointers import Edit, OutcomeUnknown
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import move_main, new_table, set_properties
from sparkport.lakehouse.iceberg.lineage import Lineage
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.write import shadow_applier
from sparkport.lakehouse.write.change_set import ChangeSet
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.shadow_applier import Shadow, ShadowApplier
from sparkport.lakehouse.write.staged import current_metadata

pytestmark = pytest.mark.tier("fast")

T = TableName("public", "t")
POINTS = ("pointer.before", "pointer.after", "settle.before", "publish.before")


def snapshot(number: int, rows: int = 1) -> dict[str, Any]:
    made: dict[str, Any] = {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number}
    made |= {"manifest-list": "m", "summary": {"operation": "append", "added-records": str(rows)}}
    return made | ({} if number == 1 else {"parent-snapshot-id": number - 1})


class World:
    """A table with one snapshot, and a Spark that appends ``rows``."""

    def __init__(self, folder: Path, database: SqliteDatabase, staging: Staging) -> None:
        self.files = FileSystem()
        self.database = database
        self.staging = staging
        self.pointers = SqlPointers(database, "lake", self.files, server="me", settle_seconds=0.05)
        self.folder = folder / "t"
        self.rows = 1
        self.tries = 0
        self.meanwhile: Callable[[], None] = lambda: None
        first = new_table(str(self.folder), [], last_column_id=0, properties={"write.wap.enabled": "true"})
        first |= {"snapshots": [snapshot(1)], "last-sequence-number": 1}
        place = write_metadata(self.files, first, None)
        self.pointers.create(T, write_metadata(self.files, move_main(first, 1, previous=place), place))
        world = self

        class Played(ShadowApplier):
            def _run(self, shadow: Shadow, *, appends: bool) -> None:
                world.append(shadow)

        self.applier = Played(
            catalog="lake", pointers=self.pointers, files=self.files, spark=cast("Any", None), staging=staging
        )
        self.committer = Committer(pointers=self.pointers, applier=self.applier, current=lambda _: self.version())

    def append(self, shadow: Shadow) -> None:
        self.tries += 1
        seed = load(self.files, shadow.location)
        number = int(seed.json["last-sequence-number"]) + 1
        after = {**seed.json, "snapshots": [*seed.json["snapshots"], snapshot(number, self.rows)]}
        after |= {"last-sequence-number": number, "next-row-id": seed.json["next-row-id"] + self.rows}
        after["metadata-log"] = [{"timestamp-ms": seed.last_updated_ms, "metadata-file": shadow.location}]
        place = f"{self.folder}/metadata/00099-00000000-0000-0000-0000-{self.tries:012}.metadata.json"
        self.files.write_new(place, json.dumps(after).encode())
        with self.database.transaction(write=True) as work:
            sql = "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?"
            assert work.change(sql, [place, shadow.location]) == 1
        self.meanwhile()

    def version(self) -> Any:
        metadata = self.metadata
        number = metadata.main_snapshot_id or 0
        return SimpleNamespace(
            checks=(),
            keys=(),
            table=T,
            uuid=metadata.uuid,
            metadata=metadata,
            columns=SimpleNamespace(takes_rows_of=lambda _: True, fields=[]),
            location=metadata.metadata_location,
            snapshot_id=number,
            sequence_number=number,
            journal=None,
            is_journalled=False,
            revision=0,
            rows=SimpleNamespace(lineage=lambda ids: Lineage(ids, np.full(len(ids), number)), resolve=lambda ids: ids),
        )

    @property
    def metadata(self) -> TableMetadata:
        return current_metadata(self.pointers, self.files, T)

    @property
    def main(self) -> list[int]:
        return [found.id for found in self.metadata.ancestors(self.metadata.main_snapshot_id)]

    @property
    def left(self) -> list[str]:
        """Metadata files that the table does not know, and shadows' rows."""
        metadata = self.metadata
        known = {metadata.metadata_location, *(entry["metadata-file"] for entry in metadata.metadata_log)}
        found = {str(path) for path in (self.folder / "metadata").iterdir()}
        return [*sorted(found - known), *self.pointers.shadows.locations()]

    def insert(self) -> Committed:
        rows = self.staging.new(pa.schema([("x", pa.int64())]))
        rows.append(pa.record_batch({"x": pa.array([1])}))
        change = ChangeSet(base=self.version(), inserts=rows, pinned=False)
        return self.committer.commit(CommitRequest(changes={T: change}, statement="statement"))

    def changed(self, keys: dict[str, Any]) -> dict[str, Any]:
        """The table's metadata with other values of some keys."""
        return {**set_properties(self.metadata.json, {}, previous=self.metadata.metadata_location), **keys}

    def edit(self, after: dict[str, Any]) -> None:
        metadata = self.metadata
        self.pointers.commit([Edit(T, metadata.json, after, metadata.metadata_location)])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(shadow_applier, "sync_snapshot", lambda *_: None)
    staging = Staging(str(tmp_path / "staging"), makes_data_files=False)
    with closing(SqliteDatabase(tmp_path / "catalog.db")) as database, closing(staging):
        made = World(tmp_path, database, staging)
        with closing(made.committer):
            yield made
        for point in POINTS:
            on_fault(point, None)


def no_answer() -> None:
    raise Unavailable("the database gives no answer")


def test_it_is_published_with_the_notes_and_nothing_is_left(world: World) -> None:
    assert world.insert().rows == world.pointers.statement("statement") == 1
    assert world.main == [2, 1]
    assert world.metadata.json["last-sequence-number"] == 2
    assert world.metadata.json["next-row-id"] == 1
    assert world.left == []
    assert "write.wap.enabled" not in world.metadata.properties


def test_it_is_found_that_spark_did_something_else(world: World) -> None:
    world.rows = 7
    with pytest.raises(InternalError, match="7 for added-records, not 1"):
        world.insert()
    assert world.main == [1]
    assert world.left == []


def test_a_commit_that_was_made_without_an_answer_is_not_taken_back(world: World) -> None:
    on_fault("pointer.after", no_answer)
    assert world.insert().rows == 1
    assert world.main == [2, 1]
    assert world.left == []


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_that_nobody_knows_of_is_settled(world: World, made: bool) -> None:
    on_fault("pointer.after" if made else "pointer.before", no_answer)
    on_fault("settle.before", no_answer)
    with pytest.raises(OutcomeUnknown) as unknown:
        world.insert()
    for point in POINTS:
        on_fault(point, None)
    assert unknown.value.settle() == made
    assert world.main == ([2, 1] if made else [1])
    assert world.pointers.shadows.locations() == []
    assert world.applier.tables_in_use() == set()
    assert [path for path in world.left if "00099" in path] == []


def test_a_commit_that_comes_after_the_shadow_was_given_up_is_not_made(world: World) -> None:
    """It was sent, the answer did not come, and the database takes it up much later."""
    sent: list[Any] = []
    commit = world.pointers.commit

    def unanswered(changes: Any, statements: Any = None, **rest: Any) -> dict[TableName, str]:
        sent.append((changes, statements, rest))
        raise OutcomeUnknown("no answer", lambda: False)

    world.pointers.commit = unanswered  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        world.insert()
    changes, statements, rest = sent[0]
    with pytest.raises(Exception, match="moved by another writer"):
        commit(changes, statements, **rest)
    assert world.main == [1]
    assert world.left == []


def test_it_is_applied_again_when_another_server_has_taken_it_away(world: World) -> None:
    def take() -> None:
        on_fault("publish.before", None)
        (record,) = world.pointers.shadows.everyone()
        assert world.pointers.shadows.remove(record.name) == record.location

    on_fault("publish.before", take)
    assert world.insert().rows == 1
    assert world.tries == 2
    assert world.main == [2, 1]
    assert world.left == []


OTHERS: dict[str, Callable[[World], dict[str, Any]]] = {
    "rows": lambda world: move_main(
        {
            **world.metadata.json,
            "snapshots": [*world.metadata.json["snapshots"], {**snapshot(2), "snapshot-id": 20}],
            "last-sequence-number": 2,
        },
        20,
        previous=world.metadata.metadata_location,
    ),
    "a branch": lambda world: world.changed({"last-sequence-number": 5}),
    "row ids": lambda world: world.changed({"next-row-id": 100}),
    "a partitioning": lambda world: world.changed(
        {"default-spec-id": 1, "partition-specs": [{"spec-id": number, "fields": []} for number in (0, 1)]}
    ),
}


@pytest.mark.parametrize("others", OTHERS)
def test_it_is_applied_again_when_the_table_is_not_what_was_copied(world: World, others: str) -> None:
    left = [lambda: world.edit(OTHERS[others](world))]
    world.meanwhile = lambda: left.pop()() if left else None
    assert world.insert().rows == 1
    assert world.tries == 2
    metadata = world.metadata
    made = metadata.snapshot(metadata.main_snapshot_id or 0)
    assert made.sequence_number == metadata.json["last-sequence-number"]
    assert metadata.json["next-row-id"] == (101 if others == "row ids" else 1)
    assert len({found.sequence_number for found in metadata.snapshots}) == len(metadata.snapshots)
    assert world.left == []


def test_it_is_not_applied_again_for_a_property(world: World) -> None:
    def set_one() -> None:
        metadata = world.metadata
        world.edit(set_properties(metadata.json, {"theirs": "kept"}, previous=metadata.metadata_location))

    def once_more() -> None:
        on_fault("publish.before", None)
        set_one()

    world.meanwhile = set_one
    on_fault("publish.before", once_more)
    assert world.insert().rows == 1
    assert world.tries == 1
    assert world.metadata.properties["theirs"] == "kept"
    assert world.main == [2, 1]
    assert world.left == []


def test_who_is_disturbed_all_the_time_gives_up_and_leaves_nothing(world: World) -> None:
    world.meanwhile = lambda: world.edit(world.changed({"next-row-id": world.metadata.json["next-row-id"] + 10}))
    with pytest.raises(Conflict, match="all the time"):
        world.insert()
    assert world.main == [1]
    assert world.left == []


@pytest.mark.parametrize("error", [Unavailable, InternalError])
def test_a_spark_that_fails_leaves_nothing(world: World, error: type[SparkportError]) -> None:
    """Before and after it has committed."""

    def fail() -> None:
        raise error("as was asked for")

    world.meanwhile = fail
    with pytest.raises(error):
        world.insert()
    assert world.main == [1]
    assert world.left == []
