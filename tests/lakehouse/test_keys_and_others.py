"""Keys with others about: a second server on the same catalog, Spark past the server, answers that were lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, main_of
from tests.lakehouse.transacting import Tx
from tests.support.lakehouse import Lake, maintenance_of
from tests.support.spark import shared_spark

from sparkport.catalog.ddl import TableDefinition
from sparkport.catalog.keys import Key, new_keys
from sparkport.catalog.statement import Change, StatementRequest
from sparkport.errors import DuplicateKey
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
JOURNAL = JournalSettings(new_tables=True, seconds=3_600.0, rows=100)


@pytest.fixture(params=["spark", "journal"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Lake, Lake]]:
    settings = LakehouseSettings(warehouse=str(tmp_path / "warehouse"), sessions=2)
    journal = JOURNAL if request.param == "journal" else None
    with ExitStack() as stack:
        yield tuple(  # type: ignore[misc]
            Lake(stack.enter_context(Lakehouse(settings, spark=shared_spark(), journal=journal))) for _ in range(2)
        )


def keyed(lake: Lake, name: str = "t") -> Handle:
    keys, columns = new_keys(COLUMNS, primary=[["id"]])
    main_of(lake).create_table(NOBODY, TableDefinition(name=name, columns=columns, keys=keys))
    return Handle(lake, name)


def rows(*ids: int, name: str = "n") -> pa.Table:
    return pa.table([pa.array(ids, pa.int64()), pa.array([name] * len(ids))], schema=COLUMNS)


def inserted(handle: Handle, new: pa.Table) -> str:
    try:
        handle.insert(new)
    except DuplicateKey:
        return "refused"
    return "done"


def ids(handle: Handle) -> list[int]:
    return sorted(handle.read().column("id").to_pylist())


@pytest.mark.tier("fast")
def test_of_all_who_bring_a_key_to_two_servers_one_wins(pair: tuple[Lake, Lake]) -> None:
    here = keyed(pair[0])
    there = Handle(pair[1], "t")
    with ThreadPoolExecutor(4) as pool:
        work = [
            (number, pool.submit(inserted, handle, rows(number, 1_000 * (place + 1) + number)))
            for number in range(6)
            for place, handle in enumerate((here, there))
        ]
        outcomes = Counter((number, future.result()) for number, future in work)
    assert outcomes == Counter({(n, what): 1 for n in range(6) for what in ("done", "refused")})
    assert Counter(ids(here)).most_common(1)[0][1] == 1
    assert len(ids(there)) == 12


def test_what_comes_between_the_look_and_the_commit_is_met(pair: tuple[Lake, Lake]) -> None:
    """By the other server, and for a journalled table into the journal while Spark inserts."""
    here = keyed(pair[0])
    there = Handle(pair[1], "t")
    here.insert(rows(1))
    pair[0].opened.journal.flush(60)
    came = threading.Event()

    def meanwhile() -> None:
        if not came.is_set():
            came.set()
            there.insert(rows(5, name="there"))

    on_fault("publish.before", meanwhile)
    try:
        big = pa.concat_tables([rows(*range(10, 5_010), name="x" * 200), rows(5, name="here")])
        assert inserted(here, big) == "refused"
    finally:
        on_fault("publish.before", None)
    assert came.is_set()
    assert ids(here) == [1, 5]


def test_a_repeated_statement_does_not_meet_itself(pair: tuple[Lake, Lake]) -> None:
    def run(handle: Handle) -> int:
        request = StatementRequest(change=Change.INSERT, columns=COLUMNS, statement="s1")
        statement = handle.table().open_statement(NOBODY, request)
        try:
            for batch in rows(1, 2).to_batches():
                statement.push(batch, None)
            return statement.finish()
        finally:
            statement.abort()

    here = keyed(pair[0])
    assert run(here) == 2
    assert run(here) == 2
    assert run(Handle(pair[1], "t")) == 2
    assert ids(here) == [1, 2]


def test_compaction_and_flushes_between_a_transaction_and_its_commit(pair: tuple[Lake, Lake]) -> None:
    here = keyed(pair[0])
    for number in range(4):
        here.insert(rows(number))
    tx, loser = Tx(pair[0]), Tx(pair[0])
    here.insert(rows(9), tx.ctx)
    here.insert(rows(2), loser.ctx)
    pair[1].opened.journal.flush(60)
    maintenance_of(pair[0].opened, MaintenanceSettings(small_files=1)).run(here.current.table, ["compact"])
    tx.commit()
    with pytest.raises(DuplicateKey, match="id = 2"):
        loser.commit()
    assert ids(here) == [0, 1, 2, 3, 9]


def test_duplicates_of_spark_break_nothing_and_its_identifier_fields_are_a_key(pair: tuple[Lake, Lake]) -> None:
    lake = pair[0]
    here = keyed(lake)
    here.sql("INSERT INTO {t} VALUES (1, 'a'), (1, 'b'), (2, 'c')")
    there = {row["name"]: row_id for row_id, row in here.sparkport().items()}
    here.update([there["a"]], pa.table({"name": ["changed"]}))
    tx = Tx(lake)
    here.update([there["b"]], pa.table({"name": ["too"]}), tx.ctx)
    here.insert(rows(3), tx.ctx)
    tx.commit()
    assert inserted(here, rows(1)) == "refused"
    here.delete([there["a"]])
    assert inserted(here, rows(1)) == "refused"
    here.delete([there["b"]])
    assert inserted(here, rows(1)) == "done"

    other = Handle(lake, "foreign")
    other.sql(
        "CREATE TABLE {t} (k BIGINT NOT NULL, v STRING) USING iceberg TBLPROPERTIES ('format-version'='3')",
        "ALTER TABLE {t} SET IDENTIFIER FIELDS k",
        "INSERT INTO {t} VALUES (7, 'x')",
    )
    assert other.table().keys == (Key(("k",), True),)
    with pytest.raises(DuplicateKey, match=r"\(k = 7\) violates PRIMARY KEY \(k\)"):
        other.insert(pa.table({"k": pa.array([7], pa.int64()), "v": ["y"]}, schema=other.table().schema.remove(2)))
