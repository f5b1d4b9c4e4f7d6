"""Going back to a version, and versions that are kept by a name."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import numbers
from tests.conformance.test_history import alter, changes, ids_of, renamed, version

from sparkport.auth.identity import Identity
from sparkport.catalog import ROW_ID, AsOf, AsOfUnit, ScanRequest
from sparkport.catalog.changes import ChangesTable
from sparkport.catalog.ddl import AddColumn, DropColumn, MutableSchema, OnConflict, SetNotNull, TableDefinition
from sparkport.catalog.dropped import RestoringCatalog
from sparkport.catalog.versions import RevertibleTable, TaggedTable
from sparkport.errors import AlreadyExists, Conflict, FailedPrecondition, InvalidArgument, NotFound, VersionNotFound

needs = pytest.mark.needs

pytestmark = [pytest.mark.tier("fast"), needs(Ability.CHANGES, Ability.VERSIONS, Ability.INSERT)]


def named(name: str) -> AsOf:
    return AsOf(AsOfUnit.VERSION, name)


def rollback(ground: Ground, at: AsOf) -> int | None:
    table = ground.table()
    assert isinstance(table, RevertibleTable)
    return table.rollback(ground.ctx, at)


def tagged(ground: Ground) -> TaggedTable:
    table = ground.table()
    assert isinstance(table, TaggedTable)
    return table


def rows(ground: Ground, at: AsOf | None = None) -> list[tuple[int, int, str]]:
    found = ground.read(ScanRequest(columns=("id", "name", ROW_ID), at=at)).to_pylist()
    return sorted((row["id"], row[ROW_ID], row["name"]) for row in found)


def changed(engine: EngineUnderTest) -> Ground:
    """1: rows 1 to 3. 2: 2 is updated. 3: 3 is deleted. 4: 4 is new."""
    ground = engine.make({"t": numbers(1, 4)})
    renamed(ground, ids_of(ground, 2)[0], "two")
    ground.delete(ids_of(ground, 3))
    ground.insert(numbers(4, 5))
    return ground


@pytest.mark.tier("fast")
@needs(Ability.COMMIT_VERSIONS)
def test_a_rollback_is_a_new_version_with_the_old_rows_and_their_ids(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    old, newest = rows(ground, version(1)), rows(ground)
    assert rollback(ground, version(1)) == 5
    assert rows(ground) == old
    assert rows(ground, version(4)) == newest
    found = [(row["kind"], row["id"], row["name"]) for row in changes(ground, version(4), version(5))]
    assert sorted(found) == [
        ("delete", 4, "n00004"),
        ("insert", 3, "n00003"),
        ("update_after", 2, "n00002"),
        ("update_before", 2, "two"),
    ]


@needs(Ability.COMMIT_VERSIONS)
def test_after_a_rollback_the_table_is_changed_as_before(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    rollback(ground, version(1))
    renamed(ground, ids_of(ground, 3)[0], "three")
    ground.insert(numbers(9, 10))
    assert [(row[0], row[2]) for row in rows(ground)] == [(1, "n00001"), (2, "n00002"), (3, "three"), (9, "n00009")]
    assert len({row[1] for row in rows(ground)}) == 4
    assert rollback(ground, version(4)) == 8
    assert rows(ground) == rows(ground, version(4))


@needs(Ability.COMMIT_VERSIONS)
def test_a_rollback_to_the_beginning_leaves_an_empty_table(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    assert rollback(ground, version(0)) == 5
    assert rows(ground) == []
    ground.insert(numbers(8, 9))
    assert [row[0] for row in rows(ground)] == [8]


@needs(Ability.COMMIT_VERSIONS)
def test_a_rollback_to_what_is_there_changes_nothing_and_to_what_is_not_there_is_not_found(
    engine: EngineUnderTest,
) -> None:
    ground = changed(engine)
    assert rollback(ground, version(4)) == 4
    with pytest.raises(VersionNotFound):
        rollback(ground, version(99))


@needs(Ability.DDL)
def test_a_rollback_to_other_columns_is_refused(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    alter(ground, AddColumn(pa.field("note", pa.string())))
    with pytest.raises(FailedPrecondition, match="other columns"):
        rollback(ground, version(1))
    alter(ground, DropColumn("note"))
    rollback(ground, version(1))
    assert [row[0] for row in rows(ground)] == [1, 2, 3]


@needs(Ability.COMMIT_VERSIONS)
def test_a_rollback_is_refused_while_an_open_transaction_has_changed_or_read_the_table(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    manager = ground.catalog.transactions
    assert manager is not None
    outside = ground.ctx
    for use in (lambda: ground.insert(numbers(6, 7)), lambda: rows(ground)):
        transaction = manager.begin(outside, auto_commit=False)
        ground.ctx = replace(outside, transaction_id=transaction)
        use()
        ground.ctx = outside
        with pytest.raises(FailedPrecondition, match="open transactions"):
            rollback(ground, version(1))
        manager.rollback(transaction)
    assert rollback(ground, version(1)) == 5


def test_who_saw_rows_before_a_rollback_does_not_overwrite_those_after_it(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    manager = ground.catalog.transactions
    assert manager is not None
    outside = ground.ctx
    row_id = ids_of(ground, 2)[0]
    ground.ctx = replace(outside, transaction_id=manager.begin(outside))
    assert ids_of(ground, 2) == [row_id]
    before, ground.ctx = ground.ctx, outside
    rollback(ground, version(1))
    ground.ctx = before
    with pytest.raises(Conflict):
        renamed(ground, row_id, "lost")
    ground.ctx = outside
    assert (2, row_id, "n00002") in rows(ground)


@pytest.mark.tier("fast")
@needs(Ability.COMMIT_VERSIONS)
def test_a_tag_stands_for_its_version_and_can_be_taken_away(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    tagged(ground).tag(ground.ctx, "end-of-year", version(2))
    tagged(ground).tag(ground.ctx, "end-of-year", version(2))
    assert rows(ground, named("end-of-year")) == rows(ground, version(2))
    assert [(tag.name, tag.version) for tag in tagged(ground).version_tags(ground.ctx)] == [("end-of-year", 2)]
    assert [row["version"] for row in changes(ground, named("end-of-year"), version(3))] == [3]
    with pytest.raises(AlreadyExists, match="end-of-year"):
        tagged(ground).tag(ground.ctx, "end-of-year", version(3))
    tagged(ground).untag(ground.ctx, "end-of-year")
    with pytest.raises(InvalidArgument, match="end-of-year"):
        rows(ground, named("end-of-year"))
    with pytest.raises(NotFound, match="no tag"):
        tagged(ground).untag(ground.ctx, "end-of-year")


@needs(Ability.DDL, Ability.COMMIT_VERSIONS)
def test_a_tag_keeps_the_columns_of_its_version(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    alter(ground, AddColumn(pa.field("note", pa.string())))
    tagged(ground).tag(ground.ctx, "with-note", version(5))
    tagged(ground).tag(ground.ctx, "without", version(4))
    alter(ground, DropColumn("note"))
    schemas = [tagged(ground).schema_at(ground.ctx, named(name)).names for name in ("with-note", "without")]
    assert ["note" in names for names in schemas] == [True, False]
    found = {tag.name: tag.version for tag in tagged(ground).version_tags(ground.ctx)}
    assert found == {"with-note": 5, "without": 4}


@needs(Ability.COMMIT_VERSIONS)
def test_a_branch_begins_at_its_version_and_can_be_dropped(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    table = tagged(ground)
    table.branch(ground.ctx, "experiment", version(2))
    table.branch(ground.ctx, "experiment", version(2))
    assert rows(ground, named("experiment")) == rows(ground, version(2))
    assert [(tag.name, tag.version, tag.is_branch) for tag in tagged(ground).version_tags(ground.ctx)] == [
        ("experiment", 2, True)
    ]
    for again in (table.branch, table.tag):
        with pytest.raises(AlreadyExists, match="a branch 'experiment' already"):
            again(ground.ctx, "experiment", version(3))
    with pytest.raises(NotFound, match="no tag"):
        table.untag(ground.ctx, "experiment")
    table.drop_branch(ground.ctx, "experiment")
    with pytest.raises(InvalidArgument, match="experiment"):
        rows(ground, named("experiment"))
    with pytest.raises(NotFound, match="no branch"):
        table.drop_branch(ground.ctx, "experiment")
    with pytest.raises(InvalidArgument, match="the table itself"):
        table.drop_branch(ground.ctx, "main")


@needs(Ability.DDL, Ability.COMMIT_VERSIONS)
def test_a_branch_has_the_columns_of_the_table(engine: EngineUnderTest) -> None:
    ground = changed(engine)
    before = rows(ground, version(2))
    tagged(ground).branch(ground.ctx, "experiment", version(2))
    alter(ground, AddColumn(pa.field("note", pa.string())))
    assert tagged(ground).schema_at(ground.ctx, named("experiment")).equals(ground.table().schema)
    read = ground.table().scan(ground.ctx, ScanRequest(at=named("experiment")))
    found = [row for batch in read for row in batch.to_pylist()]
    assert sorted(row["id"] for row in found) == sorted(row[0] for row in before)
    assert {row["note"] for row in found} == {None}


def test_names_that_could_be_something_else_are_refused(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 4)})
    for name in ("7", "-1", " 7", "main", "sparkport_x", "", "a\nb", "x "):
        with pytest.raises(InvalidArgument):
            tagged(ground).tag(ground.ctx, name, version(1))
        with pytest.raises(InvalidArgument):
            tagged(ground).branch(ground.ctx, name, version(1))
    with pytest.raises(FailedPrecondition, match="no snapshot"):
        tagged(ground).tag(ground.ctx, "start", version(0))
    tagged(ground).tag(ground.ctx, "first", version(1))
    assert rows(ground, named("first")) == rows(ground)


@needs(Ability.DDL, Ability.COMMIT_VERSIONS)
def test_a_rollback_to_a_branch_with_other_columns_is_refused(engine: EngineUnderTest) -> None:
    """Though it is read in those of the table."""
    ground = engine.make({"t": pa.table({"id": pa.array([1, 2]), "name": pa.array([None, "b"])})})
    tagged(ground).branch(ground.ctx, "experiment", version(1))
    renamed(ground, ids_of(ground, 1)[0], "a")
    alter(ground, SetNotNull("name"))
    with pytest.raises(FailedPrecondition, match="other columns"):
        rollback(ground, named("experiment"))
    assert ground.read(ScanRequest(columns=("name",))).column("name").to_pylist() in (["a", "b"], ["b", "a"])


@needs(Ability.DDL)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_table_is_restored_with_all_that_was_committed_before_it_went(
    engine: EngineUnderTest, replaced: bool
) -> None:
    def values() -> list[tuple[int, str]]:  # rows of a journal get their ids when they are applied
        return [(number, name) for number, _, name in rows(ground)]

    ground = changed(engine)
    before, schema = values(), ground.catalog.schema(ground.ctx, "public")
    assert isinstance(ground.catalog, RestoringCatalog)
    assert isinstance(schema, MutableSchema)
    if replaced:
        other = TableDefinition(name="t", columns=pa.schema([("other", pa.int64())]))
        schema.create_table(ground.ctx, other, OnConflict.REPLACE)
        schema.rename_table(ground.ctx, "t", "u")
    else:
        schema.drop_table(ground.ctx, "t")
    ground.catalog.restore_table(ground.ctx, "public", "t")
    assert values() == before


@needs(Ability.DDL)
def test_a_dropped_table_is_restored_with_its_rows_and_versions(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 4)})
    catalog = ground.catalog
    assert isinstance(catalog, RestoringCatalog)
    schema = catalog.schema(ground.ctx, "public")
    assert isinstance(schema, MutableSchema)
    before, head = rows(ground), ground.table()
    assert isinstance(head, ChangesTable)
    table_id = head.head(ground.ctx).id
    ctx = replace(ground.ctx, identity=Identity("ann"))
    schema.drop_table(ctx, "t")
    schema.create_table(ground.ctx, TableDefinition(name="t", columns=pa.schema([("other", pa.int64())])))
    # The engine may be shared, and others' tables dropped.
    assert [(item.schema, item.name) for item in catalog.dropped_tables(ground.ctx) if item.author == "ann"] == [
        ("public", "t")
    ]
    with pytest.raises(AlreadyExists, match="rename or drop it"):
        catalog.restore_table(ground.ctx, "public", "t")
    schema.rename_table(ground.ctx, "t", "u")
    catalog.restore_table(ground.ctx, "public", "T")
    assert rows(ground) == before
    assert rows(ground, version(1)) == before
    restored = ground.table()
    assert isinstance(restored, ChangesTable)
    assert restored.head(ground.ctx).id == table_id
    assert not [item for item in catalog.dropped_tables(ground.ctx) if item.author == "ann"]
    with pytest.raises(AlreadyExists, match="rename or drop it"):
        catalog.restore_table(ground.ctx, "public", "t")
    for schema_name, name in (("public", "nobody"), ("nowhere", "t")):
        with pytest.raises(NotFound):
            catalog.restore_table(ground.ctx, schema_name, name)
