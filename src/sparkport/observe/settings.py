"""What is told of calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ObserveSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """Calls that take ``slow_seconds`` are kept, and logged with their steps; 0: none are slow.

    ``audit`` is the file that says who read or changed what; without it nobody writes that down.
    """

    slow_seconds: float = 1.0
    audit: Path | None = None
