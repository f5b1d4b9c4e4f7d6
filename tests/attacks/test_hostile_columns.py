"""Columns named like the aliases and helper columns of the SQL that is made for a change must not lead it astray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.attacks.callers import create
from tests.contract.clients import JsonClient
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.flight_rpc import AirportError, Connection

from sparkport.app import Server
from sparkport.catalog.ddl import MutableCatalog
from sparkport.errors import InvalidArgument
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

STRUCT = pa.struct([("_row_id", pa.int64()), ("row_id", pa.int64()), ("c0", pa.string()), ("changes", pa.int64())])
NAMES = [
    *("t", "T_", "s_", "source", "target", "changes", "view", "staged", "batch", "changed", "base"),
    *("sparkport_row_id", "sparkport_is_deleted", "sparkport_number", "row_id", "is_deleted", "number"),
    *("c0", "c1", "v0", "key", "id", "step", "kind", "file_index", "file_row_number", "own_row_id", "sequence"),
    *(
        "`",
        "a`b",
        "a.b",
        "t._row_id",
        "x' OR '1'='1",
        'q"q',
        "-- c",
        "/* c",
        "\u017f",
        "groß",
        "\u0130",
        "\u212a",
        "日本",
        "select",
    ),
    *("_change_type", "__original_row_id_n", "_row_id_", "operation", "matched"),
]


@pytest.fixture
def server(catalog: MutableCatalog) -> Iterator[Server]:
    with serving(catalog) as running:
        yield running


@pytest.fixture
def duckdb(server: Server) -> Iterator[Attached]:
    with DuckDBClient(server.location, watchdog=120.0) as client:
        yield client.attach("lake")


@pytest.fixture
def json(server: Server) -> Iterator[JsonClient]:
    connection = Connection(server.location, timeout=120.0)
    yield JsonClient(connection)
    connection.close()


def misleading(count: int = 4) -> pa.Table:
    """Structs that claim to be the row after: row 1's ``t._row_id`` is the row id of row 2."""
    claims = [{"_row_id": row + 1, "row_id": row + 1, "c0": f"c{row}", "changes": row} for row in range(count)]
    structs = pa.array(claims, STRUCT)
    return pa.table({"n": pa.array(range(count), pa.int64()), "t": structs, "s": structs, "T_": structs})


def named(names: list[str], count: int = 3) -> pa.Table:
    columns = {name: pa.array([f"{name}/{row}" for row in range(count)]) for name in names}
    return pa.table({"n": pa.array(range(count), pa.int64()), **columns})


def rows_of(duckdb: Attached, table: str) -> list[dict[str, Any]]:
    found = duckdb.scan(table).rows.to_pylist()
    return sorted(found, key=lambda row: int(row["n"]))


def row_ids(duckdb: Attached, table: str) -> dict[int, int]:
    found = duckdb.scan(table, ["n", "rowid"]).rows
    return dict(zip(found["n"].to_pylist(), found["rowid"].to_pylist(), strict=True))


def test_a_struct_named_like_an_alias_does_not_choose_the_row_that_is_deleted(
    catalog: MutableCatalog, duckdb: Attached
) -> None:
    rows = misleading()
    table = create(catalog, rows)
    duckdb.load()
    ids = row_ids(duckdb, table)
    assert duckdb.delete(table, [ids[1]]).count == 1
    assert rows_of(duckdb, table) == [row for row in rows.to_pylist() if row["n"] != 1]
    changed = pa.table({"n": pa.array([30], pa.int64()), "rowid": pa.array([ids[3]], pa.int64())})
    assert duckdb.update(table, changed).count == 1
    assert [row["n"] for row in rows_of(duckdb, table)] == [0, 2, 30]


