"""What others do to a table while Spark changes its shadow: the change is there once, or it is a conflict and there is
nothing of it. And what others undo stays undone."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.single_changes import CHANGES, START, SingleChange, insert_two, update_one
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names
from tests.support.lakehouse import Lake, maintenance_of

from sparkport.catalog import CallContext
from sparkport.catalog.spark_sql import SparkQuery
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import Conflict, InternalError, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.files import plain_path
from sparkport.lakehouse.iceberg.manifests import read_manifest, read_manifest_list
from sparkport.lakehouse.names import TableName, shadow_catalog
from sparkport.lakehouse.upkeep import maintenance
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()

WAP = "write.wap.enabled"
APPEND = "INSERT INTO {t} VALUES (50, 'foreign')"
POINTS = ("shadow.after", "apply.before", "apply.after", "publish.before")


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"shadowed{next(_numbers)}", FIVE)


def _both(table: Handle) -> Tx:
    """A transaction that inserts and updates: two snapshots, one version."""
    tx = Tx(table.lake)
    insert_two(table, tx.ctx)
    update_one(table, tx.ctx)
    return tx


BOTH = {**START, 0: "changed", 10: "ten", 11: "eleven"}


def files_of(table: Handle) -> set[str]:
    """All there is in the table's folder, Hadoop's checksums aside."""
    folder = Path(plain_path(table.current.metadata.location))
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if not path.name.endswith(".crc")}


def reached(table: Handle) -> set[str]:
    """All that the table's metadata leads to."""
    metadata, files = table.current.metadata, table.lake.opened.engine.storage.files
    paths = {metadata.metadata_location, *(str(entry["metadata-file"]) for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        paths.add(snapshot.manifest_list)
        for listed in read_manifest_list(files, snapshot.manifest_list):
            paths |= {listed["manifest_path"], *(file.path for file in read_manifest(files, listed))}
    return {plain_path(path) for path in paths}


def shadows(lake: Lake) -> list[str]:
    records = lake.pointers.shadows
    assert records is not None
    return records.locations()


# Nothing is left


def test_a_change_leaves_nothing_but_what_the_table_knows(table: Handle, change: SingleChange) -> None:
    do, rows, expected = change
    assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == expected
    assert files_of(table) == reached(table)
    assert shadows(table.lake) == []
    assert table.lake.opened.engine.applier.tables_in_use() == set()


def test_new_and_changed_rows_are_one_version(table: Handle) -> None:
    before = table.current.metadata
    tx, number = _both(table), table.number
    seen: list[str] = []
    with at_point("apply.between", lambda: seen.append(table.current.location)):
        tx.commit()
    after = table.current.metadata
    assert seen == [before.metadata_location]
    assert by_key(table.agreed()) == BOTH
    assert table.number == number + 1
    assert len(after.snapshots) == len(before.snapshots) + 2
    assert len(after.snapshot_log) == len(before.snapshot_log) + 1
    assert set(after.refs) == {"main"}
    assert not [key for key in after.properties if "shadow" in key or key in (WAP, "gc.enabled")]
    assert files_of(table) == reached(table)
    assert len({*table.ids().values()}) == len(BOTH)


@pytest.mark.parametrize("point", ["shadow.before", "shadow.after", "apply.before", "apply.between", "apply.after"])
@pytest.mark.parametrize("error", [InternalError, Unavailable])
def test_a_change_that_fails_leaves_nothing(table: Handle, point: str, error: type[SparkportError]) -> None:
    before, tx = files_of(table), _both(table)

    def fail() -> None:
        raise error("as was asked for")

    with at_point(point, fail), pytest.raises(error):
        tx.commit()
    assert by_key(table.agreed()) == START
    assert files_of(table) == before
    assert shadows(table.lake) == []


# Others change what is no row


@pytest.mark.parametrize("point", POINTS)
def test_properties_and_tags_that_others_set_meanwhile_stay(table: Handle, change: SingleChange, point: str) -> None:
    do, rows, expected = change
    others = (
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{WAP}' = 'true', 'theirs' = 'kept')",
        "ALTER TABLE {t} CREATE TAG kept",
    )
    with at_point(point, lambda: table.sql(*others)):
        assert do(table, NOBODY) == rows
    metadata = table.current.metadata
    assert by_key(table.agreed()) == expected
    assert set(metadata.refs) == {"main", "kept"}
    assert metadata.properties["theirs"] == "kept"
    assert WAP not in metadata.properties


def test_a_table_of_an_earlier_version_loses_its_property(table: Handle, change: SingleChange) -> None:
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{WAP}' = 'true')")
    do, rows, expected = change
    with at_point("apply.before", lambda: table.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{WAP}')")):
        assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == expected
    assert WAP not in table.current.metadata.properties


def _expire(table: Handle) -> None:
    table.sql(
        f"CALL `{table.lake.catalog}`.system.expire_snapshots(table => 'public.{table.name}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )


@pytest.mark.parametrize("point", POINTS)
def test_what_others_expire_is_none_of_ours(table: Handle, change: SingleChange, point: str) -> None:
    do, rows, expected = change
    with at_point(point, lambda: _expire(table)):
        assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == expected


def test_others_find_nothing_to_publish(table: Handle) -> None:
    before, tx = table.current.metadata, _both(table)
    found: list[tuple[int, ...]] = []
    with at_point("publish.before", lambda: found.append(tuple(made.id for made in table.current.metadata.snapshots))):
        tx.commit()
    assert found == [tuple(made.id for made in before.snapshots)]


# Others change rows


@pytest.mark.parametrize("point", POINTS)
def test_rows_that_others_append_meanwhile_stay(table: Handle, change: SingleChange, point: str) -> None:
    """All row ids are given once, though the shadow has given some of them to others."""
    do, rows, expected = change
    with at_point(point, lambda: table.sql(APPEND)):
        assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == {**expected, 50: "foreign"}
    assert len({*table.ids().values()}) == len(expected) + 1
    assert shadows(table.lake) == []
    assert files_of(table) == reached(table) | {path for path in files_of(table) if ".metadata.json" in path}


@pytest.mark.parametrize("point", POINTS)
def test_rows_on_a_branch_of_others_keep_their_ids(table: Handle, point: str) -> None:
    """They move no ``main``, and take ids and sequence numbers all the same."""

    def branch() -> None:
        table.sql("ALTER TABLE {t} CREATE BRANCH side")
        with table.lake.spark() as spark:
            spark.sql(f"INSERT INTO {table.sql_name}.branch_side VALUES (60, 'side')").collect()

    with at_point(point, branch):
        insert_two(table, NOBODY)
    with table.lake.spark() as spark:
        side = spark.sql(f"SELECT _row_id FROM {table.sql_name} VERSION AS OF 'side'").collect()
    ids = table.ids()
    assert by_key(table.agreed()) == CHANGES["insert"][2]
    assert not {ids[10], ids[11]} & {row[0] for row in side}
    sequences = [made.sequence_number for made in table.current.metadata.snapshots]
    assert len({*sequences}) == len(sequences)


@pytest.mark.parametrize("point", POINTS)
def test_another_table_under_the_same_name_gets_no_rows(table: Handle, change: SingleChange, point: str) -> None:
    do, _, _ = change
    before, old = files_of(table), Path(plain_path(table.current.metadata.location))

    def replace_it() -> None:
        table.sql("DROP TABLE {t}", "CREATE TABLE {t} (id BIGINT, name STRING) TBLPROPERTIES ('format-version' = '3')")
        table.sql("INSERT INTO {t} VALUES (0, 'another')")

    with at_point(point, replace_it), pytest.raises((Conflict, NotFound)):
        do(table, NOBODY)
    assert by_key(table.agreed()) == {0: "another"}
    left = {str(path) for path in old.rglob("*") if path.is_file() and not path.name.endswith(".crc")}
    assert left == before
    assert shadows(table.lake) == []


@pytest.mark.parametrize("point", POINTS)
def test_a_table_that_is_renamed_and_dropped_gets_no_rows(table: Handle, point: str) -> None:
    tx, schema = _both(table), main_of(table.lake)

    def away() -> None:
        schema.rename_table(NOBODY, table.name, f"{table.name}_old")
        schema.drop_table(NOBODY, f"{table.name}_old")

    before = files_of(table)
    with at_point(point, away), pytest.raises((Conflict, NotFound)):
        tx.commit()
    assert tx.status is TransactionState.ABORTED
    assert {path for path in before if not Path(path).exists()} == set()
    assert shadows(table.lake) == []


# Others roll back


def _roll_back(table: Handle, snapshot: int | None) -> None:
    table.sql(
        f"CALL `{table.lake.catalog}`.system.rollback_to_snapshot(table => 'public.{table.name}', "
        f"snapshot_id => {snapshot})"
    )


@pytest.mark.parametrize("then", [(), (APPEND,)], ids=["rolled back", "and written since"])
@pytest.mark.parametrize("change", ["update", "delete", "insert"])
def test_a_transaction_does_not_undo_a_rollback_of_others(
    lake: Lake, table: Handle, change: str, then: tuple[str, ...]
) -> None:
    before = table.current.snapshot_id
    table.update([table.ids()[1]], names("newer"))
    tx = Tx(lake)
    CHANGES[change][0](table, tx.ctx)
    _roll_back(table, before)
    table.sql(*then)
    with pytest.raises(Conflict, match="rolled back"):
        tx.commit()
    assert by_key(table.agreed()) == {**START, **({50: "foreign"} if then else {})}


def test_an_auto_commit_statement_does_not_undo_a_rollback_of_others(lake: Lake, table: Handle) -> None:
    before = table.current.snapshot_id
    table.update([table.ids()[1]], names("newer"))
    ctx = CallContext(transaction_id=lake.opened.engine.transactions.begin(NOBODY))
    ids = table.ids()
    table.read(ctx)
    _roll_back(table, before)
    with pytest.raises(Conflict, match="rolled back"):
        table.update([ids[1]], names("mine"), ctx)
    assert by_key(table.agreed()) == START


# What a repeated statement is told


def test_the_count_that_is_kept_of_a_serializable_delete_is_the_one_that_was_told(lake: Lake, table: Handle) -> None:
    manager = lake.opened.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(NOBODY, isolation=Isolation.SERIALIZABLE))
    ids = table.ids()
    own = table.table(ctx)
    with at_point("defer.after", lambda: table.delete([ids[0]])):
        request = StatementRequest(
            change=Change.DELETE,
            columns=pa.schema([]),
            returning=False,
            missing=MissingRows.SKIP,
            statement="again",
        )
        statement = own.open_statement(ctx, request)
        statement.push(None, pa.array([ids[0], ids[1]], pa.int64()))
        told = statement.finish()
    assert told == 1
    assert lake.opened.engine.storage.pointers.statement("again") == 1


@pytest.mark.parametrize("point", POINTS)
def test_a_rollback_of_others_in_the_middle_stays(lake: Lake, table: Handle, point: str) -> None:
    before = table.current.snapshot_id
    table.update([table.ids()[1]], names("newer"))
    tx = _both(table)
    with at_point(point, lambda: _roll_back(table, before)), pytest.raises(Conflict, match="rolled back"):
        tx.commit()
    assert by_key(table.agreed()) == START


# Maintenance


@pytest.mark.parametrize("point", ["apply.between", "publish.before"])
def test_maintenance_removes_nothing_of_a_shadow(table: Handle, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has been at it for five days, and others have written the table often meanwhile."""
    day = 24 * 3600
    at_once = MaintenanceSettings(retention_seconds=0, grace_seconds=0, staged_seconds=0, metadata_seconds=0)
    name, tx = TableName("public", table.name), Tx(table.lake)
    insert_two(table, tx.ctx)
    table.update([table.ids()[0]], names("changed"), tx.ctx)
    orphan = Path(plain_path(table.current.metadata.location), "data", "left.parquet")
    first, made, lost, reports = files_of(table), set[str](), set[str](), list[maintenance.Report]()

    def age(*paths: str | Path, days: int) -> None:
        for path in paths:
            os.utime(path, (time.time() - days * day,) * 2)

    def maintain() -> None:
        made.update(files_of(table) - first)
        table.sql(*[APPEND] * 4)
        orphan.write_bytes(b"x")
        age(orphan, days=6)
        age(*made, days=4)
        reports.append(maintenance_of(table.lake.opened, at_once).run(name, ("expire", "orphans", "metadata")))
        lost.update(made - files_of(table))

    monkeypatch.setattr(maintenance, "began", lambda _: time.time() - 5 * day)
    with at_point(point, maintain):
        tx.commit()
    assert {Path(path).name.partition(".")[2] for path in made} >= {"metadata.json", "avro", "parquet"}
    assert [report.skipped for report in reports] == [{}]
    assert reports[0].counts["removed_orphans"] == 1
    assert not lost
    assert not orphan.exists()
    assert sorted(row["id"] for row in table.agreed().values()) == sorted([*BOTH, *[50] * 4])


# Who can reach one


def test_queries_do_not_know_shadows(table: Handle) -> None:
    tx, seen = _both(table), list[str]()
    catalog, lake = shadow_catalog(table.lake.catalog), table.lake.opened
    server = lake.engine.storage.staging.server

    def look() -> None:
        records = table.lake.pointers.shadows
        assert records is not None
        (name,) = [shadow.name for shadow in records.everyone() if shadow.server == server]
        with table.lake.spark() as spark:  # one that writes does
            assert spark.sql(f"SELECT id FROM `{catalog}`.`{server}`.`{name}`").count() >= len(START)
        for text in (
            f"SELECT * FROM `{catalog}`.`{server}`.`{name}`",
            f"SELECT * FROM `{server}`.`{name}`",
            f"SHOW NAMESPACES IN `{catalog}`",
        ):
            with pytest.raises(SparkportError) as refused:
                lake.queries.columns(NOBODY, SparkQuery(text=text, arguments=None, owner="", tables=frozenset()))
            seen.append(str(refused.value))

    with at_point("publish.before", look):
        tx.commit()
    assert len(seen) == 3
    assert not [name for name in table.lake.pointers.cut().tables if name.schema == server]
