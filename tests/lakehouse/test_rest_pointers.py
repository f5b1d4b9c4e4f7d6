"""Pointers in a REST catalog: the reference server answers, and a crooked one plays what can go wrong between."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
from tests.lakehouse.crooked_catalog import crooked

from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InternalError,
    PermissionDenied,
    SchemaNotFound,
    SparkportError,
    TableNotFound,
    Unavailable,
    Unsupported,
)
from sparkport.lakehouse.catalogs.pointers import Edit, Moved
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RequestRefused, RestClient
from sparkport.lakehouse.catalogs.rest_updates import requirements, updates
from sparkport.lakehouse.iceberg.edits import evolve_schema, move_main, new_table, set_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

Json = dict[str, Any]

FIELDS: list[Json] = [
    {"id": 7, "name": "x", "type": "long", "required": False},
    {
        "id": 9,
        "name": "s",
        "required": False,
        "type": {"type": "struct", "fields": [{"id": 8, "name": "inner", "type": "string", "required": False}]},
    },
]


class Lake:
    """A schema of its own in the shared catalog."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.client = RestClient(uri, {})
        self.pointers = RestPointers(self.client)
        self.folder = folder
        self.schema = f"s{uuid.uuid4().hex[:8]}"
        self.pointers.create_schema(self.schema, {"comment": "für später"})

    def metadata(self, **properties: str) -> Json:
        folder = self.folder / uuid.uuid4().hex
        return new_table(str(folder), FIELDS, last_column_id=9, properties=properties)

    def table(self, name: str) -> TableName:
        """A registered table."""
        metadata = self.metadata()
        location = Path(metadata["location"], "metadata", "00000-x.metadata.json")
        location.parent.mkdir(parents=True)
        location.write_text(json.dumps(metadata))
        self.pointers.create(TableName(self.schema, name), str(location))
        return TableName(self.schema, name)

    def load(self, table: TableName) -> tuple[str, Json]:
        location = self.pointers.location(table)
        assert location is not None
        return location, json.loads(Path(location).read_text())

    def stage(self, table: TableName) -> int:
        """A snapshot on no branch, as Spark leaves it with write-audit-publish."""
        _, metadata = self.load(table)
        number = uuid.uuid4().int >> 66
        snapshot = {
            "snapshot-id": number,
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "summary": {"operation": "append", "wap.id": str(number)},
            "manifest-list": f"{metadata['location']}/metadata/snap-{number}.avro",
            "schema-id": 0,
            "first-row-id": metadata["next-row-id"],
            "added-rows": 1,
        }
        main = metadata["refs"].get("main", {}).get("snapshot-id")
        if main is not None:
            snapshot["parent-snapshot-id"] = main
        body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}]}
        self.client.post("namespaces", table.schema, "tables", table.name, body=body)
        return number

    def publication(self, table: TableName, snapshot: int) -> Edit:
        location, metadata = self.load(table)
        return Edit(table, metadata, move_main(metadata, snapshot, previous=location))

    def main(self, table: TableName) -> int | None:
        found: int | None = self.load(table)[1]["refs"].get("main", {}).get("snapshot-id")
        return found


@pytest.fixture
def lake(rest_uri: str, tmp_path: Path) -> Lake:
    return Lake(rest_uri, tmp_path)


# Names


def test_schemas_and_tables_are_listed(lake: Lake) -> None:
    table = lake.table("t")
    cut = lake.pointers.cut()
    assert cut.schemas[lake.schema]["comment"] == "für später"
    assert [name for name in cut.tables if name.schema == lake.schema] == [table]
    assert cut.tables[table] == lake.pointers.location(table)


def test_a_table_in_a_cut_stays_as_it_was_first_seen(lake: Lake) -> None:
    table = lake.table("t")
    cut = lake.pointers.cut()
    seen = cut.tables[table]
    lake.pointers.commit([lake.publication(table, lake.stage(table))])
    assert cut.tables[table] == seen
    assert lake.pointers.cut().tables[table] != seen


