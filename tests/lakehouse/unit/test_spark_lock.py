"""A process that is started like Spark runs no programs, and does all else that it has to."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkport.lakehouse.spark.lock import UNLOCKED, locked

pytestmark = pytest.mark.tier("fast")

HAS_LANDLOCK = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 2


def run(folder: Path, program: str, *, java: str = sys.executable) -> str:
    """By a script that ends as ``spark-class`` does, with a program in the place of Java."""
    script = folder / "spark-class"
    script.write_text('CMD=("$@")\nexec "${CMD[@]}"\n')
    command, environment = locked(script, [java, "-I", "-S", "-c", program])
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_no_program_can_be_run_but_chmod(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("#!/bin/sh\ntouch mark\n")
    (tmp_path / "own").chmod(0o755)
    program = """
import os, subprocess
for command in (["/bin/sh", "-c", "touch mark"], ["touch", "mark"], ["./own"], ["/usr/bin/env", "touch", "mark"]):
    try:
        subprocess.run(command)
        print("ran", command)
    except PermissionError:
        print("refused")
subprocess.run(["chmod", "600", "own"], check=True)
"""
    assert run(tmp_path, program).split() == ["refused"] * 4
    assert not (tmp_path / "mark").exists()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_files_are_written_moved_and_removed(tmp_path: Path) -> None:
    program = """
import os
os.makedirs("a/b")
open("a/b/file", "w").write("text")
os.rename("a/b/file", "a/file")
os.rename("a/file", "file")
os.removedirs("a/b")
assert not [name for name in os.environ if name.startswith("SPARKPORT_LOCK")]
"""
    assert run(tmp_path, program) == ""
    assert (tmp_path / "file").read_text() == "text"


def test_where_it_cannot_be_locked_spark_is_started_and_says_so(tmp_path: Path) -> None:
    """A script in the place of Java: the kernel would run another program for it."""
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho started\n")
    java.chmod(0o755)
    said, started = run(tmp_path, "", java=str(java)).splitlines()
    assert said.startswith(UNLOCKED)
    assert started == "started"
