"""Waiting for a pipe or a socket; unlike ``select``, ``poll`` takes descriptors of any number."""

from __future__ import annotations

import select

__all__ = ["is_readable"]


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    """Whether there is something to read, or the other end has gone, by then."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, seconds) * 1000))
