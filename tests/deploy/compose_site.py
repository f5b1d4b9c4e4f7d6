"""The processes of ``deploy/compose.yaml`` as plain processes of this machine, with the settings that the file gives.

PostgreSQL is Debian's, the object store moto's, Spark the one of the pyspark package. What the file says about the
server is what it gets: only names of hosts and folders, which the containers have for themselves, become those of here.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.support.ports import free_port
from tests.support.postgres import postgres_cluster
from tests.support.s3 import object_store
from tests.support.spark_cluster import spark_cluster

__all__ = ["COMPOSE", "DEPLOY", "Site", "compose_site", "services"]

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"


@dataclass(frozen=True, slots=True)
class Site:
    location: str
    http: str
    token: str
    metrics_token: str

    def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        """The answer of the HTTP port."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.http + path, headers=headers), timeout=10) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


@contextmanager
def compose_site(folder: Path, *, patience: float = 240) -> Iterator[Site]:
    """All of it, ready to be used."""
    chosen = {"STORE_USER": "tester", "STORE_PASSWORD": secrets.token_hex(16), "CATALOG_PASSWORD": "unused"}
    listed = services()
    token, metrics_token = secrets.token_hex(16), secrets.token_hex(16)
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_cluster())
        postgres.execute("CREATE DATABASE sparkport")
        store = stack.enter_context(object_store("not-the-lake"))
        worker = {name: _filled(value, chosen) for name, value in listed["spark-worker"]["environment"].items()}
        master = stack.enter_context(spark_cluster(folder / "work", memory="2g", environment=worker))
        tokens = folder / "tokens.txt"
        tokens.touch(mode=0o600)
        tokens.write_text(f"alice: {token}\nprometheus: {metrics_token}\n")
        here = {
            "@postgres/": f"@127.0.0.1:{postgres.port}/",
            "http://store:9000": store.endpoint,
            "spark://spark-master:7077": master,
            "/data/staging": str(folder / "staging"),
            "/etc/sparkport/sparkport.toml": str(folder / "sparkport.toml"),
            "/run/secrets/tokens": str(tokens),
        }

        def local(text: str) -> str:
            text = _filled(text, chosen)
            for name, place in here.items():
                text = text.replace(name, place)
            return text

        settings = local((DEPLOY / "compose" / "sparkport.toml").read_text())
        # A driver that runs beside its executors is at the address that they know.
        settings = settings.replace('spark.driver.host = "sparkport"', 'spark.driver.host = "127.0.0.1"')
        tomllib.loads(settings)
        (folder / "sparkport.toml").write_text(settings)

        bucket = listed["bucket"]
        environment = {**os.environ, **{name: local(value) for name, value in bucket["environment"].items()}}
        subprocess.run([sys.executable, "-c", *map(local, bucket["command"])], env=environment, check=True, timeout=60)

        server = listed["sparkport"]
        environment = {**os.environ, **{name: local(value) for name, value in server["environment"].items()}}
        arguments = [local(argument) for argument in server["command"]]
        command = [sys.executable, "-m", "sparkport.cli", *arguments, "--port", "0", "--http-port", str(free_port())]
        with _running(command, environment) as site:
            place = Site(site[0], site[1], token, metrics_token)
            deadline = time.monotonic() + patience
            while place.get("/readyz")[0] != 200:
                assert time.monotonic() < deadline, place.get("/readyz")
                time.sleep(0.5)
            yield place


def _filled(text: str, chosen: Mapping[str, str]) -> str:
    """With what the file takes from its environment."""
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda found: chosen[found[1]], text)


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    http = f"http://127.0.0.1:{command[-1]}"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        location = None
        for line in process.stdout or ():
            if (found := re.search(r"grpc://127\.0\.0\.1:\d+", line)) is not None:
                location = found[0]
                break
        assert location is not None, f"the server ended with {process.wait()}"
        yield location, http
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
