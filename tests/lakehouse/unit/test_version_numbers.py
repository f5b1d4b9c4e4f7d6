"""Numbers of versions, counted in metadata that this server and others have written in turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.lakehouse.iceberg import edits
from sparkport.lakehouse.iceberg.edits import evolve_schema, move_main, new_table, set_properties
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.version_numbers import NUMBER, Version, number_of, numbered, versions

pytestmark = pytest.mark.tier("fast")

Json = dict[str, Any]


def field(number: int, **more: Any) -> Json:
    return {"id": number, "name": f"c{number}", "required": False, "type": "long", **more}


class Table:
    """Metadata from commit to commit. ``ours`` writes the number down, as every metadata file of ours does.

    The commits of others are as Iceberg makes them: the log has the snapshot's own time where it was made for ``main``.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.files = 0
        self.is_unset = False
        self.json = numbered(self._at_tick(lambda: new_table("file:/t", [field(1)], last_column_id=1, properties={})))
        self.expected = [Version(0, None, 0, None)]

    def _written(self, after: Json, *, ours: bool) -> None:
        if not ours:
            after["properties"] = self.json["properties"]
        self.json = numbered(after) if ours else after

    def _at_tick(self, edit: Callable[[], Json]) -> Json:
        self.clock += 10
        with mock.patch.object(edits, "_now", return_value=self.clock):
            return edit()

    @property
    def _file(self) -> str:
        """Where the metadata is; the next is written with the next number."""
        self.files += 1
        return f"file:/t/metadata/{self.files - 1:05}-x.metadata.json"

    @property
    def main(self) -> int | None:
        found: int | None = self.json["refs"].get("main", {}).get("snapshot-id")
        return found

    def _next(self) -> Version:
        last = self.expected[-1]
        return Version(last.number + 1, last.snapshot_id, self.json["current-schema-id"], self.clock)

    def stage(self, *, time: int | None = None) -> int:
        """A snapshot that is on no branch, as Spark leaves it for us to publish."""
        sequence = self.json["last-sequence-number"] + 1
        snapshot = {
            "snapshot-id": 100 + sequence - 1,
            "sequence-number": sequence,
            "timestamp-ms": self.clock if time is None else time,
            "manifest-list": "x",
            "schema-id": self.json["current-schema-id"],
            "summary": {"wap.id": "x"} if time is None else {},
        }
        if self.main is not None:
            snapshot["parent-snapshot-id"] = self.main
        self.json = {
            **self.json,
            "snapshots": [*self.json["snapshots"], snapshot],
            "last-sequence-number": sequence,
            "metadata-log": [{"metadata-file": self._file, "timestamp-ms": self.clock}],
        }
        return int(snapshot["snapshot-id"])

    def move(self, number: int, *, ours: bool) -> None:
        self._written(self._at_tick(lambda: move_main(self.json, number, previous=self._file)), ours=ours)
        made = self._next()
        self.expected.append(Version(made.number, number, made.schema_id, made.timestamp_ms))

    def insert(self, *, ours: bool = True) -> None:
        self.move(self.stage(time=None if ours else self.clock + 10), ours=ours)

    def insert_by_rest(self) -> None:
        """A commit of ours that the catalog writes down, by its own clock."""
        number = self.stage()
        after = self._at_tick(lambda: move_main(self.json, number, previous=self._file))
        self.clock += 3
        log = [*after["snapshot-log"][:-1], {"timestamp-ms": self.clock, "snapshot-id": number}]
        self.json = {**after, "snapshot-log": log, "last-updated-ms": self.clock}
        made = self._next()
        self.expected.append(Version(made.number, number, made.schema_id, made.timestamp_ms))

    def change(self, fields: list[Json], *, ours: bool) -> None:
        last = max(self.json["last-column-id"], *(item["id"] for item in fields))
        after = self._at_tick(lambda: evolve_schema(self.json, fields, last_column_id=last, previous=self._file))
        self._written(after, ours=ours)
        self.expected.append(self._next())

    def add_column(self, *, ours: bool = True) -> None:
        self.change([*self._fields, field(self.json["last-column-id"] + 1)], ours=ours)

    def drop_column(self, *, ours: bool = True) -> None:
        if len(self._fields) > 1:
            self.change(self._fields[:-1], ours=ours)

    def set_default(self) -> None:
        fields = [*self._fields[:-1], {**self._fields[-1], "write-default": self.clock}]
        after = self._at_tick(lambda: evolve_schema(self.json, fields, last_column_id=0, previous=self._file))
        self._written(after, ours=True)

    def set_comment(self, *, ours: bool = True) -> None:
        comment = {"comment": str(self.clock)}
        after = self._at_tick(lambda: set_properties(self.json, comment, previous=self._file))
        self._written(after, ours=ours)

    def unset(self) -> None:
        """Somebody takes our note away; the first time only, since after two nothing tells of the first."""
        if self.is_unset:
            return
        self.is_unset = True
        properties = {key: value for key, value in self.json["properties"].items() if key != NUMBER}
        self.json = {**self.json, "properties": properties}

    def rollback(self) -> None:
        log = [entry["snapshot-id"] for entry in self.json["snapshot-log"] if entry["snapshot-id"] != self.main]
        if log:
            self.clock += 3_600_000  # no sooner than a note by another clock can be told from it
            self.move(log[len(log) // 2], ours=False)

    def expire(self, kept: int) -> None:
        """As Iceberg does it: with a snapshot that goes, the log goes up to it. That of ``main`` stays."""
        gone = {item["snapshot-id"] for item in self.json["snapshots"][:-kept]} - {self.main}
        log = self.json["snapshot-log"]
        cut = max((index + 1 for index, entry in enumerate(log) if entry["snapshot-id"] in gone), default=0)
        left = [item for item in self.json["snapshots"] if item["snapshot-id"] not in gone]
        file = {"metadata-file": self._file, "timestamp-ms": self.clock}
        self.json = {**self.json, "snapshots": left, "snapshot-log": log[cut:], "metadata-log": [file]}

    def replace(self) -> None:
        """A foreign CREATE OR REPLACE TABLE: the same table, without rows and without a log."""
        refs = {name: ref for name, ref in self.json["refs"].items() if name != "main"}
        file = {"metadata-file": self._file, "timestamp-ms": self.clock}
        self.json = {**self.json, "refs": refs, "snapshot-log": [], "metadata-log": [file]}
        last = self.expected[-1]
        if last.snapshot_id is not None:
            self.expected.append(Version(last.number + 1, None, last.schema_id, self.clock))

    @property
    def _fields(self) -> list[Json]:
        return self.fields_of(self.json["current-schema-id"])

    def fields_of(self, number: int) -> list[Json]:
        return list(next(item["fields"] for item in self.json["schemas"] if item["schema-id"] == number))

    @property
    def found(self) -> list[Version]:
        return list(versions(TableMetadata(self.json)))

    @property
    def number(self) -> int | None:
        return number_of(TableMetadata(self.json))


STEPS = st.sampled_from(["insert", "insert_by_rest", "add_column", "set_default", "set_comment", "foreign_insert"])


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=60)
def test_every_version_is_found_in_the_newest_metadata(steps: list[str]) -> None:
    table = Table()
    for step in steps:
        if step == "foreign_insert":
            table.insert(ours=False)
        else:
            getattr(table, step)()
    assert table.number == table.expected[-1].number
    assert _rows(table.found) == _rows(reversed(table.expected))


OURS = ["insert", "insert_by_rest", "add_column", "drop_column", "set_default", "set_comment"]
OTHERS = ["insert", "add_column", "drop_column", "set_comment", "rollback", "stage", "publish", "replace", "unset"]
HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("ours"), st.sampled_from(OURS)),
        st.tuples(st.just("others"), st.sampled_from(OTHERS)),
        st.tuples(st.just("expire"), st.integers(1, 4)),
    ),
    max_size=25,
)


