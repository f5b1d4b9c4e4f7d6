"""A table's past as its metadata tells it, without a look at manifests: every snapshot sums up the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sparkport.catalog.history import TableHistory, TableSnapshot
from sparkport.lakehouse.iceberg.metadata import MARK, TableMetadata
from sparkport.lakehouse.iceberg.totals import Totals, summary_number
from sparkport.lakehouse.iceberg.version_numbers import versions

__all__ = ["history_of", "operation_of"]

_MOVED = "replace"
"""The operation of a compaction: it writes the same rows to other files."""


def history_of(metadata: TableMetadata, most: int | None = None) -> TableHistory:
    """With ``most``, not all snapshots and none of their numbers, which takes hundredths of the time."""
    # The entries as they are in the file: a value for each would cost more than all else here.
    known: dict[int, Mapping[str, Any]] = {
        entry["snapshot-id"]: entry for entry in metadata.json.get("snapshots") or ()
    }
    moves = [(int(move["snapshot-id"]), int(move["timestamp-ms"])) for move in metadata.snapshot_log]
    main = metadata.main_snapshot_id
    if main in known and (not moves or moves[-1][0] != main):  # a log that others have cut off
        moves.append((main, int(known[main]["timestamp-ms"])))
    moves = [move for move in moves if move[0] in known]
    summaries = {number: entry.get("summary") or {} for number, entry in known.items()}
    compacted = next((at for number, at in reversed(moves) if summaries[number].get("operation") == _MOVED), None)
    numbers: dict[int | None, int] = {}
    if most is None:
        numbers = {version.snapshot_id: version.number for version in versions(metadata)}
    elif len(moves) > most:
        moves = [*moves[: -1 : -(-len(moves) // most)], moves[-1]]
    totals = Totals(metadata)
    return TableHistory(
        snapshots=tuple(
            _snapshot(number, at, list(_made(known, number)), numbers.get(number), totals) for number, at in moves
        ),
        kept=len(known),
        compacted=None if compacted is None else datetime.fromtimestamp(compacted / 1000, UTC),
        format=f"Iceberg v{metadata.format_version}",
        partitioned_by=_partitioned_by(metadata),
    )


def operation_of(made: Sequence[Mapping[str, str]]) -> str:
    """What a commit has done, by the summaries of its snapshots."""
    operations = {str(summary.get("operation", "")) for summary in made}
    return operations.pop() if len(operations) == 1 else "overwrite"


def _made(known: Mapping[int, Mapping[str, Any]], snapshot_id: int) -> Iterator[Mapping[str, str]]:
    """The summaries of one commit's snapshots: new rows and changed ones have one each, with the same mark."""
    entry = known[snapshot_id]
    summary = entry.get("summary") or {}
    mark = summary.get(MARK)
    yield summary
    while mark is not None and (entry := known.get(entry.get("parent-snapshot-id", -1), {})):
        summary = entry.get("summary") or {}
        if summary.get(MARK) != mark:
            return
        yield summary


def _snapshot(
    snapshot_id: int, at: int, made: Sequence[Mapping[str, str]], version: int | None, totals: Totals
) -> TableSnapshot:
    operation = operation_of(made)
    changed = [_added_and_removed(summary) for summary in made] if operation != _MOVED else []
    return TableSnapshot(
        id=snapshot_id,
        version=version,
        committed=datetime.fromtimestamp(at / 1000, UTC),
        operation=operation,
        rows=totals.rows(snapshot_id),
        bytes=totals.number(snapshot_id, "total-files-size"),
        files=totals.number(snapshot_id, "total-data-files"),
        delete_files=totals.number(snapshot_id, "total-delete-files"),
        added_rows=sum(added for added, _ in changed) if changed else None,
        removed_rows=max(sum(removed for _, removed in changed), 0) if changed else None,
    )


def _added_and_removed(summary: Mapping[str, str]) -> tuple[int, int]:
    names = ("added-records", "deleted-records", "added-position-deletes", "removed-position-deletes")
    added, deleted, positions, earlier = (summary_number(summary, name) or 0 for name in names)
    return added, deleted + positions - earlier


def _partitioned_by(metadata: TableMetadata) -> tuple[str, ...]:
    fields = metadata.specs.get(int(metadata.json.get("default-spec-id", 0)), ())
    return tuple(f"{field.get('name', '')} ({field.get('transform', '')})" for field in fields)
