"""Numbers of versions, counted in metadata that this server and others have written in turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.lakehouse import edits, numbers
from sparkport.lakehouse.edits import evolve_schema, move_main, new_table, set_properties
from sparkport.lakehouse.metadata import TableMetadata
from sparkport.lakehouse.numbers import NUMBER, Version, number_of, numbered, versions

Json = dict[str, Any]


def field(number: int, **more: Any) -> Json:
    return {"id": number, "name": f"c{number}", "required": False, "type": "long", **more}


class Table:
    """Metadata from commit to commit. ``ours`` writes the number down, as every metadata file of ours does."""

    def __init__(self) -> None:
        self.clock = 0
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

    def _next(self) -> Version:
        last = self.expected[-1]
        return Version(last.number + 1, last.snapshot_id, self.json["current-schema-id"], self.clock)

    def insert(self, *, ours: bool = True) -> None:
        number = 100 + len(self.json["snapshots"])
        snapshot = {"snapshot-id": number, "timestamp-ms": self.clock, "manifest-list": "x"}
        snapshot["schema-id"] = self.json["current-schema-id"]
        staged = {**self.json, "snapshots": [*self.json["snapshots"], snapshot]}
        self._written(self._at_tick(lambda: move_main(staged, number, previous="m")), ours=ours)
        made = self._next()
        self.expected.append(Version(made.number, number, made.schema_id, made.timestamp_ms))

    def add_column(self, *, ours: bool = True) -> None:
        last = self.json["last-column-id"] + 1
        fields = [*self._fields, field(last)]
        after = self._at_tick(lambda: evolve_schema(self.json, fields, last_column_id=last, previous="m"))
        self._written(after, ours=ours)
        self.expected.append(self._next())

    def set_default(self) -> None:
        fields = [*self._fields[:-1], {**self._fields[-1], "write-default": self.clock}]
        after = self._at_tick(lambda: evolve_schema(self.json, fields, last_column_id=0, previous="m"))
        self._written(after, ours=True)

    def set_comment(self) -> None:
        comment = {"comment": str(self.clock)}
        self._written(self._at_tick(lambda: set_properties(self.json, comment, previous="m")), ours=True)

    def expire(self, kept: int) -> None:
        self.json = {**self.json, "snapshot-log": self.json["snapshot-log"][-kept:]}

    @property
    def _fields(self) -> list[Json]:
        current = self.json["current-schema-id"]
        return list(next(item["fields"] for item in self.json["schemas"] if item["schema-id"] == current))

    @property
    def found(self) -> list[Version]:
        return list(versions(TableMetadata(self.json)))

    @property
    def number(self) -> int:
        return number_of(TableMetadata(self.json))


STEPS = st.sampled_from(["insert", "add_column", "set_default", "set_comment", "foreign_insert"])


@given(st.lists(STEPS, max_size=30))
@settings(deadline=None, max_examples=60)
def test_every_version_is_found_in_the_newest_metadata(steps: list[str]) -> None:
    table = Table()
    for step in steps:
        if step == "foreign_insert":
            table.insert(ours=False)
        else:
            getattr(table, step)()
    assert table.number == table.expected[-1].number
    assert _rows(table.found) == _rows(reversed(table.expected))


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
    for _ in range(numbers._CHANGES_KEPT + 5):
        table.insert()
        table.add_column()
    found = table.found
    assert found[:-1] == list(reversed(table.expected))[: len(found) - 1]
    assert (found[-1].snapshot_id, found[-1].schema_id, found[-1].timestamp_ms) == (104, 5, None)
    assert len(found) == 2 * numbers._CHANGES_KEPT + 1
    assert len(json.loads(table.json["properties"][NUMBER])["changes"]) == numbers._CHANGES_KEPT


def test_a_number_that_an_older_server_has_noted_is_counted_on() -> None:
    table = Table()
    for _ in range(3):
        table.insert()
    note = {"number": 7, "main": 102, "schema": 0}
    table.json = {**table.json, "properties": {NUMBER: json.dumps(note)}}
    table.insert()
    assert [(version.number, version.snapshot_id) for version in table.found] == [(8, 103), (7, 102)]
    assert numbered(table.json) == table.json
