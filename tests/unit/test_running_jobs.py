"""Jobs of a catalog: who sees them, and who may end one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from sparkport.auth import Identity, Operation, Rule, RuleAuthorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.jobs import Job, Jobs
from sparkport.errors import NotFound, PermissionDenied, SparkportError, Unsupported
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import Handlers
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("fast")

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Fixed(Jobs):
    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    @property
    def state(self) -> str:
        return "ready"

    def running(self) -> Sequence[Job]:
        return [
            Job(id="one", purpose="insert", tables=(("public", "users"),), began=BEGAN),
            Job(id="two", purpose="merge", tables=(("hr", "pay"), ("public", "users")), began=BEGAN),
        ]

    def end(self, job_id: str, reason: str) -> bool:
        self.ended.append((job_id, reason))
        return True


RULES = (
    Rule(("admin",), frozenset(Operation), ("lake",)),
    Rule(("keeper",), frozenset({Operation.ALTER}), ("lake.public.users",)),
    Rule(("keeper",), frozenset({Operation.ACTION}), ("lake.*.end_job",)),
    Rule(("guest",), frozenset({Operation.READ}), ("lake.public",)),
    Rule(("guest",), frozenset({Operation.ACTION}), ("lake.*.end_job",)),
)


@pytest.fixture
def jobs() -> Fixed:
    return Fixed()


@pytest.fixture
def handlers(jobs: Fixed) -> Handlers:
    catalog = MemoryCatalog("lake")
    catalog.jobs = jobs
    return Handlers(Directory([catalog], RuleAuthorizer(RULES)))


def end(handlers: Handlers, subject: str, job: str) -> dict[str, str]:
    ctx = CallContext(identity=Identity(subject))
    (answer,) = handlers.do_action(ctx, "end_job", json.dumps({"job_id": job}).encode())
    result: dict[str, str] = json.loads(answer)
    return result


def test_a_job_on_a_table_that_the_caller_may_not_know_of_is_not_listed(handlers: Handlers) -> None:
    directory = handlers.directory
    seen = {}
    for subject in ("admin", "keeper", "guest"):
        ctx = CallContext(identity=Identity(subject))
        seen[subject] = [job.id for job in directory.jobs(ctx, directory.catalog(ctx, "lake"))]
    assert seen == {"admin": ["one", "two"], "keeper": ["one"], "guest": ["one"]}


def test_who_may_alter_all_its_tables_ends_a_job(handlers: Handlers, jobs: Fixed) -> None:
    assert end(handlers, "admin", "two") == {"status": "success", "job_id": "two"}
    assert end(handlers, "keeper", "one")["status"] == "success"
    assert jobs.ended == [("two", "the job was ended by 'admin'"), ("one", "the job was ended by 'keeper'")]


@pytest.mark.parametrize(
    ("subject", "job", "error"),
    [("guest", "one", PermissionDenied), ("guest", "two", NotFound), ("keeper", "two", NotFound)],
)
def test_others_do_not(handlers: Handlers, jobs: Fixed, subject: str, job: str, error: type[SparkportError]) -> None:
    with pytest.raises(error):
        end(handlers, subject, job)
    assert jobs.ended == []


def test_a_catalog_without_jobs_says_so() -> None:
    handlers = Handlers(Directory([MemoryCatalog("lake")]))
    with pytest.raises(Unsupported, match="has no jobs"):
        end(handlers, "admin", "one")
