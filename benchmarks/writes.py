"""What a writer waits for: uploads in the small batches that DuckDB sends, with or without rows back, and one row."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from benchmarks.baselines import echo_server, sink_server
from benchmarks.data import SMALL, UPLOAD_ROWS, integers, one_row
from benchmarks.harness import Result, Start, compare, serving_in_child
from benchmarks.servers import write_server

__all__ = ["exchange_insert", "exchange_returning", "small_inserts"]

_PATH = flight.FlightDescriptor.for_path("lake", "public", "table", "items")
_PUT = flight.FlightDescriptor.for_command(
    json.dumps({"operation": "insert", "schema_name": "public", "table_name": "items"}).encode()
)
_NOTHING = flight.Action("nothing", b"")


def _options(*, returning: bool) -> Any:
    return flight.FlightCallOptions(
        headers=[(b"airport-operation", b"insert"), (b"return-chunks", b"1" if returning else b"0")]
    )


def _insert(client: Any, batches: list[pa.RecordBatch], *, returning: bool = False) -> None:
    """As the DuckDB client does it: wait for the server's schema, then batches, then the end."""
    writer, reader = client.do_exchange(_PATH, _options(returning=returning))
    with writer:
        writer.begin(SMALL)
        _ = reader.schema
        for batch in batches:
            writer.write_batch(batch)
            if returning and reader.read_chunk().data.num_rows != batch.num_rows:
                raise RuntimeError("another number of rows came back")
        writer.done_writing()
        for _ in reader:
            pass


def _rows_per_second(client: Any, rows: int, *, returning: bool = False) -> float:
    """One batch is sent again and again, so that the client has nothing to do but sending."""
    batch = integers(UPLOAD_ROWS)
    count, rest = divmod(rows, UPLOAD_ROWS)
    batches = [batch] * count + ([batch.slice(0, rest)] if rest else [])
    begin = time.perf_counter()
    _insert(client, batches, returning=returning)
    return rows / (time.perf_counter() - begin)


def _exchange(name: str, start_baseline: Start, *, rows: int, rounds: int, returning: bool) -> Iterable[Result]:
    with (
        serving_in_child(write_server) as ours,
        serving_in_child(start_baseline) as baseline,
        flight.connect(ours.location) as mine,
        flight.connect(baseline.location) as theirs,
    ):

        def inserted() -> float:
            rate = _rows_per_second(mine, rows, returning=returning)
            list(mine.do_action(flight.Action("empty", b"")))
            return rate

        measured = compare(inserted, lambda: _rows_per_second(theirs, rows, returning=returning), rounds=rounds)
    yield Result(
        name=name,
        ours=f"{measured.ours / 1e6:.1f}M rows/s",
        baseline=f"{measured.baseline / 1e6:.1f}M rows/s",
        value=measured.ratio,
        goal=0.4,
    )


def exchange_insert(*, quick: bool) -> Iterable[Result]:
    """10M rows by DoExchange into a memory table, against a server that drops them."""
    return _exchange(
        "exchange-insert (10M rows)", sink_server, rows=10_000_000, rounds=5 if quick else 11, returning=False
    )


def exchange_returning(*, quick: bool) -> Iterable[Result]:
    """The same with RETURNING, one batch back for each batch sent, against a server that echoes them."""
    return _exchange(
        "exchange-returning (lock-step)", echo_server, rows=1_000_000, rounds=5 if quick else 11, returning=True
    )


def small_inserts(*, quick: bool) -> Iterable[Result]:
    """One row at a time, each committed before its answer, against an action that does nothing, on the same server."""
    row = one_row()
    calls = 200 if quick else 500

    with serving_in_child(write_server) as child, flight.connect(child.location) as client:

        def put() -> None:
            writer, reader = client.do_put(_PUT, SMALL)
            with writer:
                writer.write_batch(row)
                writer.done_writing()
                if reader.read() is None:
                    raise RuntimeError("no result")

        def exchange() -> None:
            _insert(client, [row])

        def nothing() -> None:
            list(client.do_action(_NOTHING))

        def rate(call: Callable[[], None]) -> float:
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            return calls / (time.perf_counter() - begin)

        for name, insert in (("DoPut", put), ("DoExchange", exchange)):
            measured = compare(
                lambda: rate(insert),  # noqa: B023
                lambda: rate(nothing),
                rounds=5 if quick else 11,
            )
            yield Result(
                name=f"small-inserts ({name})",
                ours=f"{measured.ours:,.0f} calls/s",
                baseline=f"{measured.baseline:,.0f} calls/s",
                value=measured.ratio,
                goal=0.6,
            )
