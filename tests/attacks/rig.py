"""A server in a process of its own, so that what an attack makes it take can be measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

__all__ = ["Victim", "needs_proc"]

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


class Victim:
    """``sparkport serve`` over tables in memory, or over a ``warehouse`` that it reads without a Spark. ``alice`` and
    ``bob`` have tokens of the same names."""

    def __init__(self, *arguments: str, warehouse: Path | None = None) -> None:
        environ = {**os.environ, "SPARKPORT_TOKENS": "alice=alice,bob=bob"}
        engine = ["--engine", "memory"]
        if warehouse is not None:
            engine = ["--warehouse", str(warehouse), "--spark", "sc://127.0.0.1:9", "--http-port", "0"]
        command = [sys.executable, "-m", "sparkport.cli", "serve", *engine, "--port", "0", *arguments]
        self._process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            self._process.kill()
            raise AssertionError(f"the server did not start: {line!r}")
        self.port = int(found[1])

    def __enter__(self) -> Victim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes that the process has in memory now; with VmHWM the most that it ever had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split(f"{what}:")[1].split()[0]) * 1024

    def forget_peak(self) -> None:
        """Measure the peak anew from here on."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    @property
    def peak(self) -> int:
        return self.memory("VmHWM")
