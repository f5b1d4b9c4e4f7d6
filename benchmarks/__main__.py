"""``python -m benchmarks [name …] [--quick] [--json FILE]``: measures, prints a table, says which goals are met."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import lakehouse, one_insert, reads, transactions, upkeep, writes
from benchmarks.harness import Result

BENCHMARKS: dict[str, Callable[..., Iterable[Result]]] = {
    "scan": reads.scan,
    "scan-parallel": reads.scan_parallel,
    "scan-memory": reads.scan_memory,
    "projection": reads.projection,
    "listing": reads.listing,
    "exchange-insert": writes.exchange_insert,
    "exchange-returning": writes.exchange_returning,
    "small-inserts": writes.small_inserts,
    "lake-scans": lakehouse.scans,
    "lake-inserts": lakehouse.inserts,
    "lake-changes": lakehouse.changes,
    "lake-one-insert": one_insert.one_insert,
    "lake-memory": lakehouse.memory,
    "lake-start": lakehouse.start,
    "lake-upkeep": upkeep.upkeep,
    "lake-transactions": transactions.transactions,
}

_COLUMNS = "{:<34} {:>15} {:>15} {:>8} {:>8}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark '{unknown[0]}'; there are {', '.join(BENCHMARKS)}")
    begin = time.perf_counter()
    results: list[Result] = []
    print(_COLUMNS.format("", "ours", "baseline", "ratio", "goal", ""))
    for name in options.names or BENCHMARKS:
        for result in BENCHMARKS[name](quick=options.quick):
            results.append(result)
            print(_line(result), flush=True)
    print(f"{time.perf_counter() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([{**asdict(item), "met": item.met} for item in results], indent=2) + "\n")
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