def _step(table: Table, who: str, what: Any) -> None:
    if who == "expire":
        table.expire(what)
    elif who == "ours" or what in ("stage", "rollback", "replace", "unset"):
        getattr(table, what)()
    elif what == "publish":
        used = {version.snapshot_id for version in table.expected}
        found = (item for item in table.json["snapshots"] if item["snapshot-id"] not in used)
        waiting = [item["snapshot-id"] for item in found if item.get("parent-snapshot-id") == table.main]
        # On a table without rows it looks as if it had never been published, once the table is replaced.
        if waiting and table.main is not None:
            table.move(waiting[-1], ours=False)
    else:
        getattr(table, what)(ours=False)


@given(HISTORIES)
@settings(max_examples=200)
def test_a_number_never_means_a_second_version(history: list[tuple[str, Any]]) -> None:
    table = Table()
    meant: dict[int, tuple[int | None, list[Json]]] = {}
    highest = 0
    for who, what in history:
        known = len(table.expected)
        _step(table, who, what)
        found = table.found
        for version in found:
            shown = [{**item, "write-default": None} for item in table.fields_of(version.schema_id)]
            assert meant.setdefault(version.number, (version.snapshot_id, shown)) == (version.snapshot_id, shown)
        if table.number is not None:
            assert table.number > highest or len(table.expected) == known or what == "unset"
            assert found[0].snapshot_id == table.main
            assert found[0].number == table.number
        if who == "ours" and len(table.expected) > known:
            assert table.number is not None  # it goes on counting
            highest = table.number


def _rows(found: Any) -> list[tuple[int, int | None, list[int]]]:
    return [(version.number, version.snapshot_id, version.timestamp_ms) for version in found]


