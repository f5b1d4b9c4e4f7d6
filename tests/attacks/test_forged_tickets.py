"""A ticket comes back from a client, who can have changed anything in it: it opens no more than its holder may read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import RULES, Caller, attach, create, guarded
from tests.support.flight_rpc import AirportError

from sparkport.app import Server
from sparkport.auth import RuleAuthorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, OnConflict, TableDefinition
from sparkport.catalog.statement import ChangeableTable
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.protocol.targets import Kind, Target, Ticket

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": pa.array(range(5), pa.int64())})
SECRETS = pa.table({"n": pa.array([42], pa.int64())})
WANTED = ROWS.to_pylist()


@pytest.fixture
def server(catalog: MutableCatalog) -> Iterator[Server]:
    with guarded(catalog) as running:
        yield running


@pytest.fixture
def reader(server: Server) -> Iterator[Caller]:
    with attach(server, "reader") as caller:
        yield caller


def planned(caller: Caller, table: str) -> Ticket:
    caller.duckdb.load()
    (data,) = caller.tickets(table)
    return Ticket.decode(data)


def refusal(caller: Caller, ticket: Ticket | bytes) -> AirportError:
    data = ticket if isinstance(ticket, bytes) else ticket.encode()
    with pytest.raises(AirportError) as failure:
        caller.get(data)
    return failure.value


def outcome(caller: Caller, ticket: Ticket) -> list[dict[str, Any]] | grpc.StatusCode:
    try:
        return caller.get(ticket.encode())
    except AirportError as exc:
        return exc.code


def forged_parts(part: bytes) -> list[bytes]:
    name, _, files = part.rpartition(b"\n")
    places = [
        *(b"/dev/zero", b"/etc/passwd", b"../" * 12 + b"dev/zero", b"../" * 12 + b"dev/zero.metadata.json"),
        *(b"..", b".", b"", b"./" + name, name + b"/../" + name, b"//" + name, b"%2e%2e/" + name, b"..\\" + name),
        *(b"file:///etc/passwd", b"http://127.0.0.1:1/x.metadata.json", b"s3://bucket/x.metadata.json"),
        *(
            b"\0",
            name + b"\0",
            b"\0.metadata.json",
            b"\xff\xfe",
            b"\xff.metadata.json",
            b"\n",
            b"\n\n",
            b"*.metadata.json",
        ),
        *(b"x" * 300 + b".metadata.json", b"x" * (8 << 20), "²".encode() + b".metadata.json"),
    ]
    ranges = [
        *(b"\0", b"\xff", "²-³".encode(), "²".encode(), b"1", b"-", b"0-", b"-1", b"--", b"1-2-3", b"-1-5", b"0x0-1"),
        *(b"9" * 5_000 + b"-" + b"9" * 5_000, b"9" * 5_000, b" 0-1", b"0-1\n", b"0_0-1", b"1e3-2", "٣-٤".encode()),
    ]
    return [
        *(place + b"\n" + files for place in places),
        *(name + b"\n" + wrong for wrong in ranges),
        *(place for place in places if place),
        *ranges,
    ]


def test_a_part_that_the_table_did_not_make_is_refused_at_once(catalog: MutableCatalog, reader: Caller) -> None:
    ticket = planned(reader, create(catalog, ROWS))
    number_of_the_memory_engine = ticket.part.isdigit()
    for part in forged_parts(ticket.part):
        if number_of_the_memory_engine and part.isdigit() and len(part) < 5:
            continue
        began = time.monotonic()
        error = refusal(reader, replace(ticket, part=part))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT, (part[:80], error)
        assert error.message == "ticket has a part that this table did not make"
        assert time.monotonic() - began < 5.0
    assert reader.get(ticket.encode()) == WANTED


def test_old_tickets_with_a_path_in_them_open_nothing(attacked_lakehouse: Lakehouse) -> None:
    catalog = attacked_lakehouse.catalog
    with guarded(catalog) as server, attach(server, "reader") as reader:
        ticket = planned(reader, create(catalog, ROWS))
        folder = attacked_lakehouse.settings.warehouse_path
        for place in (f"{folder}/../../../../../dev/zero", f"{folder}/catalog.db", "/etc/passwd"):
            error = refusal(reader, replace(ticket, part=place.encode() + b"\n"))
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT
            assert folder not in error.message


def test_a_refusal_does_not_tell_which_files_there_are(attacked_lakehouse: Lakehouse) -> None:
    """Metadata of another table, of one that may not be seen, and of none: one answer for all."""
    catalog = attacked_lakehouse.catalog
    table, hidden = create(catalog, ROWS), create(catalog, SECRETS, schema="hidden")
    with guarded(catalog) as server, attach(server, "reader") as reader, attach(server, "admin") as admin:
        ticket, other = planned(reader, table), planned(admin, hidden)
        unknown = ticket.part.replace(b"0", b"1")
        assert unknown != ticket.part
        errors = [refusal(reader, replace(ticket, part=part)) for part in (other.part, unknown)]
        assert [error.code for error in errors] == [grpc.StatusCode.ABORTED] * 2
        assert len({error.message for error in errors}) == 1
        assert attacked_lakehouse.settings.warehouse_path not in errors[0].message


def test_a_ticket_of_a_table_that_its_holder_may_not_read_opens_nothing(
    catalog: MutableCatalog, server: Server, reader: Caller
) -> None:
    create(catalog, ROWS)
    hidden = create(catalog, SECRETS, schema="hidden")
    with attach(server, "admin") as admin:
        ticket = planned(admin, hidden)
        assert admin.get(ticket.encode()) == SECRETS.to_pylist()
    error = refusal(reader, ticket)
    assert error.code is grpc.StatusCode.NOT_FOUND
    for path in (("", "hidden", ticket.target.name), ("LAKE", "HIDDEN", ticket.target.name.upper())):
        forged = replace(ticket, target=Target(path[0], path[1], Kind.TABLE, path[2]), part=b"")
        assert refusal(reader, forged).code is grpc.StatusCode.NOT_FOUND


def test_a_part_of_another_table_reads_none_of_its_rows(
    catalog: MutableCatalog, server: Server, reader: Caller
) -> None:
    table, hidden = create(catalog, ROWS), create(catalog, SECRETS, schema="hidden")
    with attach(server, "admin") as admin:
        stolen = planned(admin, hidden).part
    forged = replace(planned(reader, table), part=stolen)
    assert outcome(reader, forged) in (WANTED, [], grpc.StatusCode.ABORTED)


def test_a_ticket_is_good_for_others_who_may_read_the_table_and_for_nobody_else(
    catalog: MutableCatalog, server: Server, reader: Caller
) -> None:
    ticket = planned(reader, create(catalog, ROWS))
    with attach(server, "other") as other:
        assert other.get(ticket.encode()) == WANTED
    stranger = Caller(reader.duckdb, reader.connection, [("authorization", "Bearer nobody-token")])
    assert refusal(stranger, ticket).code is grpc.StatusCode.NOT_FOUND
    unknown = Caller(reader.duckdb, reader.connection, [])
    assert refusal(unknown, ticket).code is grpc.StatusCode.UNAUTHENTICATED


def test_a_ticket_reads_the_rows_that_it_was_planned_for_whatever_is_committed_since(
    catalog: MutableCatalog, reader: Caller
) -> None:
    name = create(catalog, ROWS)
    ticket = planned(reader, name)
    found = _schema(catalog).table(CallContext(), name.partition(".")[2])
    assert isinstance(found, ChangeableTable)
    found.insert(CallContext(), SECRETS.to_reader())
    assert reader.get(ticket.encode()) == WANTED
    assert len(reader.get(replace(ticket, part=b"").encode())) == 6


def test_a_ticket_of_a_dropped_or_replaced_table_reads_no_row_of_either(
    catalog: MutableCatalog, reader: Caller
) -> None:
    name = create(catalog, SECRETS)
    ticket = planned(reader, name)
    schema, table_name = _schema(catalog), name.partition(".")[2]
    definition = TableDefinition(name=table_name, columns=ROWS.schema)
    replaced = schema.create_table(CallContext(), definition, OnConflict.REPLACE)
    assert isinstance(replaced, ChangeableTable)
    replaced.insert(CallContext(), ROWS.to_reader())
    _opens_nothing(reader, ticket)
    schema.drop_table(CallContext(), table_name)
    assert refusal(reader, ticket).code is grpc.StatusCode.NOT_FOUND
    schema.create_table(CallContext(), definition)
    _opens_nothing(reader, ticket)


def test_a_ticket_opens_nothing_after_the_right_was_taken_away(catalog: MutableCatalog, tmp_path: Path) -> None:
    path, now = tmp_path / "rules.toml", [0.0]
    path.write_text(_toml(RULES))
    authorizer = RuleAuthorizer.from_file(path, clock=lambda: now[0])
    with guarded(catalog, authorizer=authorizer) as server, attach(server, "reader") as reader:
        ticket = planned(reader, create(catalog, ROWS))
        assert reader.get(ticket.encode()) == WANTED
        path.write_text(_toml(RULES[:1]))
        now[0] += 2
        assert refusal(reader, ticket).code is grpc.StatusCode.NOT_FOUND


def test_columns_that_are_not_there_and_versions_of_any_kind_are_refused(
    catalog: MutableCatalog, reader: Caller
) -> None:
    ticket = planned(reader, create(catalog, ROWS))
    assert refusal(reader, replace(ticket, columns=("_file",))).code is grpc.StatusCode.INVALID_ARGUMENT
    for data in (b"", b"\x80", b"\xc1", b"\xff" * 100, ticket.encode()[:-1], ticket.encode() + b"\0", b"\x90" * 10_000):
        assert refusal(reader, data).code is grpc.StatusCode.INVALID_ARGUMENT


def _opens_nothing(reader: Caller, ticket: Ticket) -> None:
    assert outcome(reader, ticket) in ([], grpc.StatusCode.ABORTED)


def _schema(catalog: MutableCatalog) -> MutableSchema:
    found = catalog.schema(CallContext(), "public")
    assert isinstance(found, MutableSchema)
    return found


def _toml(rules: Sequence[Mapping[str, object]]) -> str:
    return "".join(
        "[[rules]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rule.items()) for rule in rules
    )