def test_a_table_that_vanished_since_the_cut_is_left_out(lake: Lake) -> None:
    table, other = lake.table("t"), lake.table("u")
    cut = lake.pointers.cut()
    lake.pointers.drop(table)
    assert cut.tables.get(table) is None
    assert [name for name, _ in cut.tables.items() if name.schema == lake.schema] == [other]
    assert ("no", "where") not in cut.tables


def test_names_that_are_taken_or_missing_are_told(lake: Lake) -> None:
    table = lake.table("t")
    missing = TableName(lake.schema, "missing")
    refusals: list[tuple[type[SparkportError], Callable[[], object]]] = [
        (AlreadyExists, lambda: lake.pointers.create_schema(lake.schema, {})),
        (AlreadyExists, lambda: lake.pointers.create(table, lake.load(lake.table("other"))[0])),
        (AlreadyExists, lambda: lake.pointers.rename(lake.table("u"), table)),
        (SchemaNotFound, lambda: lake.pointers.drop_schema("nowhere")),
        (TableNotFound, lambda: lake.pointers.drop(missing)),
        (TableNotFound, lambda: lake.pointers.rename(missing, TableName(lake.schema, "v"))),
        (FailedPrecondition, lambda: lake.pointers.drop_schema(lake.schema)),
    ]
    for kind, call in refusals:
        with pytest.raises(kind):
            call()
    assert lake.pointers.location(missing) is None


def test_tables_are_renamed_and_dropped_and_schemas_too(lake: Lake) -> None:
    table, new = lake.table("t"), TableName(lake.schema, "odd / name%?")
    location = lake.pointers.location(table)
    lake.pointers.rename(table, new)
    assert (lake.pointers.location(table), lake.pointers.location(new)) == (None, location)
    assert lake.pointers.drop(new) == location
    with pytest.raises(Unsupported, match="cannot rename a schema: create 'other', bring its tables there"):
        lake.pointers.rename_schema(lake.schema, "other")
    lake.pointers.drop_schema(lake.schema)
    assert lake.schema not in lake.pointers.cut().schemas


