"""What a table of a REST catalog says of commits, in its own metadata: the catalog has no other place for it.

A statement or transaction that was committed is a property of each table that it changed, written by the same commit.
A commit that must not be made any more is a tag. Every commit requires the tags of its own name to be absent, so from
the moment that one is there the catalog itself refuses the commit, however late it comes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "FENCE",
    "Note",
    "STATEMENT",
    "fence_name",
    "fence_updates",
    "fences",
    "noted",
    "notes_in",
    "old_fences",
    "statement_count",
    "transaction_key",
    "unfenced",
]

Json = dict[str, Any]

STATEMENT = "sparkport.statement."
FENCE = "sparkport_abort_"

_FENCED = "sparkport.aborted."
_TRANSACTION = "tx:"


@dataclass(frozen=True, slots=True)
class Note:
    """A statement in a table's properties: the rows that it changed, and when it was committed."""

    count: int
    time: float

    @classmethod
    def parse(cls, text: str) -> Note | None:
        """None for what somebody else has written."""
        count, _, committed = text.partition(" ")
        try:
            return cls(int(count), float(committed or 0))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.count} {self.time:.0f}"


# Statements and transactions


def transaction_key(transaction_id: str) -> str:
    return f"{_TRANSACTION}{transaction_id}"


def notes_in(metadata: Mapping[str, Any], *, of_transactions: bool) -> dict[str, Note]:
    """What a table notes, by the statement's key or the transaction's id; the oldest first."""
    notes: dict[str, Note] = {}
    for name, value in _properties(metadata).items():
        key = name.removeprefix(STATEMENT)
        if name == key or key.startswith(_TRANSACTION) is not of_transactions:
            continue
        note = Note.parse(value)
        if note is not None:
            notes[key.removeprefix(_TRANSACTION)] = note
    return dict(sorted(notes.items(), key=lambda item: item[1].time))


def statement_count(metadata: Mapping[str, Any], key: str) -> int | None:
    """The rows that a statement changed, by a table's note; None where there is none."""
    note = Note.parse(_properties(metadata).get(STATEMENT + key, ""))
    return None if note is None else note.count


def noted(metadata: Mapping[str, Any], statements: Mapping[str, int], *, without: Collection[str]) -> Json:
    """A table's metadata with notes of some statements, and without old ones: one property each."""
    gone = {STATEMENT + key for key in without}
    kept = {name: value for name, value in _properties(metadata).items() if name not in gone}
    now = time.time()
    new = {STATEMENT + key: str(Note(count, now)) for key, count in statements.items()}
    return {**metadata, "properties": {**kept, **new}}


# Fences


def fence_name(commit: str) -> str:
    """The tag that keeps a commit, or a transaction, from being made."""
    return FENCE + commit


def unfenced(commits: Iterable[str]) -> list[Json]:
    """What a commit requires: that nobody has put a stop to it."""
    return [{"type": "assert-ref-snapshot-id", "ref": fence_name(commit), "snapshot-id": None} for commit in commits]


def fences(metadata: Mapping[str, Any], commits: Iterable[str]) -> list[str]:
    """Those of the commits that a table keeps from being made."""
    refs = metadata.get("refs") or {}
    return [commit for commit in commits if fence_name(commit) in refs]


def fence_updates(metadata: Mapping[str, Any], commits: Iterable[str]) -> list[Json] | None:
    """What puts a stop to commits. A tag needs a snapshot, any: None for a table that has none at all."""
    main = (metadata.get("refs") or {}).get("main", {}).get("snapshot-id")
    snapshots = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
    if main is None and not snapshots:
        return None
    tag = {"type": "tag", "snapshot-id": snapshots[-1] if main is None else main}
    wanted = list(commits)
    times = {_FENCED + commit: f"{time.time():.0f}" for commit in wanted}
    return [
        *({"action": "set-snapshot-ref", "ref-name": fence_name(commit), **tag} for commit in wanted),
        {"action": "set-properties", "updates": times},
    ]


def old_fences(metadata: Mapping[str, Any], *, before: float) -> tuple[list[str], list[str]]:
    """The tags, and the properties beside them, of commits that were stopped before a time."""
    times = {
        name.removeprefix(_FENCED): value for name, value in _properties(metadata).items() if name.startswith(_FENCED)
    }
    old = [commit for commit, value in times.items() if not value.isdecimal() or int(value) < before]
    return [fence_name(commit) for commit in fences(metadata, old)], [_FENCED + commit for commit in old]


def _properties(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    properties: Mapping[str, str] = metadata.get("properties") or {}
    return properties
