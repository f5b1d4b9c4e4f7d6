"""The numbers of a table's versions, counted in its metadata.

0 is the table as it was made; every commit that moved ``main`` or changed the schema counts one. The moves of ``main``
are in Iceberg's snapshot log. No log has the changes of the schema: a property of the table notes them, next to the
number that was reached. So any version whose snapshot is kept can be found in the newest metadata alone.

Others commit too, and leave the note as it is: what they did is counted from there on. Where they have cut off the log
so far that it cannot be counted any more, their commits have no number, and the next note goes on with one that cannot
have been used: a number is gone rather than given to a second version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from sparkport.lakehouse.iceberg.metadata import TableMetadata

__all__ = ["NUMBER", "Version", "number_of", "numbered", "numbered_next", "versions"]

NUMBER = "sparkport.version"

_CHANGES_KEPT = 200

_CIRCUMSTANCES = {"file", "time", "sequence"}
"""What a note says of its time; that alone makes no other note."""

_CLOCK_SLACK_MS = 600_000
"""Our clock, and that of a catalog that writes the log itself, may differ by this about when ``main`` was moved.

A rollback to the same snapshot within that time looks the same, if others cut the log off in between too.
"""

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """What a number stands for. ``timestamp_ms`` is when it was committed, None where nobody knows."""

    number: int
    snapshot_id: int | None
    schema_id: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit that changed the schema."""

    number: int
    schema: int
    time: int


@dataclass(frozen=True, slots=True)
class _Count:
    """``number`` is the last one that is known, and the last of ``log`` the move of ``main`` that led to it.

    ``changes`` are all changes of the schema after the version ``since``, whose schema was ``base``. After an
    ``uncounted`` commit the metadata is a later version, and nobody knows its number.
    """

    number: int
    log: Sequence[Json]
    changes: tuple[_Change, ...]
    since: int
    base: int | None
    uncounted: bool


def number_of(metadata: TableMetadata) -> int | None:
    """How many commits have moved ``main`` or changed the schema since the table was made; None if nobody knows."""
    count = _count(metadata.json)
    return None if count.uncounted else count.number


