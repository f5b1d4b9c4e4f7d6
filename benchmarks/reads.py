"""What a reader waits for: scans, their memory, projections, and the listing of a catalog."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import grpc
import msgpack
from pyarrow import flight

from benchmarks.baselines import batches_server
from benchmarks.data import GENERATED_BYTES, SCANS, WIDE
from benchmarks.harness import MEGABYTE, Child, Result, compare, peak_memory, serving_in_child, timed
from benchmarks.servers import listing_server, scan_server
from sparkport.protocol.flight import SERVICE_NAME
from sparkport.protocol.flight import Ticket as FlightTicket
from sparkport.protocol.targets import Kind, Target, Ticket

__all__ = ["listing", "projection", "scan", "scan_memory", "scan_parallel"]

READERS = 8


def _ticket(table: str, columns: tuple[str, ...] | None = None) -> bytes:
    return Ticket(target=Target("lake", "public", Kind.TABLE, table), columns=columns).encode()


def _read(client: Any, ticket: bytes) -> int:
    """Bytes read; batches are let go as they come."""
    total = 0
    for chunk in client.do_get(flight.Ticket(ticket)):
        total += chunk.data.nbytes
    return total


def _rate(client: Any, ticket: bytes, *, passes: int = 1) -> float:
    begin = time.perf_counter()
    total = sum(_read(client, ticket) for _ in range(passes))
    return total / (time.perf_counter() - begin)


@contextmanager
def _both() -> Iterator[tuple[Child, Child]]:
    with serving_in_child(scan_server) as ours, serving_in_child(batches_server) as baseline:
        yield ours, baseline


def scan(*, quick: bool) -> Iterable[Result]:
    """One reader of batches in memory: 64k rows of three int64 columns, and of numbers and text."""
    with _both() as (ours, baseline):
        for name in SCANS:
            with flight.connect(ours.location) as mine, flight.connect(baseline.location) as theirs:
                passes = 1 if quick else 3
                measured = compare(
                    lambda: _rate(mine, _ticket(name), passes=passes),  # noqa: B023
                    lambda: _rate(theirs, name.encode(), passes=passes),  # noqa: B023
                    rounds=7 if quick else 15,
                )
            yield Result(
                name=f"scan ({name})",
                ours=_gigabytes(measured.ours),
                baseline=_gigabytes(measured.baseline),
                value=measured.ratio,
                goal=0.9,
            )


def scan_parallel(*, quick: bool) -> Iterable[Result]:
    """Readers with a connection each, all at once."""
    with _both() as (ours, baseline), ThreadPoolExecutor(READERS) as pool:
        mine = [flight.connect(ours.location) for _ in range(READERS)]
        theirs = [flight.connect(baseline.location) for _ in range(READERS)]

        def rate(clients: list[Any], ticket: bytes) -> float:
            begin = time.perf_counter()
            total = sum(pool.map(lambda client: _read(client, ticket), clients))
            return total / (time.perf_counter() - begin)

        measured = compare(
            lambda: rate(mine, _ticket("integers")), lambda: rate(theirs, b"integers"), rounds=4 if quick else 7
        )
        for client in (*mine, *theirs):
            client.close()
    yield Result(
        name=f"scan-parallel ({READERS} readers)",
        ours=_gigabytes(measured.ours),
        baseline=_gigabytes(measured.baseline),
        value=measured.ratio,
        goal=0.6,
    )


def scan_memory(*, quick: bool) -> Iterable[Result]:
    """By how much the server grows while 4 GB go through it, and while a reader takes one batch a second."""
    with serving_in_child(scan_server) as child, flight.connect(child.location) as client:
        with peak_memory(child) as grown:
            seconds = timed(lambda: _read(client, _ticket("generated")))
        yield _memory("scan-memory (fast reader)", grown(), f"{GENERATED_BYTES / seconds / 1e9:.2f} GB/s")
    with serving_in_child(scan_server) as child, flight.connect(child.location) as client:
        with peak_memory(child) as grown:
            stream = client.do_get(flight.Ticket(_ticket("generated")))
            for _ in range(4 if quick else 10):
                stream.read_chunk()
                time.sleep(1.0)
            stream.cancel()
        yield _memory("scan-memory (one batch a second)", grown(), "")


def _memory(name: str, grown: int, rate: str) -> Result:
    return Result(
        name=name,
        ours=f"{grown / MEGABYTE:.0f} MB",
        baseline=rate,
        value=grown / MEGABYTE,
        goal=300,
        at_least=False,
    )


def projection(*, quick: bool) -> Iterable[Result]:
    """Bytes of all messages for one column of a hundred, against a table that has only that one."""
    unlimited = [("grpc.max_receive_message_length", -1)]  # as the clients of Arrow have it
    with (
        serving_in_child(scan_server) as child,
        grpc.insecure_channel(child.location.removeprefix("grpc://"), unlimited) as channel,
    ):
        do_get: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE_NAME}/DoGet")

        def received(ticket: bytes) -> int:
            return sum(map(len, do_get(FlightTicket(ticket).encode())))

        one_of_many, one = received(_ticket("wide", ("c7",))), received(_ticket("narrow"))
    yield Result(
        name=f"projection (1 of {WIDE} columns)",
        ours=f"{one_of_many / MEGABYTE:.2f} MB",
        baseline=f"{one / MEGABYTE:.2f} MB",
        value=one_of_many / one,
        goal=3.0,
        at_least=False,
    )


def listing(*, quick: bool) -> Iterable[Result]:
    """list_schemas of a catalog of 1,000 tables with 20 columns each: again, against the first time."""
    action = flight.Action("list_schemas", msgpack.packb({"catalog_name": "lake"}))
    with serving_in_child(listing_server) as child, flight.connect(child.location) as client:
        first: list[float] = []
        repeat: list[float] = []
        for _ in range(3 if quick else 7):
            list(client.do_action(flight.Action("touch", b"")))
            first.append(timed(lambda: list(client.do_action(action))))
            repeat.extend(timed(lambda: list(client.do_action(action))) for _ in range(10))
    yield Result(
        name="listing (1,000 tables, again)",
        ours=f"{median(repeat) * 1000:.2f} ms",
        baseline=f"{median(first) * 1000:.1f} ms",
        value=median(repeat) / median(first),
        goal=1 / 50,
        at_least=False,
    )


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s"
