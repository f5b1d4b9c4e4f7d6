"""Whatever bytes arrive at an RPC, the answer is a client's error, and the server answers the next call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import grpc
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.robustness.rig import (
    ALL_METHODS,
    IN_OUT_HEADERS,
    SCALAR_HEADERS,
    Raw,
    action,
    descriptor,
    mutated,
    numbers_ticket,
    valid_requests,
)

from sparkport.protocol.actions import ACTIONS
from sparkport.protocol.flight import Ticket
from sparkport.protocol.targets import Ticket as ScanTicket

pytestmark = pytest.mark.tier("fast")

CLIENT_ERRORS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
SEEDS = valid_requests()
HEADERS = [(), SCALAR_HEADERS, IN_OUT_HEADERS, *((("airport-operation", name),) for name in ("insert", "update", "x"))]
FUZZ = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(raw: Raw, method: str, messages: Sequence[bytes], headers: Sequence[tuple[str, str]] = ()) -> None:
    answer = raw.call(method, *messages, headers=headers)
    assert answer.code in CLIENT_ERRORS, (method, messages, answer)
    assert "error id" not in answer.details


@pytest.fixture(scope="module", autouse=True)
def _answers_afterwards(raw: Raw) -> object:
    yield
    assert raw.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK


@pytest.mark.parametrize(("method", "messages", "headers"), SEEDS)
def test_the_seeds_are_good_calls(
    raw: Raw, method: str, messages: list[bytes], headers: Sequence[tuple[str, str]]
) -> None:
    answer = raw.call(method, *messages, headers=headers)

    assert answer.code is grpc.StatusCode.OK, answer.details
    assert answer.messages


@FUZZ
@pytest.mark.parametrize("method", ALL_METHODS)
@given(messages=st.lists(st.binary(max_size=64), min_size=1, max_size=3), headers=st.sampled_from(HEADERS))
def test_random_bytes_are_a_clients_error(
    raw: Raw, method: str, messages: list[bytes], headers: Sequence[tuple[str, str]]
) -> None:
    streamed = method in ("Handshake", "DoPut", "DoExchange")
    check(raw, method, messages if streamed else messages[:1], headers)


@FUZZ
@pytest.mark.parametrize("number", range(len(SEEDS)))
@given(data=st.data())
def test_a_damaged_call_is_a_clients_error(raw: Raw, number: int, data: st.DataObject) -> None:
    method, messages, headers = SEEDS[number]
    at = data.draw(st.integers(0, len(messages) - 1))
    damaged = [*messages[:at], data.draw(mutated(messages[at])), *messages[at + 1 :]]
    check(raw, method, damaged, headers)


@settings(FUZZ, max_examples=30)
@pytest.mark.parametrize("name", [spec.name for spec in ACTIONS])
@given(
    body=st.one_of(
        st.binary(max_size=64),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=8) | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=8,
        ).map(msgpack.packb),
    )
)
def test_any_body_of_an_action_is_a_clients_error(raw: Raw, name: str, body: bytes) -> None:
    check(raw, "DoAction", [action(name, body)])


@settings(FUZZ, max_examples=25)
@pytest.mark.parametrize("name", [spec.name for spec in ACTIONS])
@given(data=st.data())
def test_a_map_with_the_right_keys_and_wrong_values_is_a_clients_error(
    raw: Raw, name: str, data: st.DataObject
) -> None:
    spec = next(spec for spec in ACTIONS if spec.name == name)
    value: st.SearchStrategy[object] = st.sampled_from(
        ["", "lake", "public", "numbers", b"\xff", 0, -1, 2**64 - 1, None, True, [], [1], {}, 1.5]
    )
    descriptors = st.sampled_from([descriptor("numbers"), b"", b"\x08\x01", b"\x08\x09", b"\xff"])
    keys = spec.body.replace("{", ",").replace("}", ",").replace("(", ",").replace("?", "").split(",")
    body = {
        key.strip(): data.draw(descriptors if "descriptor" in key else value)
        for key in keys
        if key.strip().isidentifier()
    }
    if data.draw(st.booleans()) and "parameters" in keys:
        body["parameters"] = dict(body)
    check(raw, "DoAction", [action(name, body)])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:])
@pytest.mark.parametrize("seed", [6, 7])
def test_messages_in_the_wrong_order_are_a_clients_error(raw: Raw, order: tuple[int, ...], seed: int) -> None:
    _, messages, headers = SEEDS[seed]
    check(raw, "DoExchange", [messages[place] for place in order], headers)


@pytest.mark.parametrize("seed", [6, 7])
def test_a_stream_that_ends_anywhere_is_answered(raw: Raw, seed: int) -> None:
    _, messages, headers = SEEDS[seed]
    for end in range(len(messages)):
        check(raw, "DoExchange", messages[:end], headers)


@pytest.mark.parametrize("method", ["DoExchange", "DoPut"])
def test_a_stream_without_any_message_is_answered(raw: Raw, method: str) -> None:
    answer = raw.call(method, headers=SCALAR_HEADERS)

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", [name for name in ALL_METHODS if name not in ("DoPut", "DoExchange", "Handshake")])
def test_a_unary_call_without_its_message_is_answered(raw: Raw, method: str) -> None:
    assert raw.call(method).code in CLIENT_ERRORS - {grpc.StatusCode.OK}


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000 + b"\x01",  # lists in lists
        b"\x81\xa1a" * 100_000 + b"\x01",  # maps in maps
        b"\xdd\x00\x0f\x00\x00" * 900,  # lists that announce a million items each
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b'{"a":' * 50_000,
        b'{"catalog_name": ' + b"[" * 100_000,
        b'{"catalog_name": "\\ud800"}',
        b'{"catalog_name": ' + b"9" * 10_000 + b"}",
        b'{"catalog_name": "\xff"}',
        b"{\x00",
    ],
    ids=lambda body: repr(body[:12]),
)
@pytest.mark.parametrize("name", ["create_transaction", "list_schemas", "endpoints"])
def test_bodies_that_are_deep_or_announce_too_much_are_refused(raw: Raw, name: str, body: bytes) -> None:
    assert raw.call("DoAction", action(name, body)).code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "filters",
    [
        "{",
        "[]",
        '{"filters": 1}',
        '{"filters": [{}]}',
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_tickets_with_bad_filters_are_refused(raw: Raw, filters: str | bytes) -> None:
    good = msgpack.unpackb(Ticket.decode(numbers_ticket()).ticket)
    answer = raw.call("DoGet", Ticket(msgpack.packb({**good, "filters": filters})).encode())

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, answer


def test_a_filter_that_is_too_deep_to_be_understood_does_no_harm(raw: Raw) -> None:
    good = msgpack.unpackb(Ticket.decode(numbers_ticket()).ticket)
    check(raw, "DoGet", [Ticket(msgpack.packb({**good, "filters": '{"filters": [' + "[" * 50_000})).encode()])


@FUZZ
@given(data=st.data())
def test_a_ticket_with_any_value_in_any_place_is_a_clients_error(raw: Raw, data: st.DataObject) -> None:
    good = msgpack.unpackb(Ticket.decode(numbers_ticket()).ticket)
    key = data.draw(st.sampled_from(sorted(good)))
    value = data.draw(
        st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.binary(max_size=9) | st.lists(st.text())
    )
    check(raw, "DoGet", [Ticket(msgpack.packb({**good, key: value})).encode()])


def test_a_ticket_for_another_table_is_not_found(raw: Raw) -> None:
    good = ScanTicket.decode(Ticket.decode(numbers_ticket()).ticket)
    other = replace(good, target=replace(good.target, name="nothing"))

    assert raw.call("DoGet", Ticket(other.encode()).encode()).code is grpc.StatusCode.NOT_FOUND


def test_an_unknown_action_is_unimplemented(raw: Raw) -> None:
    assert raw.call("DoAction", action("no_such_thing", {})).code is grpc.StatusCode.UNIMPLEMENTED