def test_a_table_whose_replacement_fails_is_still_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.table("t")
    before = lake.load(table)

    def fail(*_: object) -> None:
        raise Unavailable("the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(lake.pointers, "create", fail)
        with pytest.raises(Unavailable):
            lake.pointers.replace(table, "elsewhere")
    assert lake.load(table) == before
    new = lake.load(lake.table("other"))[0]
    assert lake.pointers.replace(table, new) == before[0]
    assert lake.load(table)[0] == new
    assert [name for schema, name in lake.pointers.cut().tables if schema == lake.schema] == ["other", "t"]


def test_field_ids_survive_whichever_way_a_table_is_created(lake: Lake) -> None:
    """They are what notes about columns hang on, and a plain create request gives out new ones."""
    registered, told = lake.table("t"), TableName(lake.schema, "u")
    metadata = lake.metadata(kept="1")
    lake.pointers.commit([Edit(told, None, metadata)])
    for table in (registered, told):
        found = lake.load(table)[1]
        assert (found["schemas"][0]["fields"], found["last-column-id"]) == (_sorted(FIELDS), 9)
        assert found["format-version"] == 3
    assert lake.load(told)[1]["table-uuid"] == metadata["table-uuid"]
    assert lake.load(told)[1]["properties"]["kept"] == "1"
    with pytest.raises(AlreadyExists):
        lake.pointers.commit([Edit(told, None, lake.metadata())])


def _sorted(fields: list[Json]) -> list[Json]:
    return cast("list[Json]", json.loads(json.dumps(fields, sort_keys=True)))


# Commits


def test_publishing_moves_main_to_the_staged_snapshot(lake: Lake) -> None:
    table = lake.table("t")
    first = lake.stage(table)
    assert lake.main(table) is None
    location = lake.pointers.commit([lake.publication(table, first)], {"statement-1": 5})[table]
    assert lake.load(table)[0] == location
    assert lake.main(table) == first
    second = lake.stage(table)
    lake.pointers.commit([lake.publication(table, second)], {"statement-2": 0})
    assert lake.main(table) == second
    log = [entry["snapshot-id"] for entry in lake.load(table)[1]["snapshot-log"]]
    assert log == [first, second]
    assert [lake.pointers.statement(key, table) for key in ("statement-1", "statement-2", "other")] == [5, 0, None]
    assert lake.pointers.statement("statement-1") is None  # no table was named to ask


def test_publishing_fails_when_main_has_moved(lake: Lake) -> None:
    table = lake.table("t")
    late = lake.publication(table, lake.stage(table))
    other = lake.stage(table)
    lake.pointers.commit([lake.publication(table, other)])
    with pytest.raises(Moved):
        lake.pointers.commit([late], {"lost": 1})
    assert lake.main(table) == other
    assert lake.pointers.statement("lost", table) is None


def test_a_foreign_snapshot_that_is_only_staged_does_not_stop_publishing(lake: Lake) -> None:
    table = lake.table("t")
    mine = lake.publication(table, lake.stage(table))
    lake.stage(table)
    lake.pointers.commit([mine])
    assert lake.main(table) is not None


def test_several_tables_change_in_one_commit(lake: Lake) -> None:
    one, two = lake.table("one"), lake.table("two")
    changes = [lake.publication(table, lake.stage(table)) for table in (one, two)]
    locations = lake.pointers.commit(changes, {"both": 2})
    assert locations == {table: lake.pointers.location(table) for table in (one, two)}
    assert None not in (lake.main(one), lake.main(two))
    assert lake.pointers.statement("both", one) == 2


def test_no_table_changes_when_one_has_moved(lake: Lake) -> None:
    one, two = lake.table("one"), lake.table("two")
    changes = [lake.publication(table, lake.stage(table)) for table in (one, two)]
    lake.pointers.commit([lake.publication(two, lake.stage(two))])
    with pytest.raises(Moved):
        lake.pointers.commit(changes)
    assert lake.main(one) is None


def test_transactions_are_noted_in_every_table_that_they_changed(lake: Lake) -> None:
    one, two = lake.table("one"), lake.table("two")
    changes = [lake.publication(table, lake.stage(table)) for table in (one, two)]
    lake.pointers.commit(changes, {"s": 3}, transactions=["t", "u"])
    noted = [[lake.pointers.statement(f"tx:{name}", table) for name in "tu"] for table in (one, two)]
    assert noted == [[0, 0], [0, 0]]
    single = lake.publication(one, lake.stage(one))
    assert lake.pointers.commit([single], transactions=["v"]) == {one: lake.pointers.location(one)}
    assert [lake.pointers.statement("tx:v", table) for table in (one, two)] == [0, None]


def test_a_table_that_was_only_read_stops_a_commit_when_its_rows_have_changed(lake: Lake) -> None:
    one, two, three = (lake.table(name) for name in ("one", "two", "three"))
    read = {table: lake.load(table)[0] for table in (one, two)}
    assert lake.pointers.commit([], unchanged=read) == lake.pointers.commit([], unchanged={two: read[two]}) == {}
    staged = lake.stage(two)  # which moves the pointer and changes no row
    lake.pointers.commit([lake.publication(three, lake.stage(three))], unchanged=read)
    main = lake.main(three)
    lake.pointers.commit([lake.publication(two, staged)])
    late = lake.publication(three, lake.stage(three))
    for changes, unchanged in (([late], read), ([], read), ([], {two: read[two]})):
        with pytest.raises(Moved) as caught:
            lake.pointers.commit(changes, unchanged=unchanged, transactions=["lost"])
        assert caught.value.table == two
    assert (lake.main(three), lake.pointers.statement("tx:lost")) == (main, None)


def test_a_table_that_was_read_and_changed_is_asked_for_once(lake: Lake) -> None:
    table = lake.table("t")
    seen = lake.load(table)[0]
    lake.pointers.commit([lake.publication(table, lake.stage(table))], unchanged={table: seen})
    with pytest.raises(Moved):
        lake.pointers.commit([lake.publication(table, lake.stage(table))], unchanged={table: seen})
    assert len(lake.load(table)[1]["snapshot-log"]) == 1


def test_the_table_that_has_moved_is_named(lake: Lake) -> None:
    tables = [lake.table(name) for name in ("one", "two", "three")]
    changes = [lake.publication(table, lake.stage(table)) for table in tables]
    lake.pointers.drop(tables[2])
    with pytest.raises(Moved) as caught:
        lake.pointers.commit(changes)
    assert caught.value.table == tables[2]
    assert [lake.main(table) for table in tables[:2]] == [None, None]


def test_a_dropped_table_counts_as_moved(lake: Lake) -> None:
    table = lake.table("t")
    change = lake.publication(table, lake.stage(table))
    lake.pointers.drop(table)
    with pytest.raises(Moved):
        lake.pointers.commit([change])


def test_columns_and_properties_are_changed(lake: Lake) -> None:
    table = lake.table("t")
    location, before = lake.load(table)
    fields = [*FIELDS, {"id": 10, "name": "y", "type": "date", "required": False, "doc": "new"}]
    after = evolve_schema(before, fields, last_column_id=10, properties={"notes": "n"}, previous=location)
    lake.pointers.commit([Edit(table, before, after)])
    location, found = lake.load(table)
    current = next(item for item in found["schemas"] if item["schema-id"] == found["current-schema-id"])
    assert [(field["id"], field["name"]) for field in current["fields"]] == [(7, "x"), (9, "s"), (10, "y")]
    assert (found["last-column-id"], found["properties"]["notes"]) == (10, "n")
    back = evolve_schema(found, FIELDS, last_column_id=10, properties={"notes": None}, previous=location)
    lake.pointers.commit([Edit(table, found, back)])
    _, last = lake.load(table)
    assert (last["current-schema-id"], "notes" in last["properties"]) == (0, False)


def test_two_who_change_columns_do_not_overwrite_each_other(lake: Lake) -> None:
    table = lake.table("t")
    location, before = lake.load(table)
    changes = [
        Edit(table, before, evolve_schema(before, fields, last_column_id=10, previous=location))
        for fields in ([*FIELDS, {"id": 10, "name": name, "type": "int", "required": False}] for name in "ab")
    ]
    lake.pointers.commit(changes[:1])
    with pytest.raises(Moved):
        lake.pointers.commit(changes[1:])


def test_a_change_of_columns_is_decided_on_the_rows_of_one_snapshot(lake: Lake) -> None:
    table = lake.table("t")
    location, before = lake.load(table)
    required = [{**FIELDS[0], "required": True}, FIELDS[1]]
    change = Edit(table, before, evolve_schema(before, required, last_column_id=9, previous=location))
    lake.pointers.commit([lake.publication(table, lake.stage(table))])
    with pytest.raises(Moved):
        lake.pointers.commit([change])


def test_many_who_publish_lose_nothing(lake: Lake) -> None:
    table = lake.table("t")
    published: list[int] = []

    def publish() -> None:
        done = 0
        while done < 4:
            try:
                snapshot = lake.stage(table)
                lake.pointers.commit([lake.publication(table, snapshot)])
            except (Moved, RequestRefused):  # staged row ids may not overlap
                continue
            published.append(snapshot)
            done += 1

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    log = [entry["snapshot-id"] for entry in lake.load(table)[1]["snapshot-log"]]
    assert sorted(log) == sorted(published)
    assert len(published) == 12


def test_notes_about_old_statements_are_removed(lake: Lake) -> None:
    table = lake.table("t")
    location, before = lake.load(table)
    old = set_properties(before, {"sparkport.statement.old": "1 1000"}, previous=location)
    lake.pointers.commit([Edit(table, before, old)])
    assert lake.pointers.statement("old", table) == 1
    lake.pointers.commit([lake.publication(table, lake.stage(table))], {"new": 2})
    assert [lake.pointers.statement(key, table) for key in ("old", "new")] == [None, 2]


# Differences


def test_a_difference_that_cannot_be_told_is_refused() -> None:
    before = new_table("/t", FIELDS, last_column_id=9, properties={})
    with pytest.raises(InternalError, match="statistics"):
        updates(before, {**before, "statistics": [{"snapshot-id": 1}]})
    with pytest.raises(InternalError, match="another"):
        updates(before, {**before, "table-uuid": "other"})


def test_nothing_is_asked_for_when_nothing_differs() -> None:
    before = new_table("/t", FIELDS, last_column_id=9, properties={})
    assert updates(before, dict(before)) == []
    assert requirements(before, dict(before)) == [{"type": "assert-table-uuid", "uuid": before["table-uuid"]}]


# What goes wrong on the way


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, FailedPrecondition),
        (403, PermissionDenied),
        (429, Unavailable),
        (500, Unavailable),
        (501, Unsupported),
        (503, Unavailable),
    ],
)
def test_what_a_catalog_answers_becomes_an_error_of_ours(status: int, kind: type[SparkportError]) -> None:
    with crooked(lambda _: (status, {"error": {"message": "because"}})) as uri:
        pointers = RestPointers(RestClient(uri, {}, timeout=10))
        with pytest.raises(kind):
            pointers.location(TableName("a", "t"))
        with pytest.raises(kind):
            pointers.create_schema("a", {})


