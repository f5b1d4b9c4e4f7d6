"""Starting a process that does not outlive us, however we end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["launched"]

_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[2]))
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


def launched(command: Sequence[str], *, end: signal.Signals = signal.SIGKILL) -> list[str]:
    """A command that the kernel ends with the thread that has started it; its first part is a path.

    The new process asks for that itself before it runs the command. Asking from inside a fork of our own process can
    hang: gRPC has handlers there that may wait for threads which are not in it.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(end)), *command]
