"""Journalled tables beside strangers: plain Spark that changes rows, schemas and properties, and other servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names, people
from tests.lakehouse.type_samples import SAMPLES, same
from tests.support.lakehouse import Lake, impatient_database, lakehouse

from sparkport.catalog import ScanRequest, as_scan
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AddColumn
from sparkport.errors import FailedPrecondition
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.journal.net import FIRST_ID
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()
SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture(scope="module")
def other(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog."""
    with lakehouse(lake.warehouse, journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", FIVE)


@pytest.fixture
def no_room(lake: Lake) -> Iterator[None]:
    """All changes are too large for the journal."""
    lake.opened.engine.journal.settings = replace(SETTINGS, bytes=1)
    yield
    lake.opened.engine.journal.settings = SETTINGS


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(60).rows


# Other servers


def test_a_large_commit_meets_no_conflict_if_another_server_flushes_first(
    lake: Lake, other: Lake, table: Handle, no_room: None
) -> None:
    elsewhere = Handle(other, table.name)
    elsewhere.update([elsewhere.ids()[1]], names("waits"))
    with at_point("publish.before", lambda: flush(other)):
        table.update([table.ids()[0]], names("large"))
    assert by_key(table.agreed()) == {0: "large", 1: "waits", 2: "n2", 3: "n3", 4: "n4"}


def test_a_large_commit_changes_rows_by_ids_that_they_had_in_the_journal(
    lake: Lake, table: Handle, no_room: None
) -> None:
    staging = lake.opened.engine.storage.staging.folder
    before = {path.name for path in staging.iterdir()}
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    assert min(ids.values()) >= FIRST_ID
    table.update([ids[0], ids[1]], names("zero", "one"), tx.ctx)
    table.delete([ids[2]], tx.ctx)
    tx.commit()
    table.delete([ids[3]])
    table.update([ids[4]], names("four"))
    assert by_key(table.agreed()) == {0: "zero", 1: "one", 4: "four"}
    assert {path.name for path in staging.iterdir()} - before <= {"metadata.jsonl"}


def test_a_journal_of_a_newer_sparkport_is_not_read_as_if_it_were_ours(lake: Lake, other: Lake, table: Handle) -> None:
    path = lake.opened.settings.database_uri.removeprefix("sqlite:///")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE sparkport_journal_entries SET format = 2")
        database.execute("UPDATE sparkport_journal SET revision = revision + 1")
        database.execute("UPDATE sparkport_journal_tables SET revision = (SELECT revision FROM sparkport_journal)")
    try:
        with pytest.raises(FailedPrecondition, match="newer sparkport"):
            Handle(other, table.name).sparkport()
    finally:
        with sqlite3.connect(path) as database:
            database.execute("UPDATE sparkport_journal_entries SET format = 1")
    assert len(Handle(other, table.name).sparkport()) == 5


def test_a_table_whose_metadata_is_lost_keeps_no_other_from_being_flushed(lake: Lake, table: Handle) -> None:
    lost = create(lake, f"t{next(_numbers)}", FIVE)
    place = Path(lost.current.location.removeprefix("file:"))
    held = place.read_bytes()
    place.unlink()
    try:
        with lakehouse(lake.warehouse, journal=SETTINGS) as fresh:
            with pytest.raises(FailedPrecondition, match=f"'public.{lost.name}' could not be published"):
                fresh.journal.flush(60)
            waiting = {status.table.name for status in fresh.journal.status()}
    finally:
        place.write_bytes(held)
    assert len(table.agreed()) == 5
    assert waiting == {lost.name}
    flush(lake)
    assert len(lost.agreed()) == 5


def test_an_older_state_is_read_from_the_last_one_before_it(lake: Lake, other: Lake, table: Handle) -> None:
    """A transaction of the database that began earlier sees the journal as it was then."""
    pointers = lake.pointers
    assert isinstance(pointers, SqlPointers)
    elsewhere = Handle(other, table.name)
    database = impatient_database(lake.opened.settings.database_uri)
    with closing(database):
        for n in range(10, 13):
            elsewhere.insert(people((n, "theirs")))
            with database.transaction() as work:
                work.query("SELECT revision FROM sparkport_journal")
                elsewhere.insert(people((n + 100, "later")))
                table.sparkport()
                view = pointers.journal.view(work)
            entries = view.by_uuid[table.current.uuid].entries
            assert sum(entry.rows for entry in entries) == 5 + 2 * (n - 10) + 1
    assert len(table.sparkport()) == 11
    flush(lake)


# Plain Spark


def test_a_row_that_a_stranger_deletes_stays_deleted(lake: Lake, table: Handle) -> None:
    flush(lake)
    ids = table.ids()
    table.update([ids[0], ids[1]], names("zero", "one"))
    table.sql("DELETE FROM {t} WHERE id = 0")
    expected = {1: "one", 2: "n2", 3: "n3", 4: "n4"}
    assert by_key(table.sparkport()) == expected
    assert table.table().row_count(NOBODY) == 4
    assert table.update([ids[0]], names("again")).affected_rows == 0
    flush(lake)
    assert by_key(table.agreed()) == expected


def test_what_was_acknowledged_wins_over_what_a_stranger_writes(lake: Lake, table: Handle) -> None:
    flush(lake)
    ids = table.ids()
    table.update([ids[0]], names("ours"))
    table.delete([ids[1]])
    table.sql("UPDATE {t} SET name = 'theirs' WHERE id < 3")
    flush(lake)
    assert by_key(table.agreed()) == {0: "ours", 2: "theirs", 3: "n3", 4: "n4"}


def test_a_table_that_a_stranger_partitions_is_journalled_no_more(lake: Lake, table: Handle) -> None:
    new = table.ids()
    table.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    table.insert(people(*((n, "more") for n in range(10, 20))))
    assert len(table.agreed()) == 15
    assert table.update([table.ids()[12]], names("changed")).affected_rows == 1
    flush(lake)
    assert by_key(table.agreed())[12] == "changed"
    assert len(new) == 5


def test_a_stranger_that_changes_a_struct_changes_no_value(lake: Lake) -> None:
    fields = [("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]
    kind = pa.struct(fields)
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"a": 1, "b": "x", "c": 3}], kind)})
    table = create(lake, f"t{next(_numbers)}", rows)
    table.sql("ALTER TABLE {t} DROP COLUMN s.a", "ALTER TABLE {t} ADD COLUMN s.d bigint")
    table.sql("ALTER TABLE {t} RENAME COLUMN s.b TO e", "ALTER TABLE {t} ADD COLUMN more string FIRST")
    for _ in range(2):
        [row] = table.sparkport().values()
        assert row["s"] == {"e": "x", "c": 3, "d": None}
        assert row["more"] is None
        flush(lake)
    table.agreed(pyiceberg=False)


