"""What came out of a run, case by case and in sum: the table that stands in docs/consistency.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Result", "print_summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one case. ``transactions`` are the clients' own; of those, ``anomalies`` is what must not be."""

    what: str = ""
    said: str = ""
    problem: str = ""
    kills: int = 0
    lost: int = 0
    transactions: int = 1
    anomalies: int = 0


def print_summary(results: Mapping[str, Sequence[Result]], *, seed: int) -> None:
    print(f"\nseed {seed}\n\n| part | cases | kills | lost answers | transactions | anomalies | failed |")
    print("|---|---|---|---|---|---|---|")
    rows = [*results.items(), ("all", [result for found in results.values() for result in found])]
    for name, found in rows:
        numbers = [
            len(found),
            sum(result.kills for result in found),
            sum(result.lost for result in found),
            sum(result.transactions for result in found),
            sum(result.anomalies for result in found),
            sum(bool(result.problem) for result in found),
        ]
        print(f"| {name} | {' | '.join(map(str, numbers))} |", flush=True)