def test_a_struct_named_like_an_alias_does_not_choose_the_row_of_a_transaction(
    catalog: MutableCatalog, duckdb: Attached, json: JsonClient
) -> None:
    rows = misleading()
    table = create(catalog, rows)
    duckdb.load()
    ids = row_ids(duckdb, table)
    transaction = json.begin(auto_commit=False)
    inside = json.inside(transaction)
    assert inside.delete(table, [ids[1]]).affected_rows == 1
    inside.update(table, [ids[2]], rows.slice(2, 1).set_column(0, "n", pa.array([20], pa.int64())))
    inside.insert(table, rows.slice(0, 1).set_column(0, "n", pa.array([9], pa.int64())))
    json.commit(transaction)
    expected = [row | {"n": {2: 20}.get(row["n"], row["n"])} for row in rows.to_pylist() if row["n"] != 1]
    expected.append(rows.to_pylist()[0] | {"n": 9})
    assert rows_of(duckdb, table) == sorted(expected, key=lambda row: int(row["n"]))


def test_columns_of_any_name_are_updated_and_deleted_by(catalog: MutableCatalog, duckdb: Attached) -> None:
    rows = named(NAMES)
    table = create(catalog, rows)
    duckdb.load()
    ids = row_ids(duckdb, table)
    changes = named(NAMES).slice(1, 1).drop_columns(["n"]).to_pydict()
    changes = {name: [f"new {name}"] for name in changes}
    sent = pa.table({**changes, "rowid": pa.array([ids[1]], pa.int64())})
    assert duckdb.update(table, sent).count == 1
    assert duckdb.delete(table, [ids[0]]).count == 1
    found = rows_of(duckdb, table)
    assert found[0] == {"n": 1, **{name: f"new {name}" for name in NAMES}}
    assert found[1] == rows.to_pylist()[2]


@pytest.mark.parametrize("name", ["__row_operation", "__row_from_source", "__ROW_FROM_TARGET", "__row_id"])
def test_a_name_that_spark_uses_in_a_merge_is_refused(catalog: MutableCatalog, name: str) -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        create(catalog, named([name]))


def test_rows_of_a_table_that_has_such_a_name_all_the_same_are_not_changed(attacked_lakehouse: Lakehouse) -> None:
    catalog = attacked_lakehouse.catalog
    table = create(catalog, named(["x"]))
    with attacked_lakehouse.engine.storage.spark.session() as session:
        session.sql(f"ALTER TABLE lake.{table} RENAME COLUMN x TO __row_operation").collect()
    with serving(catalog) as server, DuckDBClient(server.location, watchdog=120.0) as client:
        duckdb = client.attach("lake")
        ids = row_ids(duckdb, table)
        with pytest.raises(AirportError, match="column '__row_operation' has a name that Spark uses"):
            duckdb.delete(table, [ids[1]])
        assert [row["n"] for row in rows_of(duckdb, table)] == [0, 1, 2]


def test_a_table_of_300_columns_named_like_helpers_is_changed(catalog: MutableCatalog, duckdb: Attached) -> None:
    names = ["t", "s", *(f"{'ts'[at % 2]}{'_' * (at // 2)}" for at in range(2, 40)), *(f"c{at}" for at in range(260))]
    table = create(catalog, named(names))
    duckdb.load()
    ids = row_ids(duckdb, table)
    sent = pa.table({"t": ["new"], "c7": ["seven"], "rowid": pa.array([ids[2]], pa.int64())})
    assert duckdb.update(table, sent).count == 1
    assert duckdb.delete(table, [ids[0]]).count == 1
    found = rows_of(duckdb, table)
    assert [row["n"] for row in found] == [1, 2]
    assert found[1] == named(names).to_pylist()[2] | {"t": "new", "c7": "seven"}


def test_a_copied_table_is_changed_in_the_right_rows_too(attacked_lakehouse: Lakehouse) -> None:
    """Tables that others have made are copy-on-write by default, where the changes come as one map."""
    rows = misleading()
    catalog = attacked_lakehouse.catalog
    table = create(catalog, rows)
    with attacked_lakehouse.engine.storage.spark.session() as session:
        name = f"lake.{table}"
        session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')").collect()
    with serving(catalog) as server, DuckDBClient(server.location, watchdog=120.0) as client:
        duckdb = client.attach("lake")
        ids = row_ids(duckdb, table)
        assert duckdb.delete(table, [ids[1]]).count == 1
        changed = pa.table({"n": pa.array([30], pa.int64()), "rowid": pa.array([ids[3]], pa.int64())})
        assert duckdb.update(table, changed).count == 1
        assert [row["n"] for row in rows_of(duckdb, table)] == [0, 2, 30]
