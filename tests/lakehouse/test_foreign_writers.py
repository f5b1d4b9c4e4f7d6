"""Plain Spark at work on the same tables: at the same time as sparkport, and before sparkport ever saw them."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.lakehouse.fixtures import materialise, with_equality_deletes
from tests.lakehouse.handles import NOBODY, Handle, create, main_of, version
from tests.support.lakehouse import Lake
from tests.support.tiers import FAST

from sparkport.catalog import CallContext, ScanRequest
from sparkport.catalog.ddl import AddColumn, DropColumn, DropField, RenameColumn
from sparkport.errors import Conflict, FailedPrecondition, SparkportError, Unsupported, VersionNotFound
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

_numbers = count()

TEN = pa.table({"id": pa.array(range(10), pa.int64()), "v": pa.array([0] * 10, pa.int64())})


def value(number: int) -> pa.Table:
    return pa.table({"v": pa.array([number], pa.int64())})


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([0] * len(ids), pa.int64())})


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"f{next(_numbers)}", TEN)


@contextmanager
def meanwhile(point: str, action: Callable[[], object], *, times: int = 1) -> Iterator[None]:
    """What another does when a write of ours has reached a point."""
    left = [action] * times
    done: list[object] = []

    def hook() -> None:
        if left:
            done.append(left.pop()())

    on_fault(point, hook)
    try:
        yield
    finally:
        on_fault(point, None)
    assert done, "the point was not reached"


# In the middle of our statements


@pytest.mark.parametrize("point", ["apply.before", pytest.param("apply.after", marks=FAST), "publish.before"])
def test_an_append_of_spark_in_the_middle_of_our_statements_is_kept(table: Handle, point: str) -> None:
    ids = table.ids()
    with meanwhile(point, lambda: table.sql("INSERT INTO {t} VALUES (100, 1)")):
        assert table.insert(rows_of(200)).affected_rows == 1
    with meanwhile(point, lambda: table.sql("INSERT INTO {t} VALUES (101, 1)")):
        assert table.update([ids[1]], value(7)).affected_rows == 1
    with meanwhile(point, lambda: table.sql("INSERT INTO {t} VALUES (102, 1)")):
        assert table.delete([ids[2]]).affected_rows == 1
    rows = table.agreed()
    assert sorted(row["id"] for row in rows.values()) == [0, 1, *range(3, 10), 100, 101, 102, 200]
    assert rows[ids[1]]["v"] == 7
    assert table.number == 7


@pytest.mark.parametrize("point", ["apply.before", "apply.after", "publish.before"])
def test_spark_changing_the_same_row_aborts_a_transaction_and_nothing_is_lost(
    lake: Lake, table: Handle, point: str
) -> None:
    ids, manager = table.ids(), lake.opened.catalog.transactions
    assert manager is not None
    mine = CallContext(transaction_id=manager.begin(NOBODY))
    change = lambda: table.sql("UPDATE {t} SET v = v + 1 WHERE id = 1")  # noqa: E731 - a name for what happens
    with meanwhile(point, change), pytest.raises(Conflict):
        table.update([ids[1]], value(100), mine)
    assert table.agreed()[ids[1]]["v"] == 1


@pytest.mark.parametrize("point", ["apply.before", "apply.after"])
def test_a_row_that_spark_deletes_in_the_middle_is_not_resurrected(table: Handle, point: str) -> None:
    ids = table.ids()
    with meanwhile(point, lambda: table.sql("DELETE FROM {t} WHERE id = 1")):
        assert table.update([ids[1], ids[2]], pa.table({"v": pa.array([5, 6], pa.int64())})).affected_rows == 1
    rows = table.agreed()
    assert ids[1] not in rows
    assert rows[ids[2]]["v"] == 6
    with meanwhile(point, lambda: table.sql("DELETE FROM {t} WHERE id = 3")):
        assert table.update([ids[3]], value(9)).affected_rows == 0
    assert ids[3] not in table.agreed()


@pytest.mark.parametrize("point", ["apply.before", "publish.before"])
def test_a_compaction_in_the_middle_loses_no_change(table: Handle, point: str) -> None:
    table.insert(rows_of(20, 21))
    ids = table.ids()
    options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
    compact = (
        f"CALL {table.lake.catalog}.system.rewrite_data_files(table => 'public.{table.name}', options => {options})"
    )
    with meanwhile(point, lambda: table.sql(compact)):
        assert table.update([ids[1]], value(5)).affected_rows == 1
    with meanwhile(point, lambda: table.sql(compact)):
        assert table.delete([ids[2], ids[20]]).affected_rows == 2
    assert table.agreed() == {
        row_id: {"id": number, "v": 5 if number == 1 else 0, "rowid": row_id}
        for number, row_id in ids.items()
        if number not in (2, 20)
    }


def test_who_is_overtaken_all_the_time_is_told_so(table: Handle) -> None:
    numbers = iter(range(1000, 2000))
    again = lambda: table.sql(f"INSERT INTO {{t}} VALUES ({next(numbers)}, 0)")  # noqa: E731
    with meanwhile("apply.after", again, times=8), pytest.raises(Conflict, match="by others all the time"):
        table.update([table.ids()[1]], value(1))
    assert table.ids().keys() == {*range(10), *range(1000, 1008)}
    assert set(table.agreed()) == set(table.sparkport())


# At the same time


def test_jobs_of_spark_and_our_statements_at_once_lose_nothing(table: Handle) -> None:
    ids, stop = table.ids(), threading.Event()
    appended: list[int] = []
    failures: list[str] = []

    def foreign() -> None:
        """Appends, updates and merges of its own row, over and over; a conflict is its own to repeat."""
        for number in range(100, 120):
            if stop.is_set():
                return
            try:
                table.sql(f"INSERT INTO {{t}} VALUES ({number}, 0)")
                appended.append(number)
                table.sql(
                    f"MERGE INTO {{t}} t USING (SELECT {number}L AS id) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET v = t.v + 1"
                )
            except PySparkException as exc:
                failures.append(str(exc))

    def ours(number: int) -> int:
        for _ in range(10):  # the table is ours no more than theirs
            try:
                done = table.insert(rows_of(500 + number)).affected_rows
                break
            except Conflict:
                continue
        for _ in range(10):
            try:
                return done + table.update([ids[number]], value(number)).affected_rows
            except Conflict:
                continue
        return done

    with ThreadPoolExecutor(3) as pool:
        other = pool.submit(foreign)
        counts = list(pool.map(ours, range(5)))
        stop.set()
        other.result()
    assert counts == [2] * 5
    assert appended
    rows = {row["id"]: row["v"] for row in table.agreed().values()}
    assert len(rows) == len(table.sparkport())
    assert {number: rows[number] for number in range(5)} == {number: number for number in range(5)}
    assert set(rows) == {*range(10), *range(500, 505), *appended}


# Tables that Spark made


def made(lake: Lake, columns: str, more: str = "", *statements: str) -> Handle:
    name = f"f{next(_numbers)}"
    table = Handle(lake, name)
    table.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {more}", *statements)
    return table


V3 = "TBLPROPERTIES ('format-version' = '3')"


@pytest.mark.tier("fast")
def test_a_plain_v3_table_of_spark_takes_all_statements(lake: Lake) -> None:
    table = made(lake, "id BIGINT NOT NULL, v BIGINT", V3, "INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3)")
    ids = table.ids()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    assert table.insert(pa.table({"id": [4], "v": [4]}, schema=schema)).affected_rows == 1
    assert table.update([ids[1]], value(10)).affected_rows == 1
    assert table.delete([ids[2]]).affected_rows == 1
    table.alter(RenameColumn("v", "w"), AddColumn(pa.field("x", pa.string())))
    assert {row["id"]: row["w"] for row in table.agreed().values()} == {1: 10, 3: 3, 4: 4}
    assert [len(table.read(at=version(number))) for number in range(5)] == [0, 3, 4, 4, 3]


@pytest.mark.tier("fast")
def test_a_v2_table_is_read_and_appended_to_and_changes_say_how_to_upgrade(lake: Lake) -> None:
    table = made(
        lake,
        "id BIGINT, v BIGINT",
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')",
        "INSERT INTO {t} SELECT id, 0L FROM range(10)",
        "DELETE FROM {t} WHERE id = 3",
    )
    assert table.read().schema.names == ["id", "v"]
    assert table.insert(rows_of(10, 11)).affected_rows == 2
    assert sorted(table.read()["id"].to_pylist()) == [0, 1, 2, *range(4, 12)]
    sentence = f"sparkport table upgrade public.{table.name}"
    with pytest.raises(FailedPrecondition, match=sentence):
        table.update([0], value(1))
    with pytest.raises(FailedPrecondition, match=sentence):
        table.delete([0])
    assert sorted(row["id"] for row in table.pyiceberg()) == [0, 1, 2, *range(4, 12)]


def test_partitions_of_days_beyond_pythons_years_are_read_and_changed(lake: Lake) -> None:
    table = made(lake, "id BIGINT, at TIMESTAMP_NTZ, day DATE", f"PARTITIONED BY (days(at), day) {V3}")
    moments, days = [2**63 - 1, 0], [2**31 - 1, 3_000_000]
    columns = [pa.array(moments, pa.int64()).view(pa.timestamp("us")), pa.array(days, pa.int32()).view(pa.date32())]
    assert table.insert(pa.table([pa.array([1, 2], pa.int64()), *columns], ["id", "at", "day"])).affected_rows == 2
    row_ids = table.read().sort_by("id").column("rowid").to_pylist()
    assert table.update(row_ids, pa.table({"id": pa.array([10, 20], pa.int64())})).affected_rows == 2
    found = table.read().sort_by("id")
    assert found.column("id").to_pylist() == [10, 20]
    assert found.column("at").cast(pa.int64()).to_pylist() == moments
    assert found.column("day").cast(pa.int32()).to_pylist() == days


def test_a_partitioned_and_sorted_table_is_written_by_its_own_rules(lake: Lake) -> None:
    table = made(
        lake,
        "id BIGINT, v BIGINT",
        f"PARTITIONED BY (bucket(4, id)) {V3}",
        "ALTER TABLE {t} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY v DESC",
    )
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "v": pa.array(range(1000), pa.int64())})
    assert table.insert(rows).affected_rows == 1000
    ids = table.ids()
    assert table.update([ids[5], ids[6]], pa.table({"v": pa.array([-5, -6], pa.int64())})).affected_rows == 2
    assert table.update([ids[7]], pa.table({"id": pa.array([7000], pa.int64())})).affected_rows == 1
    assert table.delete([ids[8]]).affected_rows == 1
    found = table.agreed()
    assert (found[ids[5]]["v"], found[ids[7]]["id"]) == (-5, 7000)
    with lake.spark() as spark:
        counted = spark.sql(f"SELECT count(*) FROM {table.sql_name}.partitions").collect()
        sorted_files = spark.sql(f"SELECT min(sort_order_id) FROM {table.sql_name}.data_files").collect()
    assert (counted[0][0], sorted_files[0][0]) == (4, 1)
    for cascade in (False, True):
        with pytest.raises(Unsupported, match="is or was partitioned or sorted by column 'id'"):
            table.alter(DropColumn("id", cascade=cascade))


def test_a_field_that_a_table_was_sorted_by_is_not_dropped(lake: Lake) -> None:
    table = made(lake, "id BIGINT, w STRUCT<x: BIGINT, y: BIGINT>", "TBLPROPERTIES ('format-version' = '3')")
    table.sql("ALTER TABLE {t} WRITE LOCALLY ORDERED BY w.x DESC", "ALTER TABLE {t} WRITE UNORDERED")
    for change in (DropField(("w", "x"), cascade=True), DropColumn("w")):
        with pytest.raises(Unsupported, match=r"is or was partitioned or sorted by column 'w.x'"):
            table.alter(change)
    table.alter(DropField(("w", "y")))
    assert table.insert(pa.table({"id": [1], "w": pa.array([{"x": 1}])})).affected_rows == 1


def test_a_copy_on_write_table_stays_without_delete_files(lake: Lake) -> None:
    modes = ", ".join(f"'write.{verb}.mode' = 'copy-on-write'" for verb in ("delete", "update", "merge"))
    table = made(lake, "id BIGINT, v BIGINT", f"TBLPROPERTIES ('format-version' = '3', {modes})")
    table.insert(TEN)
    ids = table.ids()
    assert table.update([ids[1]], value(5)).affected_rows == 1
    assert table.delete([ids[2]]).affected_rows == 1
    rows = table.agreed()
    assert {row_id: row["v"] for row_id, row in rows.items() if row["v"]} == {ids[1]: 5}
    assert {row["id"]: row_id for row_id, row in rows.items()} == {k: v for k, v in ids.items() if k != 2}
    with lake.spark() as spark:
        assert spark.sql(f"SELECT count(*) FROM {table.sql_name}.delete_files").collect()[0][0] == 0


def test_rows_under_equality_deletes_are_read_by_spark_also_after_a_rename(lake: Lake, tmp_path: Path) -> None:
    """Spark itself writes none: a table with position deletes is made to look as if it had some."""
    found = materialise("positions_v2", tmp_path)
    names = [field["name"] for field in found.metadata.current_schema["fields"]]
    lake.pointers.create(TableName("public", "positions"), str(found.folder / "metadata.json"))
    whole = Handle(lake, "positions").read()
    other = tmp_path / "equality"
    other.mkdir()
    moved = materialise("positions_v2", other)
    for path in moved.folder.rglob("*deletes.parquet"):
        _as_equality_deletes(path, found.metadata.current_schema["fields"][0])
    turned = with_equality_deletes(moved)
    lake.pointers.create(TableName("public", "equality"), _numbered(turned.folder))
    table = Handle(lake, "equality")
    with lake.spark() as spark:
        expected = spark.sql(f"SELECT * FROM {table.sql_name}").toArrow().to_pylist()
    rows = table.read()
    assert rows.schema.equals(whole.schema)
    assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, expected))
    assert 0 < rows.num_rows < whole.num_rows + 10
    table.alter(RenameColumn(names[-1], "renamed"), AddColumn(pa.field("added", pa.int32())))
    after = table.read()
    assert after.schema.names == [*names[:-1], "renamed", "added"]
    assert sorted(map(repr, after.drop_columns(["added"]).to_pylist())) == sorted(
        repr({("renamed" if key == names[-1] else key): item for key, item in row.items()}) for row in expected
    )
    with contextlib.closing(table.table().scan(NOBODY, ScanRequest(columns=()))) as scan:
        assert sum(batch.num_rows for batch in scan) == rows.num_rows
    assert not list((lake.warehouse / ".staging").rglob("spill-*"))


def _numbered(folder: Path) -> str:
    """Spark insists on names of metadata files; and it is another table than the one that it was made of."""
    place = folder / "metadata" / "00009-0.metadata.json"
    metadata = json.loads((folder / "metadata.json").read_text())
    place.write_text(json.dumps({**metadata, "table-uuid": str(uuid.uuid4())}))
    return str(place)


def _as_equality_deletes(path: Path, field: dict[str, object]) -> None:
    """A list of positions as a list of values of the first column."""
    import pyarrow.parquet as pq

    kind = {"int": pa.int32(), "long": pa.int64()}[str(field["type"])]
    marked = pa.field(str(field["name"]), kind, metadata={"PARQUET:field_id": str(field["id"])})
    positions = pq.read_table(path).column("pos").cast(kind).combine_chunks()
    pq.write_table(pa.table([positions], schema=pa.schema([marked])), path)


def test_what_cannot_be_shown_does_not_hide_the_rest(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    variant = made(lake, "id BIGINT, v VARIANT", V3, "INSERT INTO {t} SELECT 1L, parse_json('{{\"a\": 1}}')")
    reserved = made(lake, "id BIGINT, rowid BIGINT", V3, "INSERT INTO {t} VALUES (1, 2)")
    broken = made(lake, "id BIGINT", V3)
    good = made(lake, "id BIGINT, v BIGINT", V3, "INSERT INTO {t} VALUES (1, 2)")
    with lake.spark() as spark:
        spark.sql(f"CREATE VIEW {lake.catalog}.public.a_view AS SELECT id FROM {good.sql_name}")
        # Spark lets this pass, and cannot read the table any more.
        spark.sql(f"CREATE TABLE {lake.catalog}.public.lineage (_row_id BIGINT, id BIGINT) USING iceberg {V3}")
    # A file of its own: what was once read of the table's other one, by whoever, stays as it was.
    location = lake.warehouse / "00001-broken.metadata.json"
    location.write_text("this is no JSON")
    lake.pointers.replace(TableName("public", broken.name), str(location))
    with caplog.at_level(logging.ERROR):
        listed = {found.name for found in main_of(lake).tables(NOBODY)}
    assert good.name in listed
    assert "a_view" in listed
    assert not {variant.name, reserved.name, broken.name, "lineage"} & listed
    assert lake.opened.catalog.version(NOBODY) == lake.opened.catalog.version(NOBODY)
    for name in (variant.name, reserved.name, broken.name, "lineage"):
        with pytest.raises(SparkportError):
            Handle(lake, name).read()
    assert len(good.agreed()) == 1


def test_metadata_that_others_wrote_compressed_is_read_and_written_on(lake: Lake) -> None:
    table = made(
        lake,
        "id BIGINT, v BIGINT",
        "TBLPROPERTIES ('format-version' = '3', 'write.metadata.compression-codec' = 'gzip')",
        "INSERT INTO {t} VALUES (1, 1)",
    )
    location = lake.pointers.location(TableName("public", table.name))
    assert location is not None
    assert location.endswith(".gz.metadata.json")
    table.insert(rows_of(2))
    table.alter(AddColumn(pa.field("x", pa.int32())))
    assert {row["id"] for row in table.agreed().values()} == {1, 2}
    moved = lake.pointers.location(TableName("public", table.name))
    assert moved is not None
    assert json.loads(Path(moved).read_text())["table-uuid"] == table.current.uuid


def test_numbers_of_versions_stay_or_are_gone_when_others_expire_snapshots(lake: Lake, table: Handle) -> None:
    def expire(kept: int) -> None:
        table.sql(
            f"CALL {lake.catalog}.system.expire_snapshots(table => 'public.{table.name}', "
            f"older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => {kept})"
        )

    table.insert(rows_of(100))
    meant = {number: table.read(at=version(number)) for number in (1, 2)}
    table.sql("INSERT INTO {t} VALUES (101, 1)", "INSERT INTO {t} VALUES (102, 1)", "INSERT INTO {t} VALUES (103, 1)")
    meant |= {number: table.read(at=version(number)) for number in (3, 4, 5)}
    expire(3)  # the last of ours is gone, and two of theirs cannot be counted any more
    for number in (1, 2):
        with pytest.raises(VersionNotFound, match=f"no version {number}"):
            table.read(at=version(number))
    for number in (3, 4, 5):  # of these the metadata of their time is left
        assert table.read(at=version(number)).to_pylist() == meant[number].to_pylist()
    table.insert(rows_of(104))
    assert table.number > 5
    after = table.number
    meant[after] = table.read()
    table.insert(rows_of(105))
    assert table.number == after + 1
    expire(2)
    assert table.read(at=version(after)).to_pylist() == meant[after].to_pylist()
    for number in (1, 2, 3, 4, 5):
        with pytest.raises(VersionNotFound, match=f"no version {number}; the oldest is 0"):
            table.read(at=version(number))
