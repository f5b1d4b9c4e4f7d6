"""``make test-faults``: deaths, lost answers and a failing database, as SEED decides; started again, it goes on.

The parts: deaths in single statements and DDL, two hundred in transactions, answers lost at every step on SQLite and on
PostgreSQL, PostgreSQL itself failing, lives of journals, others that change columns while rows wait in the journal,
tables that cannot be published among healthy ones, and histories of clients at two servers beside all of that. What
came out is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.faults.cases import cases
from tests.faults.histories import OneServer, TwoServers
from tests.faults.journal_life import JournalLives
from tests.faults.lost import lost_cases
from tests.faults.parts import Database, Faults, HeldCommits, Item, Part, Place, Poisoned, Schemas
from tests.faults.summary import Result, print_summary
from tests.faults.transactions import transaction_cases

PARTS: dict[str, Part] = {
    "statements": Faults(cases),
    "transactions": Faults(transaction_cases),
    "lost-sqlite": Faults(lost_cases, "sqlite"),
    "lost-postgresql": Faults(lost_cases, "postgresql"),
    "database": Database(),
    "held-commits": HeldCommits(),
    "journals": JournalLives(),
    "schemas": Schemas(),
    "poisoned": Poisoned(),
    "two-servers": TwoServers(),
    "one-server": OneServer(),
}


def main() -> int:
    options = _options()
    kind = ("" if options.catalog is None else f"-{options.catalog}") + ("-maintenance" if options.maintenance else "")
    state = options.state or Path("build", f"faults-{options.seed}{kind}.jsonl")
    state.parent.mkdir(parents=True, exist_ok=True)
    done = _done(state)
    names = list(PARTS) if options.kind == "all" else [options.kind]
    chosen = {name: PARTS[name].items(options.seed) for name in names}
    chosen = {
        name: [item for item in items if options.only in (None, item.number)][: options.count]
        for name, items in chosen.items()
    }
    total = sum(map(len, chosen.values()))
    print(f"seed {options.seed}: {total} cases, {_known(chosen, done)} of them done; {state}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkport-faults-")))
        place = Place(folder, stack, maintenance=options.maintenance, seed=options.seed)
        for name, items in chosen.items():
            for item in items:
                if (name, item.number) in done and options.only is None:
                    continue
                result = _run(name, item, partial(PARTS[name].run, item, place, options.catalog))
                done[(name, item.number)] = result
                with state.open("a") as file:
                    file.write(json.dumps({"part": name, "case": item.number, **asdict(result)}) + "\n")
    results = {name: [done[(name, item.number)] for item in items] for name, items in chosen.items()}
    print_summary(results, seed=options.seed)
    return 1 if any(result.problem for found in results.values() for result in found) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["all", *PARTS], default="all", help="one part only")
    parser.add_argument("--count", type=int, help="the first so many cases of each part")
    parser.add_argument("--only", type=int, help="run the case of this number again")
    parser.add_argument("--state", type=Path, help="where to note what is done; remove it to begin anew")
    parser.add_argument(
        "--catalog", choices=["sqlite", "postgresql"], help="where the pointers are, for parts that do not say it"
    )
    parser.add_argument("--maintenance", action="store_true", help="maintain all tables every second meanwhile")
    return parser.parse_args()


def _done(state: Path) -> dict[tuple[str, int], Result]:
    lines = state.read_text().splitlines() if state.exists() else []
    entries = [json.loads(line) for line in lines]
    return {(entry.pop("part"), entry.pop("case")): Result(**entry) for entry in entries}


def _known(chosen: dict[str, Sequence[Item]], done: dict[tuple[str, int], Result]) -> int:
    return sum((name, item.number) in done for name, items in chosen.items() for item in items)


def _run(name: str, item: Item, run: Callable[[], Result]) -> Result:
    began = time.monotonic()
    try:
        result = run()
    except Exception as exc:  # whatever it is: the other cases are to be run, too
        result = Result(what=str(item), problem=f"{type(exc).__name__}: {exc}")
    said = f"FAILED: {result.problem}" if result.problem else result.said
    print(f"{name} {item.number:3} {time.monotonic() - began:5.1f} s  {item}: {said}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