def test_a_stranger_that_widens_a_column_changes_no_value(lake: Lake) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "f": pa.array([0.1, 0.5], pa.float32())})
    table = create(lake, f"t{next(_numbers)}", rows)
    table.sql("ALTER TABLE {t} ALTER COLUMN id TYPE bigint", "ALTER TABLE {t} ALTER COLUMN f TYPE double")
    before = sorted((row["id"], row["f"]) for row in table.sparkport().values())
    flush(lake)
    assert before == sorted((row["id"], row["f"]) for row in table.agreed().values())


def test_a_stranger_that_replaces_a_table_keeps_what_is_inserted_here(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.insert(people((9, "nine")))
    table.update([table.ids()[0]], names("zero"))
    properties = "TBLPROPERTIES ('format-version'='3', 'write.merge.mode'='merge-on-read')"
    table.sql(f"CREATE OR REPLACE TABLE {{t}} USING iceberg {properties} AS SELECT 7L AS id, 'seven' AS name")
    table.sparkport()
    flush(lake)
    assert 7 in by_key(table.agreed(pyiceberg=False))


# The caller's own session


def test_a_transaction_sees_what_its_session_has_altered_though_the_journal_held_rows(
    lake: Lake, table: Handle
) -> None:
    session = CallContext(session_id="duckdb-8")
    tx = Tx(lake)
    ctx = CallContext(session_id="duckdb-8", transaction_id=tx.id)
    table.table(session).alter(session, AddColumn(pa.field("more", pa.string())))
    assert "more" in table.table(ctx).schema.names
    assert len(table.sparkport(ctx)) == 5
    rows = pa.table({"id": pa.array([9], pa.int64()), "name": ["nine"], "more": ["m"]})
    table.insert(rows, ctx)
    tx.commit()
    assert len(table.sparkport()) == 6


# Ids and tickets


def test_a_scan_that_was_planned_is_read_after_a_flush_whatever_others_have_planned(lake: Lake) -> None:
    table = create(lake, f"t{next(_numbers)}", people((0, "x" * 3_000_000)))
    for n in range(1, 10):
        table.insert(people((n, "x" * 3_000_000)))
    planned = table.table()
    tickets = planned.plan(NOBODY, ScanRequest())
    for n in range(10, 14):
        table.insert(people((n, "small")))
        table.table().plan(NOBODY, ScanRequest())
    flush(lake)
    fresh = table.table()
    read = [batch for ticket in tickets for batch in as_scan(fresh.scan(NOBODY, ticket))]
    assert sum(batch.num_rows for batch in read) == 10


def test_values_of_all_types_are_the_same_in_the_journal_and_in_the_table(lake: Lake) -> None:
    rows = max(len(sample.column) for sample in SAMPLES)
    columns = {}
    for number, sample in enumerate(SAMPLES):
        column = sample.column
        missing = rows - len(column)
        padded = pa.concat_arrays([column, pa.nulls(missing, column.type)]) if missing else column
        columns[f"c{number}"] = (sample.field.with_name(f"c{number}"), padded)
    schema = pa.schema([pa.field("id", pa.int64()), *(field for field, _ in columns.values())])
    sent = pa.table([pa.array(range(rows), pa.int64()), *(column for _, column in columns.values())], schema=schema)
    table = create(lake, f"t{next(_numbers)}", sent)
    for flushed in (False, True):
        if flushed:
            table.update(
                table.read().select(["id", "rowid"]).sort_by("id").column("rowid").to_pylist(),
                sent.select(schema.names[1:]),
            )
            flush(lake)
        found = table.read()
        order = np.argsort(found.column("id").to_numpy())
        for number, sample in enumerate(SAMPLES):
            got = pa.concat_arrays(found.column(f"c{number}").chunks)
            ordered = pa.concat_arrays([got.slice(place, 1) for place in order])
            assert same(ordered, columns[f"c{number}"][1]), (sample.label, flushed)
    main_of(lake).drop_table(NOBODY, table.name)
