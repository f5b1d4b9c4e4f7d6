"""What a table holds by each of its snapshots, as their summaries tell it.

Iceberg adds what a commit has changed to the totals of the snapshot before it, but begins anew on a branch that is made
by the commit itself. Earlier versions of sparkport made such commits: their totals, and those of what was built on
them, are counted again here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkport.lakehouse.iceberg.metadata import BRANCH, MARK, ROLLED_BACK, TableMetadata

__all__ = ["Totals", "summary_number"]

_COUNTED = {
    "total-records": ("added-records", "deleted-records"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}

_Summary = Mapping[str, str]


class Totals:
    """A look at the marks of all snapshots, and at numbers only where it has to be counted again."""

    def __init__(self, metadata: TableMetadata) -> None:
        entries = metadata.json.get("snapshots") or ()
        self._summaries: dict[int | None, _Summary] = {
            item["snapshot-id"]: item.get("summary") or {} for item in entries
        }
        self._counted: dict[int | None, Mapping[str, int | None]] = {}
        for entry in sorted(entries, key=lambda item: int(item.get("sequence-number", 0))):
            self._count(entry)

    def number(self, snapshot_id: int | None, name: str) -> int | None:
        """``name`` is the summary's, as ``total-records``; None where nobody knows."""
        if snapshot_id in self._counted:
            return self._counted[snapshot_id].get(name)
        return summary_number(self._summaries.get(snapshot_id, {}), name)

    def rows(self, snapshot_id: int) -> int | None:
        records = self.number(snapshot_id, "total-records")
        # How many rows deletes by value take away is known only to those who read them.
        if records is None or self.number(snapshot_id, "total-equality-deletes"):
            return None
        left = records - (self.number(snapshot_id, "total-position-deletes") or 0)
        return left if left >= 0 else None  # totals that began anew so long ago that nothing shows it

    def summary(self, snapshot_id: int) -> dict[str, str]:
        """All totals in the form of a summary."""
        stated = {key: value for key, value in self._summaries[snapshot_id].items() if key.startswith("total-")}
        counted = self._counted.get(snapshot_id, {})
        kept = {key: value for key, value in stated.items() if key not in counted}
        return {**kept, **{key: str(value) for key, value in counted.items() if value is not None}}

    def _count(self, entry: Mapping[str, Any]) -> None:
        snapshot_id, parent = entry["snapshot-id"], entry.get("parent-snapshot-id")
        summary = self._summaries[snapshot_id]
        counted: Mapping[str, int | None]
        if ROLLED_BACK in summary:
            target = summary_number(summary, ROLLED_BACK)
            if target not in self._counted:
                return
            counted = self._counted[target]
        elif parent in self._counted or self._begins_branch(summary, parent):
            counted = {name: self._after(parent, summary, name) for name in _COUNTED}
        else:
            return
        if any(summary_number(summary, name) != number for name, number in counted.items()):
            self._counted[snapshot_id] = counted

    def _begins_branch(self, summary: _Summary, parent: int | None) -> bool:
        mark = str(summary.get(MARK, ""))
        return mark.startswith(BRANCH) and parent in self._summaries and self._summaries[parent].get(MARK) != mark

    def _after(self, parent: int | None, summary: _Summary, name: str) -> int | None:
        added, removed = (summary_number(summary, key) or 0 for key in _COUNTED[name])
        change, before = added - removed, self.number(parent, name)
        told, told_before = summary_number(summary, name), summary_number(self._summaries.get(parent, {}), name)
        # Iceberg leaves out a total below zero, and has none from there on.
        left_out = told is None and (told_before is None or change < 0)
        # Else somebody has counted by other means.
        by_change = left_out or told in (change, (told_before or 0) + change)
        return before + change if before is not None and by_change else told


def summary_number(summary: Mapping[str, str], key: str) -> int | None:
    """Anybody may have written the summary."""
    value = str(summary.get(key, ""))
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None
