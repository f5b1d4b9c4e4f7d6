"""Filters made to cost: the server reads as much as pays, leaves the rest to the client, and stands still for nobody.

The texts are so large that a way of reading them that is not linear would not end within the call's deadline, on any
machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pytest
from tests.robustness.rig import Answer, Raw, action, descriptor
from tests.unit.test_filters import compare, constant, either, operator, ref, sql_type

from sparkport.auth import AllowAll, Identity, Operation, Resource, Secret, StaticTokens
from sparkport.catalog.context import CallContext
from sparkport.filters.expressions import conjuncts
from sparkport.memory import MemoryCatalog
from sparkport.protocol.filters import parse_filters
from sparkport.protocol.flight import FlightEndpoint, Result, Ticket
from sparkport.protocol.targets import Kind, Target
from sparkport.protocol.targets import Ticket as ScanTicket
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
NOT_JSON = ['"' * 3_000_000, '"\\' * 1_500_000 + "\\", '{"a": "' + '\\"' * 1_500_000, "nan" * 1_000_000]


class ReadersOnly(AllowAll):
    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return identity.subject == "reader" or operation is not Operation.READ


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.numbers", ROWS.schema).insert(CallContext(), ROWS.to_reader())
    tokens = StaticTokens({Secret("r"): "reader", Secret("n"): "nobody"})
    with serving(catalog, authenticator=tokens, authorizer=ReadersOnly()) as running:
        yield running.port


@pytest.fixture(scope="module")
def reader(port: int) -> Iterator[Raw]:
    with Raw(port, token="r") as connection:
        yield connection


def endpoints(raw: Raw, filters: str) -> Answer:
    parameters = {"json_filters": filters, "column_ids": [0, 1], "at_unit": "", "at_value": ""}
    return raw.call("DoAction", action("endpoints", {"descriptor": descriptor("numbers"), "parameters": parameters}))


def get(raw: Raw, filters: str) -> Answer:
    ticket = ScanTicket(target=Target("lake", "public", Kind.TABLE, "numbers"), filters=filters)
    return raw.call("DoGet", Ticket(ticket.encode()).encode())


def document(*filters: Any) -> str:
    return json.dumps({"filters": list(filters), "column_binding_names_by_index": ["id", "name"]})


def plus(number: int) -> dict[str, Any]:
    kind = sql_type("BIGINT")
    parts = [ref(0), constant(number)]
    return {
        "expression_class": "BOUND_FUNCTION",
        "type": "BOUND_FUNCTION",
        "return_type": kind,
        "children": parts,
        "name": "+",
    }


@pytest.mark.parametrize("text", NOT_JSON, ids=["quotes", "backslashes", "no end", "words"])
def test_megabytes_that_are_not_json_are_refused_in_linear_time(reader: Raw, text: str) -> None:
    for answer in (endpoints(reader, text), get(reader, text)):
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("ask", [endpoints, get])
def test_filters_are_read_for_those_only_who_may_read_the_table(port: int, ask: Any) -> None:
    with Raw(port, token="n") as nobody:
        assert ask(nobody, '{"filters": 7}').code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)


_KEPT = compare(ref(0), constant(2))
_ENUM = sql_type("ENUM", values=[f"value {number}" for number in range(200_000)])
_BOMBS = {
    "conjuncts": [compare(plus(number), constant(number)) for number in range(5_000)],
    "alternatives": [either(*(compare(plus(number), constant(number)) for number in range(5_000)))],
    "values": [operator("COMPARE_IN", plus(0), *(constant(number) for number in range(20_000)))],
    "an enum": [compare(ref(1, _ENUM), constant(3, sql_type("VARCHAR")))],
    "a struct": [
        compare(
            ref(
                1,
                sql_type("STRUCT", child_types=[{"first": f"f{n}", "second": sql_type("DATE")} for n in range(20_000)]),
            ),
            constant(3, sql_type("VARCHAR")),
        )
    ],
}


@pytest.mark.parametrize("bomb", _BOMBS.values(), ids=_BOMBS.keys())
def test_what_is_too_much_of_a_filter_is_left_to_the_client_and_the_rest_is_applied(
    reader: Raw, bomb: list[dict[str, Any]]
) -> None:
    text = document(_KEPT, *bomb)
    parsed = parse_filters(text)
    assert len(conjuncts(parsed)) <= 500
    assert str(conjuncts(parsed)[0]) == '("id" = BIGINT 2)'
    answer = endpoints(reader, text)
    assert answer.code is grpc.StatusCode.OK
    (encoded,) = msgpack.unpackb(Result.decode(answer.messages[0]).body, raw=True)
    rows = reader.call("DoGet", Ticket(FlightEndpoint.decode(encoded).ticket).encode())
    assert rows.code is grpc.StatusCode.OK


def test_a_long_list_of_values_is_still_applied() -> None:
    values = [constant(number) for number in range(9_000)]
    assert parse_filters(document(operator("COMPARE_IN", ref(0), *values))) is not None


def test_deep_nesting_is_left_out() -> None:
    deep = _KEPT
    for _ in range(200):
        deep = operator("OPERATOR_NOT", deep)
    assert [str(part) for part in conjuncts(parse_filters(document(deep, _KEPT)))] == ['("id" = BIGINT 2)']
    assert parse_filters('{"filters":' + "[" * 1_000_000) is None
