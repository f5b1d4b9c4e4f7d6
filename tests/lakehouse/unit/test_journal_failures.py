"""Why what waits in the journal is not published: what clients are told of it, and what not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from tests.attacks.callers import create

from sparkport.errors import ResourceExhausted
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.tables.journal_flusher import Flushed
from sparkport.lakehouse.upkeep.journal_control import JournalControl

pytestmark = pytest.mark.tier("fast")

WAIT = 30
ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def lakehouse(tmp_path: Path) -> Iterator[Lakehouse]:
    """Without a Spark, and with a row in its journal."""
    journal = JournalSettings(new_tables=True, seconds=0.05)
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path)), journal=journal)
    try:
        create(opened.catalog, ROWS)
        yield opened
    finally:
        opened.stop()


class Failing:
    """Stands for a flush. It has been told that it failed when it is called again."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.calls = 0
        self.twice = threading.Event()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        self.calls += 1
        if self.calls > 1:
            self.twice.set()
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ResourceExhausted("no room left in '/srv/lake/my data/x.parquet'"), "no room left in '…'"),
        (RuntimeError("secret of postgresql://user:word@host/db"), "internal error; the log has more"),
    ],
)
def test_a_failure_is_told_without_what_clients_need_not_know(
    lakehouse: Lakehouse,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    told: str,
) -> None:
    flush = Failing(failure)
    monkeypatch.setattr(lakehouse.engine, "flush", flush)
    journal = JournalControl(lakehouse.engine, ready=lambda: True)
    journal.start()
    assert flush.twice.wait(WAIT)
    assert journal.failure == told
    assert str(failure) in caplog.text
    assert journal.status()[0].rows == 1
    journal.stop()
    assert "the journal is left for the next server" in caplog.text


def test_a_spark_that_is_not_there_is_the_reason_until_it_is(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)
    there, during = threading.Event(), threading.Event()
    failures: list[str | None] = []

    def ready() -> bool:
        asked.release()
        return there.is_set()

    def flush(*_: object, **__: object) -> Flushed:
        failures.append(journal.failure)
        during.set()
        return Flushed()

    journal = JournalControl(lakehouse.engine, ready=ready)
    monkeypatch.setattr(lakehouse.engine, "flush", flush)
    journal.start()
    for _ in range(2):
        assert asked.acquire(timeout=WAIT)
    assert journal.failure == "Spark is not ready"
    there.set()
    assert during.wait(WAIT)
    assert failures[0] is None
