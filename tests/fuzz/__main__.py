"""``make test-fuzz MINUTES=10``: mutated calls over the wire, in the order of a seed; started again it goes on."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from tests.fuzz.mutations import Call, calls, mutated
from tests.robustness.rig import Raw, numbers_ticket
from tests.robustness.test_fuzz_writes import fresh

from sparkport.app import Server
from sparkport.testing import serving
from sparkport.wire.memory import measure

__all__ = ["Run", "fuzz"]

_DEFECTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
_RENEW = 50
"""Calls after which the catalog is a fresh one: earlier ones have renamed and dropped what later ones ask for."""


@dataclass
class Run:
    seed: int
    done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    defects: list[dict[str, object]] = field(default_factory=list)
    growth: int = 0

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"done": self.done, "codes": self.codes, "defects": self.defects}, indent=1))

    @classmethod
    def load(cls, seed: int, path: Path) -> Run:
        if not path.exists():
            return cls(seed)
        known = json.loads(path.read_text())
        return cls(seed, known["done"], Counter(known["codes"]), known["defects"])


def fuzz(run: Run, *, seconds: float = float("inf"), most: float = float("inf"), state: Path | None = None) -> Run:
    """Go on with a run until the time is up, or so many calls more are done."""
    seeds, until, last = calls(), time.monotonic() + seconds, run.done + most
    with serving(fresh()) as server, Raw(server.port) as raw:
        before = measure().whole
        while time.monotonic() < until and run.done < last:
            if run.done % _RENEW == 0:
                _renew(server)
                if state is not None:
                    run.save(state)
            _one(run, raw, mutated(random.Random(f"{run.seed}/{run.done}"), seeds))
            run.done += 1
        _renew(server)
        if raw.call("DoGet", numbers_ticket()).code is not grpc.StatusCode.OK:
            run.defects.append({"call": run.done, "error": "the server does not answer any more"})
        run.growth = measure().whole - before
    if state is not None:
        run.save(state)
    return run


def _one(run: Run, raw: Raw, call: Call) -> None:
    method, messages, headers = call
    try:
        answer = raw.call(method, *messages, headers=headers, timeout=20)
    except ValueError:  # a header that gRPC does not send
        return
    run.codes[answer.code.name] += 1
    if answer.code in _DEFECTS or "error id" in answer.details:
        found = {"call": run.done, "method": method, "headers": list(headers), "details": answer.details}
        run.defects.append({**found, "messages": [message.hex() for message in messages]})


def _renew(server: Server) -> None:
    server.remove_catalog("lake")
    server.add_catalog(fresh())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    state = options.folder / f"{options.seed}.json"
    run = fuzz(Run.load(options.seed, state), seconds=60 * options.minutes, state=state)
    codes = ", ".join(f"{name} {number:,}" for name, number in run.codes.most_common())
    print(f"{run.done:,} calls: {codes}; {len(run.defects)} defects; {run.growth / 2**20:.0f} MiB more in memory")
    print(f"state and defects: {state}")
    return 1 if run.defects else 0


if __name__ == "__main__":
    sys.exit(main())
