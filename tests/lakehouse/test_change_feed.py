"""Changes of a table that compaction, copy-on-write and plain Spark have been at, compared with whole scans."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, version
from tests.support.lakehouse import Lake
from tests.support.tiers import FAST

from sparkport.catalog import AsOf, AsOfUnit, ScanRequest
from sparkport.catalog.versions import TableTag
from sparkport.errors import AlreadyExists, FailedPrecondition, InvalidArgument, VersionNotFound
from sparkport.lakehouse.scan.limits import Ways

pytestmark = pytest.mark.tier("thorough")

_numbers = count()

Change = tuple[str, int, int, str]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{number}" for number in ids]})


def make(lake: Lake, ids: range) -> Handle:
    return create(lake, f"feed{next(_numbers)}", rows(*ids))


def told(table: Handle, first: int, last: int | None = None) -> list[tuple[int, Change]]:
    """Changes with their versions. Updates to what was there before, which lineage tells too, are left out."""
    scan = table.table().changes(NOBODY, version(first), None if last is None else version(last), ScanRequest())
    try:
        found = [row for batch in scan for row in batch.to_pylist()]
    finally:
        scan.close()
    changes = [(row["version"], (row["kind"], row["row_id"], row["id"], row["v"])) for row in found]
    seen = {(number, change[1:]): change[0] for number, change in changes if change[0] == "update_before"}
    same = {
        (number, change[1:])
        for number, change in changes
        if change[0] == "update_after" and (number, change[1:]) in seen
    }
    return [each for each in changes if (each[0], each[1][1:]) not in same or not each[1][0].startswith("update")]


def differences(table: Handle, number: int) -> Iterator[Change]:
    before, after = (table.sparkport(at=version(each)) for each in (number - 1, number))
    for row_id in before.keys() | after.keys():
        old, new = before.get(row_id), after.get(row_id)
        if old is None and new is not None:
            yield "insert", row_id, new["id"], new["v"]
        elif new is None and old is not None:
            yield "delete", row_id, old["id"], old["v"]
        elif old is not None and new is not None and old != new:
            yield "update_before", row_id, old["id"], old["v"]
            yield "update_after", row_id, new["id"], new["v"]


def check(table: Handle) -> None:
    found = told(table, 0)
    for number in range(1, table.number + 1):
        assert sorted(change for at, change in found if at == number) == sorted(differences(table, number)), number


def compact(table: Handle) -> None:
    options = "map('rewrite-all', 'true')"
    call = f"CALL {table.lake.catalog}.system.rewrite_data_files(table => 'public.{table.name}', options => {options})"
    table.sql(call)


def mode(table: Handle, how: str) -> None:
    names = ("write.update.mode", "write.delete.mode", "write.merge.mode")
    properties = ", ".join(f"'{name}'='{how}'" for name in names)
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})")


@pytest.mark.parametrize("how", [pytest.param("merge-on-read", marks=FAST), "copy-on-write"])
def test_a_life_between_sparkport_and_plain_spark_is_told_exactly(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    table = make(lake, range(40))
    mode(table, how)
    table.sql(
        "DELETE FROM {t} WHERE id BETWEEN 5 AND 8",
        "MERGE INTO {t} t USING (SELECT explode(sequence(20L, 45L)) AS id) s ON t.id = s.id "
        "WHEN MATCHED AND t.id % 2 = 0 THEN UPDATE SET v = 'merged' WHEN MATCHED AND t.id % 9 = 0 THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')",
    )
    compact(table)
    mode(table, "merge-on-read")
    ids = table.ids()
    table.update([ids[30], ids[31]], pa.table({"v": ["a", "b"]}))
    table.delete([ids[32]])
    table.sql("INSERT OVERWRITE {t} SELECT id, v FROM {t} WHERE id < 10")
    (moved,) = [commit.version for commit in table.table().commits(NOBODY) if commit.operation == "replace"]
    check(table)
    assert moved not in {number for number, _ in told(table, 0)}
    monkeypatch.setattr(lake.opened.reader, "ways", Ways(window_rows=7))
    check(table)


def test_a_small_change_reads_only_the_files_that_it_has_made(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(lake, range(50))
    for start in range(100, 400, 100):
        table.insert(rows(*range(start, start + 50)))
    last = table.number
    table.update([table.ids()[110]], pa.table({"v": ["x"]}))
    reader = table.current.loader.reader
    opened: list[int] = []
    scan = reader.scan

    def counted(*args: object, **options: object) -> object:
        stream = scan(*args, **options)  # type: ignore[arg-type]
        opened.append(len(stream.files))
        return stream

    monkeypatch.setattr(reader, "scan", counted)
    assert [change[:1] + change[2:] for _, change in told(table, last)] == [
        ("update_before", 110, "v110"),
        ("update_after", 110, "x"),
    ]
    assert opened == [1, 1]


def test_a_foreign_rollback_is_told_as_the_changes_that_it_makes(lake: Lake) -> None:
    table = make(lake, range(5))
    snapshot = table.current.snapshot_id
    table.delete([table.ids()[1]])
    table.sql(
        f"CALL {lake.catalog}.system.rollback_to_snapshot(table => 'public.{table.name}', snapshot_id => {snapshot})"
    )
    assert [(number, *change[:1], *change[2:]) for number, change in told(table, 1)] == [
        (2, "delete", 1, "v1"),
        (3, "insert", 1, "v1"),
    ]


def test_snapshots_are_held_while_their_changes_are_read(lake: Lake) -> None:
    table = make(lake, range(5))
    first = table.current.snapshot_id
    table.insert(rows(9))
    reader, uuid = table.current.loader.reader, table.current.uuid
    scan = table.table().changes(NOBODY, version(0), None, ScanRequest())
    assert reader.reading(uuid) == {first, table.current.snapshot_id}
    scan.close()
    assert reader.reading(uuid) == set()


@pytest.mark.tier("fast")
def test_what_has_expired_is_said_and_a_tag_keeps_its_version(lake: Lake) -> None:
    table = make(lake, range(3))
    table.insert(rows(10))
    table.table().tag(NOBODY, "kept", version(2))
    table.insert(rows(11))
    table.insert(rows(12))
    table.sql(
        f"CALL {lake.catalog}.system.expire_snapshots(table => 'public.{table.name}', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 2)"
    )
    with pytest.raises(VersionNotFound, match="1"):
        told(table, 1)
    assert [change[2] for _, change in told(table, 3)] == [12]
    tags = table.table().version_tags(NOBODY)
    assert [(tag.name, tag.is_branch) for tag in tags] == [("kept", False)]
    assert len(table.read(at=AsOf(AsOfUnit.VERSION, "kept"))) == 4


def test_a_branch_of_spark_is_read_by_its_name(lake: Lake) -> None:
    table = make(lake, range(3))
    table.sql("ALTER TABLE {t} CREATE BRANCH side", "INSERT INTO {t}.branch_side VALUES (7, 'side')")
    (tag,) = table.table().version_tags(NOBODY)
    assert isinstance(tag, TableTag)
    assert (tag.name, tag.is_branch) == ("side", True)
    found = table.read(at=AsOf(AsOfUnit.VERSION, "side"))
    assert sorted(found["id"].to_pylist()) == [0, 1, 2, 7]
    assert sorted(table.read()["id"].to_pylist()) == [0, 1, 2]


def test_spark_writes_to_a_branch_of_ours(lake: Lake) -> None:
    table = make(lake, range(3))
    table.insert(rows(10))
    table.table().branch(NOBODY, "side", version(1))
    table.sql("INSERT INTO {t}.branch_side VALUES (7, 'side')")
    side = AsOf(AsOfUnit.VERSION, "side")
    assert sorted(table.read(at=side)["id"].to_pylist()) == [0, 1, 2, 7]
    assert sorted(table.read()["id"].to_pylist()) == [0, 1, 2, 10]
    with pytest.raises(InvalidArgument, match="on a branch"):
        table.table().changes(NOBODY, version(1), side, ScanRequest())
    with pytest.raises(AlreadyExists):  # it has moved on
        table.table().branch(NOBODY, "side", version(1))
    table.table().drop_branch(NOBODY, "side")
    assert table.table().version_tags(NOBODY) == []


def test_tables_without_row_ids_do_not_tell_their_changes(lake: Lake) -> None:
    name = f"feed{next(_numbers)}"
    table = Handle(lake, name)
    table.sql("CREATE TABLE {t} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    table.sql("INSERT INTO {t} VALUES (1, 'a')")
    with pytest.raises(FailedPrecondition, match="no row ids"):
        told(table, 0)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')", "INSERT INTO {t} VALUES (2, 'b')")
    with pytest.raises(FailedPrecondition, match="row ids"):
        told(table, 0)
    assert [change[2] for _, change in told(table, 1)] == [2]
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert [change[:1] + change[2:] for _, change in told(table, 2)] == [("delete", 1, "a")]
