"""Who else does the same work: DuckLake and plain DuckDB, Spark alone, PyIceberg, and SQLite as the least there can be.

Each has a table ``items`` with many rows, to change and look up in, and an empty one, ``orders``, to insert into.
DuckDB and DuckLake run in a virtual environment of their own, as DuckLake needs another DuckDB than we do; it is made
once and kept in the user's cache.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import count
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa

from benchmarks.harness import timed
from benchmarks.lakehouse import Lab

__all__ = ["Contestant", "Peer", "PyIceberg", "Spark", "SqliteCommits", "Work", "items", "key", "new_order", "peer"]

_DUCKLAKE = ("duckdb==1.5.5", "duckdb-extension-ducklake==1.5.5")


class Work(Enum):
    INSERT = "insert 1 row"
    UPDATE = "update 1 row"
    DELETE = "delete 1 row"
    TRANSACTION = "two-table transaction"
    LOOKUP = "lookup by key"


_INSERT = "INSERT INTO {orders} VALUES ({n}, 0.5, 'new')"
_UPDATE = "UPDATE {items} SET v = {n} WHERE id = {key}"
_SQL = {
    Work.INSERT: [_INSERT],
    Work.UPDATE: [_UPDATE],
    Work.DELETE: ["DELETE FROM {items} WHERE id = {key}"],
    Work.TRANSACTION: ["BEGIN", _INSERT, _UPDATE, "COMMIT"],
    Work.LOOKUP: ["SELECT * FROM {items} WHERE id = {key}"],
}


class Contestant(Protocol):
    def slice(self, work: Work, seconds: float, least: int) -> list[float]:
        """Seconds of each statement or transaction, one after the other for so long, and at least so many."""


def key(number: int, rows: int) -> int:
    """Another row for each number: 7919 is prime."""
    return number * 7919 % rows


def items(rows: int) -> pa.Table:
    ids = pa.array(np.arange(rows))
    names = pa.array([f"n{number}" for number in range(1000)]).take(pa.array(np.arange(rows) % 1000))
    return pa.table({"id": ids, "v": ids.cast(pa.float64()), "name": names})


def new_order(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "v": [0.5], "name": ["new"]})


class InProcess:
    """What is called here, one after the other."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.numbers = count(1)

    def once(self, work: Work, number: int) -> object:
        raise NotImplementedError

    def slice(self, work: Work, seconds: float, least: int) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < end:
            number = next(self.numbers)
            times.append(timed(lambda: self.once(work, number)))  # noqa: B023 - called at once
        return times


class Spark(InProcess):
    """Spark SQL by itself; it has no transactions, so there the two statements are one after the other."""

    def __init__(self, lab: Lab, rows: int) -> None:
        super().__init__(rows)
        self._lab = lab

    def once(self, work: Work, number: int) -> object:
        names = {"orders": "LAKE.public.spark_orders", "items": "LAKE.public.spark_items"}
        for text in _SQL[work]:
            if text not in ("BEGIN", "COMMIT"):
                self._lab.sql(text.format(**names, n=number, key=key(number, self.rows)))
        return None


class PyIceberg(InProcess):
    """Its changes rewrite the files they touch; a transaction of it is one table's."""

    def __init__(self, folder: Path, rows: int) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        super().__init__(rows)
        folder.mkdir()
        catalog = SqlCatalog("peer", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        catalog.create_namespace("public")
        found = items(rows)
        self._items = catalog.create_table("public.items", found.schema)
        self._items.append(found)
        self._orders = catalog.create_table("public.orders", found.schema)

    def once(self, work: Work, number: int) -> object:
        from pyiceberg.expressions import EqualTo

        wanted = EqualTo("id", key(number, self.rows))
        if work is Work.INSERT:
            return self._orders.append(new_order(number))
        if work is Work.UPDATE:
            changed = pa.table({"id": [key(number, self.rows)], "v": [float(number)], "name": ["n"]})
            return self._items.overwrite(changed, overwrite_filter=wanted)
        if work is Work.DELETE:
            return self._items.delete(wanted)
        if work is Work.LOOKUP:
            assert self._items.scan(row_filter=wanted).to_arrow().num_rows == 1
            return None
        raise NotImplementedError(work)


class SqliteCommits:
    """The least that a durable commit can be: one INSERT of so many bytes."""

    def __init__(self, file: Path, size: int) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, body BLOB)")
        self._body = os.urandom(size)

    def commit(self) -> None:
        self._connection.execute("INSERT INTO entries (body) VALUES (?)", (self._body,))


class Peer:
    """DuckDB or DuckLake, see ``peer.py``."""

    def __init__(self, process: subprocess.Popen[str], rows: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        self._rows = rows
        self.sql("CREATE TABLE orders (id BIGINT, v DOUBLE, name VARCHAR)")
        self.sql(
            "CREATE TABLE items AS SELECT range AS id, range::DOUBLE AS v, concat('n', range % 1000) AS name "
            f"FROM range({rows})"
        )

    def sql(self, text: str) -> Any:
        return self._ask({"sql": text})["rows"]

    def slice(self, work: Work, seconds: float, least: int) -> list[float]:
        times: list[float] = self._ask({"work": "alone", "least": least, **self._request(work, seconds)})["times"]
        return times

    def together(self, work: Work, seconds: float, threads: int) -> tuple[float, int]:
        """How many a second, and how many failed."""
        found = self._ask({"work": "together", "threads": threads, **self._request(work, seconds)})
        return found["done"] / found["seconds"], len(found["failed"])

    def _request(self, work: Work, seconds: float) -> dict[str, Any]:
        texts = [text.replace("{orders}", "orders").replace("{items}", "items") for text in _SQL[work]]
        return {"statements": texts, "seconds": seconds, "rows": self._rows}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._input.write(json.dumps(request) + "\n")
        self._input.flush()
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"the peer ended over {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def peer(folder: Path, rows: int, *, ducklake: bool) -> Iterator[Peer]:
    """With its tables filled, for the length of a block."""
    folder.mkdir()
    command = [str(_environment()), str(Path(__file__).with_name("peer.py")), str(folder / "catalog.db")]
    if ducklake:
        command.append(str(folder / "data"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Peer(process, rows)
        finally:
            process.kill()


def _environment() -> Path:
    """The Python that has DuckLake and its DuckDB."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "sparkport" / "-".join(_DUCKLAKE).replace("==", "-")
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *_DUCKLAKE], check=True)
        complete.touch()
    return python
