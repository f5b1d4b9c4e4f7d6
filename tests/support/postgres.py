"""A real PostgreSQL for tests: a cluster of their own in a temporary folder, gone with the process that started it."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PostgresCluster", "postgres_cluster"]

_USER = "sparkport"
_READY = "database system is ready to accept connections"
_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/libexec/postgresql*", "/usr/pgsql-*/bin")
_INSTALL = Path(__file__).parents[2] / "scripts" / "system-install"


@dataclass(frozen=True, slots=True)
class PostgresCluster:
    """A server on 127.0.0.1 that trusts everybody."""

    port: int
    process_id: int

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str) -> None:
        """Run a statement outside of a transaction, such as CREATE DATABASE."""
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(sql)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a fresh database, which is dropped at the end whoever is still connected."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.uri(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    """Start a cluster, or skip the test with the reason why there is none."""
    pytest.importorskip("psycopg")
    binaries = _binaries() or _installed()
    account = _account()
    # Not in pytest's folder: that one is closed to the account which a server started by root runs under.
    folder = Path(tempfile.mkdtemp(prefix="sparkport-pg-"))
    try:
        if account:
            shutil.chown(folder, account["user"], account["group"])
        _initialise(binaries, folder, account)
        with _running(binaries, folder, account) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += [Path(place) for pattern in _PLACES for place in sorted(glob.glob(pattern), reverse=True)]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _installed() -> Path:
    if os.geteuid() == 0:
        packages = ("apt-get=postgresql", "dnf=postgresql-server", "apk=postgresql")
        subprocess.run([str(_INSTALL), *packages], check=False, timeout=100, capture_output=True)
    found = _binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed and cannot be: on Debian, apt-get install postgresql")
    return found


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("there is no account other than root to run PostgreSQL under")


def _initialise(binaries: Path, folder: Path, account: dict[str, Any]) -> None:
    command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", _USER, "-A", "trust", "-E", "UTF8"]
    command += ["--locale", "C", "--no-sync"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **account)
    if done.returncode != 0:
        pytest.fail(f"initdb failed: {done.stderr.strip()}")


@contextmanager
def _running(binaries: Path, folder: Path, account: dict[str, Any]) -> Iterator[PostgresCluster]:
    port = _free_port()
    command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(port)]
    command += ["-k", str(folder), "-F", "-c", "log_destination=stderr"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        **account,
    )
    reader: threading.Thread | None = None
    try:
        seen: list[str] = []
        for line in process.stderr or ():
            seen.append(line)
            if _READY in line:
                break
        else:
            pytest.fail("PostgreSQL did not start:\n" + "".join(seen[-10:]))
        reader = threading.Thread(target=_drain, args=(process,), name="postgres-log", daemon=True)
        reader.start()
        yield PostgresCluster(port, process.pid)
    finally:
        # An immediate end: nothing in there is to be kept.
        process.send_signal(signal.SIGQUIT)
        process.wait(timeout=30)
        if reader is not None:
            reader.join(timeout=30)
        if process.stderr is not None:
            process.stderr.close()


def _drain(process: subprocess.Popen[str]) -> None:
    for _ in process.stderr or ():
        pass


def _die_with_parent() -> None:
    """The kernel ends the server, and with it all its children, when the thread that started it is no more."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
