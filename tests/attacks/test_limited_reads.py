"""Row filters and masks hold whichever way rows are read, on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.attacks.callers import Caller, attach
from tests.attacks.limited import PEOPLE, SEEN, Limited, limited, secrets_in
from tests.support.duckdb_client import AirportError
from tests.support.filters import Node, compare, conjunction, filter_json, function_call, is_not_null

from sparkport.catalog.ddl import MutableCatalog
from sparkport.client import col
from sparkport.errors import InvalidArgument, PermissionDenied
from sparkport.protocol.statistics import encode_statistics
from sparkport.protocol.targets import Ticket

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def place(catalog: MutableCatalog) -> Iterator[Limited]:
    with limited(catalog) as made:
        yield made


@pytest.fixture
def caller(place: Limited) -> Iterator[Caller]:
    with attach(place.server, "reader") as attached:
        yield attached


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


def test_a_scan_shows_the_rows_and_columns_of_the_rule(place: Limited, caller: Caller) -> None:
    assert rows_of(caller.duckdb.scan(place.table).rows) == SEEN
    assert rows_of(place.reader.scan(place.table).read_all()) == SEEN
    assert len(place.all_rows()) == 4
    assert place.all_rows()[0] == PEOPLE.to_pylist()[0]


def test_columns_that_only_the_rule_needs_are_not_sent(place: Limited, caller: Caller) -> None:
    assert caller.duckdb.scan(place.table, ["name"]).rows.to_pylist() == [{"name": "ann"}, {"name": "carl"}]
    assert caller.duckdb.scan(place.table, ["ssn"]).rows.to_pylist() == [{"ssn": "***-6789"}, {"ssn": "***-3333"}]


def test_a_count_counts_what_is_seen(place: Limited, caller: Caller) -> None:
    assert caller.duckdb.scan(place.table, []).rows.num_rows == 2
    assert place.reader.scan(place.table, columns=[]).read_all().num_rows == 2


def test_a_hidden_column_does_not_exist(place: Limited, caller: Caller) -> None:
    assert caller.duckdb.table(place.table).columns == ["id", "region", "name", "ssn"]
    assert "salary" not in place.reader.describe(place.table).schema.names
    with pytest.raises(InvalidArgument):
        place.reader.scan(place.table, columns=["salary"]).read_all()
    body = {"flight_descriptor": caller.duckdb.table(place.table).descriptor.serialize(), "type": "BIGINT"}
    with pytest.raises(AirportError, match="no column 'salary'"):
        caller.duckdb.action("column_statistics", {**body, "column_name": "salary"})


@pytest.mark.parametrize("name", ["salary", "SALARY", "Salary"])
def test_a_ticket_cannot_name_a_hidden_column(place: Limited, caller: Caller, name: str) -> None:
    ticket = Ticket.decode(caller.tickets(place.table)[0])
    with pytest.raises(AirportError, match="is not there"):
        caller.get(replace(ticket, columns=("id", name)).encode())


PROBES: list[tuple[list[str], Node]] = [
    (["id", "ssn"], compare("ssn", "=", "123-45-6789", kind="VARCHAR")),
    (["id", "ssn"], compare("ssn", ">", "5", kind="VARCHAR")),
    (["id", "SSN"], compare("SSN", "<", "2", kind="VARCHAR")),
    (["id", "salary"], compare("salary", ">", 80_000)),
    (["id", "Salary"], compare("Salary", ">", 80_000)),
    (["id", "ssn"], function_call("prefix", "ssn", "123")),
    (["id", "ssn"], function_call("regexp_matches", "ssn", "^1")),
    (["id", "salary"], is_not_null("salary")),
    (["id", "salary"], conjunction(compare("id", "=", 1), compare("salary", "<", 0), any_of=True)),
]


@pytest.mark.parametrize(("columns", "probe"), PROBES)
def test_no_filter_is_evaluated_on_what_is_not_seen(
    place: Limited, caller: Caller, columns: list[str], probe: Node
) -> None:
    """A server may return more rows than a filter keeps: that it returns the same ones tells nothing."""
    ticket = Ticket.decode(caller.tickets(place.table)[0])
    for negated in (False, True):
        node = {**_not(probe)} if negated else probe
        found = caller.get(replace(ticket, columns=("id",), filters=filter_json(columns, node)).encode())
        assert [row["id"] for row in found] == [1, 3]


def _not(node: Node) -> Node:
    return {
        "expression_class": "BOUND_OPERATOR",
        "type": "OPERATOR_NOT",
        "alias": "",
        "query_location": 2**64 - 1,
        "return_type": {"id": "BOOLEAN", "type_info": None},
        "children": [node],
    }


def test_a_filter_on_what_is_seen_works(place: Limited, caller: Caller) -> None:
    found = place.reader.scan(place.table, filter=col("id") > 1).read_all()
    assert rows_of(found) == SEEN[1:]
    masked = place.reader.scan(place.table, filter=col("ssn") == "***-6789").read_all()
    assert rows_of(masked) == SEEN[:1]
    hidden = place.reader.scan(place.table, filter=col("id") == 2).read_all()
    assert hidden.num_rows == 0


def test_the_row_id_of_a_hidden_row_finds_nothing(place: Limited) -> None:
    ids = place.ids()
    assert place.reader.scan(place.table, filter=col("rowid") == ids[2]).read_all().num_rows == 0
    assert rows_of(place.reader.scan(place.table, filter=col("rowid") == ids[3]).read_all()) == SEEN[1:]


def unknown(data_type: pa.DataType) -> dict[str, Any]:
    """The answer where nothing is known."""
    with pa.ipc.open_stream(encode_statistics(data_type, None)) as reader:
        (row,) = reader.read_all().to_pylist()
    return dict(row)


@pytest.mark.parametrize("column", ["id", "region", "ssn", "name"])
def test_there_are_no_statistics_where_rows_are_hidden(place: Limited, caller: Caller, column: str) -> None:
    answer = caller.duckdb.column_statistics(place.table, column)
    assert answer == unknown(PEOPLE.schema.field(column).type)


def test_statistics_of_clear_columns_are_there_where_all_rows_are_seen(catalog: MutableCatalog) -> None:
    with limited(catalog, rows=None) as place, attach(place.server, "reader") as caller:
        assert caller.duckdb.column_statistics(place.table, "id")["max"] == 4
        assert caller.duckdb.column_statistics(place.table, "ssn") == unknown(pa.string())
        assert len(caller.duckdb.scan(place.table).rows) == 4


def test_row_counts_are_not_told(place: Limited) -> None:
    descriptor = pf.FlightDescriptor.for_path(*_path(place))
    with pf.connect(place.server.location) as client:
        for token, count in (("admin", 4), ("reader", -1)):
            options = pf.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}-token".encode())])
            info = client.get_flight_info(descriptor, options)
            assert info.total_records == count
            assert (secrets_in(info.serialize()) == []) is (token == "reader")
            listed = [item for item in client.list_flights(b"", options) if item.descriptor.path == descriptor.path]
            assert [item.total_records for item in listed] == [count]
            schema = client.get_schema(descriptor, options).schema
            assert ("salary" in schema.names) is (token == "admin")


def _path(place: Limited) -> list[str]:
    with attach(place.server, "admin") as caller:
        return [part.decode() for part in caller.duckdb.table(place.table).descriptor.path]


def test_direct_reads_are_not_offered(place: Limited, caller: Caller) -> None:
    result = caller.duckdb.scan(place.table)
    assert result.calls == 0
    assert result.progress == () or set(result.progress) <= {0.0, 1.0}


def test_older_versions_are_limited_too(place: Limited, caller: Caller) -> None:
    place.admin.insert(place.table, PEOPLE.slice(0, 2))
    assert rows_of(caller.duckdb.scan(place.table, at=("VERSION", "1")).rows) == SEEN
    assert rows_of(place.reader.scan(place.table, as_of_version=1).read_all()) == SEEN
    assert "salary" not in place.reader.describe(place.table, as_of_version=1).schema.names


def test_a_version_whose_columns_the_rule_does_not_fit_is_denied(place: Limited) -> None:
    place.admin.rename_column(place.table, "ssn", "number")
    place.admin.add_column(place.table, pa.field("ssn", pa.string()))
    with pytest.raises(PermissionDenied):
        place.reader.scan(place.table, as_of_version=2).read_all()
    assert place.reader.scan(place.table, as_of_version=1).read_all().num_rows == 2


def test_another_ones_ticket_shows_what_its_user_may_see(place: Limited, caller: Caller) -> None:
    with attach(place.server, "admin") as admin:
        (ticket,) = admin.tickets(place.table)
        whole = replace(Ticket.decode(ticket), columns=None)
        assert len(admin.get(ticket)) == 4
        assert len(admin.get(caller.tickets(place.table)[0])) == 4
    with pytest.raises(AirportError, match="is not there"):
        caller.get(ticket)  # it names the hidden column
    assert caller.get(whole.encode()) == SEEN


def test_names_written_otherwise_are_limited_too(place: Limited, caller: Caller) -> None:
    ticket = Ticket.decode(caller.tickets(place.table)[0])
    schema, name = place.table.split(".")
    for target in (
        replace(ticket.target, schema=schema.upper(), name=name.upper()),
        replace(ticket.target, catalog="LAKE"),
        replace(ticket.target, catalog=""),
    ):
        assert caller.get(replace(ticket, target=target, columns=None).encode()) == SEEN


def test_a_transaction_shows_no_more(place: Limited) -> None:
    with place.reader.transaction() as transaction:
        assert rows_of(transaction.scan(place.table).read_all()) == SEEN
        assert transaction.insert(place.table, _person(9)).count == 1
        found = rows_of(transaction.scan(place.table).read_all())
        assert [row["id"] for row in found] == [1, 3, 9]
        assert found[2]["ssn"] == "***-3210"
        transaction.rollback()


def _person(number: int, region: str = "EU") -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "region": [region], "name": ["eve"], "ssn": ["888-77-3210"]})


def test_an_alteration_that_the_rule_does_not_fit_denies(place: Limited, caplog: pytest.LogCaptureFixture) -> None:
    place.admin.rename_column(place.table, "salary", "wages")
    with pytest.raises(PermissionDenied, match="no rule about its rows and columns") as failure:
        place.reader.scan(place.table).read_all()
    assert secrets_in(failure.value) == []
    assert "wages" not in failure.value.message
    assert place.table not in [info.full_name for info in place.reader.tables()]
    assert "rule 2 does not fit table" in caplog.text
    assert "no column 'salary'" in caplog.text
    place.admin.rename_column(place.table, "wages", "salary")
    assert rows_of(place.reader.scan(place.table).read_all()) == SEEN


def test_a_rule_that_fails_for_a_row_denies_without_its_value(catalog: MutableCatalog) -> None:
    with limited(catalog, rows="CAST(right(ssn, 4) AS TINYINT) > 0") as place:
        with pytest.raises(PermissionDenied, match="cannot be computed") as failure:
            place.reader.scan(place.table).read_all()
        assert secrets_in(failure.value) == []