def test_a_missing_schema_is_told() -> None:
    missing = 404, {"error": {"message": "none", "type": "NoSuchNamespaceException"}}
    with crooked(lambda request: missing if request.command == "POST" else (200, {"metadata-location": "/u/0"})) as uri:
        pointers = RestPointers(RestClient(uri, {}))
        with pytest.raises(SchemaNotFound):
            pointers.create(TableName("a", "t"), "/t/0")
        with pytest.raises(SchemaNotFound):
            pointers.rename(TableName("a", "t"), TableName("b", "t"))


def test_an_answer_that_is_not_json_is_unavailable() -> None:
    with crooked(lambda _: (200, b"<html>")) as uri, pytest.raises(Unavailable):
        RestPointers(RestClient(uri, {}, timeout=10)).cut()


def test_a_catalog_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        pointers = RestPointers(RestClient(f"http://127.0.0.1:{unused.getsockname()[1]}", {}))
        with pytest.raises(Unavailable):
            pointers.cut()


def test_a_catalog_that_never_answers_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        pointers = RestPointers(RestClient(f"http://127.0.0.1:{silent.getsockname()[1]}", {}, timeout=0.2))
        with pytest.raises(Unavailable):
            pointers.cut()


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_without_an_answer_is_looked_up(made: bool) -> None:
    before = new_table("/t", FIELDS, last_column_id=9, properties={})
    after = set_properties(before, {"comment": "new"}, previous="/t/0")

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object] | None:
        if request.command == "POST":
            return None
        return 200, {"metadata-location": "/t/1", "metadata": after if made else before}

    with crooked(reply) as uri:
        pointers = RestPointers(RestClient(uri, {}, timeout=10))
        change = Edit(TableName("a", "t"), before, after)
        if made:
            assert pointers.commit([change]) == {("a", "t"): "/t/1"}
        else:
            with pytest.raises(Unavailable, match="no answer"):
                pointers.commit([change])


