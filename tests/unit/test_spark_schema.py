"""The schema ``spark``: who may run a query, which tables it gets to see, and who ends it. Without a Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sparkport.auth import AllowAll, Authorizer, Identity, Operation, Rule, RuleAuthorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import TableDefinition
from sparkport.catalog.functions import ScalarFunction, TableFunction
from sparkport.catalog.jobs import Job, Jobs
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.spark_sql import SparkQuery, SparkSql, SparkView
from sparkport.catalog.table import Table
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, TableNotFound
from sparkport.filters.rule_expressions import parse_rule
from sparkport.handlers.directory import Directory
from sparkport.memory import MemoryCatalog
from sparkport.protocol.targets import Kind, Target

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("tables", pa.string())])
TABLES = ("orders", "people", "hidden")


class Echo(SparkSql):
    """Answers with the tables that a query got to see. Words of a query are its names, and all of them are needed."""

    def named(self, ctx: CallContext, text: str) -> Iterable[tuple[str, str]]:
        return [("public", name) for name in TABLES if name in text.split()]

    def columns(self, ctx: CallContext, query: SparkQuery) -> pa.Schema:
        for schema, name in self.named(ctx, query.text):
            if (schema, name) not in query.tables:
                raise TableNotFound(schema, name)
        return COLUMNS

    def scan(self, ctx: CallContext, query: SparkQuery, columns: pa.Schema) -> Scan:
        said = ",".join(name for _, name in sorted(query.tables))
        return Scan([pa.RecordBatch.from_pylist([{"tables": said}], columns)])

    def explain(self, ctx: CallContext, query: SparkQuery) -> str:
        self.columns(ctx, query)
        return "a plan"


class OneJob(Jobs):
    def __init__(self) -> None:
        self.ended: list[str] = []

    @property
    def state(self) -> str:
        return "ready"

    def running(self) -> Sequence[Job]:
        began = datetime(2026, 1, 1, tzinfo=UTC)
        orders = (("public", "orders"),)
        return [Job(id="1", purpose="query", tables=orders, began=began, owner="bob", query="SELECT 1", progress=0.5)]

    def end(self, job_id: str, reason: str) -> bool:
        self.ended.append(job_id)
        return True


RULES = (
    Rule(("ada",), frozenset(Operation), ("lake",)),
    Rule(("bob", "cid"), frozenset({Operation.READ}), ("lake.public.orders",)),
    Rule(("bob",), frozenset({Operation.READ}), ("lake.public.people",), rows=parse_rule("id = 1")),
    Rule(("bob",), frozenset({Operation.CALL, Operation.SPARK_SQL, Operation.READ}), ("lake.spark",)),
    Rule(("cid",), frozenset({Operation.CALL, Operation.READ}), ("lake.spark",)),
)


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def catalog(echo: Echo) -> MemoryCatalog:
    catalog = MemoryCatalog("lake", default_schema="public")
    schema: Any = catalog.schema(CallContext(), "public")
    for name in TABLES:
        schema.create_table(CallContext(), TableDefinition(name=name, columns=pa.schema([("id", pa.int64())])))
    catalog.spark_sql = echo
    catalog.jobs = OneJob()
    return catalog


@pytest.fixture
def directory(catalog: MemoryCatalog) -> Directory:
    return Directory([catalog], RuleAuthorizer(RULES))


def call(directory: Directory, subject: str, query: str, function: str = "sql") -> list[str]:
    ctx = CallContext(identity=Identity(subject))
    target = Target("lake", "spark", Kind.TABLE_FUNCTION, function)
    found = directory.function(ctx, target, TableFunction)  # type: ignore[type-abstract]
    arguments = found.bind(pa.RecordBatch.from_pylist([{"query": query}]))
    found.schema(ctx, arguments)
    batches: Any = found.scan(ctx, arguments, ScanRequest())
    return [str(value) for batch in batches for value in batch.column(0).to_pylist()]


def test_a_query_gets_the_tables_that_it_names_and_its_caller_may_read(directory: Directory) -> None:
    assert call(directory, "ada", "orders people") == ["orders,people"]
    assert call(directory, "bob", "orders") == ["orders"]


def test_a_table_that_is_hidden_does_not_exist_and_one_that_is_limited_is_refused(directory: Directory) -> None:
    for function in ("sql", "explain"):
        with pytest.raises(TableNotFound, match="hidden"):
            call(directory, "bob", "orders hidden", function)
        with pytest.raises(PermissionDenied, match="sees only a part of"):
            call(directory, "bob", "orders people", function)


def test_what_a_view_reads_is_not_told_to_who_may_not_know_of_it(
    directory: Directory, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(ctx: CallContext, text: str) -> list[tuple[str, str]]:
        return [("public", "people")] if text == "another_view" else [("public", "hidden")]

    monkeypatch.setattr(echo, "named", named)
    for query in ("a_view", "unhidden"):
        with pytest.raises(NotFound) as failure:
            call(directory, "bob", query)
        assert "'public.hidden'" not in failure.value.message
    with pytest.raises(PermissionDenied, match="sees only a part of"):
        call(directory, "bob", "another_view")


class _View(SparkView):
    """Reads the table ``hidden``."""

    name = "totals"
    schema = COLUMNS

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        raise NotImplementedError

    def reads(self, ctx: CallContext) -> list[tuple[str, str]]:
        return [("public", "hidden")]

    def read_by(self, owner: str, tables: frozenset[tuple[str, str]]) -> Table:
        return self


def test_an_alias_confirms_no_guess_about_what_a_view_reads(
    catalog: MemoryCatalog, directory: Directory, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema: Any = catalog.schema(CallContext(), "public")
    schema.add(_View())
    directory = Directory(
        [catalog], RuleAuthorizer([*RULES, Rule(("bob",), frozenset({Operation.READ}), ("lake.public.totals",))])
    )

    def named(ctx: CallContext, text: str) -> list[tuple[str, str]]:
        views = [("public", "totals"), ("public", "hidden")] if "totals" in text.split() else []
        return [*views, *(("public", name) for name in TABLES if name in text.split())]

    monkeypatch.setattr(echo, "named", named)
    answers = set()
    for alias in ("hidden", "guessed", "x"):
        for query in (f"SELECT * FROM totals AS {alias}", f"SELECT * FROM totals {alias} -- hidden"):
            with pytest.raises(NotFound) as failure:
                call(directory, "bob", query)
            answers.add(failure.value.message)
    assert answers == {"a table that the query or a view of it reads is not there, or not for you"}


def test_the_right_has_to_be_given_by_its_name(directory: Directory) -> None:
    for function in ("sql", "explain"):
        with pytest.raises(PermissionDenied, match="may not spark_sql"):
            call(directory, "cid", "orders", function)


@pytest.mark.parametrize(("authorizer", "may"), [(AllowAll(), False), (AllowAll(spark_sql=True), True)])
def test_without_rules_it_takes_a_server_that_is_private(
    catalog: MemoryCatalog, authorizer: Authorizer, may: bool
) -> None:
    directory = Directory([catalog], authorizer)
    if may:
        assert call(directory, "ada", "orders") == ["orders"]
    else:
        with pytest.raises(PermissionDenied):
            call(directory, "ada", "orders")


def test_a_query_that_is_null_is_refused(directory: Directory) -> None:
    ctx = CallContext(identity=Identity("ada"))
    found = directory.function(ctx, Target("lake", "spark", Kind.TABLE_FUNCTION, "sql"), TableFunction)  # type: ignore[type-abstract]
    row = pa.RecordBatch.from_pylist([{"query": None}], pa.schema([("query", pa.string())]))
    with pytest.raises(InvalidArgument, match="must be a text"):
        found.schema(ctx, found.bind(row))


def jobs_of(directory: Directory, subject: str) -> list[dict[str, Any]]:
    ctx = CallContext(identity=Identity(subject))
    table = directory.table(ctx, Target("lake", "spark", Kind.TABLE, "jobs"), Operation.READ).table
    return [row for batch in table.scan(ctx, ScanRequest()) for row in batch.to_pylist()]


def test_queries_of_others_are_listed_without_their_words(directory: Directory) -> None:
    ((own,), (other,)) = jobs_of(directory, "bob"), jobs_of(directory, "ada")
    assert (own["owner"], own["query"], own["progress"], own["tables"]) == ("bob", "SELECT 1", 0.5, ["public.orders"])
    assert (other["owner"], other["query"]) == ("bob", None)


def test_a_query_is_ended_by_its_owner_and_by_who_may_end_any(directory: Directory, catalog: MemoryCatalog) -> None:
    def cancel(subject: str, job: str) -> list[str]:
        ctx = CallContext(identity=Identity(subject))
        target = Target("lake", "spark", Kind.SCALAR_FUNCTION, "cancel")
        function = directory.function(ctx, target, ScalarFunction)  # type: ignore[type-abstract]
        return [str(item) for item in function.call(ctx, pa.RecordBatch.from_pylist([{"id": job}])).to_pylist()]

    assert cancel("bob", "1") == ["1"]
    assert cancel("ada", "1") == ["1"]
    with pytest.raises(PermissionDenied):
        cancel("cid", "1")
    with pytest.raises(NotFound):
        cancel("ada", "2")
    assert isinstance(catalog.jobs, OneJob)
    assert catalog.jobs.ended == ["1", "1"]


def test_a_catalog_without_spark_has_no_such_schema() -> None:
    directory = Directory([MemoryCatalog("lake")], AllowAll(spark_sql=True))
    with pytest.raises(NotFound):
        call(directory, "ada", "orders")
