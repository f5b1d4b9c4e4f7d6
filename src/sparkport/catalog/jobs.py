"""How the server speaks to a catalog that has its work done elsewhere, such as by Spark; most catalogs have no jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

__all__ = ["Job", "Jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work under way. ``tables`` are (schema, name) of all that it touches, as the catalog has them.

    ``owner`` is who asked for it, with ``query`` if that was one; empty and None for the server's own work.
    ``progress`` is the part that is done, of 1, where that is known.
    """

    id: str
    purpose: str
    tables: tuple[tuple[str, str], ...]
    began: datetime
    owner: str = ""
    query: str | None = None
    progress: float | None = None


class Jobs(ABC):
    """Called from several threads at once. Whether the caller may ask is decided before."""

    @property
    @abstractmethod
    def state(self) -> str:
        """In a word or two, whether work can be done: ``ready``, ``starting``, …"""

    @abstractmethod
    def running(self) -> Sequence[Job]:
        """What is under way, oldest first."""

    @abstractmethod
    def end(self, job_id: str, reason: str) -> bool:
        """Have a job interrupted: who waits for it gets an error with the reason. False if there is no such job."""
