"""A schema gets another name, and its tables with it: at one instant, and without losing anything."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground

from sparkport.catalog import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, TableDefinition
from sparkport.errors import AlreadyExists, FailedPrecondition, SchemaNotFound

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.DDL)]

IDS = pa.schema([pa.field("id", pa.int64())])


def catalog_with(ground: Ground, schema: str, *tables: str) -> MutableCatalog:
    assert isinstance(ground.catalog, MutableCatalog)
    made = ground.catalog.create_schema(ground.ctx, schema, comment="old", tags={"team": "a"})
    assert isinstance(made, MutableSchema)
    for table in tables:
        made.create_table(ground.ctx, TableDefinition(name=table, columns=IDS))
    return ground.catalog


def listed(catalog: MutableCatalog) -> dict[str, list[str]]:
    ctx = CallContext()
    return {schema.name: sorted(table.name for table in schema.tables(ctx)) for schema in catalog.schemas(ctx)}


def test_a_renamed_schema_keeps_its_tables_comment_and_tags(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    catalog = catalog_with(ground, "main", "a", "b")
    before = catalog.version(ground.ctx)
    renamed = catalog.rename_schema(ground.ctx, "MAIN", "shop")
    assert listed(catalog) == {"public": [], "shop": ["a", "b"]}
    assert (renamed.name, renamed.comment, dict(renamed.tags)) == ("shop", "old", {"team": "a"})
    assert catalog.schema(ground.ctx, "main") is None
    assert catalog.version(ground.ctx) != before


def test_tables_of_a_renamed_schema_are_changed_as_before(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    catalog = catalog_with(ground, "main", "a")
    renamed = catalog.rename_schema(ground.ctx, "main", "shop")
    assert isinstance(renamed, MutableSchema)
    renamed.create_table(ground.ctx, TableDefinition(name="b", columns=IDS))
    renamed.rename_table(ground.ctx, "a", "c")
    assert listed(catalog) == {"public": [], "shop": ["b", "c"]}


def test_an_empty_schema_of_the_new_name_makes_way(engine: EngineUnderTest) -> None:
    """So that tables of an old ``main`` come into the ``public`` that every server begins with."""
    ground = engine.make({})
    catalog = catalog_with(ground, "main", "a")
    assert catalog.rename_schema(ground.ctx, "main", "PUBLIC").is_default
    assert list(listed(catalog).values()) == [["a"]]


def test_a_schema_with_tables_does_not_make_way(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": pa.table({"id": [1]})})
    catalog = catalog_with(ground, "main", "a")
    with pytest.raises(AlreadyExists, match="schema 'public' already exists, and is not empty"):
        catalog.rename_schema(ground.ctx, "main", "public")
    assert listed(catalog) == {"main": ["a"], "public": ["t"]}


def test_the_case_of_a_name_can_be_changed(engine: EngineUnderTest) -> None:
    ground = engine.make({})
    catalog = catalog_with(ground, "shop", "a")
    catalog.rename_schema(ground.ctx, "shop", "Shop")
    assert listed(catalog)["Shop"] == ["a"]
    catalog.rename_schema(ground.ctx, "shop", "Shop")
    assert listed(catalog)["Shop"] == ["a"]


def test_the_default_schema_keeps_its_name(engine: EngineUnderTest) -> None:
    catalog = catalog_with(engine.make({}), "main")
    with pytest.raises(FailedPrecondition, match="schema 'public' is the default one"):
        catalog.rename_schema(CallContext(), "public", "other")


def test_a_schema_that_is_not_there_is_not_found(engine: EngineUnderTest) -> None:
    catalog = catalog_with(engine.make({}), "main")
    with pytest.raises(SchemaNotFound, match="schema 'nothing' not found"):
        catalog.rename_schema(CallContext(), "nothing", "other")
