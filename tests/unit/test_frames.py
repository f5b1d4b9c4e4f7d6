"""What the stream writer frames, pyarrow reads back: every type, every subset of columns, sliced or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.errors import InternalError, ResourceExhausted
from sparkport.protocol.frames import StreamWriter, metadata_message
from sparkport.protocol.incoming import parse_flight_data

pytestmark = pytest.mark.tier("fast")


def dictionary() -> Any:
    return pa.dictionary(pa.int8(), pa.string())


def required(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


TYPES: list[Any] = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.decimal32(5, 2),
    pa.decimal128(38, 0),
    pa.decimal256(50, 3),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("us", "UTC"),
    pa.duration("ms"),
    pa.month_day_nano_interval(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(7),
    pa.uuid(),
    pa.list_(pa.string()),
    pa.large_list(pa.int16()),
    pa.list_view(pa.string_view()),
    pa.large_list_view(pa.bool_()),
    pa.list_(pa.int32(), 3),
    pa.list_(required("item", pa.string()), 2),
    pa.struct([pa.field("a", pa.int8()), required("b", pa.string()), pa.field("c", pa.list_(pa.bool_()))]),
    pa.struct([]),
    pa.map_(pa.string(), pa.int64()),
    pa.list_(pa.map_(pa.int8(), pa.struct([pa.field("v", pa.string_view())]))),
    pa.sparse_union([pa.field("i", pa.int64()), pa.field("s", pa.string())]),
    pa.sparse_union([pa.field("i", pa.int64()), required("s", pa.string())], type_codes=[7, 9]),
    pa.dense_union([pa.field("i", pa.int64()), pa.field("s", pa.string())]),
    pa.dense_union([pa.field("i", pa.int64()), pa.field("s", pa.string())], type_codes=[5, 0]),
    pa.dense_union([pa.field("i", pa.int64()), pa.field("s", pa.string())], type_codes=[5, 3]),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.run_end_encoded(pa.int64(), pa.int8()),
    dictionary(),
    pa.list_(dictionary()),
    pa.struct([pa.field("d", dictionary()), pa.field("e", pa.dictionary(pa.int32(), pa.int64()))]),
    pa.dictionary(pa.int16(), pa.list_(dictionary())),
    pa.opaque(pa.list_(pa.string()), "tagged", "test"),
    pa.bool8(),
    pa.json_(),
]


def read_back(writer: StreamWriter, messages: list[bytes]) -> list[pa.RecordBatch]:
    """What pyarrow makes of the messages, as a stream of encapsulated ones."""
    stream = b""
    for message in [writer.schema_message(), *messages]:
        data = parse_flight_data(message)
        if data.header is not None:
            stream += (
                b"\xff\xff\xff\xff" + len(data.header).to_bytes(4, "little") + bytes(data.header) + bytes(data.body)
            )
    with pa.ipc.open_stream(stream) as reader:
        assert reader.schema.equals(writer.schema, check_metadata=True)
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    return batches


def write(writer: StreamWriter, *batches: pa.RecordBatch) -> list[bytes]:
    return [message for batch in batches for message in writer.batch_messages(batch)]


def is_blank(value: Any) -> bool:
    """Whether a value has no content: nulls within are fine."""
    if isinstance(value, dict):
        return all(map(is_blank, value.values()))
    if isinstance(value, list | tuple | bytes):
        return all(map(is_blank, value))
    return not value or str(value).strip("0.:- ") == "" or str(value).startswith("1970-01-01")


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5, 70])
def test_an_absent_column_arrives_as_nulls(kind: Any, rows: int) -> None:
    writer = StreamWriter(pa.schema([("a", pa.int64()), ("x", kind), ("b", pa.string())], metadata={"k": "v"}))
    given = pa.record_batch(
        {"b": pa.array([str(i) for i in range(rows)], pa.string()), "a": pa.array(range(rows), pa.int64())}
    )

    (got,) = read_back(writer, write(writer, given))

    assert got.column("a").equals(given.column("a"))
    assert got.column("b").equals(given.column("b"))
    assert got.column("x").to_pylist() == [None] * rows


@pytest.mark.parametrize("kind", TYPES[1:], ids=str)
def test_an_absent_column_that_is_not_nullable_arrives_as_zeros(kind: Any) -> None:
    writer = StreamWriter(pa.schema([required("x", kind), ("a", pa.int64())]))

    (got,) = read_back(writer, write(writer, pa.record_batch({"a": pa.array([1, 2, 3])})))

    column = got.column("x")
    assert len(column) == 3
    assert all(map(is_blank, column.to_pylist()))
    assert column.null_count == (3 if "dictionary" in str(kind) else 0)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.string_view(), pa.list_(pa.int8()), pa.bool_()], ids=str)
def test_zeros_of_plain_types_are_what_one_expects(kind: Any) -> None:
    writer = StreamWriter(pa.schema([required("x", kind), ("a", pa.int64())]))

    (got,) = read_back(writer, write(writer, pa.record_batch({"a": pa.array([1, 2, 3])})))

    assert got.column("x").to_pylist() == [kind_zero(kind)] * 3


def kind_zero(kind: Any) -> Any:
    return {"int64": 0, "string": "", "string_view": "", "bool": False}.get(str(kind), [])


def test_all_types_are_absent_at_once() -> None:
    schema = pa.schema([(f"c{index}", kind) for index, kind in enumerate(TYPES)] + [("id", pa.int64())])
    writer = StreamWriter(schema)

    (got,) = read_back(writer, write(writer, pa.record_batch({"id": [1, 2, 3]})))

    assert got.column("id").to_pylist() == [1, 2, 3]
    assert all(got.column(index).to_pylist() == [None] * 3 for index in range(len(TYPES)))


def test_a_hundred_absent_columns_cost_next_to_nothing() -> None:
    writer = StreamWriter(pa.schema([(f"c{index}", pa.int64()) for index in range(101)]))
    rows = 1000

    (message,) = write(writer, pa.record_batch({"c50": pa.array(range(rows))}))

    assert len(message) < 2 * 8 * rows + 101 * 48 + 300


def test_view_columns_keep_their_buffers_beside_absent_ones() -> None:
    long = ["x" * 40 + str(index) for index in range(20)]
    schema = pa.schema([("n", pa.string_view()), ("v", pa.string_view()), ("m", pa.int8()), ("w", pa.binary_view())])
    writer = StreamWriter(schema)
    views = pa.concat_arrays([pa.array(long[:10], pa.string_view()), pa.array(long[10:], pa.string_view())])
    given = pa.record_batch({"w": pa.array([text.encode() for text in long], pa.binary_view()), "v": views})

    (got,) = read_back(writer, write(writer, given))

    assert got.to_pydict() == {"n": [None] * 20, "v": long, "m": [None] * 20, "w": [text.encode() for text in long]}


def test_rows_without_columns_keep_their_number() -> None:
    rows = pa.record_batch({"a": [1, 2, 3]}).select([])

    empty, full = StreamWriter(pa.schema([])), StreamWriter(pa.schema([("a", pa.int8()), ("b", pa.string())]))

    assert [batch.num_rows for batch in read_back(empty, write(empty, rows))] == [3]
    assert [batch.to_pydict() for batch in read_back(full, write(full, rows))] == [{"a": [None] * 3, "b": [None] * 3}]


def test_metadata_rides_on_the_last_slice_and_no_message_is_too_long() -> None:
    batch = pa.record_batch({"a": pa.array(range(10_000)), "s": ["x" * (i % 50) for i in range(10_000)]})
    writer = StreamWriter(batch.schema, max_message_bytes=20_000)

    messages = list(writer.batch_messages(batch, b"meta"))

    assert len(messages) > 10
    assert max(map(len, messages)) <= 20_000
    assert [parse_flight_data(message).metadata for message in messages] == [None] * (len(messages) - 1) + [b"meta"]
    assert pa.Table.from_batches(read_back(writer, messages)).equals(pa.Table.from_batches([batch]))


def test_a_single_row_may_exceed_the_usual_size_but_not_the_hard_limit() -> None:
    batch = pa.record_batch({"s": ["a", "b" * 5000, "c" * 50_000]})
    lenient = StreamWriter(batch.schema, max_message_bytes=1000)
    strict = StreamWriter(batch.schema, max_message_bytes=1000, hard_limit_bytes=10_000)

    assert len(read_back(lenient, write(lenient, batch))) == 3
    with pytest.raises(ResourceExhausted, match=r"one row takes 50\d\d\d bytes"):
        write(strict, batch)


def test_a_dictionary_is_sent_once_and_again_when_it_changes() -> None:
    one, two = pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c", None, "d"]).dictionary_encode()
    schema = pa.schema([("n", dictionary()), ("d", one.type), ("id", pa.int64())])
    writer = StreamWriter(schema)
    first, second = (pa.record_batch({"id": [1, 2, 3], "d": column}) for column in (one, two))

    messages = write(writer, first, first, second, pa.record_batch({"id": [4]}), first)
    got = read_back(writer, messages)

    assert len(write(writer, first)) == 1
    assert [batch.column("d").to_pylist() for batch in got] == [
        ["a", "b", "a"],
        ["a", "b", "a"],
        ["c", None, "d"],
        [None],
        ["a", "b", "a"],
    ]
    assert all(batch.column("n").null_count == batch.num_rows for batch in got)


def test_short_run_ends_limit_the_rows_of_a_message() -> None:
    writer = StreamWriter(pa.schema([("r", pa.run_end_encoded(pa.int16(), pa.string())), ("id", pa.int64())]))

    got = read_back(writer, write(writer, pa.record_batch({"id": pa.array(range(70_000))})))

    assert sum(batch.num_rows for batch in got) == 70_000
    assert max(batch.num_rows for batch in got) <= 32_767


def test_sets_of_columns_may_change_from_batch_to_batch() -> None:
    writer = StreamWriter(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    batches = [pa.record_batch({"a": [1]}), pa.record_batch({"b": ["x"]}), pa.record_batch({"b": ["y"], "a": [2]})]

    got = read_back(writer, write(writer, *batches, batches[0]))

    assert [batch.to_pylist()[0] for batch in got] == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": 2, "b": "y"},
        {"a": 1, "b": None},
    ]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (pa.record_batch({"z": [1]}), "does not have: z"),
        (pa.record_batch({"a": ["x"]}), "column 'a' is string"),
        (pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"]), "same name"),
    ],
)
def test_batches_that_do_not_fit_the_stream_are_our_defect(given: Any, match: str) -> None:
    with pytest.raises(InternalError, match=match):
        write(StreamWriter(pa.schema([("a", pa.int64()), ("b", pa.string())])), given)


def test_equal_names_are_fine_when_all_columns_are_there() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array(["x"])], names=["a", "a"])
    writer = StreamWriter(batch.schema)

    assert read_back(writer, write(writer, batch)) == [batch]


def test_a_metadata_message_has_nothing_else() -> None:
    data = parse_flight_data(metadata_message(b"\x81"))

    assert (data.descriptor, data.header, data.metadata, bytes(data.body)) == (None, None, b"\x81", b"")


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=20),
    pa.string_view(): st.text(max_size=20),
    pa.list_(pa.string()): st.lists(st.text(max_size=5), max_size=3),
    pa.struct([("a", pa.int8()), ("b", pa.binary())]): st.fixed_dictionaries(
        {"a": st.integers(0, 9), "b": st.binary()}
    ),
    pa.map_(pa.string(), pa.int8()): st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.integers(0, 9)), max_size=3
    ),
    pa.list_(pa.int16(), 2): st.lists(st.integers(0, 99), min_size=2, max_size=2),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", "c"]),
    pa.null(): st.none(),
}


@st.composite
def tables(draw: Any) -> tuple[pa.Schema, pa.RecordBatch]:
    """A schema of a stream, and a batch with some of its columns in some order."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    schema = pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])
    present = draw(st.permutations(range(len(kinds))))[: draw(st.integers(1, len(kinds)))]
    rows = draw(st.integers(0, 12))
    columns = []
    for index in present:
        values = draw(st.lists(st.none() | VALUES[kinds[index]], min_size=rows, max_size=rows))
        columns.append(pa.array(values, kinds[index]))
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema([schema.field(index) for index in present]))
    return schema, batch.slice(draw(st.integers(0, rows)))


@settings(max_examples=150)
@given(table=tables(), limit=st.sampled_from([600, 1000, 10_000]))
def test_any_subset_of_any_schema_comes_back_equal(table: tuple[pa.Schema, pa.RecordBatch], limit: int) -> None:
    schema, batch = table
    writer = StreamWriter(schema, max_message_bytes=limit)

    got = pa.Table.from_batches(read_back(writer, write(writer, batch)))

    expected = {name: [None] * batch.num_rows for name in schema.names} | batch.to_pydict()
    assert got.to_pydict() == expected
