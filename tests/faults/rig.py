"""A real server in a process and on a warehouse of its own, that can be told where to die and looked at afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.faults.files import missing_files
from tests.support.attempts import AttemptingClient

import sparkport
from sparkport.catalog.statement import Change
from sparkport.lakehouse.faults import Fault

__all__ = ["Rig", "Rows", "as_rows", "ending", "pyiceberg_rows", "pyiceberg_table"]

Rows = dict[int, str | None]
"""The values of a table by their keys."""

_SECONDS = 150.0
_BUSY = ["--maintenance-seconds", "1", "--small-files", "2", "--retention-seconds", "2"]
_TRIES = 5
_SOURCE = Path(sparkport.__file__).parents[1]


class Rig:
    """``spark`` is the address of a Connect server that outlives the server; without it the server has its own.

    ``catalog_uri`` is of a PostgreSQL database; without it the catalog is the warehouse's SQLite file. The server is
    told ``server_uri`` instead where its way to the database is another. With ``maintenance`` tables are compacted and
    old versions removed all the time. ``arguments`` are more of the server's own. Servers that share a folder need a
    ``name`` each.
    """

    def __init__(
        self,
        folder: Path,
        *,
        spark: str | None = None,
        catalog_uri: str | None = None,
        server_uri: str | None = None,
        maintenance: bool = False,
        name: str = "server",
        arguments: Sequence[str] = (),
    ) -> None:
        self.warehouse = folder / "warehouse"
        self.catalog_uri = catalog_uri
        self.server_uri = server_uri or catalog_uri
        self.troubles: Mapping[str, Callable[[], AbstractContextManager[None]]] = {}
        """What else can befall this server for the length of a block, by name."""
        self.maintenance = maintenance
        self.dropped: list[str] = []
        """The last metadata of tables that were dropped or replaced, which nobody may remove."""
        self._location = ""
        self._plan = folder / f"{name}.fault"
        self._log = folder / f"{name}.log"
        self._spark = spark
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._client: AttemptingClient | None = None

    # Its life

    def start(self) -> Rig:
        """A server that answers, started anew if there is none."""
        if self._process is not None and self._process.poll() is None:
            return self
        self.close()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "sparkport.cli", "serve", "--port", "0", "--warehouse", str(self.warehouse)]
        command += ["--http-port", "0", "--driver-memory", "1g", "--spark", self._spark or "local[2]"]
        command += _BUSY if self.maintenance else ["--no-maintenance"]
        command += ["--catalog-uri", self.server_uri] if self.server_uri else []
        command += self._arguments
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SPARKPORT_FAULT")}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**kept, "PYTHONPATH": str(_SOURCE), "SPARKPORT_FAULT": f"@{self._plan}"},
            )
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if "listening on " not in line:
            raise RuntimeError(f"the server did not start: {self.log_tail()}")
        self._location = line.split("listening on ")[1].strip()
        self._client = AttemptingClient(self._location, timeout=_SECONDS)
        return self

    def close(self) -> None:
        self._plan.unlink(missing_ok=True)
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._process = self._client = None

    def __enter__(self) -> Rig:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def client(self) -> AttemptingClient:
        if self._client is None:
            raise RuntimeError("the server is not started")
        return self._client

    @property
    def location(self) -> str:
        """Where the server that was started last listens."""
        return self._location

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not started")
        return self._process.pid

    def terminate(self) -> int:
        """SIGTERM; the code it exits with."""
        if self._process is None:
            raise RuntimeError("the server is not started")
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_SECONDS)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ended(self) -> None:
        """Returns when the server is dead."""
        if self._process is not None:
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired as exc:
                raise AssertionError("the server lives on") from exc

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:]) if self._log.exists() else ""

    def sparks(self) -> list[int]:
        """The processes of this server's own Spark, which may just be started again."""
        give_up = time.monotonic() + _SECONDS
        while not (found := self._sparks()) and time.monotonic() < give_up:
            time.sleep(0.1)
        return found

    def _sparks(self) -> list[int]:
        """Its children, and not the ones of other servers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process_id and b"SparkConnectServer" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    # What it is asked for

    def arm(self, *faults: Fault) -> None:
        """The server will find this plan at the next point that it reaches."""
        aside = self._plan.with_suffix(".new")
        aside.write_text("\n".join(map(str, faults)))
        aside.replace(self._plan)

    def met(self) -> None:
        """Returns when the plan is being carried out."""
        waiting = threading.Event()
        for _ in range(int(_SECONDS / 0.02)):
            if not self._plan.exists():
                return
            waiting.wait(0.02)
        raise AssertionError("the fault was not met")

    @property
    def is_armed(self) -> bool:
        """Whether there is a plan that has not been carried out."""
        return self._plan.exists()

    def disarm(self) -> bool:
        """Whether the plan had not been carried out."""
        left = self._plan.exists()
        self._plan.unlink(missing_ok=True)
        return left

    def change(
        self,
        table: str,
        change: Change,
        rows: pa.Table,
        *,
        statement: str | None = None,
        transaction: str | None = None,
        client: AttemptingClient | None = None,
    ) -> int:
        """One attempt, without the client's own repeating; by another client if told."""
        asking = client or self.client
        return asking.attempt(table, change, rows, statement=statement or str(uuid.uuid4()), transaction=transaction)

    def rows(self, table: str) -> Rows:
        found = self.client.scan(table).read_all()
        return as_rows(found)

    def missing(self) -> list[str]:
        """Files that somebody's pointer leads to, and that are not there."""
        return missing_files(self.warehouse, catalog_uri=self.catalog_uri, dropped=self.dropped)

    def pyiceberg_table(self, table: str) -> Any:
        return pyiceberg_table(self.warehouse, table, catalog_uri=self.catalog_uri)

    def pyiceberg_rows(self, table: str) -> Rows:
        return pyiceberg_rows(self.warehouse, table, catalog_uri=self.catalog_uri)

    def row_ids(self, table: str) -> dict[int, int]:
        found = self.client.scan(table, row_id=True).read_all()
        return dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))


