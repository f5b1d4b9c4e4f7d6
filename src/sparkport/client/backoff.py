"""How long to wait before something is tried again: longer each time, and never in step with others."""

from __future__ import annotations

import random
import time

__all__ = ["pause"]

_FIRST_SECONDS = 0.05
_LONGEST_SECONDS = 2.0


def pause(attempt: int) -> None:
    """After the ``attempt``-th failure, counted from one."""
    time.sleep(random.uniform(0.2, 1.0) * min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** (attempt - 1)))
