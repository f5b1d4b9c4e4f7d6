"""What Spark is asked when a plan is applied, wherever the snapshots go: new rows are appended, others merged by id."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkport.errors import InternalError
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.commits import AUTHORS, STATEMENTS, TRANSACTIONS, authors_note
from sparkport.lakehouse.iceberg.metadata import MARK
from sparkport.lakehouse.spark.server import Sessions, Work, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.change_set import TablePlan, spark_schema, widened
from sparkport.lakehouse.write.merge_sql import DELETED_COUNT, UPDATED_COUNT, merge_sql

__all__ = ["SparkSteps", "SparkWrites", "check_snapshots", "notes_of"]

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
        """One snapshot of ``target`` for the new rows, if they are Spark's to write, and one for those that change."""
        if self.new_rows:
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
    def session(
        self, plan: TablePlan, mark: str, *, conf: Mapping[str, str] | None = None, appends: bool = True
    ) -> Iterator[SparkSteps]:
        """All snapshots that are made in it have the ``mark``, and the plan's notes.

        Without ``appends`` the new rows are there already.
        """
        conf = {**(conf or {}), **{_PROPERTY + name: note for name, note in notes_of(plan, mark).items()}}
        inserts = [change.inserts for change in plan.change_sets if change.inserts is not None and appends]
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
        """The staged files; many small ones are put into one, because a file costs Spark more than the rows in it.

        Rows that were staged as a table's data files, before that table became one that Spark writes, are staged again.
        """
        few = len(parts) > 1 and sum(part.rows for part in parts) <= _SMALL_ROWS
        if not few and all(part.is_for_spark for part in parts):
            yield [str(part.path) for part in parts]
            return
        joined = self._staging.new(max((part.schema for part in parts), key=len))
        try:
            for part in parts:
                for batch in part.batches():
                    joined.append(widened(batch, joined.schema))
            joined.finish()
            yield [str(joined.path)]
        finally:
            joined.discard()


def notes_of(plan: TablePlan, mark: str) -> dict[str, str]:
    """What the summaries of a plan's snapshots say of it."""
    notes = {MARK: mark}
    for name, ids in ((STATEMENTS, plan.statements), (TRANSACTIONS, plan.transactions)):
        if ids:
            notes[name] = ",".join(ids)[:_PROPERTY_CHARACTERS]
    if plan.authors:
        notes[AUTHORS] = authors_note(plan.authors)
    return notes


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


def _purpose(plan: TablePlan) -> str:
    return " and ".join(word for word, rows in (("insert", plan.inserted), ("merge", plan.changed)) if rows) or "write"
