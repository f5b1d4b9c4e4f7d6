"""Spark's work, listed while it is under way and ended by who may."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.lakehouse import lakehouse

from sparkport.errors import Unavailable
from sparkport.lakehouse.spark.server import Work, translated

pytestmark = pytest.mark.tier("thorough")


def test_a_job_that_is_ended_fails_with_the_reason_and_spark_goes_on(tmp_path: Path) -> None:
    with lakehouse(tmp_path) as opened:
        sessions, jobs = opened.engine.storage.spark, opened.catalog.jobs
        assert jobs is not None
        failures: list[BaseException] = []
        begun = threading.Event()

        def run() -> None:
            try:
                with sessions.session(work=Work("merge", (("public", "users"),))) as session, translated("counting"):
                    begun.set()
                    session.sql("SELECT sum(hash(id)) FROM range(0, 1000000000000)").collect()
            except BaseException as exc:
                failures.append(exc)

        opened.spark.wait_ready(60)
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        (job,) = jobs.running()
        assert (job.purpose, job.tables, jobs.state) == ("merge", (("public", "users"),), "ready")
        assert jobs.end(job.id, "the job was ended by 'ada'")
        thread.join(60)
        (failure,) = failures
        with pytest.raises(Unavailable, match="the job was ended by 'ada'"):
            raise failure
        assert jobs.running() == []
        assert not jobs.end(job.id, "again")
        with sessions.session() as session:
            assert session.sql("SELECT 1").collect()[0][0] == 1
