"""Spark's work as the server shows it to those who look after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparkport.catalog.jobs import Job, Jobs
from sparkport.lakehouse.spark.server import Sessions, SparkServer

__all__ = ["SparkJobs"]


class _Working(Protocol):
    def jobs(self) -> list[Job]: ...

    def end(self, job_id: str, reason: str) -> bool: ...


class SparkJobs(Jobs):
    def __init__(self, server: SparkServer, sessions: Sessions, *others: _Working) -> None:
        """``sessions``, and others that are lent out, are those of one catalog: several can share a Spark."""
        self._server = server
        self._working: tuple[_Working, ...] = (sessions, *others)

    @property
    def state(self) -> str:
        return self._server.state.value

    def running(self) -> Sequence[Job]:
        return sorted((job for part in self._working for job in part.jobs()), key=lambda job: job.began)

    def end(self, job_id: str, reason: str) -> bool:
        return any(part.end(job_id, reason) for part in self._working)
