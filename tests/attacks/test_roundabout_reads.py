"""Rights that are not those to read are no way to what a table holds, and what is taken away is gone at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.attacks.callers import TOKENS, attach, guarded, rules
from tests.support.duckdb_client import AirportError

from sparkport.auth import RuleAuthorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.memory_sizes import MAX_EXPANDED_BYTES
from sparkport.client import connect
from sparkport.errors import PermissionDenied, ResourceExhausted
from sparkport.handlers.columns import fit_all
from sparkport.memory.catalog import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "secret": ["a", "b"]})


@pytest.fixture
def catalog() -> MemoryCatalog:
    made = MemoryCatalog("lake")
    made.create_table("public.t", ROWS.schema, rows=ROWS)
    made.create_schema(CallContext(), "hr")
    made.create_table("hr.pay", ROWS.schema, rows=ROWS)
    return made


@pytest.mark.parametrize("way", ["duckdb", "json"])
def test_the_right_to_delete_gives_no_rows_back(catalog: MemoryCatalog, way: str) -> None:
    allowed = rules({"subjects": "nobody", "operations": ["delete", "update"], "resources": "lake.public.t"})
    with guarded(catalog, authorizer=allowed) as server:
        if way == "duckdb":
            with attach(server, "nobody") as caller, pytest.raises(AirportError, match="may not read"):
                caller.duckdb.delete("public.t", [0], returning=True)
        else:
            with connect(server.location, token="nobody-token") as client:
                with pytest.raises(PermissionDenied, match="may not read"):
                    client.delete("public.t", [0], returning=True)
                assert client.delete("public.t", [0]).count == 1


def test_who_may_not_read_is_not_told_how_many_rows_there_are(catalog: MemoryCatalog) -> None:
    allowed = rules({"subjects": "nobody", "operations": "insert", "resources": "lake.public.t"})
    with guarded(catalog, authorizer=allowed) as server, pf.connect(server.location) as stock:
        for name, rows in (("admin", 2), ("nobody", -1)):
            options = pf.FlightCallOptions(headers=[(b"authorization", f"Bearer {name}-token".encode())])
            listed = [info for info in stock.list_flights(b"", options) if info.descriptor.path[-1] == b"t"]
            assert [info.total_records for info in listed] == [rows]


@pytest.mark.parametrize("what", ["table", "schema"])
def test_a_new_name_gives_no_new_rights(catalog: MemoryCatalog, what: str) -> None:
    allowed = rules(
        {"subjects": "nobody", "operations": ["alter", "drop"], "resources": ["lake.public.t", "lake.hr"]},
        {"subjects": "nobody", "operations": ["create", "read"], "resources": ["lake.public.mine", "lake.mine"]},
    )
    with guarded(catalog, authorizer=allowed) as server, connect(server.location, token="nobody-token") as client:
        rename = client.rename_table if what == "table" else client.rename_schema
        with pytest.raises(PermissionDenied, match="may not read"):
            rename("public.t" if what == "table" else "hr", "mine")
    assert catalog.schema(CallContext(), "hr") is not None


def test_what_may_no_longer_be_seen_is_not_listed(catalog: MemoryCatalog, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    entry = '[[rules]]\nsubjects = "reader"\noperations = "read"\nresources = "lake.{}"\n'
    file.write_text(entry.format("*"))
    now = 0.0
    authorizer = RuleAuthorizer.from_file(file, clock=lambda: now)
    with serving(catalog, authenticator=TOKENS, authorizer=authorizer) as server, attach(server, "reader") as caller:
        assert {"hr", "public"} <= set(caller.duckdb.schemas)
        file.write_text(entry.format("public") + "# changed\n")
        now += 5
        caller.duckdb.list_schemas()
        assert "hr" not in caller.duckdb.schemas


def test_nulls_inside_lists_are_counted_before_they_are_made() -> None:
    items = MAX_EXPANDED_BYTES // 8
    offsets = pa.array([0, items], pa.int32())
    nulls = pa.ListArray.from_arrays(offsets, pa.nulls(items))
    fit = fit_all("t", pa.schema([("v", nulls.type)]), pa.schema([("v", pa.list_(pa.int64()))]))
    with pytest.raises(ResourceExhausted):
        fit(pa.record_batch({"v": nulls}))
