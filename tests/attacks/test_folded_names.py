"""Names are looked up without regard to case, and ``groß`` finds ``gross``: rights are those on what is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import Caller, attach, create, guarded, rules
from tests.support.duckdb_client import AirportError

from sparkport.app import Server
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog
from sparkport.protocol.targets import Kind, Target, Ticket

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": pa.array([], pa.int64())})
DENIED, MISSING = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND
OWN = {"subjects": "reader", "operations": "*", "resources": ["lake.folded.groß*", "lake.groß"]}


@pytest.fixture
def server(catalog: MutableCatalog) -> Iterator[Server]:
    for schema in ("folded", "gross"):
        if catalog.schema(CallContext(), schema) is None:
            create(catalog, ROWS, schema=schema, name="gross_secret")
    with guarded(catalog, authorizer=rules(OWN)) as running:
        yield running


@pytest.fixture
def reader(server: Server) -> Iterator[Caller]:
    with attach(server, "reader") as caller:
        yield caller


def refused(reader: Caller, action: str, body: dict[str, Any]) -> grpc.StatusCode:
    with pytest.raises(AirportError) as failure:
        reader.duckdb.action(action, body)
    return failure.value.code


@pytest.mark.parametrize("name", ["groß_secret", "GROSS_SECRET", "GROẞ_SECRET", "gro\u017f\u017f_secret"])
def test_a_table_is_not_reached_by_a_name_that_only_folds_to_its_own(
    catalog: MutableCatalog, reader: Caller, name: str
) -> None:
    with pytest.raises(AirportError) as failure:
        reader.get(Ticket(target=Target("lake", "folded", Kind.TABLE, name)).encode())
    assert failure.value.code is MISSING
    place = {"catalog_name": "lake", "schema_name": "folded", "name": name, "type": "table"}
    assert refused(reader, "drop_table", {**place, "ignore_not_found": False}) is MISSING
    renaming = {"catalog": "lake", "schema": "folded", "name": name, "new_table_name": "groß_mine"}
    assert refused(reader, "rename_table", {**renaming, "ignore_not_found": False}) is MISSING
    for on_conflict in ("replace", "ignore", "error"):
        body = {**_definition(name), "on_conflict": on_conflict}
        expected = grpc.StatusCode.ALREADY_EXISTS if name.startswith(("groß", "GROẞ")) else DENIED
        assert refused(reader, "create_table", body) is expected
    schema = catalog.schema(CallContext(), "folded")
    assert schema is not None
    assert schema.table(CallContext(), "gross_secret") is not None


def test_a_schema_is_not_dropped_or_renamed_by_a_name_that_only_folds_to_its_own(
    catalog: MutableCatalog, reader: Caller
) -> None:
    body = {"type": "schema", "catalog_name": "lake", "schema_name": "", "name": "groß", "ignore_not_found": False}
    assert refused(reader, "drop_schema", body) is MISSING
    renaming = {"catalog": "lake", "schema": "groß", "new_schema_name": "großes"}
    assert refused(reader, "rename_schema", renaming) is MISSING
    assert catalog.schema(CallContext(), "gross") is not None


def _definition(name: str) -> dict[str, Any]:
    return {
        "catalog_name": "lake",
        "schema_name": "folded",
        "table_name": name,
        "arrow_schema": ROWS.schema.serialize().to_pybytes(),
        "not_null_constraints": [],
        "unique_constraints": [],
        "check_constraints": [],
        "primary_key_columns": [],
        "unique_columns": [],
        "multi_key_primary_keys": [],
        "extra_constraints": [],
    }
