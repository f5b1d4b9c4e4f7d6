"""Long runs of a workload against an engine, outside the tests: round after round, until one shows an anomaly.

python -m tests.consistency lists --engine lakehouse --isolation serializable --rounds 50
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from tests.consistency.checker import Anomaly, check_bank, check_lists, check_registers, violations
from tests.consistency.engines import ENGINES, EngineUnderTest
from tests.consistency.history import Transaction
from tests.consistency.workloads import Load, append_to_lists, skew_writes, transfer_money

from sparkport.catalog.transaction import Isolation

_OPENING = 100

Checked = tuple[list[Transaction], list[Anomaly]]


def _lists(engine: EngineUnderTest, load: Load) -> Checked:
    history = append_to_lists(engine, load)
    return history, check_lists(history)


def _transfers(engine: EngineUnderTest, load: Load) -> Checked:
    history = transfer_money(engine, load, opening=_OPENING)
    accounts = 2 * load.keys
    return history, check_bank(history, accounts * _OPENING, accounts)


def _skews(engine: EngineUnderTest, load: Load) -> Checked:
    history = skew_writes(engine, load, rounds=load.transactions)
    return history, check_registers(history)


_WORKLOADS: dict[str, Callable[[EngineUnderTest, Load], Checked]] = {
    "lists": _lists,
    "skews": _skews,
    "transfers": _transfers,
}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    isolation = Isolation(asked.isolation)
    with ENGINES[asked.engine]() as engine:
        for seed in range(asked.seed, asked.seed + asked.rounds):
            load = Load(
                isolation=isolation,
                clients=asked.clients,
                transactions=asked.transactions,
                keys=asked.keys,
                writers=asked.writers,
                seed=seed,
                auto_commit=asked.auto_commit,
                disturbed=engine.maintain is not None and not asked.undisturbed,
            )
            history, anomalies = _WORKLOADS[asked.workload](engine, load)
            outcomes = Counter(transaction.outcome.value for transaction in history)
            print(f"seed {seed}:", ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())), flush=True)
            found = violations(anomalies, isolation)
            if found:
                print(*found, sep="\n")
                return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.consistency", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", choices=sorted(_WORKLOADS))
    parser.add_argument("--engine", choices=sorted(ENGINES), default="lakehouse")
    parser.add_argument("--isolation", choices=[item.value for item in Isolation], default="snapshot")
    parser.add_argument("--auto-commit", action="store_true", help="each transaction is one statement")
    parser.add_argument(
        "--undisturbed", action="store_true", help="without compaction and plain Spark beside the clients"
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--transactions", type=int, default=25, help="of each client, in each round")
    parser.add_argument("--writers", type=float, default=0.5, help="the share of them that change something")
    parser.add_argument("--keys", type=int, default=4, help="rows in each table")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--rounds", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
