"""``make test-faults``: a hundred deaths, in an order that SEED decides. Started again, it goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.cases import Case, cases, run
from tests.faults.rig import Rig, Rows, as_rows
from tests.support.lakehouse import shared_spark

from sparkport.errors import SparkportError
from sparkport.lakehouse.settings import LakehouseSettings


def main() -> int:
    options = _options()
    state = options.state or Path("build", f"faults-{options.seed}.jsonl")
    state.parent.mkdir(parents=True, exist_ok=True)
    done = _done(state)
    chosen = [case for case in cases(options.seed, options.count) if options.only in (None, case.number)]
    print(f"seed {options.seed}: {len(chosen)} faults, {len(done)} of them done; {state}", flush=True)
    spark = shared_spark()
    spark.wait_ready(240)
    failed = [number for number, problem in done.items() if problem]
    with tempfile.TemporaryDirectory(prefix="sparkport-faults-") as folder:
        rigs = {False: Rig(Path(folder, "shared"), spark=spark.url), True: Rig(Path(folder, "own"))}
        try:
            for case in chosen:
                if case.number in done and options.only is None:
                    continue
                rig = rigs[case.own_spark]
                problem = _run(case, rig, _plain_spark(rig) if case.number % 5 == 0 else None, len(chosen))
                with state.open("a") as file:
                    file.write(json.dumps({"case": case.number, "what": str(case), "problem": problem}) + "\n")
                if problem:
                    failed.append(case.number)
        finally:
            for rig in rigs.values():
                rig.close()
    print(f"{len(failed)} of {len(chosen)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}", flush=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", type=int, help="run this one again")
    parser.add_argument("--state", type=Path, help="where to note what is done; remove it to begin anew")
    return parser.parse_args()


def _done(state: Path) -> dict[int, str]:
    lines = state.read_text().splitlines() if state.exists() else []
    return {entry["case"]: entry["problem"] for entry in map(json.loads, lines)}


def _run(case: Case, rig: Rig, spark_rows: Callable[[str], Rows] | None, total: int) -> str:
    began = time.monotonic()
    problem = said = ""
    try:
        outcome = run(case, rig, spark_rows=spark_rows)
        said = "acknowledged" if outcome.acknowledged else "happened" if outcome.happened else "did not happen"
    except (AssertionError, SparkportError, OSError, RuntimeError) as exc:
        problem = f"{type(exc).__name__}: {exc}"
        said = f"FAILED: {problem}\n{rig.log_tail()}"
        rig.close()
    print(f"{case.number:3}/{total} {time.monotonic() - began:5.1f} s  {case}: {said}", flush=True)
    return problem


def _plain_spark(rig: Rig) -> Callable[[str], Rows]:
    def rows(table: str) -> Rows:
        sessions = shared_spark().sessions(LakehouseSettings(warehouse=str(rig.warehouse)).session_conf())
        with sessions.session(timeout=120) as session:
            return as_rows(session.sql(f"SELECT id, v FROM lake.{table}").toArrow())

    return rows


if __name__ == "__main__":
    sys.exit(main())
