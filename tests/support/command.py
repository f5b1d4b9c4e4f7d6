"""The ``sparkport`` command: in this process, which takes no time, and in one of its own, as users run it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import sparkport
from sparkport.catalog.isolated import DEFAULT_SECONDS, limit_seconds
from sparkport.cli.main import main

__all__ = ["Done", "Serving", "ServingProcess", "failure", "run", "run_process", "serve", "serve_process"]

ROOT = Path(__file__).parents[2]
SOURCE = Path(sparkport.__file__).parents[1]
COMMAND = (sys.executable, "-m", "sparkport.cli")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str


def failure(done: Done, code: int) -> str:
    """The one line that a failure is."""
    assert (done.code, done.stdout) == (code, "")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


# In this process


class Lines(io.StringIO):
    """What a server writes, to be read by another thread line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = ""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._lines.put(f"{line}\n")
        return len(text)

    def end(self) -> None:
        self._lines.put(self._rest)
        self._lines.put("")

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # StringIO has it so
        return self._lines.get()


class Serving:
    """A ``sparkport serve`` that has said that it is ready."""

    def __init__(self, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.ready = stdout.readline().strip()
        assert "listening on" in self.ready, "".join(self.rest_of_log())
        self.location = self.ready.rpartition(" ")[2]
        self.hint = stdout.readline().strip()

    def rest_of_log(self) -> Iterator[str]:
        """The lines from here on, to the server's end."""
        return iter(self.stderr.readline, "")

    def wait_for_log(self, text: str) -> str:
        for line in self.rest_of_log():
            if text in line:
                return line
        raise AssertionError(f"the log ended without '{text}'")


def run(*arguments: str, cwd: Path = ROOT, **environ: str) -> Done:
    """Run a command to its end. What it fails with when it is to show tracebacks is raised."""
    stdout, stderr = io.StringIO(), io.StringIO()
    stopping = threading.Event()
    stopping.set()  # a server that starts where it should not is no reason to wait
    with _guest(cwd), _warnings_to(stderr), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = _code(arguments, environ, stopping)
    return Done(code, stdout.getvalue(), stderr.getvalue())


@contextmanager
def serve(*arguments: str, cwd: Path = ROOT, **environ: str) -> Iterator[Serving]:
    """A server that other commands can be run against meanwhile, until it is stopped, which has to go well."""
    stdout, stderr = Lines(), Lines()
    stopping = threading.Event()
    codes: list[int] = []

    def work() -> None:
        try:
            codes.append(_code(("serve", "--port", "0", *arguments), environ, stopping))
        finally:
            stdout.end()
            stderr.end()

    with _guest(cwd):
        thread = threading.Thread(target=work, name="sparkport-serve", daemon=True)
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            thread.start()
            serving = Serving(stdout, stderr)
        try:
            yield serving
        finally:
            stopping.set()
            thread.join()
        assert codes == [0]


def _code(arguments: tuple[str, ...], environ: dict[str, str], stopping: threading.Event) -> int:
    try:
        return main(arguments, {**_SETTINGS, **environ}, stopping=stopping)
    except SystemExit as exc:  # how argparse leaves
        return int(str(exc.code))


_SETTINGS = {"SPARKPORT_ENGINE": "memory", "SPARKPORT_HTTP_PORT": "0"}


@contextmanager
def _guest(cwd: Path) -> Iterator[None]:
    """Leaves the process as it was: a server sets up its log, and imports what it is told to serve."""
    root = logging.getLogger()
    handlers, level, path, modules = root.handlers, root.level, sys.path[:], set(sys.modules)
    root.handlers = [*handlers]
    try:
        with contextlib.chdir(cwd):
            yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if _is_served(name, cwd):
                del sys.modules[name]
        limit_seconds(DEFAULT_SECONDS)


def _is_served(module: str, cwd: Path) -> bool:
    """Neither ours nor a library's, which may be imported at any time."""
    file = getattr(sys.modules[module], "__file__", None)
    ours = module.partition(".")[0] in ("sparkport", "tests")
    return file is not None and not ours and Path(file).is_relative_to(cwd) and "site-packages" not in file


@contextmanager
def _warnings_to(stderr: io.StringIO) -> Iterator[None]:
    """Python writes warnings to standard error where no log is set up, and here one is: the tests' or a server's."""
    handler = logging.StreamHandler(stderr)
    handler.setLevel(logging.WARNING)
    thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


# In a process of its own


def run_process(*arguments: str, cwd: Path = ROOT, **environ: str) -> Done:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=_environment(environ), capture_output=True, text=True, timeout=60
    )
    return Done(done.returncode, done.stdout, done.stderr)


class ServingProcess(Serving):
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        super().__init__(process.stdout, process.stderr)
        self.process = process

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def serve_process(*arguments: str, cwd: Path = ROOT, **environ: str) -> Iterator[ServingProcess]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", *arguments],
        cwd=cwd,
        env=_environment(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield ServingProcess(process)
        finally:
            process.kill()


def _environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARKPORT_")}
    return {**kept, "PYTHONPATH": str(SOURCE), **_SETTINGS, **extra}