def numbered(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same metadata with its number written down, for whoever counts on from here."""
    return _with_note(metadata, _count(metadata), slack=0)


def numbered_next(before: Json, after: dict[str, Any]) -> dict[str, Any]:
    """The same for a commit of ours, whoever writes it into the log: we know what was before it."""
    count = _count(before)
    if _main(after) != _main(before):
        count = replace(count, number=count.number + 1)
    if not _same_rows(after, before["current-schema-id"], after["current-schema-id"]):
        change = _Change(count.number + 1, after["current-schema-id"], after["last-updated-ms"])
        count = replace(count, number=change.number, changes=(*count.changes, change))
    return _with_note(after, count, slack=_CLOCK_SLACK_MS)


def _with_note(metadata: dict[str, Any], count: _Count, *, slack: int) -> dict[str, Any]:
    before, current = _note(metadata), metadata["current-schema-id"]
    if count.uncounted:
        number = _unused(metadata, before)
        count = _Count(number, (), (), since=number, base=current, uncounted=False)
    kept, since, base = count.changes[-_CHANGES_KEPT:], count.since, count.base
    if len(kept) < len(count.changes):
        since, base = count.changes[-_CHANGES_KEPT - 1].number, count.changes[-_CHANGES_KEPT - 1].schema
    log = metadata.get("snapshot-log") or [{}]
    note = {
        "number": count.number,
        "main": _main(metadata),
        "at": log[-1].get("timestamp-ms"),
        "slack": slack,
        "file": _file_number(metadata),
        "time": metadata.get("last-updated-ms", 0),
        "sequence": metadata.get("last-sequence-number", 0),
        "schema": current,
        "last-schema": _last_schema(metadata),
        "since": since,
        "base": base,
        "changes": [[change.number, change.schema, change.time] for change in kept],
    }
    if before.keys() == note.keys() and all(before[key] == note[key] for key in note.keys() - _CIRCUMSTANCES):
        return metadata  # nothing that has a number has happened since
    return {**metadata, "properties": {**metadata.get("properties", {}), NUMBER: json.dumps(note)}}


def versions(metadata: TableMetadata) -> Iterator[Version]:
    """All versions whose numbers this metadata knows, newest first; their snapshots may have expired."""
    count = _count(metadata.json)
    changes = {change.number: change for change in count.changes}
    log = list(count.log)
    for number in range(count.number, count.since - 1, -1):
        change = changes.get(number)
        moved = log[-1] if log else None
        is_current = number == count.number and not count.uncounted
        if change is None and moved is None and number > 0 and not is_current:
            return  # the log was cut off here
        if number == 0 and log:
            return  # somebody else has counted otherwise
        schema = next((earlier.schema for earlier in reversed(count.changes) if earlier.number <= number), count.base)
        snapshot = None if moved is None else int(moved["snapshot-id"])
        if schema is None:
            schema = _schema_of(metadata.json, snapshot)
        time = None
        if change is not None:
            time = change.time
        elif moved is not None and number > count.since:  # of the first one it is not known what was committed
            time = int(moved["timestamp-ms"])
        changes_until = sum(earlier.number <= number for earlier in count.changes)
        # Else the log is too short to know the rows.
        if moved is not None or is_current or (count.since == 0 and changes_until == number):
            yield Version(number, snapshot, schema, time)
        if change is None and log:
            log.pop()


def _count(metadata: Json) -> _Count:
    note = _note(metadata)
    number, log = int(note.get("number", 0)), list(metadata.get("snapshot-log") or ())
    noted = tuple(_Change(*change) for change in note.get("changes", ()))
    since, base = note.get("since", number), note.get("base", note.get("schema", 0))
    place = _place(metadata, note, log)
    if place is None:
        return _Count(number, (), noted, since, base, uncounted=True)
    steps = _steps(metadata, note, log[place:], main=note.get("main"))
    if steps is None:
        return _Count(number, log[:place], noted, since, base, uncounted=True)
    changes = [
        _Change(number + index + 1, schema, time) for index, (schema, time) in enumerate(steps) if schema is not None
    ]
    return _Count(number + len(steps), log, (*noted, *changes), since, base, uncounted=False)


def _place(metadata: Json, note: Json, log: Sequence[Json]) -> int | None:
    """How many moves of ``main`` in the log the note has counted; None if moves are missing that it has not."""
    main = note.get("main")
    if main is None:
        return 0 if _is_whole(metadata, note, log) else None
    places = [index for index, move in enumerate(log) if move["snapshot-id"] == main]
    if not places:  # a catalog may keep no log at all
        return 0 if not log and _main(metadata) == main else None
    if note.get("at") is None:
        return places[-1] + 1
    # A snapshot is in the log once more after others have rolled back to it.
    apart, place = min((abs(log[index]["timestamp-ms"] - note["at"]), index) for index in places)
    return place + 1 if apart <= note.get("slack", 0) else None


def _is_whole(metadata: Json, note: Json, log: Sequence[Json]) -> bool:
    """Whether ``main`` was on no snapshot before the log either: all snapshots made since the note are aside."""
    since, end = note.get("sequence", 0), metadata.get("last-sequence-number", 0) + 1
    if log:
        first = _snapshot(metadata, log[0]["snapshot-id"])
        if not first or first.get("parent-snapshot-id") is not None:
            return False
        end = first.get("sequence-number", 0)
    between = [item for item in metadata.get("snapshots") or () if since < item.get("sequence-number", 0) < end]
    elsewhere = _on_branches(metadata)
    aside = [item for item in between if "wap.id" in (item.get("summary") or ()) or item["snapshot-id"] in elsewhere]
    # Without a note, those that are staged may have been published.
    return bool(end - since - 1 <= (len(aside) if note else 0))


def _on_branches(metadata: Json) -> set[int]:
    snapshot_ids: set[int] = set()
    for name, ref in (metadata.get("refs") or {}).items():
        at = None if name == "main" else ref["snapshot-id"]
        while at is not None and at not in snapshot_ids:
            snapshot_ids.add(at)
            at = _snapshot(metadata, at).get("parent-snapshot-id")
    return snapshot_ids


_Step: TypeAlias = tuple[int | None, int]


def _steps(metadata: Json, note: Json, moves: Sequence[Json], *, main: int | None) -> list[_Step] | None:
    """The commits since the note: the schema that each has changed to, None for a move of ``main``; and their times.

    Snapshots name the schema that they were made with: a change was before the first one that has the new schema. Where
    they do not, or where a schema was taken up again, the order of things is lost: None.
    """
    plain: list[_Step] = [(None, move["timestamp-ms"]) for move in moves]
    before, current = note.get("schema", 0), metadata.get("current-schema-id", 0)
    last = note.get("last-schema", before)
    order = [before, *range(last + 1, _last_schema(metadata) + 1)]
    if len(order) == 1 and current != before:
        order.append(current)
    if order[-1] != current:
        return None
    if not all(_is_one_change(metadata, one, other) for one, other in pairwise(order)):
        return None
    changed = [other for one, other in pairwise(order) if not _same_rows(metadata, one, other)]
    if not changed:
        return plain
    steps: list[_Step] = []
    at = 0
    for move in moves:
        snapshot = _snapshot(metadata, move["snapshot-id"])
        made_now = snapshot.get("timestamp-ms") == move["timestamp-ms"] and snapshot.get("parent-snapshot-id") == main
        if not made_now or snapshot.get("schema-id") not in order[at:]:
            return None
        reached = order.index(snapshot["schema-id"])
        steps += [(schema, move["timestamp-ms"]) for schema in order[at + 1 : reached + 1] if schema in changed]
        steps.append((None, move["timestamp-ms"]))
        at, main = reached, move["snapshot-id"]
    time = metadata.get("last-updated-ms", 0)
    return [*steps, *((schema, time) for schema in order[at + 1 :] if schema in changed)]


def _unused(metadata: Json, note: Json) -> int:
    """A number that no commit since the note can have had, however many there were: each made a metadata file.

    A commit may have moved ``main`` and changed the schema, and so count twice. Where the names of files do not count
    them, time does: no table has more than two versions in a millisecond.
    """
    number, files, noted = int(note.get("number", 0)), _file_number(metadata), note.get("file")
    noted = -1 if noted is None else noted
    commits = int(metadata.get("last-updated-ms", 0)) - int(note.get("time", 0))
    if files is not None and files > noted:
        commits = files - noted
    return number + 2 * max(commits, 1)


def _file_number(metadata: Json) -> int | None:
    """How many metadata files were written before this one, by the name of the last."""
    log = metadata.get("metadata-log")
    if not log:
        return 0
    match = re.match(r"v?(\d+)", str(log[-1]["metadata-file"]).rpartition("/")[2])
    return int(match.group(1)) + 1 if match else None


def _note(metadata: Json) -> Json:
    try:
        note = json.loads((metadata.get("properties") or {}).get(NUMBER) or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _main(metadata: Json) -> int | None:
    snapshot_id: int | None = ((metadata.get("refs") or {}).get("main") or {}).get("snapshot-id")
    return snapshot_id


def _snapshot(metadata: Json, snapshot_id: int | None) -> Json:
    snapshots = metadata.get("snapshots") or ()
    snapshot: Json = next((item for item in snapshots if item["snapshot-id"] == snapshot_id), {})
    return snapshot


def _schema_of(metadata: Json, snapshot_id: int | None) -> int:
    return int(_snapshot(metadata, snapshot_id).get("schema-id", metadata.get("current-schema-id", 0)))


def _last_schema(metadata: Json) -> int:
    return max((item.get("schema-id", 0) for item in metadata.get("schemas") or ()), default=0)


def _is_one_change(metadata: Json, one: int, other: int) -> bool:
    """Whether a schema can have come from the one before it by one commit.

    A column may be gone, or there may be new ones. Both, or several gone: then an older schema may have been taken up
    again in between, which leaves no trace.
    """
    old, new = _shown(metadata, one), _shown(metadata, other)
    if old is None or new is None:  # cleaned away
        return False
    gone = old.keys() - new.keys()
    return not gone or (len(gone) == 1 and all(old.get(key) == field for key, field in new.items()))


def _same_rows(metadata: Json, one: int, other: int) -> bool:
    """Whether two schemas differ in nothing that rows show: what later rows will have by default is no version."""
    if one == other:
        return True
    old, new = _shown(metadata, one), _shown(metadata, other)
    return old is not None and new is not None and list(old.items()) == list(new.items())


def _shown(metadata: Json, schema: int) -> dict[int, Json] | None:
    """What rows show of the fields of a schema, by their ids."""
    schemas = metadata.get("schemas") or ()
    fields = next((item["fields"] for item in schemas if item.get("schema-id", 0) == schema), None)
    if fields is None:
        return None
    return {field["id"]: {key: field[key] for key in field.keys() - {"write-default"}} for field in fields}
