"""Ending work of Spark's: for the night on which one statement holds up all the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog
from sparkport.errors import NotFound, Unsupported
from sparkport.protocol.maps import MapReader

if TYPE_CHECKING:
    from sparkport.handlers.directory import Directory

__all__ = ["JobActions", "end_job"]


def end_job(directory: Directory, ctx: CallContext, catalog: Catalog, job_id: str) -> None:
    """A job on a table that the caller may not know of does not exist for that caller."""
    if catalog.jobs is None:
        raise Unsupported(f"catalog '{catalog.name}' has no jobs")
    job = next((job for job in directory.jobs(ctx, catalog) if job.id == job_id), None)
    if job is None:
        raise NotFound(f"job '{job_id}' not found")
    directory.require_end_of_job(ctx, catalog, job)
    if not catalog.jobs.end(job_id, f"the job was ended by '{ctx.identity.subject}'"):
        raise NotFound(f"job '{job_id}' not found")


class JobActions:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def end(self, ctx: CallContext, body: MapReader) -> bytes:
        job_id = body.text("job_id")
        catalog = self._directory.catalog(ctx, body.optional_text("catalog_name") or "")
        end_job(self._directory, ctx, catalog, job_id)
        return json.dumps({"status": "success", "job_id": job_id}).encode()
