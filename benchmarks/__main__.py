"""``python -m benchmarks [name …] [--quick] [--json FILE] [--chart FILE]``: measures, says which goals are met."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import (
    change_feed,
    journal,
    journal_soak,
    keys,
    lakehouse,
    loads,
    one_insert,
    reads,
    transactions,
    upkeep,
    upserts,
    writes,
)
from benchmarks.chart import Timing, chart
from benchmarks.harness import Result

BENCHMARKS: dict[str, Callable[..., Iterable[Result | Timing]]] = {
    "scan": reads.scan,
    "scan-parallel": reads.scan_parallel,
    "scan-memory": reads.scan_memory,
    "projection": reads.projection,
    "listing": reads.listing,
    "exchange-insert": writes.exchange_insert,
    "exchange-returning": writes.exchange_returning,
    "small-inserts": writes.small_inserts,
    "lake-scans": lakehouse.scans,
    "lake-loads": loads.loads,
    "lake-inserts": lakehouse.inserts,
    "lake-changes": lakehouse.changes,
    "lake-one-insert": one_insert.one_insert,
    "lake-keys": keys.keys,
    "lake-memory": lakehouse.memory,
    "lake-start": lakehouse.start,
    "lake-upkeep": upkeep.upkeep,
    "lake-change-feed": change_feed.change_feed,
    "lake-transactions": transactions.transactions,
    "lake-upserts": upserts.upserts,
    "journal-statements": journal.statements,
    "journal-clients": journal.clients,
    "journal-reads": journal.reads,
    "journal-soak": journal_soak.soak,
}

_CHART = Path(__file__).with_name("results") / "performance.svg"
_COLUMNS = "{:<60} {:>18} {:>18} {:>8} {:>8}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--chart", type=Path, metavar="FILE", default=_CHART, help=f"draw times there; {_CHART.name}")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark '{unknown[0]}'; there are {', '.join(BENCHMARKS)}")
    begin = time.perf_counter()
    results: list[Result] = []
    timings: list[Timing] = []
    print(_COLUMNS.format("", "ours", "baseline", "ratio", "goal", ""))
    try:
        for name in options.names or BENCHMARKS:
            for result in BENCHMARKS[name](quick=options.quick):
                if isinstance(result, Timing):
                    timings.append(result)
                else:
                    results.append(result)
                    print(_line(result), flush=True)
    finally:  # what was measured before a failure was measured
        print(f"{time.perf_counter() - begin:.0f} s")
        if options.json:
            found = [{**asdict(item), "met": item.met} for item in results] + [asdict(item) for item in timings]
            options.json.write_text(json.dumps(found, indent=2) + "\n")
        if timings:
            options.chart.parent.mkdir(exist_ok=True)
            options.chart.write_text(chart(timings, "Time of one statement: the median, on a logarithmic scale"))
            print(f"drawn: {options.chart}")
    return 0


def _line(result: Result) -> str:
    digits = 0 if result.value >= 10 else 2 if result.value >= 0.1 else 3
    sign = "≥" if result.at_least else "≤"
    return _COLUMNS.format(
        result.name,
        result.ours,
        result.baseline,
        f"{result.value:.{digits}f}",
        f"{sign} {result.goal:g}",
        "met" if result.met else "MISSED",
    )


if __name__ == "__main__":
    sys.exit(main())
