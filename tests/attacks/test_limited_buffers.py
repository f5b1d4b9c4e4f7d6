"""What goes over the wire beside the values that are shown: dictionaries, shared buffers, the ends of slices."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.attacks.callers import attach
from tests.attacks.limited import PEOPLE, Limited, limited

from sparkport.memory import MemoryCatalog
from sparkport.policies.own_values import own_values

pytestmark = pytest.mark.tier("fast")

NAMES = ["ann-of-the-first-row", "bob-hidden-in-the-second", "carl-of-the-third-row", "dora-hidden-in-the-last"]
LAYOUTS: dict[str, Callable[[list[str]], pa.Array]] = {
    "enum": lambda texts: pa.array(texts).dictionary_encode(),
    "view": lambda texts: pa.array(texts, pa.string_view()),
    "list of enums": lambda texts: pa.ListArray.from_arrays(
        pa.array(range(len(texts) + 1), pa.int32()), pa.array(texts).dictionary_encode()
    ),
    "struct of views": lambda texts: pa.StructArray.from_arrays([pa.array(texts, pa.string_view())], ["part"]),
}
MORE: dict[str, Callable[[list[str]], pa.Array]] = {
    **LAYOUTS,
    "text": pa.array,
    "bytes view": lambda texts: pa.array([text.encode() for text in texts], pa.binary_view()),
    "list": lambda texts: pa.array([[text] for text in texts]),
    "list view": lambda texts: pa.array([[text] for text in texts], pa.list_view(pa.string())),
    "map": lambda texts: pa.array([[(text, 1)] for text in texts], pa.map_(pa.string(), pa.int32())),
    "runs": lambda texts: pa.RunEndEncodedArray.from_arrays(
        pa.array(range(1, len(texts) + 1), pa.int32()), pa.array(texts)
    ),
    "enum of views": lambda texts: pa.DictionaryArray.from_arrays(
        pa.array(range(len(texts)), pa.int8()), pa.array(texts, pa.string_view())
    ),
}


def hidden_in(data: bytes) -> list[str]:
    return [name for name in NAMES if "hidden" in name and name.encode() in data]


def sent(place: Limited) -> bytes:
    """All bytes that a scan of all columns is answered with."""
    with attach(place.server, "reader") as caller:
        return b"".join(
            part
            for ticket in caller.tickets(place.table)
            for message in caller.connection.do_get(ticket, caller.headers)
            for part in (message.header, message.body)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scan_sends_nothing_of_rows_that_are_not_seen(layout: str) -> None:
    people = PEOPLE.set_column(2, "name", LAYOUTS[layout](NAMES))
    with limited(MemoryCatalog("lake"), people=people) as place:
        data = sent(place)
        assert NAMES[0].encode() in data
        assert hidden_in(data) == []


@pytest.mark.parametrize("layout", ["enum", "list of enums"])
def test_a_row_that_is_returned_brings_no_others_along(layout: str) -> None:
    people = PEOPLE.set_column(2, "name", LAYOUTS[layout](NAMES))
    with limited(MemoryCatalog("lake"), people=people) as place, attach(place.server, "reader") as caller:
        schema, name = place.table.split(".")
        body = {"schema_name": schema, "table_name": name, "row_ids": [place.ids()[1]], "returning": True}
        (answer,) = caller.act("delete", json.dumps(body).encode())
        data = base64.b64decode(json.loads(answer)["returning_data"])
        assert NAMES[0].encode() in data
        assert hidden_in(data) == []


@pytest.mark.parametrize("layout", MORE)
def test_a_column_of_some_rows_has_nothing_of_the_others(layout: str) -> None:
    whole = MORE[layout](NAMES)
    for row in range(len(NAMES)):
        part = own_values(whole.slice(row, 1))
        part.validate(full=True)
        assert part.type == whole.type
        assert part.to_pylist() == whole.slice(row, 1).to_pylist()
        found = [name for name in NAMES if name.encode() in ipc(pa.table({"c": part}))]
        assert found == [NAMES[row]]


def ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_a_list_of_moments_beyond_pythons_years_is_shown_in_part() -> None:
    far = pa.array([2**63 - 1, None, 5], pa.int64()).view(pa.timestamp("us"))
    whole = pa.ListViewArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([1, 2], pa.int32()), far)
    assert own_values(whole.slice(0, 1)).equals(whole.slice(0, 1))
