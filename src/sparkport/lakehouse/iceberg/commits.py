"""The versions of a table and who made them, as its metadata tells it: every snapshot sums up its commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sparkport.catalog.changes import TableCommit
from sparkport.lakehouse.iceberg.metadata import MARK, ROLLED_BACK, Snapshot, TableMetadata
from sparkport.lakehouse.iceberg.snapshots import operation_of
from sparkport.lakehouse.iceberg.totals import Totals, summary_number
from sparkport.lakehouse.iceberg.version_numbers import Version, versions

__all__ = ["AUTHORS", "STATEMENTS", "TRANSACTIONS", "authors_note", "commits_of"]

AUTHORS = "sparkport.authors"
STATEMENTS = "sparkport.statements"
TRANSACTIONS = "sparkport.transactions"

_NOTED_AUTHORS, _NOTED_CHARACTERS = 64, 255

_MERGED = "spark.merge-into.num-target-rows-"


def authors_note(authors: Sequence[str]) -> str:
    """What a snapshot's summary says of who made it. Names may be of any characters."""
    return json.dumps([author[:_NOTED_CHARACTERS] for author in authors[:_NOTED_AUTHORS]])


def commits_of(metadata: TableMetadata) -> list[TableCommit]:
    """Those whose rows are still there, oldest first."""
    known = list(versions(metadata))[::-1]
    numbered = {version.snapshot_id for version in known}
    totals = Totals(metadata)
    commits: list[TableCommit] = []
    for move in metadata.snapshot_log:  # others have cut off the log that would number these
        if move["snapshot-id"] not in numbered and metadata.has_snapshot(move["snapshot-id"]):
            commits.append(_commit(None, _made(metadata, move["snapshot-id"]), move["timestamp-ms"], totals))
    before: Version | None = None
    for version in known:
        snapshot_id = version.snapshot_id
        if snapshot_id is None or metadata.has_snapshot(snapshot_id):
            made = [] if before is not None and before.snapshot_id == snapshot_id else _made(metadata, snapshot_id)
            commits.append(_commit(version.number, made, version.timestamp_ms, totals))
        before = version
    return commits


def _made(metadata: TableMetadata, snapshot_id: int | None) -> list[Snapshot]:
    """The snapshots of one commit, newest first: new rows and changed ones have one each, with the same mark."""
    made: list[Snapshot] = []
    for snapshot in metadata.ancestors(snapshot_id):
        if made and not (snapshot.is_ours and snapshot.summary[MARK] == made[0].summary.get(MARK)):
            break
        made.append(snapshot)
    return made


def _commit(number: int | None, made: list[Snapshot], time: int | None, totals: Totals) -> TableCommit:
    committed = None if time is None else datetime.fromtimestamp(time / 1000, UTC)
    if not made:
        return TableCommit(version=number, operation="create" if number == 0 else "alter", committed=committed)
    newest = made[0]
    counts = [_counts(snapshot) for snapshot in made]
    inserted, updated, deleted = (
        None if any(part is None for part in parts) else sum(part for part in parts if part is not None)
        for parts in zip(*counts, strict=True)
    )
    operation = operation_of([snapshot.summary for snapshot in made])
    return TableCommit(
        version=number,
        operation="rollback" if ROLLED_BACK in newest.summary else operation,
        committed=committed,
        authors=_authors(newest.summary),
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        bytes=sum(summary_number(snapshot.summary, "added-files-size") or 0 for snapshot in made),
        rows=totals.rows(newest.id),
        transactions=_listed(newest.summary, TRANSACTIONS),
        statements=_listed(newest.summary, STATEMENTS),
        snapshot=newest.id,
    )


def _counts(snapshot: Snapshot) -> tuple[int | None, int | None, int | None]:
    """Rows that a snapshot has inserted, updated and deleted; None where its writer has not told them apart."""
    summary = snapshot.summary
    merged = [summary_number(summary, f"{_MERGED}{word}") for word in ("inserted", "updated", "deleted")]
    if any(count is not None for count in merged):
        inserted, updated, deleted = (count or 0 for count in merged)
        return inserted, updated, deleted
    if snapshot.operation == "append":
        return summary_number(summary, "added-records") or 0, 0, 0
    if snapshot.operation == "replace":
        return 0, 0, 0
    if snapshot.operation == "delete" and not summary_number(summary, "added-equality-deletes"):
        positions = summary_number(summary, "added-position-deletes") or 0
        removed = summary_number(summary, "deleted-records") or 0
        earlier = summary_number(summary, "removed-position-deletes") or 0
        return 0, 0, max(0, removed + positions - earlier)
    return None, None, None


def _authors(summary: Mapping[str, str]) -> tuple[str, ...] | None:
    try:
        authors = json.loads(summary.get(AUTHORS, "null"))
    except ValueError:
        return None
    return tuple(map(str, authors)) if isinstance(authors, list) else None


def _listed(summary: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part for part in summary.get(key, "").split(",") if part)
