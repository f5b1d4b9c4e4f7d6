"""What this process has open, as the kernel says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["open_files"]


def open_files() -> Iterator[tuple[int, Path]]:
    """Descriptors, and what they are of. Other threads open and close some meanwhile."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield int(number), Path(os.readlink(f"/proc/self/fd/{number}"))
