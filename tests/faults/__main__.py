"""``make test-faults``: three hundred deaths, as SEED decides. Started again, it goes on where it stopped.

A hundred of them are in single statements and DDL, two hundred in transactions, half of which change two tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.faults.cases import Case, cases, run
from tests.faults.rig import Rig, Rows, as_rows
from tests.faults.transactions import TRANSACTIONS, run_transaction, transaction_cases
from tests.support.postgres import postgres_cluster

from sparkport.errors import SparkportError
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark import SparkServer


def main() -> int:
    options = _options()
    kind = ("" if options.catalog == "sqlite" else f"-{options.catalog}") + (
        "-maintenance" if options.maintenance else ""
    )
    state = options.state or Path("build", f"faults-{options.seed}{kind}.jsonl")
    state.parent.mkdir(parents=True, exist_ok=True)
    done = _done(state)
    chosen = [case for case in _chosen(options.seed, options.kind) if options.only in (None, case.number)][
        : options.count
    ]
    print(f"seed {options.seed}: {len(chosen)} faults, {len(done)} of them done; {state}", flush=True)
    failed = [number for number, problem in done.items() if problem]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkport-faults-")))
        uris: dict[bool, str | None] = {False: None, True: None}
        if options.catalog == "postgresql":
            cluster = stack.enter_context(postgres_cluster())
            uris = {own: stack.enter_context(cluster.database()) for own in uris}
        spark = _spark(folder, uris[False], stack)
        rigs = {
            own: Rig(
                folder / ("own" if own else "shared"),
                spark=None if own else spark.url,
                catalog_uri=uris[own],
                maintenance=options.maintenance,
            )
            for own in uris
        }
        for rig in rigs.values():
            stack.callback(rig.close)
        for case in chosen:
            if case.number in done and options.only is None:
                continue
            rig = rigs[case.own_spark]
            problem = _run(case, rig, _plain_spark(rig, spark) if case.number % 5 == 0 else None, len(chosen))
            with state.open("a") as file:
                file.write(json.dumps({"case": case.number, "what": str(case), "problem": problem}) + "\n")
            if problem:
                failed.append(case.number)
    print(f"{len(failed)} of {len(chosen)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}", flush=True)
    return 1 if failed else 0


def _chosen(seed: int, kind: str) -> list[Case]:
    statements = cases(seed)
    later = [replace(case, number=case.number + len(statements)) for case in transaction_cases(seed)]
    return {"statements": statements, "transactions": later, "all": [*statements, *later]}[kind]


def _spark(folder: Path, catalog_uri: str | None, stack: ExitStack) -> SparkServer:
    """One that outlives servers. Its own catalog has a name that no server's has: its settings hold in all sessions."""
    settings = LakehouseSettings(warehouse=str(folder / "spark"), catalog_uri=catalog_uri, catalog_name="nobodys")
    spark = SparkServer(settings)
    stack.callback(spark.stop)
    spark.start()
    spark.wait_ready(240)
    return spark


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["all", "statements", "transactions"], default="all")
    parser.add_argument("--count", type=int, help="the first so many of them")
    parser.add_argument("--only", type=int, help="run this one again")
    parser.add_argument("--state", type=Path, help="where to note what is done; remove it to begin anew")
    parser.add_argument("--catalog", choices=["sqlite", "postgresql"], default="sqlite", help="where the pointers are")
    parser.add_argument("--maintenance", action="store_true", help="compact and expire every second meanwhile")
    return parser.parse_args()


def _done(state: Path) -> dict[int, str]:
    lines = state.read_text().splitlines() if state.exists() else []
    return {entry["case"]: entry["problem"] for entry in map(json.loads, lines)}


def _run(case: Case, rig: Rig, spark_rows: Callable[[str], Rows] | None, total: int) -> str:
    began = time.monotonic()
    problem = said = ""
    try:
        die = run_transaction if case.operation in TRANSACTIONS else run
        outcome = die(case, rig, spark_rows=spark_rows)
        said = "acknowledged" if outcome.acknowledged else "happened" if outcome.happened else "did not happen"
    except (AssertionError, SparkportError, OSError, RuntimeError) as exc:
        problem = f"{type(exc).__name__}: {exc}"
        said = f"FAILED: {problem}\n{rig.log_tail()}"
        rig.close()
    print(f"{case.number:3}/{total} {time.monotonic() - began:5.1f} s  {case}: {said}", flush=True)
    return problem


def _plain_spark(rig: Rig, spark: SparkServer) -> Callable[[str], Rows]:
    def rows(table: str) -> Rows:
        settings = LakehouseSettings(warehouse=str(rig.warehouse), catalog_uri=rig.catalog_uri)
        with spark.sessions(settings.session_conf()).session(timeout=120) as session:
            return as_rows(session.sql(f"SELECT id, v FROM lake.{table}").toArrow())

    return rows


if __name__ == "__main__":
    sys.exit(main())
