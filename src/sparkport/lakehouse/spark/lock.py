"""Starting Spark so that it cannot run programs, whatever a query makes of it: the kernel refuses (Linux, Landlock).

Java has to be started, by itself too, and Hadoop sets the mode of a new file by ``chmod``; no shell and nothing else
can be run by that process or its children. Any user may have the kernel do that. ``spark-class`` finds out how Java is
to be called, and ends with that: there the lock is put on.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["UNLOCKED", "locked"]

UNLOCKED = "sparkport: Spark can run programs"
"""How the line begins that is written instead of locking, with the reason."""

_SCRIPT = """
exec() { builtin exec "$SPARKPORT_LOCK_PYTHON" -I -S -c "$SPARKPORT_LOCK" "$@"; }
. "$0"
"""


def locked(spark_class: Path, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command for ``spark-class`` with these arguments, and what has to be in its environment."""
    program = f"{inspect.getsource(_lock)}\n_lock({UNLOCKED!r})\n"
    environment = {"SPARKPORT_LOCK": program, "SPARKPORT_LOCK_PYTHON": sys.executable}
    return ["/bin/bash", "-c", _SCRIPT, str(spark_class), *arguments], environment


def _lock(unlocked: str) -> None:
    """Runs by itself, in a process that becomes Java: it has no names but its own."""
    import ctypes
    import os
    import shutil
    import struct
    import sys

    command = sys.argv[1:]
    create_ruleset, add_rule, restrict_self = 444, 445, 446  # the same on all processors
    execute, refer, beneath, version, no_new_privileges = 1, 1 << 13, 1, 1, 38
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        done: int = libc.syscall(number, *arguments)
        if done < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return done

    def interpreter(path: str) -> list[str]:
        """What the kernel starts to load the program."""
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                raise OSError(f"{path} is no program of 64 bits")
            order = "<" if head[5] == 1 else ">"
            (at,) = struct.unpack_from(order + "Q", head, 32)
            size, count = struct.unpack_from(order + "HH", head, 54)
            for number in range(count):
                file.seek(at + number * size)
                entry = struct.unpack(order + "IIQQQQQQ", file.read(56))
                if entry[0] == 3:
                    file.seek(entry[2])
                    return [os.path.realpath(os.fsdecode(file.read(entry[5]).rstrip(b"\0")))]
        return []

    def programs() -> set[str]:
        java = os.path.realpath(command[0])
        home = os.path.dirname(os.path.dirname(java))
        chmod, shell = (os.path.realpath(shutil.which(name) or "/nothing") for name in ("chmod", "sh"))
        if chmod == shell:
            raise OSError("chmod and the shell are one program")
        helpers = [path for path in (f"{home}/lib/jspawnhelper", chmod) if os.path.exists(path)]
        return {path for program in (java, *helpers) for path in (program, *interpreter(program))}

    try:
        if call(create_ruleset, None, ctypes.c_size_t(0), ctypes.c_uint32(version)) < 2:
            raise OSError("this kernel would forbid moving files, too")
        handled = ctypes.create_string_buffer(struct.pack("=Q", execute | refer), 8)
        rules = call(create_ruleset, handled, ctypes.c_size_t(8), ctypes.c_uint32(0))
        # Moving files to other folders is forbidden with every lock, unless it is allowed.
        for path, right in [("/", refer), *((path, execute) for path in sorted(programs()))]:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", right, opened), 12)
            call(add_rule, ctypes.c_int(rules), ctypes.c_int(beneath), rule, ctypes.c_uint32(0))
        if libc.prctl(no_new_privileges, 1, 0, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")
        call(restrict_self, ctypes.c_int(rules), ctypes.c_uint32(0))
    except Exception as exc:  # of an old kernel, or none of Linux: Spark is needed all the same
        print(f"{unlocked}: {exc}", flush=True)
    for name in ("SPARKPORT_LOCK", "SPARKPORT_LOCK_PYTHON"):
        os.environ.pop(name, None)
    os.execv(shutil.which(command[0]) or command[0], command)