def test_the_schema_of_each_version_is_the_one_it_had() -> None:
    table = Table()
    for step in (table.insert, table.add_column, table.set_default, table.insert, table.add_column, table.insert):
        step()
    assert [version.schema_id for version in table.found] == [3, 3, 1, 1, 0, 0]


def test_changes_that_others_have_made_are_put_where_snapshots_say() -> None:
    table = Table()
    table.insert()
    table.insert(ours=False)
    table.add_column(ours=False)
    table.insert(ours=False)
    assert table.number == 4
    assert [(version.number, version.snapshot_id, version.schema_id) for version in table.found] == [
        (4, 102, 1),
        (3, 101, 1),
        (2, 101, 0),
        (1, 100, 0),
        (0, None, 0),
    ]


def test_where_the_log_was_cut_off_older_versions_are_not_made_up() -> None:
    table = Table()
    for _ in range(4):
        table.insert()
    table.add_column()
    table.expire(2)
    assert [(version.number, version.snapshot_id) for version in table.found] == [(5, 103), (4, 103), (3, 102)]
    assert table.number == 5
    table.insert()
    assert [version.number for version in table.found] == [6, 5, 4, 3]


def test_a_table_that_was_only_altered_has_versions_without_rows() -> None:
    table = Table()
    table.add_column()
    table.add_column()
    assert [(version.number, version.snapshot_id, version.schema_id) for version in table.found] == [
        (2, None, 2),
        (1, None, 1),
        (0, None, 0),
    ]


def test_only_so_many_changes_are_remembered() -> None:
    table = Table()
    for _ in range(200 + 5):
        table.insert()
        table.add_column()
    found = table.found
    assert found[:-1] == list(reversed(table.expected))[: len(found) - 1]
    assert (found[-1].snapshot_id, found[-1].schema_id, found[-1].timestamp_ms) == (104, 5, None)
    assert len(found) == 2 * 200 + 1
    assert len(json.loads(table.json["properties"][NUMBER])["changes"]) == 200


def test_a_number_that_an_older_server_has_noted_is_counted_on() -> None:
    table = Table()
    for _ in range(3):
        table.insert()
    note = {"number": 7, "main": 102, "schema": 0}
    table.json = {**table.json, "properties": {NUMBER: json.dumps(note)}}
    table.insert()
    assert [(version.number, version.snapshot_id) for version in table.found] == [(8, 103), (7, 102)]
    assert numbered(table.json) == table.json


def test_numbers_stay_when_others_expire_the_snapshots_before_the_last_of_ours() -> None:
    table = Table()
    for _ in range(5):
        table.insert()
    table.expire(1)
    table.insert(ours=False)
    assert [(version.number, version.snapshot_id) for version in table.found] == [(6, 105), (5, 104)]


def test_commits_of_others_that_cannot_be_counted_have_no_number_and_the_next_of_ours_has_a_new_one() -> None:
    table = Table()
    table.insert()
    for _ in range(3):
        table.insert(ours=False)
    assert table.number == 4
    table.expire(1)
    assert not table.found
    assert number_of(TableMetadata(table.json)) is None
    table.insert()
    assert table.number is not None
    assert table.number > 5
    assert [(version.number, version.snapshot_id) for version in table.found] == [(table.number, 104)]


def test_where_the_names_of_files_do_not_count_time_does() -> None:
    table = Table()
    table.insert()
    table.insert(ours=False)
    table.insert(ours=False)
    table.expire(1)
    log = [{"metadata-file": "file:/t/metadata/00000-x.metadata.json", "timestamp-ms": 0}]
    table.json = {**table.json, "metadata-log": log}
    noted = numbered(table.json)
    assert number_of(TableMetadata(noted)) == 1 + 2 * 20
    assert numbered(noted) == noted


def test_our_first_commit_is_version_1_whatever_was_staged_and_given_up_before() -> None:
    table = Table()
    table.stage()
    table.insert()
    assert [(version.number, version.snapshot_id) for version in table.found] == [(1, 101), (0, None)]


def test_a_rollback_by_others_counts_one() -> None:
    table = Table()
    for _ in range(2):
        table.insert()
    table.move(100, ours=False)
    table.move(101, ours=False)
    table.insert()
    assert [(version.number, version.snapshot_id) for version in table.found] == [
        (5, 102),
        (4, 101),
        (3, 100),
        (2, 101),
        (1, 100),
        (0, None),
    ]


def test_every_change_of_the_schema_by_others_counts_one() -> None:
    table = Table()
    table.insert()
    numbers_seen = [table.number]
    for _ in range(3):
        table.add_column(ours=False)
        numbers_seen.append(table.number)
    assert numbers_seen == [1, 2, 3, 4]
    assert [(version.number, version.schema_id) for version in table.found] == [(4, 3), (3, 2), (2, 1), (1, 0), (0, 0)]
