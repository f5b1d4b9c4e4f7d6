"""``make soak HOURS=1``: clients of every kind at two servers for hours, beside all that can befall them.

Rounds of ``tests/consistency/two_servers.py`` follow each other, each before its checker: one server is killed again
and again, the other only loses answers, so that its memory tells something. Beside them workers change tables of their
own and know what must be in them. Ctrl-C ends it in order.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from tests.consistency.two_servers import WORKLOADS, Town, run_round, town
from tests.consistency.workloads import Load
from tests.faults.parts import Place
from tests.soak.keeping import Keeper, SparkWorker
from tests.soak.latencies import Latencies
from tests.soak.report import memory_problem, picture, table
from tests.soak.sampler import Sampler
from tests.soak.workers import COLUMNS, DdlWorker, DuckDBWorker, JsonWorker, PythonWorker, Worker
from tests.support.plain_spark import PlainSpark

from sparkport.catalog.transaction import Isolation
from sparkport.client import connect

logger = logging.getLogger(__name__)

_CLIENTS = 4
_TRANSACTIONS = 4
_LAST_SECONDS = 600.0
"""How long after its end a thread may still be busy: with a round, or with a call that nobody answers."""


class Rounds:
    """Rounds before the checker, one after another, and what came of them."""

    def __init__(self, place: Town, *, seed: int, folder: Path) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._place = place
        self._mortal = place.mortal
        self._seed = seed
        self._folder = folder

    def run(self, over: threading.Event) -> None:
        kinds = itertools.cycle(itertools.product(WORKLOADS, Isolation, (True, False)))
        for number, (workload, isolation, kills) in enumerate(kinds, 1):
            if over.is_set():
                return
            what = f"round {number} ({workload}, {isolation.value}, {'kills' if kills else 'no kills'})"
            self._place.mortal = self._mortal if kills else []
            try:
                self._round(number, what, workload, isolation)
            except Exception as exc:
                logger.exception("%s failed", what)
                self.problems.append(f"{what}: {type(exc).__name__}: {str(exc)[:500]}")

    def _round(self, number: int, what: str, workload: str, isolation: Isolation) -> None:
        load = Load(
            isolation=isolation,
            clients=_CLIENTS,
            transactions=_TRANSACTIONS,
            writers=0.8,
            seed=self._seed * 1_000 + number,
            auto_commit="single" in workload,
        )
        begun = time.monotonic()
        try:
            found = run_round(self._place, workload, load)
        finally:
            self._clear()
        print(f"{what}, {time.monotonic() - begun:.0f} s: {found}", flush=True)
        self.counts.update(found.befell)
        self.counts.update({"rounds": 1, "transactions": found.transactions})
        bad = [*map(str, found.anomalies), *(f"missing: {path}" for path in found.missing)]
        if bad:
            self.problems += [f"{what}: {problem}" for problem in bad]
            entries = sorted(found.history, key=lambda entry: entry.begin_called)
            (self._folder / f"round-{number}.history").write_text("\n".join(map(repr, entries)))

    def _clear(self) -> None:
        """Tables of earlier rounds would make listings longer and longer."""
        with connect(self._place.rigs[0].location, timeout=120.0) as client:
            for found in client.tables("public"):
                if found.name.startswith(("lists_", "sets_")):
                    client.drop_table((found.schema_name, found.name), if_exists=True)
        self._place.dropped.clear()


def main() -> int:
    options = _options()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=folder / "soak.log", level=logging.WARNING, format="%(asctime)s %(message)s")
    # The servers inherit this: Ctrl-C is for this process alone, which ends them in its own order.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with ExitStack() as stack:
        place = Place(folder / datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), stack, maintenance=False, seed=options.seed)
        spark = place.spark("postgresql")
        uri = stack.enter_context(place.postgres.database())
        found = stack.enter_context(town(place.folder / "town", uri, spark=spark, mortal=("two",)))
        latencies = Latencies()
        workers = _workers(found, latencies, options.seed)
        for worker in workers:
            stack.callback(worker.close)
        _create_tables(found, workers)
        ledgers = [ledger for worker in workers for ledger in worker.ledgers.values()]
        keeper = Keeper(found, ledgers, latencies, spark=stack.enter_context(closing(PlainSpark(found.third))))
        rounds = Rounds(found, seed=options.seed, folder=folder)
        sampler = Sampler(found, spark, latencies, file=folder / "samples.csv", seconds=options.sample_seconds)
        begun = datetime.now(UTC)
        print(f"seed {options.seed}: {options.hours * 60:.0f} minutes from now; {folder}", flush=True)
        busy = _run_until_the_end(
            [*(worker.run for worker in workers), rounds.run, keeper.run], sampler.run, options.hours * 3600
        )
        for rig in found.rigs:
            rig.start()
        problems = [f"{name} has not come to an end" for name in busy]
        try:
            keeper.compare_all()
        except Exception as exc:
            logger.exception("the last comparison failed")
            problems.append(f"the last comparison: {type(exc).__name__}: {exc}")
        problems += rounds.problems + keeper.problems
        problems += [problem for worker in workers for problem in worker.problems]
        problems += filter(None, [memory_problem(sampler.samples)])
        if sampler.samples:
            (folder / "soak.svg").write_text(picture(sampler.samples, begun))
        doubt = sum(ledger.doubtful for ledger in ledgers)
        counts = latencies.counts + rounds.counts + Counter({"comparisons of all rows": keeper.comparisons})
        counts += Counter({"rows there": sum(len(ledger.there) for ledger in ledgers), "rows in doubt": doubt})
        counts += Counter({"rows gone": sum(ledger.gone for ledger in ledgers)})
        _print_summary(counts, problems, table(sampler.samples), folder)
    return 1 if problems else 0


def _workers(place: Town, latencies: Latencies, seed: int) -> list[Worker]:
    kinds: list[type[Worker]] = [PythonWorker, JsonWorker, DuckDBWorker, DdlWorker]
    workers = [kind(place.locations, latencies, seed=seed) for kind in kinds]
    spark = PlainSpark(place.third)
    return [*workers, SparkWorker(place.locations, latencies, seed=seed, spark=spark)]


def _create_tables(place: Town, workers: Sequence[Worker]) -> None:
    with connect(place.rigs[0].location, timeout=120.0) as client:
        for worker in workers:
            for name in worker.tables:
                client.create_table(f"public.{name}", COLUMNS)
            for name in worker.journalled:
                client.set_journal(f"public.{name}", True)


def _run_until_the_end(
    parts: Sequence[Callable[[threading.Event], None]], sampler: Callable[[threading.Event], None], seconds: float
) -> list[str]:
    """The names of parts that would not end; the sampler ends after all of them."""
    over, sampled = threading.Event(), threading.Event()
    watching = threading.Thread(target=sampler, args=(sampled,), daemon=True)
    running = [
        threading.Thread(target=part, args=(over,), name=getattr(part, "__qualname__", "part"), daemon=True)
        for part in parts
    ]
    for thread in (watching, *running):
        thread.start()
    if signal.sigtimedwait({signal.SIGINT}, seconds) is not None:
        print("\nending", flush=True)
    sampled.set()
    over.set()
    last = time.monotonic() + _LAST_SECONDS
    for thread in (watching, *running):
        thread.join(max(0.0, last - time.monotonic()))
    return [thread.name for thread in running if thread.is_alive()]


def _print_summary(counts: Counter[str], problems: Sequence[str], lines: Sequence[str], folder: Path) -> None:
    named = {"server": "kills", "lost": "answers lost on purpose"}
    print()
    for what, number in sorted((named.get(what, what), number) for what, number in counts.items()):
        print(f"{what:45}{number:>10,}")
    print()
    print("\n".join(lines))
    print(f"\n{folder / 'soak.svg'}, {folder / 'samples.csv'}")
    for problem in problems[:50]:
        print(f"PROBLEM {problem}")
    print(f"{len(problems)} problems" if problems else "nothing was lost, doubled or anomalous")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=1.0)
    length.add_argument("--minutes", type=lambda text: float(text) / 60, dest="hours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build", "soak"), help="for warehouse, samples and chart")
    parser.add_argument("--sample-seconds", type=float, default=5.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
