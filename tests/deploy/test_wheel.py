"""The package as users get it: a wheel in an empty environment, far from the repository."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.support.ports import free_port

pytestmark = pytest.mark.tier("thorough")

ROOT = Path(__file__).parents[2]
TRIED = """
import sys, pyarrow as pa
from sparkport.client import connect
with connect(sys.argv[1], timeout=200) as client:
    client.create_table("public.t", pa.schema([("id", pa.int64())]))
    assert client.insert("public.t", pa.table({"id": [1, 2, 3]})).count == 3
    assert client.scan("public.t", columns=["id"]).read_all()["id"].to_pylist() == [1, 2, 3]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run(*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("sparkport-*.whl")
    run(sys.executable, "-m", "venv", str(folder / "venv"))
    programs = folder / "venv" / "bin"
    run(str(programs / "pip"), "-q", "install", "-c", str(ROOT / "constraints.txt"), str(wheel))
    return programs


def run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd="/")
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARKPORT_P"))}


@pytest.mark.timeout(900)  # Spark alone is half a gigabyte to be unpacked
def test_it_serves_a_lakehouse_and_pages_without_the_repository(installed: Path, tmp_path: Path) -> None:
    assert run(str(installed / "sparkport"), "--version").startswith("sparkport ")
    command = [str(installed / "sparkport"), "serve", "--port", "0", "--http-port", str(free_port())]
    server = subprocess.Popen(
        [*command, "--driver-memory", "1g"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        location = next(
            found[0] for line in server.stdout or () if (found := re.search(r"grpc://127\.0\.0\.1:\d+", line))
        )
        run(str(installed / "python"), "-c", TRIED, location)
        with urllib.request.urlopen(f"http://127.0.0.1:{command[-1]}/", timeout=30) as page:
            assert b"</html>" in page.read()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        if server.stdout is not None:
            server.stdout.close()
    assert (tmp_path / "warehouse" / "catalog.db").exists()
