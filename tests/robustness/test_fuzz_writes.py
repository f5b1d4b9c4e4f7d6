"""Whatever bytes arrive where rows, tables and transactions are changed, the answer is a client's error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import grpc
import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.robustness.rig import ROWS, Raw, action, descriptor, mutated, numbers_ticket

from sparkport.app import Server
from sparkport.memory import MemoryCatalog
from sparkport.protocol.actions import ACTIONS
from sparkport.protocol.flight import Action, FlightDescriptor
from sparkport.protocol.frames import StreamWriter
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

Call = tuple[str, list[bytes], Sequence[tuple[str, str]]]

CLIENT_ERRORS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
FUZZ = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


SCHEMA = pa.schema([("extra", pa.int32())]).serialize().to_pybytes()


def fresh() -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.numbers", ROWS.schema, rows=ROWS)
    return catalog


def upload(of: bytes, rows: pa.Table) -> list[bytes]:
    writer = StreamWriter(rows.schema)
    first = b"\x0a" + bytes([len(of)]) + of + writer.schema_message()
    return [first, *(message for batch in rows.to_batches() for message in writer.batch_messages(batch))]


def put(**command: object) -> bytes:
    body = {"schema_name": "public", "table_name": "numbers", **command}
    return FlightDescriptor(command=json.dumps(body, separators=(",", ":")).encode()).encode()


def exchange(operation: str, rows: pa.Table, *, returning: bool) -> Call:
    headers = (("airport-operation", operation), ("return-chunks", "1" if returning else "0"))
    return "DoExchange", upload(descriptor("numbers"), rows), headers


def altered(name: str, **more: object) -> Call:
    body = {"catalog": "lake", "schema": "public", "name": "numbers", "ignore_not_found": False, **more}
    return "DoAction", [action(name, body)], ()


def asked(name: str, **body: object) -> Call:
    return "DoAction", [action(name, json.dumps(body).encode())], ()


IDS = pa.table({"rowid": pa.array([1, 2], pa.int64())})
CHANGED = pa.table({"name": ["x", "y"], "rowid": pa.array([1, 2], pa.int64())})
TABLE = {
    "catalog_name": "lake",
    "schema_name": "public",
    "table_name": "fresh",
    "arrow_schema": SCHEMA,
    "on_conflict": "error",
    "not_null_constraints": [0],
    "unique_constraints": [],
    "check_constraints": [],
    "primary_key_columns": [],
    "unique_columns": [],
    "multi_key_primary_keys": [],
    "extra_constraints": [],
}
SEEDS: list[Call] = [
    ("DoPut", upload(put(operation="insert", returning=True), ROWS), ()),
    ("DoPut", upload(put(operation="update", row_ids=[0, 1, 2]), ROWS), ()),
    exchange("insert", ROWS, returning=False),
    exchange("insert", ROWS, returning=True),
    exchange("update", CHANGED, returning=False),
    exchange("delete", IDS, returning=True),
    asked("delete", schema_name="public", table_name="numbers", row_ids=[1, 2], returning=True),
    asked("create_transaction", isolation="snapshot", auto_commit=False),
    asked("commit_transaction", transaction_id="none"),
    asked("get_transaction_status", transaction_id="none"),
    asked("rollback_transaction", transaction_id="none"),
    ("DoAction", [action("create_table", TABLE)], ()),
    ("DoAction", [action("create_schema", {"catalog_name": "lake", "schema": "s", "comment": None, "tags": {}})], ()),
    altered("add_column", column_schema=SCHEMA, if_column_not_exists=False),
    altered("rename_column", old_name="name", new_name="title"),
    altered("remove_column", removed_column="name", if_column_exists=False, cascade=False),
    altered("change_column_type", column_schema=SCHEMA, expression=""),
    altered("set_default", column_name="name", expression="'x'"),
    altered("rename_table", new_table_name="other"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(fresh()) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _answers_afterwards(server: Server, raw: Raw) -> Iterator[None]:
    yield
    renew(server)
    assert raw.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK


def renew(server: Server) -> None:
    """What the call before has changed is no concern of the next."""
    server.remove_catalog("lake")
    server.add_catalog(fresh())


def check(raw: Raw, call: Call) -> None:
    method, messages, headers = call
    answer = raw.call(method, *messages, headers=headers)
    assert answer.code in CLIENT_ERRORS, (call, answer)
    assert "error id" not in answer.details


@pytest.mark.parametrize("call", SEEDS[:7])
def test_the_seeds_that_change_rows_are_good_calls(server: Server, raw: Raw, call: Call) -> None:
    renew(server)
    answer = raw.call(call[0], *call[1], headers=call[2])

    assert answer.code is grpc.StatusCode.OK, answer.details


@FUZZ
@pytest.mark.parametrize("number", range(len(SEEDS)))
@given(data=st.data())
def test_a_damaged_change_is_a_clients_error(server: Server, raw: Raw, number: int, data: st.DataObject) -> None:
    renew(server)
    method, messages, headers = SEEDS[number]
    at = data.draw(st.integers(0, len(messages) - 1))
    check(raw, (method, [*messages[:at], data.draw(mutated(messages[at])), *messages[at + 1 :]], headers))


@pytest.mark.parametrize("call", SEEDS[:6])
def test_an_upload_that_ends_anywhere_is_answered(server: Server, raw: Raw, call: Call) -> None:
    renew(server)
    method, messages, headers = call
    for end in range(len(messages)):
        check(raw, (method, messages[:end], headers))
        check(raw, (method, list(reversed(messages[: end + 1])), headers))


_VALUES = st.one_of(
    st.sampled_from(["", "lake", "public", "numbers", "name", "id", "\ud800", "x" * 5000, "insert", "none"]),
    st.sampled_from([None, True, 0, -1, 2**64, 1.5, [], [0], [-1], [2**63], ["name"], {}, {"a": 1}, [[1]], [None]]),
)
_KEYS = [
    *("schema_name", "table_name", "row_ids", "returning", "returning_columns", "catalog_name", "transaction_id"),
    *("isolation", "auto_commit", "operation"),
]


@FUZZ
@pytest.mark.parametrize("name", [spec.name for spec in ACTIONS if spec.json])
@given(body=st.dictionaries(st.sampled_from(_KEYS), _VALUES))
def test_any_json_body_is_a_clients_error(server: Server, raw: Raw, name: str, body: dict[str, object]) -> None:
    good = {"schema_name": "public", "table_name": "numbers", "row_ids": [1], "transaction_id": "none"}
    check(raw, ("DoAction", [action(name, json.dumps({**good, **body}).encode())], ()))


@FUZZ
@given(body=st.dictionaries(st.sampled_from(_KEYS), _VALUES))
def test_any_command_of_a_put_is_a_clients_error(server: Server, raw: Raw, body: dict[str, object]) -> None:
    renew(server)
    good = {"operation": "update", "schema_name": "public", "table_name": "numbers", "row_ids": [0, 1, 2]}
    command = FlightDescriptor(command=json.dumps({**good, **body}).encode()).encode()
    writer = StreamWriter(ROWS.schema)
    length = bytes([len(command) & 0x7F | 0x80, len(command) >> 7 & 0x7F | 0x80, len(command) >> 14])
    messages = [b"\x0a" + length + command + writer.schema_message(), *writer.batch_messages(ROWS.to_batches()[0])]
    check(raw, ("DoPut", messages, ()))


@FUZZ
@pytest.mark.parametrize("number", [n for n, call in enumerate(SEEDS) if call[0] == "DoAction" and n > 10])
@given(data=st.data())
def test_any_value_in_a_change_of_a_table_is_a_clients_error(
    server: Server, raw: Raw, number: int, data: st.DataObject
) -> None:
    renew(server)
    sent = Action.decode(SEEDS[number][1][0])
    body = msgpack.unpackb(sent.body)
    values = st.sampled_from(
        ["", "public", "id", "\0", b"\xff", None, True, 0, -1, 2**63, [], [0], [99], ["x"], {}, {"a": 1}, SCHEMA, 1.5]
    )
    for key in data.draw(st.lists(st.sampled_from(sorted(body)), min_size=1, max_size=3)):
        body[key] = data.draw(values)
    check(raw, ("DoAction", [action(sent.type, body)], ()))