def test_a_credential_is_turned_into_a_token_and_renewed_when_refused() -> None:
    given: list[str] = []

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if request.path == "/v1/oauth/tokens":
            given.append(f"token-{len(given)}")
            return 200, {"access_token": given[-1], "token_type": "bearer", "expires_in": 3600}
        if request.headers["Authorization"] != "Bearer token-1" or request.headers["X-Site"] != "here":
            return 401, {"error": {"message": "expired"}}
        return 200, {"namespaces": []}

    properties = {"spark.sql.catalog.lake.credential": "me:secret", "spark.sql.catalog.lake.header.X-Site": "here"}
    with crooked(reply) as uri:
        pointers = RestPointers.from_settings(LakehouseSettings(catalog_uri=uri, properties=properties))
        assert not pointers.cut().schemas
        assert not pointers.cut().schemas
    assert given == ["token-0", "token-1"]


def test_long_listings_are_read_page_by_page() -> None:
    pages = {"": (["a"], "second"), "second": (["b"], None)}

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if "/tables" in request.path:
            return 200, {"identifiers": []}
        names, after = pages[request.path.partition("pageToken=")[2]]
        return 200, {"namespaces": [names], "next-page-token": after}

    with crooked(reply) as uri:
        assert list(RestPointers(RestClient(uri, {})).cut().schemas) == ["a", "b"]
