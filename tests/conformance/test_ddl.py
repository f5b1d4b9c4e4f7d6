"""Schemas and tables through the catalog's interfaces: what is created, altered and dropped, and who sees it when."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import numbers

from sparkport.catalog import ROW_ID, CallContext, ScanRequest, Table, as_scan, data_schema
from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    AlterableTable,
    Alteration,
    ChangeType,
    DropColumn,
    DropField,
    DropNotNull,
    MutableCatalog,
    MutableSchema,
    OnConflict,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNotNull,
    TableDefinition,
)
from sparkport.catalog.defaults import default_of
from sparkport.catalog.names import COMMENT_MARK
from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.errors import (
    AlreadyExists,
    ConstraintViolation,
    InvalidArgument,
    SchemaNotFound,
    TableNotFound,
    Unsupported,
)

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.DDL)]

IDS = pa.schema([pa.field("id", pa.int64())])
NESTED = pa.table({"id": [1, 2], "s": [{"a": 1, "b": "x"}, None]})


def mutable(ground: Ground) -> MutableCatalog:
    assert isinstance(ground.catalog, MutableCatalog)
    return ground.catalog


def schema_of(ground: Ground, name: str = "public") -> MutableSchema:
    schema = ground.catalog.schema(ground.ctx, name)
    assert isinstance(schema, MutableSchema)
    return schema


def alter(ground: Ground, *changes: Alteration) -> None:
    for change in changes:
        table = ground.table()
        assert isinstance(table, AlterableTable)
        table.alter(ground.ctx, change)


def columns(ground: Ground) -> pa.Schema:
    return data_schema(ground.table().schema)


def rows(ground: Ground, **how: AsOf) -> list[dict[str, object]]:
    table = ground.table()
    at = how.get("at")
    schema = table.schema if at is None else ground.versioned().schema_at(ground.ctx, at)
    request = ScanRequest(columns=tuple(data_schema(schema).names), at=at)
    found: list[dict[str, object]] = []
    for part in table.plan(ground.ctx, request):
        for batch in as_scan(table.scan(ground.ctx, part)):
            found += batch.select(data_schema(schema).names).to_pylist()
    return found


def version(number: int) -> AsOf:
    return AsOf(AsOfUnit.VERSION, str(number))


def catalog_version(ground: Ground) -> int:
    return ground.catalog.version(ground.ctx).version


# Schemas


def test_a_schema_is_there_once_it_is_created_and_gone_when_it_is_dropped(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    created = mutable(ground).create_schema(ground.ctx, "Shop", comment="things", tags={"team": "x"})
    assert (created.name, created.comment, dict(created.tags)) == ("Shop", "things", {"team": "x"})
    assert {schema.name for schema in ground.catalog.schemas(ground.ctx)} == {"public", "Shop"}
    schema_of(ground, "shop").create_table(ground.ctx, TableDefinition(name="t", columns=IDS))
    mutable(ground).drop_schema(ground.ctx, "SHOP")
    assert ground.catalog.schema(ground.ctx, "Shop") is None


def test_a_schema_is_not_created_twice_nor_dropped_twice(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    mutable(ground).create_schema(ground.ctx, "shop")
    with pytest.raises(AlreadyExists, match="schema 'Shop' already exists"):
        mutable(ground).create_schema(ground.ctx, "Shop")
    mutable(ground).drop_schema(ground.ctx, "shop")
    with pytest.raises(SchemaNotFound):
        mutable(ground).drop_schema(ground.ctx, "shop")


# Tables


@pytest.mark.tier("fast")
def test_a_created_table_has_its_columns_checks_and_comment_and_takes_rows(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    wanted = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32(), metadata={"default": "7", "comment": "how many"}),
        ]
    )
    definition = TableDefinition(name="t", columns=wanted, checks=("(id > 0)",), comment="things")
    schema_of(ground).create_table(ground.ctx, definition)
    table = ground.table("T")
    assert (table.name, table.comment, tuple(table.checks)) == ("t", "things", ("(id > 0)",))
    assert columns(ground).equals(wanted)
    assert default_of(columns(ground).field("n")) == "7"
    assert (columns(ground).field("n").metadata or {})[COMMENT_MARK] == b"how many"
    assert ground.insert(pa.table({"id": [1], "n": [2]}, wanted)) == 1
    assert rows(ground) == [{"id": 1, "n": 2}]


def test_a_name_that_is_taken_is_an_error_is_ignored_or_is_replaced(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    again = TableDefinition(name="T", columns=IDS)
    with pytest.raises(AlreadyExists, match="already exists"):
        schema_of(ground).create_table(ground.ctx, again)
    kept = schema_of(ground).create_table(ground.ctx, again, OnConflict.IGNORE)
    assert data_schema(kept.schema).names == ["id", "name", "price"]
    assert len(rows(ground)) == 3
    schema_of(ground).create_table(ground.ctx, again, OnConflict.REPLACE)
    assert columns(ground).names == ["id"]
    assert rows(ground) == []


@pytest.mark.parametrize("name", ["rowid", "_row_id", "_FILE", "_deleted"])
def test_reserved_names_of_columns_are_refused(engine: EngineUnderTest, name: str) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    with pytest.raises(InvalidArgument, match=f"column name '{name}' is reserved"):
        schema_of(ground).create_table(ground.ctx, TableDefinition(name="u", columns=pa.schema([(name, pa.int64())])))
    with pytest.raises(InvalidArgument, match=f"column name '{name}' is reserved"):
        alter(ground, AddColumn(pa.field(name, pa.int64())))


def test_a_check_that_cannot_be_evaluated_is_refused(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    with pytest.raises(InvalidArgument, match="CHECK nothing > 0 cannot be evaluated"):
        schema_of(ground).create_table(ground.ctx, TableDefinition(name="t", columns=IDS, checks=("nothing > 0",)))
    assert schema_of(ground).table(ground.ctx, "t") is None


def test_a_dropped_table_is_gone_and_cannot_be_dropped_again(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    schema_of(ground).drop_table(ground.ctx, "T")
    assert schema_of(ground).table(ground.ctx, "t") is None
    assert list(schema_of(ground).tables(ground.ctx)) == []
    with pytest.raises(TableNotFound):
        schema_of(ground).drop_table(ground.ctx, "t")


@pytest.mark.tier("fast")
def test_a_renamed_table_keeps_its_rows_and_ids(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3), "u": numbers(0, 3)})
    before = ground.read()
    assert schema_of(ground).rename_table(ground.ctx, "T", "v").name == "v"
    assert ground.read(name="v").to_pylist() == before.to_pylist()
    assert schema_of(ground).table(ground.ctx, "t") is None
    with pytest.raises(AlreadyExists):
        schema_of(ground).rename_table(ground.ctx, "v", "U")
    with pytest.raises(TableNotFound):
        schema_of(ground).rename_table(ground.ctx, "t", "w")


def test_a_name_can_be_used_again_and_shows_nothing_of_the_table_before(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    schema_of(ground).drop_table(ground.ctx, "t")
    schema_of(ground).create_table(ground.ctx, TableDefinition(name="t", columns=IDS))
    assert rows(ground) == []
    assert rows(ground, at=version(0)) == []


# Columns


@pytest.mark.tier("fast")
def test_an_added_column_has_its_default_in_the_rows_that_are_there(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    alter(
        ground,
        AddColumn(pa.field("note", pa.string())),
        AddColumn(pa.field("level", pa.int32(), metadata={"default": "7"})),
    )
    assert columns(ground).names == ["id", "name", "price", "note", "level"]
    assert [(row["note"], row["level"]) for row in rows(ground)] == [(None, 7), (None, 7)]
    with pytest.raises(AlreadyExists):
        alter(ground, AddColumn(pa.field("NOTE", pa.int64())))
    alter(ground, AddColumn(pa.field("NOTE", pa.int64()), if_not_exists=True))
    assert columns(ground).field("note").type == pa.string()


def test_a_column_with_a_default_can_be_not_null_and_the_default_be_dropped_afterwards(
    engine: EngineUnderTest,
) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    alter(ground, AddColumn(pa.field("level", pa.int32(), nullable=False, metadata={"default": "7"})))
    assert not columns(ground).field("level").nullable
    alter(ground, SetDefault("level", "8"))
    assert [row["level"] for row in rows(ground)] == [7, 7]
    alter(ground, SetDefault("level", None), DropNotNull("level"))
    assert [row["level"] for row in rows(ground)] == [7, 7]


def test_a_field_that_is_added_has_its_default_in_structs_that_are_there(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": pa.table({"s": pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))})})
    alter(ground, AddField(("s",), pa.field("b", pa.string(), metadata={"default": "'new'"})))
    assert [row["s"] for row in rows(ground)] == [{"a": 1, "b": "new"}, None]


def test_a_column_that_must_not_be_null_is_not_added_to_rows_without_a_default(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    with pytest.raises((ConstraintViolation, Unsupported), match="note"):
        alter(ground, AddColumn(pa.field("note", pa.string(), nullable=False)))
    assert columns(ground).names == ["id", "name", "price"]


def test_a_dropped_column_is_gone_and_one_of_its_name_begins_anew(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    alter(ground, DropColumn("NAME"), DropColumn("name", if_exists=True))
    assert columns(ground).names == ["id", "price"]
    with pytest.raises(InvalidArgument, match="column 'name' does not exist"):
        alter(ground, DropColumn("name"))
    alter(ground, AddColumn(pa.field("name", pa.string())))
    assert [row["name"] for row in rows(ground)] == [None, None]


def test_the_last_column_is_not_dropped(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": pa.table({"id": [1]})})
    with pytest.raises(InvalidArgument, match="at least one column"):
        alter(ground, DropColumn("id"))


def test_a_renamed_column_keeps_its_values(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    alter(ground, RenameColumn("name", "title"))
    assert [row["title"] for row in rows(ground)] == ["n00001", "n00002"]
    with pytest.raises(AlreadyExists):
        alter(ground, RenameColumn("title", "ID"))


def test_a_type_is_widened_and_never_narrowed(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": pa.table({"n": pa.array([1, None], pa.int32())})})
    alter(ground, ChangeType("n", pa.int64()))
    ground.insert(pa.table({"n": [2**40]}))
    assert columns(ground).types == [pa.int64()]
    assert [row["n"] for row in rows(ground)] == [1, None, 2**40]
    with pytest.raises(Unsupported, match="possible are"):
        alter(ground, ChangeType("n", pa.int32()))
    with pytest.raises(Unsupported, match="possible are"):
        alter(ground, ChangeType("n", pa.string()))


def test_not_null_is_set_where_no_row_is_null_and_dropped_again(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    with pytest.raises(ConstraintViolation, match="column 'name' has NULL values"):
        alter(ground, SetNotNull("name"))
    alter(ground, SetNotNull("id"))
    assert not columns(ground).field("id").nullable
    alter(ground, DropNotNull("ID"))
    assert columns(ground).field("id").nullable
    assert len(rows(ground)) == 3


def test_defaults_and_comments_are_set_and_taken_away(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    alter(ground, SetDefault("name", "'none'"), SetComment("what it is called", "name"), SetComment("things"))
    name = columns(ground).field("name")
    assert default_of(name) == "'none'"
    assert (name.metadata or {})[COMMENT_MARK] == b"what it is called"
    assert ground.table().comment == "things"
    alter(ground, SetDefault("name", None), SetComment(None, "name"), SetComment(None))
    assert not columns(ground).field("name").metadata
    assert ground.table().comment is None


def test_fields_of_structs_are_added_renamed_and_dropped(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NESTED})
    alter(ground, AddField(("s",), pa.field("c", pa.int32())), RenameField(("s", "a"), "z"))
    assert [row["s"] for row in rows(ground)] == [{"z": 1, "b": "x", "c": None}, None]
    alter(ground, DropField(("S", "B")), DropField(("s", "b"), if_exists=True))
    assert [row["s"] for row in rows(ground)] == [{"z": 1, "c": None}, None]
    with pytest.raises(AlreadyExists):
        alter(ground, AddField(("s",), pa.field("Z", pa.int32())))
    with pytest.raises(InvalidArgument, match="field 'b' does not exist"):
        alter(ground, DropField(("s", "b")))
    with pytest.raises(Unsupported, match="no struct"):
        alter(ground, AddField(("id",), pa.field("x", pa.int32())))


def test_a_dropped_field_of_a_struct_does_not_come_back_under_its_name(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NESTED})
    alter(ground, DropField(("s", "a")), AddField(("s",), pa.field("a", pa.int64())))
    assert [row["s"] for row in rows(ground)] == [{"b": "x", "a": None}, None]


# Row ids, versions, transactions


@pytest.mark.needs(Ability.ROW_IDS)
def test_rows_keep_their_ids_over_alterations(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 5)})
    before = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    alter(ground, AddColumn(pa.field("note", pa.string())), DropColumn("price"), RenameColumn("name", "title"))
    assert ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist() == before


@pytest.mark.needs(Ability.VERSIONS)
def test_each_alteration_is_a_version_and_older_ones_read_as_they_were(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": pa.table({"id": [1], "name": ["a"]})})
    alter(ground, AddColumn(pa.field("note", pa.string())), RenameColumn("name", "title"), DropColumn("id"))
    expected: list[list[dict[str, object]]] = [
        [],
        [{"id": 1, "name": "a"}],
        [{"id": 1, "name": "a", "note": None}],
        [{"id": 1, "title": "a", "note": None}],
        [{"title": "a", "note": None}],
    ]
    assert [rows(ground, at=version(number)) for number in range(5)] == expected
    names = [data_schema(ground.versioned().schema_at(ground.ctx, version(number))).names for number in (0, 2, 4)]
    assert names == [["id", "name"], ["id", "name", "note"], ["title", "note"]]


def test_a_transaction_sees_tables_and_columns_as_they_were_when_it_began(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 2), "u": numbers(0, 2), "v": numbers(0, 2)})
    manager = ground.catalog.transactions
    assert manager is not None
    inside = Ground(ground.catalog, ground.moment, CallContext(transaction_id=manager.begin(ground.ctx)))
    alter(ground, DropColumn("price"))
    schema_of(ground).drop_table(ground.ctx, "u")
    schema_of(ground).rename_table(ground.ctx, "v", "w")
    schema_of(ground).create_table(ground.ctx, TableDefinition(name="x", columns=IDS))
    assert columns(inside).names == ["id", "name", "price"]
    assert [row["id"] for row in rows(inside)] == [0, 1]
    listed: list[Table] = list(schema_of(inside).tables(inside.ctx))
    assert sorted(table.name for table in listed) == ["t", "u", "v"]
    assert inside.read(name="u").num_rows == inside.read(name="v").num_rows == 2
    assert schema_of(inside).table(inside.ctx, "x") is None


@pytest.mark.needs(Ability.OWN_DDL)
def test_one_session_sees_in_its_transaction_what_it_has_made_itself(engine: EngineUnderTest) -> None:
    """DuckDB sends DDL without its transaction, and then fills the table inside it."""
    ground = engine.make({})
    manager = ground.catalog.transactions
    assert manager is not None
    session = CallContext(session_id="one")
    inside = CallContext(session_id="one", transaction_id=manager.begin(session))
    schema_of(ground).create_table(session, TableDefinition(name="t", columns=IDS))
    own = Ground(ground.catalog, ground.moment, inside)
    assert own.insert(pa.table({"id": [1]})) == 1
    assert rows(own) == rows(ground) == [{"id": 1}]


def test_the_catalogs_version_changes_with_names_columns_and_comments_and_not_with_rows(
    engine: EngineUnderTest,
) -> None:
    ground = engine.make({"t": numbers(0, 2)})
    seen = [catalog_version(ground)]
    ground.insert(numbers(2, 4))
    assert catalog_version(ground) == seen[0]
    alter(ground, AddColumn(pa.field("note", pa.string())))
    seen.append(catalog_version(ground))
    alter(ground, SetComment("things"))
    seen.append(catalog_version(ground))
    mutable(ground).create_schema(ground.ctx, "shop")
    seen.append(catalog_version(ground))
    schema_of(ground).rename_table(ground.ctx, "t", "u")
    seen.append(catalog_version(ground))
    schema_of(ground).drop_table(ground.ctx, "u")
    seen.append(catalog_version(ground))
    assert len(set(seen)) == len(seen)


# Constraints


def test_checks_are_kept_by_inserts_and_by_updates_of_some_columns(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    definition = TableDefinition(
        name="t", columns=pa.schema([("low", pa.int64()), ("high", pa.int64())]), checks=("low <= high",)
    )
    schema_of(ground).create_table(ground.ctx, definition)
    ground.insert(pa.table({"low": [1, None], "high": [5, 5]}))
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed on table t with expression: low <= high"):
        ground.insert(pa.table({"low": [9], "high": [5]}))
    ids = ground.read(ScanRequest(columns=(ROW_ID,)))[ROW_ID].to_pylist()
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed"):
        ground.update(ids[:1], pa.table({"low": pa.array([6], pa.int64())}))
    assert ground.update(ids[:1], pa.table({"low": pa.array([5], pa.int64())})) == 1
    assert rows(ground) == [{"low": None, "high": 5}, {"low": 5, "high": 5}] or rows(ground) == [
        {"low": 5, "high": 5},
        {"low": None, "high": 5},
    ]


@pytest.mark.needs(Ability.CHECKED_COLUMNS)
def test_a_column_that_a_check_needs_is_neither_dropped_nor_renamed(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    definition = TableDefinition(
        name="t", columns=pa.schema([("low", pa.int64()), ("high", pa.int64())]), checks=("low > 0",)
    )
    schema_of(ground).create_table(ground.ctx, definition)
    for change in (DropColumn("low"), RenameColumn("low", "least")):
        with contextlib.suppress(InvalidArgument):
            alter(ground, change)
    assert columns(ground).names == ["low", "high"]


@pytest.mark.needs(Ability.CHECKED_COLUMNS)
def test_a_check_goes_with_the_column_that_it_needs_by_cascade_and_keeps_it_without(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    part = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    definition = TableDefinition(
        name="t",
        columns=pa.schema([("low", pa.int64()), ("high", pa.int64()), ("part", part)]),
        checks=("low <= high", "high > 0", "part.a > 0"),
    )
    schema_of(ground).create_table(ground.ctx, definition)
    with pytest.raises(InvalidArgument, match="column 'low' is needed by CHECK low <= high: DROP … CASCADE drops"):
        alter(ground, DropColumn("low"))
    with pytest.raises(InvalidArgument, match=r"field 'part.a' is needed by CHECK part.a > 0"):
        alter(ground, DropField(("part", "a")))
    assert ground.table().checks == definition.checks
    alter(ground, DropColumn("low", cascade=True))
    assert ground.table().checks == ("high > 0", "part.a > 0")
    alter(ground, DropField(("part", "a"), cascade=True))
    assert ground.table().checks == ("high > 0",)
    rest = pa.schema([("high", pa.int64()), ("part", pa.struct([("b", pa.int64())]))])
    ground.insert(pa.Table.from_pylist([{"high": 1, "part": {"b": -1}}], schema=rest))
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed on table t with expression: high > 0"):
        ground.insert(pa.Table.from_pylist([{"high": 0, "part": None}], schema=rest))


def test_tags_of_a_table_stay_with_it(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    tags = {"owner": "nina", "ß/": "with = and\nmore"}
    definition = TableDefinition(name="t", columns=pa.schema([("id", pa.int64())]), tags=tags)
    made = schema_of(ground).create_table(ground.ctx, definition)
    assert dict(made.tags) == tags
    alter(ground, AddColumn(pa.field("more", pa.int64())))
    alter(ground, SetComment("said"))
    assert dict(ground.table().tags) == tags
    schema_of(ground).create_table(
        ground.ctx, TableDefinition(name="t", columns=definition.columns), OnConflict.REPLACE
    )
    assert dict(ground.table().tags) == {}
