"""A real Prometheus for tests, which scrapes a server every quarter of a second and is gone with who started it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparkport.lakehouse.spark.launcher import launched

__all__ = ["Prometheus", "prometheus"]

_INSTALL = Path(__file__).parents[2] / "scripts" / "system-install"
_CONFIGURATION = """
global:
  scrape_interval: 250ms
scrape_configs:
  - job_name: sparkport
    scheme: {scheme}
    authorization:
      credentials: {token}
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has at this moment."""
        arguments = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._address}/api/v1/query?{arguments}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        assert found["data"]["resultType"] == "vector"
        samples: list[dict[str, Any]] = found["data"]["result"]
        return samples

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(location: str, token: str) -> Iterator[Prometheus]:
    """One that scrapes the server at an HTTP location."""
    binary = _binary()
    scheme, _, target = location.partition("://")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    # The kernel ends it with the thread that started it, so that has to be one that stays.
    with ThreadPoolExecutor(1) as starter, tempfile.TemporaryDirectory(prefix="sparkport-prometheus-") as folder:
        file = Path(folder) / "prometheus.yml"
        file.write_text(_CONFIGURATION.format(scheme=scheme, target=target, token=token))
        command = [binary, f"--config.file={file}", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        process = starter.submit(_start, launched(command)).result()
        try:
            started = Prometheus(port)
            _wait_for(started, process)
            yield started
        finally:
            process.terminate()
            process.wait(20)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _wait_for(started: Prometheus, process: subprocess.Popen[bytes]) -> None:
    ticking, until = threading.Event(), time.monotonic() + 60
    while not started.is_ready():
        if process.poll() is not None or time.monotonic() > until:
            raise AssertionError(f"Prometheus did not start: code {process.poll()}")
        ticking.wait(0.1)


def _binary() -> str:
    found = shutil.which("prometheus")
    if found is None:
        packages = ["apt-get=prometheus", "dnf=golang-github-prometheus", "apk=prometheus"]
        subprocess.run([str(_INSTALL), *packages], check=False, timeout=300, capture_output=True)
        found = shutil.which("prometheus")
    if found is None:
        pytest.skip("there is no Prometheus here, and it cannot be installed")
    return found
