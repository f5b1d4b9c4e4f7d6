"""A real PostgreSQL for tests: a cluster of their own in a temporary folder, gone with the process that started it."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port

from sparkport.lakehouse.spark.launcher import launched

__all__ = ["PostgresCluster", "postgres_cluster"]

_USER = "sparkport"
_READY = "database system is ready to accept connections"
_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/libexec/postgresql*", "/usr/pgsql-*/bin")
_INSTALL = Path(__file__).parents[2] / "scripts" / "system-install"


class PostgresCluster:
    """A server on 127.0.0.1 that trusts everybody. It can be stopped and started again, at the same address."""

    def __init__(
        self, binaries: Path, folder: Path, account: dict[str, Any], *, connections: int | None = None
    ) -> None:
        """With as many ``connections`` as a stock server has, unless told otherwise."""
        self._options = [] if connections is None else ["-c", f"max_connections={connections}"]
        self.port = free_port()
        self._binaries = binaries
        self._folder = folder
        self._account = account
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        # The kernel ends the server with the thread that started it, so that has to be one that stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="postgres-starter")

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise RuntimeError("PostgreSQL is not started")
        return self._process.pid

    def start(self) -> None:
        self._starter.submit(self._start).result()

    def close(self) -> None:
        self.stop()
        self._starter.shutdown()

    def _start(self) -> None:
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data"), "-h", "127.0.0.1"]
        command += ["-p", str(self.port), "-k", str(self._folder), "-F", "-c", "log_destination=stderr"]
        command += self._options
        self._process = process = subprocess.Popen(
            self._dying_with_us(command),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        seen: list[str] = []
        for line in process.stderr or ():
            seen.append(line)
            if _READY in line:
                break
        else:
            pytest.fail("PostgreSQL did not start:\n" + "".join(seen[-10:]))
        self._reader = threading.Thread(target=_drain, args=(process,), name="postgres-log", daemon=True)
        self._reader.start()

    def _dying_with_us(self, command: list[str]) -> list[str]:
        """The kernel ends the server, and with it all its children, when the thread that started it is no more."""
        if not self._account:
            return launched(command, end=signal.SIGQUIT)
        # Who changes accounts has to ask for it afterwards, and Python may be out of reach for the other one.
        account = [f"--reuid={self._account['user']}", f"--regid={self._account['group']}", "--clear-groups"]
        return ["setpriv", *account, "--pdeathsig=QUIT", *command]

    def stop(self) -> None:
        """At once, as a crash would. Safe to repeat."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGQUIT)
        process.wait(timeout=30)
        if self._reader is not None:
            self._reader.join(timeout=30)
        if process.stderr is not None:
            process.stderr.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes stand still for the length of the block; what is sent to them meanwhile they find later."""
        stopped = [self.process_id, *_children(self.process_id)]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str) -> None:
        """Run a statement outside of a transaction, such as CREATE DATABASE."""
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
            return rows

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
def postgres_cluster(*, connections: int | None = None) -> Iterator[PostgresCluster]:
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
        cluster = PostgresCluster(binaries, folder, account, connections=connections)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
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


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def _drain(process: subprocess.Popen[str]) -> None:
    for _ in process.stderr or ():
        pass
