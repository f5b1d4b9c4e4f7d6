"""How much memory the process has in use, for those who have to know when it is short."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Memory", "measure", "return_large_blocks", "trim"]

_MMAP_THRESHOLD: Final = -3
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Memory(NamedTuple):
    """``heap`` is what C's malloc has given out, gRPC's messages among it but neither Arrow's nor DuckDB's rows;
    ``whole`` is all that is not a file. Both are 0 where this is unknown."""

    heap: int
    whole: int


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _heap_reader() -> Callable[[], _MallInfo] | None:
    """glibc has it from 2.33 on."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _MallInfo
    return function


_read_heap = _heap_reader()


def measure() -> Memory:
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
        whole = (int(resident) - int(shared)) * _PAGE_BYTES
    except (OSError, ValueError):
        whole = 0
    if _read_heap is None:
        return Memory(whole, whole)
    heap = _read_heap()
    return Memory(heap.uordblks + heap.hblkhd, whole)


def return_large_blocks() -> None:
    """Let glibc give large blocks back when they are freed. By itself it begins to keep them after the first of them,
    for up to 32 MB each, and a process that has read many messages looks as if it still held them."""
    if _read_heap is not None:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def trim() -> None:
    """Give what C's malloc has free back to the system; glibc does so by itself only at the end of a heap."""
    if _read_heap is not None:
        ctypes.CDLL(None).malloc_trim(0)
