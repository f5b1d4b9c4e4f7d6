"""Row changes by somebody who sees a part of a table: of what it does not see, nothing is changed, returned or told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.attacks.callers import Caller, attach
from tests.attacks.limited import PEOPLE, SEEN, Limited, limited, secrets_in
from tests.support.duckdb_client import AirportError

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, TableDefinition
from sparkport.errors import (
    ConstraintViolation,
    InvalidArgument,
    PermissionDenied,
    SparkportError,
)

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def place(catalog: MutableCatalog) -> Iterator[Limited]:
    with limited(catalog) as made:
        yield made


@pytest.fixture
def caller(place: Limited) -> Iterator[Caller]:
    with attach(place.server, "reader") as attached:
        yield attached


def person(number: int = 9, region: str | None = "EU", **more: object) -> pa.Table:
    row = {"id": number, "region": region, "name": "eve", "ssn": "888-77-3210", **more}
    return pa.table(
        {name: pa.array([value], pa.int64() if name in ("id", "salary") else None) for name, value in row.items()}
    )


def changes(row_ids: list[int], **values: Any) -> pa.Table:
    return pa.table({**values, "rowid": pa.array(row_ids, pa.int64())})


# INSERT


def test_an_insert_gives_hidden_columns_their_default(place: Limited, caller: Caller) -> None:
    assert caller.duckdb.insert(place.table, person()).count == 1
    assert place.all_rows()[-1] == {**person().to_pylist()[0], "salary": None}


@pytest.mark.parametrize("region", ["US", None])
def test_a_row_that_its_writer_would_not_see_is_not_inserted(
    place: Limited, caller: Caller, region: str | None
) -> None:
    row = person(region=region)
    with pytest.raises(AirportError, match="would not see a row") as failure:
        caller.duckdb.insert(place.table, row)
    assert failure.value.code is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(PermissionDenied):
        place.reader.insert(place.table, row)
    assert len(place.all_rows()) == 4


def test_a_hidden_column_cannot_be_given_a_value(place: Limited) -> None:
    with pytest.raises(InvalidArgument, match="table has 4 columns"):
        place.reader.insert(place.table, person(salary=5))
    with pytest.raises(InvalidArgument, match="'salary' is not in the table"):
        place.reader.update(place.table, changes([place.ids()[1]], salary=pa.array([5], pa.int64())))
    assert place.all_rows() == PEOPLE.to_pylist()


def test_inserted_rows_are_returned_as_they_are_seen(place: Limited, caller: Caller) -> None:
    back = caller.duckdb.insert(place.table, person(), returning=True).rows
    assert back is not None
    assert back.drop_columns([name for name in back.column_names if name == "rowid"]).to_pylist() == [
        {"id": 9, "region": "EU", "name": "eve", "ssn": "***-3210"}
    ]


def test_new_rows_may_be_any_where_the_rule_says_so(catalog: MutableCatalog) -> None:
    with limited(catalog, new_rows="any") as place:
        assert place.reader.insert(place.table, person(region="US")).count == 1
        assert [row["id"] for row in place.all_rows()] == [1, 2, 3, 4, 9]
        with pytest.raises(PermissionDenied, match="cannot be returned"):
            place.reader.insert(place.table, person(10, "US"), returning=True)
        assert place.reader.update(place.table, changes([place.ids()[1]], region=["US"])).count == 1
        assert place.reader.scan(place.table).read_all().column("id").to_pylist() == [3]


def test_a_hidden_column_that_must_have_a_value_refuses_inserts_without_its_name(catalog: MutableCatalog) -> None:
    columns = PEOPLE.schema.set(4, PEOPLE.schema.field("salary").with_nullable(False))
    with limited(catalog, people=PEOPLE.cast(columns)) as place:
        with pytest.raises(PermissionDenied, match="columns that you do not see") as failure:
            place.reader.insert(place.table, person())
        assert secrets_in(failure.value) == []


def test_a_masked_column_is_still_not_null(catalog: MutableCatalog) -> None:
    columns = PEOPLE.schema.set(3, PEOPLE.schema.field("ssn").with_nullable(False))
    with limited(catalog, people=PEOPLE.cast(columns)) as place:
        row = person().set_column(3, "ssn", pa.nulls(1, pa.string()))
        with pytest.raises(ConstraintViolation, match="NOT NULL"):
            place.reader.insert(place.table, row)
        assert len(place.all_rows()) == 4


# UPDATE and DELETE of rows that are not seen


def test_rows_that_are_not_seen_are_not_there_for_duckdb(place: Limited, caller: Caller) -> None:
    ids = place.ids()
    every = [ids[number] for number in (1, 2, 3, 4)]
    assert caller.duckdb.update(place.table, changes(every, name=["a", "b", "c", "d"])).count == 2
    assert [row["name"] for row in place.all_rows()] == ["a", "bob-hidden", "c", "dora-hidden"]
    assert caller.duckdb.delete(place.table, every).count == 2
    assert [row["id"] for row in place.all_rows()] == [2, 4]


def test_rows_that_are_not_seen_are_not_found_by_the_json_contract(place: Limited, caller: Caller) -> None:
    ids = place.ids()
    schema, name = place.table.split(".")
    for number in (2, 4):
        body = {"schema_name": schema, "table_name": name, "row_ids": [ids[1], ids[number]]}
        with pytest.raises(AirportError, match=f"row_id {ids[number]} not found") as failure:
            caller.act("delete", json.dumps(body).encode())
        assert failure.value.code is grpc.StatusCode.NOT_FOUND
        with pytest.raises(AirportError, match=f"row_id {ids[number]} not found"):
            caller.act("delete", json.dumps({**body, "returning": True}).encode())
    assert place.all_rows() == PEOPLE.to_pylist()


def test_an_update_returns_what_is_seen_and_echoes_the_rest(place: Limited, caller: Caller) -> None:
    ids = place.ids()
    sent = changes([ids[2], ids[1]], name=["x", "y"])
    back = place.reader.update(place.table, sent, returning=True)
    assert back.count == 1
    assert back.rows is not None
    assert secrets_in(back.rows.to_pylist()) == []
    changed = caller.duckdb.update(place.table, changes([ids[3]], name=["z"]), returning=True)
    assert changed.count == 1
    assert changed.rows is not None
    assert secrets_in(changed.rows.to_pylist()) == []
    expected = PEOPLE.to_pylist()
    expected[0]["name"], expected[2]["name"] = "y", "z"
    assert place.all_rows() == expected  # the masked and the hidden column are what they were


def test_a_delete_returns_what_is_seen(place: Limited, caller: Caller) -> None:
    ids = place.ids()
    with pytest.raises(AirportError, match="is gone"):
        caller.duckdb.delete(place.table, [ids[2]], returning=True)
    back = caller.duckdb.delete(place.table, [ids[3]], returning=True).rows
    assert back is not None
    assert [{key: row[key] for key in SEEN[1]} for row in back.to_pylist()] == SEEN[1:]
    assert "salary" not in back.column_names
    assert [row["id"] for row in place.all_rows()] == [1, 2, 4]


# UPDATE of values


def test_a_row_cannot_be_moved_out_of_sight(place: Limited) -> None:
    with pytest.raises(PermissionDenied, match="would not see a row"):
        place.reader.update(place.table, changes([place.ids()[1]], region=["US"]))
    assert place.reader.update(place.table, changes([place.ids()[1]], region=["EU"])).count == 1
    assert place.all_rows() == PEOPLE.to_pylist()


def test_a_masked_column_cannot_be_updated(place: Limited) -> None:
    for value in ("000-00-0000", "123-45-6789", None):
        with pytest.raises(PermissionDenied, match=r"column 'ssn'.*cannot be updated") as failure:
            place.reader.update(place.table, changes([place.ids()[1]], ssn=pa.array([value], pa.string())))
        assert secrets_in(failure.value) == []
    assert place.reader.update(place.table, changes([place.ids()[1]], ssn=["***-6789"])).count == 1
    assert place.all_rows() == PEOPLE.to_pylist()


def test_a_transaction_changes_only_what_is_seen(place: Limited) -> None:
    ids = place.ids()
    with place.reader.transaction() as transaction:
        assert transaction.update(place.table, changes([ids[1], ids[2]], name=["a", "b"])).count == 1
        assert transaction.delete(place.table, [ids[3], ids[4]]).count == 1
        transaction.insert(place.table, person())
        assert sorted(transaction.scan(place.table).read_all().column("id").to_pylist()) == [1, 9]
    assert [(row["id"], row["name"]) for row in place.all_rows()] == [
        (1, "a"),
        (2, "bob-hidden"),
        (4, "dora-hidden"),
        (9, "eve"),
    ]


def test_a_row_that_another_moves_out_of_sight_meanwhile_is_not_changed(place: Limited, caller: Caller) -> None:
    ids = place.ids()
    with caller.duckdb.transaction():
        assert caller.duckdb.scan(place.table, ["id"]).rows.num_rows == 2
        place.admin.update(place.table, changes([ids[1]], region=["US"]))
        with pytest.raises(AirportError) as failure:
            caller.duckdb.update(place.table, changes([ids[1]], name=["mine"]))
        assert failure.value.code is grpc.StatusCode.ABORTED
    assert place.all_rows()[0]["name"] == "ann"


def test_a_check_on_what_is_hidden_does_not_tell_it(catalog: MutableCatalog) -> None:
    ctx = CallContext()
    with limited(catalog) as place:
        schema_name, name = place.table.split(".")
        schema = catalog.schema(ctx, schema_name)
        assert isinstance(schema, MutableSchema)
        schema.drop_table(ctx, name)
        checks = ("CAST(right(ssn, 4) AS INTEGER) > 0", "salary > 1000", "id < 1000")
        table = schema.create_table(ctx, TableDefinition(name=name, columns=PEOPLE.schema, checks=checks))
        assert table.checks == checks
        place.admin.insert(place.table, PEOPLE)
        listed = place.reader.describe(place.table)
        assert secrets_in(listed) == []
        assert "id < 1000" in str(listed)
        with pytest.raises(ConstraintViolation, match="id < 1000"):
            place.reader.insert(place.table, person(5_000))
        for bad in ("x-abcd", "0000"):
            with pytest.raises(ConstraintViolation, match="does not hold for these rows") as failure:
                place.reader.insert(place.table, person(ssn=bad))
            assert secrets_in(failure.value) == []


# Changes of the table itself


def test_a_limited_caller_alters_and_renames_nothing(catalog: MutableCatalog) -> None:
    others = {"subjects": "reader", "operations": ["alter", "create", "drop"]}
    with limited(catalog, others) as place:
        reader, table = place.reader, place.table
        attempts: list[Callable[[], object]] = [
            lambda: reader.rename_column(table, "ssn", "number"),
            lambda: reader.rename_column(table, "salary", "wages"),
            lambda: reader.drop_column(table, "ssn"),
            lambda: reader.set_not_null(table, "salary"),
            lambda: reader.change_type(table, "salary", pa.string()),
            lambda: reader.add_column(table, pa.field("salary", pa.int64()), if_not_exists=True),
            lambda: reader.set_comment(table, "mine"),
            lambda: reader.rename_table(table, "mine"),
        ]
        for attempt in attempts:
            with pytest.raises(PermissionDenied) as failure:
                attempt()
            assert secrets_in(str(failure.value)) == []
        assert place.all_rows() == PEOPLE.to_pylist()


def test_a_table_that_is_there_is_not_described_by_creating_it(catalog: MutableCatalog) -> None:
    with limited(catalog, {"subjects": "reader", "operations": ["create"]}) as place:
        seen = PEOPLE.schema.remove(4)
        with pytest.raises(SparkportError) as failure:
            place.reader.create_table(place.table, seen)
        assert secrets_in(str(failure.value)) == []
        with pytest.raises(PermissionDenied):
            place.reader.create_table(place.table, PEOPLE.schema, on_conflict="ignore")
        with pytest.raises(PermissionDenied):
            place.reader.create_table(place.table, pa.schema([("other", pa.int64())]), on_conflict="ignore")


def test_a_table_that_no_rule_fits_any_more_is_not_described_by_creating_it(catalog: MutableCatalog) -> None:
    with limited(catalog, {"subjects": "reader", "operations": ["create"]}, columns=None) as place:
        place.admin.rename_column(place.table, "region", "area")
        with pytest.raises(PermissionDenied) as failure:
            place.reader.create_table(place.table, pa.schema([("region", pa.string())]), on_conflict="ignore")
        assert secrets_in(str(failure.value)) == []


def test_rows_cannot_be_dropped_by_a_right_to_some(place: Limited) -> None:
    with pytest.raises(PermissionDenied):
        place.reader.drop_table(place.table)
    with pytest.raises((PermissionDenied, InvalidArgument)):
        place.reader.create_table(place.table, PEOPLE.schema, on_conflict="replace")
    assert place.all_rows() == PEOPLE.to_pylist()


# The JSON contract


def put(place: Limited, rows: pa.Table, token: str = "reader", **command: object) -> dict[str, Any]:
    schema, name = place.table.split(".")
    body = json.dumps({"schema_name": schema, "table_name": name, **command}).encode()
    options = pf.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}-token".encode())])
    with pf.connect(place.server.location) as client:
        writer, reader = client.do_put(pf.FlightDescriptor.for_command(body), rows.schema, options)
        with writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
            writer.done_writing()
            result = reader.read()
    answer: dict[str, Any] = msgpack.unpackb(result.to_pybytes())
    return answer


def returned(answer: dict[str, Any]) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(answer["returning_data"]) as reader:
        return list(reader.read_all().to_pylist())


def test_the_json_contract_keeps_to_the_limits(place: Limited) -> None:
    ids = place.ids()
    seen = place.reader.scan(place.table).read_all().sort_by("id")
    renamed = seen.set_column(2, "name", pa.array(["x", "y"]))
    with pytest.raises(pa.ArrowException, match=f"row_id {ids[2]} not found"):
        put(place, renamed, operation="update", row_ids=[ids[1], ids[2]])
    moved = seen.set_column(1, "region", pa.array(["EU", "US"]))
    with pytest.raises(pa.ArrowException, match="would not see a row"):
        put(place, moved, operation="update", row_ids=[ids[1], ids[3]])
    with pytest.raises(pa.ArrowException, match="'salary', which is not in the table"):
        put(place, renamed, operation="update", row_ids=[ids[1], ids[3]], returning=True, returning_columns=["salary"])
    assert place.all_rows() == PEOPLE.to_pylist()
    answer = put(place, renamed, operation="update", row_ids=[ids[1], ids[3]], returning=True)
    assert answer["affected_rows"] == 2
    assert returned(answer) == renamed.to_pylist()
    assert [row["ssn"] for row in place.all_rows()] == PEOPLE.column("ssn").to_pylist()
    assert [row["salary"] for row in place.all_rows()] == PEOPLE.column("salary").to_pylist()
    inserted = put(place, person(), operation="insert", returning=True)
    assert returned(inserted) == [{"id": 9, "region": "EU", "name": "eve", "ssn": "***-3210"}]


def test_what_writers_say_of_all_columns_is_not_passed_on(catalog: MutableCatalog) -> None:
    noted = PEOPLE.schema.with_metadata({"pandas": '{"columns": ["salary"]}'})
    with limited(catalog, people=PEOPLE.cast(noted)) as place:
        info = place.reader.describe(place.table)
        assert secrets_in(info.schema) == []
        assert secrets_in(info.wire_schema) == []
