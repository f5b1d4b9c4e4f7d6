"""What Spark is asked when a plan is applied, wherever the snapshots go: new rows are appended, others merged by id."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkport.errors import InternalError
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.commits import AUTHORS, STATEMENTS, TRANSACTIONS, authors_note
from sparkport.lakehouse.iceberg.metadata import MARK
from sparkport.lakehouse.spark.server import Sessions, Work, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.change_set import TablePlan, spark_schema
from sparkport.lakehouse.write.merge_sql import DELETED_COUNT, UPDATED_COUNT, merge_sql

__all__ = ["SparkSteps", "SparkWrites", "check_snapshots"]

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_PROPERTY_CHARACTERS = 4_000
_SMALL_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class SparkSteps:
    """A plan's rows where Spark can read them, and a session to ask."""

    session: Any
    plan: TablePlan
    new_rows: Sequence[str]
    changed_rows: Sequence[str]

    def run(self, target: str) -> None:
        """One snapshot of ``target`` for the new rows, and one on it for those that are changed."""
        if self.plan.inserted:
            self._append(target)
        if self.plan.inserted and self.plan.changed:
            fault("apply.between")
        if self.plan.changed:
            self._merge(target)

    def _append(self, target: str) -> None:
        """The schema in Spark's DDL saves it a look at the files."""
        schema = spark_schema(self.plan.version.columns.fields, by_place=False)
        frame = self.session.read.schema(schema).parquet(*self.new_rows)
        writer = frame.writeTo(target).option("check-nullability", "false")
        if self.plan.in_order:
            writer = writer.option("distribution-mode", "none")
        writer.append()

    def _merge(self, target: str) -> None:
        fields = [self.plan.version.columns.field(name) for name in self.plan.columns]
        view = f"staged_{uuid.uuid4().hex}"
        frame = self.session.read.schema(spark_schema(fields, by_place=True)).parquet(*self.changed_rows)
        frame.createOrReplaceTempView(view)
        try:
            self.session.sql(merge_sql(target, quoted(view), self.plan)).collect()
        finally:
            self.session.catalog.dropTempView(view)


class SparkWrites:
    def __init__(self, spark: Sessions, staging: Staging) -> None:
        self._spark = spark
        self._staging = staging

    @contextlib.contextmanager
    def session(self, plan: TablePlan, mark: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSteps]:
        """All snapshots that are made in it have the ``mark``, and the plan's notes."""
        conf = {**(conf or {}), _PROPERTY + MARK: mark}
        for name, ids in ((STATEMENTS, plan.statements), (TRANSACTIONS, plan.transactions)):
            if ids:
                conf[_PROPERTY + name] = ",".join(ids)[:_PROPERTY_CHARACTERS]
        if plan.authors:
            conf[_PROPERTY + AUTHORS] = authors_note(plan.authors)
        inserts = [change.inserts for change in plan.change_sets if change.inserts is not None]
        changes = [change.changes for change in plan.change_sets if change.changes is not None]
        work = Work(_purpose(plan), (plan.table,))
        with (
            self.joined(inserts) as new_rows,
            self.joined(changes) as changed_rows,
            self._spark.session(conf, timeout=plan.timeout, work=work) as session,
        ):
            fault("apply.before")
            with translated(f"changing '{plan.table.name}'"):
                yield SparkSteps(session, plan, new_rows, changed_rows)
            fault("apply.after")

    @contextlib.contextmanager
    def joined(self, parts: Sequence[StagedRows]) -> Iterator[list[str]]:
        """The staged files; many small ones are put into one, because a file costs Spark more than the rows in it."""
        if len(parts) <= 1 or sum(part.rows for part in parts) > _SMALL_ROWS:
            yield [str(part.path) for part in parts]
            return
        joined = self._staging.new(max((part.schema for part in parts), key=len))
        try:
            for part in parts:
                for batch in part.batches():
                    joined.append(_widened(batch, joined.schema))
            yield [str(joined.finish())]
        finally:
            joined.discard()


def check_snapshots(plan: TablePlan, summaries: Sequence[Mapping[str, str]]) -> None:
    """Spark must have done just what was decided."""
    expected = [{"added-records": plan.inserted}] if plan.inserted else []
    if plan.changed:
        expected.append({UPDATED_COUNT: len(plan.updated), DELETED_COUNT: len(plan.deleted)})
    if len(summaries) != len(expected):
        raise InternalError(f"Spark made {len(summaries)} snapshots of '{plan.table.name}', not {len(expected)}")
    for summary, counts in zip(summaries, expected, strict=True):
        for key, count in counts.items():
            reported = summary.get(key, "0")
            if int(reported) != count:
                raise InternalError(f"table '{plan.table.name}': Spark reports {reported} for {key}, not {count}")


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that are deleted bring no values. Nothing is cast, which Arrow would do, and lose digits by it."""
    names = batch.schema.names
    columns = [batch.column(f.name) if f.name in names else pa.nulls(len(batch), f.type) for f in schema]
    if [column.type for column in columns] != schema.types:
        raise InternalError("staged rows that are to go together are of other types")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _purpose(plan: TablePlan) -> str:
    return " and ".join(word for word, rows in (("insert", plan.inserted), ("merge", plan.changed)) if rows) or "write"