def as_rows(table: pa.Table) -> Rows:
    """Raises when a key is there twice."""
    keys = table["id"].to_pylist()
    if len(set(keys)) != len(keys):
        raise AssertionError(f"rows are there twice: {sorted(keys)}")
    return dict(zip(keys, table["v"].to_pylist(), strict=True))


@contextlib.contextmanager
def ending(processes: list[int], seconds: float = 30.0) -> Iterator[None]:
    """Passes when the processes, which live at the start of the block, end in it or soon after."""
    opened = [os.pidfd_open(process) for process in processes]
    try:
        yield
        for descriptor, process in zip(opened, processes, strict=True):
            ended = select.poll()  # which takes descriptors of any number
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(seconds * 1000):
                raise AssertionError(f"process {process} has outlived its server")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def pyiceberg_table(warehouse: Path, table: str, *, catalog_uri: str | None = None) -> Any:
    """The table as PyIceberg sees it."""
    from pyiceberg.catalog.sql import SqlCatalog

    uri = (catalog_uri or f"sqlite:///{warehouse}/catalog.db").replace("postgresql://", "postgresql+psycopg://")
    catalog = SqlCatalog("lake", uri=uri, warehouse=str(warehouse))
    try:
        return catalog.load_table(table)
    finally:
        catalog.engine.dispose()


def pyiceberg_rows(warehouse: Path, table: str, *, catalog_uri: str | None = None) -> Rows:
    """Tried again where maintenance has removed the files between looking and reading."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            return as_rows(pyiceberg_table(warehouse, table, catalog_uri=catalog_uri).scan().to_arrow())
    return as_rows(pyiceberg_table(warehouse, table, catalog_uri=catalog_uri).scan().to_arrow())
