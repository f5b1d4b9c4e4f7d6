"""Looks at the servers every few seconds: memory, threads, open files, files of tables, latencies, journal."""

from __future__ import annotations

import csv
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.consistency.two_servers import Town
from tests.faults.rig import Rig
from tests.soak.latencies import Latencies, quantile
from tests.soak.report import Sample

from sparkport.errors import SparkportError
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["Sampler", "process_figures", "table_files"]

logger = logging.getLogger(__name__)

_KINDS = {".parquet": "data", ".puffin": "delete", ".avro": "manifest", ".json": "metadata"}
"""Deletes of format 3 are Puffin files; those of Iceberg's older formats are no matter here."""


class Sampler:
    """``samples`` grows until the end, and the file with it, so that a run that is cut short leaves what it saw."""

    def __init__(self, town: Town, spark: SparkServer, latencies: Latencies, *, file: Path, seconds: float) -> None:
        self.samples: list[Sample] = []
        self._town = town
        self._spark = spark
        self._latencies = latencies
        self._file = file
        self._seconds = seconds
        self._begun = time.monotonic()

    def run(self, over: threading.Event) -> None:
        with self._file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("seconds", "what", "value"))
            while not over.wait(self._seconds):
                try:
                    sample = self.look()
                except (OSError, SparkportError):
                    logger.exception("a sample was not taken")
                    continue
                self.samples.append(sample)
                writer.writerows((f"{sample.seconds:.1f}", what, f"{value:.6g}") for what, value in sample.values)
                file.flush()

    def look(self) -> Sample:
        values: list[tuple[str, float]] = []
        for name, rig in zip(("one", "two"), self._town.rigs, strict=True):
            values += [(f"{name} {what}", value) for what, value in _of_rig(rig)]
        if self._spark.process_id is not None:
            values += [(f"spark {what}", value) for what, value in process_figures(self._spark.process_id)]
        values += [(f"files {kind}", number) for kind, number in table_files(self._town.rigs[0].warehouse)]
        waiting = self._town.third.journal.status()
        oldest = min((part.oldest.timestamp() for part in waiting if part.oldest is not None), default=time.time())
        values += [
            ("journal lag", max(time.time() - oldest, 0.0)),
            ("journal rows", sum(part.rows for part in waiting)),
        ]
        for worker, recent in sorted(self._latencies.taken().items()):
            values += [(f"{worker} median", quantile(recent, 0.5)), (f"{worker} p95", quantile(recent, 0.95))]
        return Sample(time.monotonic() - self._begun, tuple(values))


def _of_rig(rig: Rig) -> Sequence[tuple[str, float]]:
    """Nothing while it is being started anew."""
    try:
        return [("process", rig.process_id), *process_figures(rig.process_id)]
    except RuntimeError:
        return ()


def process_figures(process: int) -> list[tuple[str, float]]:
    """Resident megabytes, threads and open files; nothing of a process that is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        if "VmRSS" not in status:  # it has ended, and nobody has asked for its code
            return []
        memory = float(status["VmRSS"].split()[0]) / 1000
        return [
            ("memory", memory),
            ("threads", float(status["Threads"])),
            ("descriptors", float(len(os.listdir(f"/proc/{process}/fd")))),
        ]
    except FileNotFoundError:
        return []


def table_files(warehouse: Path) -> list[tuple[str, float]]:
    """Those of the workers' tables, which stay for the whole run; what is staged counts as a kind of its own."""
    counts = Counter(dict.fromkeys(_KINDS.values(), 0))
    for folder in warehouse.glob("public/soak_*"):
        if not folder.name.startswith("soak_ddl_"):
            counts.update(_KINDS[path.suffix] for path in folder.rglob("*") if path.suffix in _KINDS)
    counts["staged"] = sum(len(files) for _, _, files in os.walk(warehouse / ".staging"))
    return [(kind, float(number)) for kind, number in counts.items()]
