"""Whatever rows come to that take little in their files, scans of them leave the server under a gigabyte."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from tests.attacks.rig import Victim, needs_proc
from tests.attacks.test_taking_memory import GIGABYTE, others_are_answered
from tests.robustness.rig import Raw
from tests.support.lakehouse import lakehouse

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.statement import ChangeableTable
from sparkport.protocol.flight import Ticket
from sparkport.protocol.targets import Kind, Target
from sparkport.protocol.targets import Ticket as ScanTicket

pytestmark = [pytest.mark.tier("thorough"), needs_proc]

ROWS = 20_000
TEXT = "x" * 10_000
COLUMNS = {"texts": (pa.string(), TEXT), "lists": (pa.list_(pa.string()), [TEXT])}
"""200 MB of rows in each, files of some 80 kB."""
PATIENCE = 10.0
FORTY = 40
PROBES = 9
STEP = 2_000


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warehouse")
    ctx = CallContext()
    with lakehouse(folder) as opened:
        schema = opened.catalog.schema(ctx, "public") or opened.catalog.create_schema(ctx, "public")
        assert isinstance(schema, MutableSchema)
        for name, (kind, value) in COLUMNS.items():
            columns = pa.schema([("id", pa.int64()), ("v", kind)])
            table = schema.create_table(ctx, TableDefinition(name=name, columns=columns))
            assert isinstance(table, ChangeableTable)
            values = pa.array([value] * STEP, kind)
            starts = range(0, ROWS, STEP)
            batches = (pa.record_batch([pa.array(range(n, n + STEP)), values], schema=columns) for n in starts)
            table.insert(ctx, pa.RecordBatchReader.from_batches(columns, batches))
    data = [path for path in folder.rglob("*.parquet") if path.stat().st_size > 1_000]
    assert sum(path.stat().st_size for path in data) < 1_000_000
    return folder


@pytest.fixture
def victim(warehouse: Path) -> Iterator[Victim]:
    with Victim(warehouse=warehouse) as running:
        yield running


def ticket(table: str) -> bytes:
    return Ticket(ScanTicket(target=Target("lake", "public", Kind.TABLE, table)).encode()).encode()


def answers_of_others(victim: Victim) -> list[float]:
    """How long another caller waits, in a process of its own: this one is busy reading."""
    command = [sys.executable, "-m", "tests.attacks.waiting", str(victim.port), str(PROBES)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return [float(line) for line in found.stdout.split()]


@pytest.mark.parametrize("table", COLUMNS)
def test_a_scan_takes_a_part_of_what_its_rows_take(victim: Victim, table: str) -> None:
    with Raw(victim.port, token="bob") as bob:
        before = victim.memory()
        size = sum(map(len, bob.start("DoGet", [ticket(table)], timeout=None)))

    assert size > ROWS * len(TEXT)
    assert victim.peak - before < size


@pytest.mark.parametrize("table", COLUMNS)
def test_forty_scans_at_once_stay_under_a_gigabyte(victim: Victim, table: str) -> None:
    """They read as they like, and are cut off after some seconds: what matters is what they make the server take."""
    codes: list[grpc.StatusCode] = []

    def read(raw: Raw) -> None:
        call = raw.start("DoGet", [ticket(table)], timeout=PATIENCE)
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        codes.append(call.code())

    with ExitStack() as stack:
        readers = [stack.enter_context(Raw(victim.port, token="alice")) for _ in range(FORTY)]
        threads = [threading.Thread(target=read, args=(raw,)) for raw in readers]
        for thread in threads:
            thread.start()
        waited = answers_of_others(victim)
        for thread in threads:
            thread.join()

    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert sorted(waited)[len(waited) // 2] < 1, waited
    others_are_answered(victim)
    assert victim.peak < GIGABYTE


@pytest.mark.parametrize("table", COLUMNS)
def test_forty_readers_that_stop_reading_leave_the_server_under_a_gigabyte(victim: Victim, table: str) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(Raw(victim.port, token="alice")) for _ in range(FORTY)]
        calls = [reader.start("DoGet", [ticket(table)], timeout=None) for reader in readers]
        for call in calls:
            next(call)  # the schema
            next(call)
        others_are_answered(victim)
        assert victim.peak < GIGABYTE
        for call in calls:
            call.cancel()
