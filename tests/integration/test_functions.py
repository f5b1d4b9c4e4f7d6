"""Functions of every kind, called over the wire as DuckDB calls them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as pf
import pytest
from tests.support.duckdb_client import AirportError, Attached, DuckDBClient
from tests.support.lockstep import Exchange

from sparkport.app import Limits
from sparkport.catalog import Arguments, CallContext, CatalogBuilder, InOutCall, Parameter, ScanRequest, transaction_id
from sparkport.catalog.builder import SchemaBuilder
from sparkport.errors import InvalidArgument
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

NUMBER, TEXT = pa.int64(), pa.string()
WORDS = pa.schema([pa.field("word", TEXT)])
SMALL_MESSAGES = Limits(max_concurrent_calls=8, max_batch_bytes=20_000)


def schema() -> SchemaBuilder:
    return CatalogBuilder("lake").schema("public")


@contextmanager
def attached(functions: SchemaBuilder, *, limits: Limits | None = None) -> Iterator[Attached]:
    with serving(functions.build(), limits=limits) as server, DuckDBClient(server.location) as client:
        yield client.attach("lake")


# Scalar functions


def test_a_scalar_function_answers_batch_by_batch() -> None:
    sizes: list[int] = []

    def add(ctx: CallContext, args: pa.RecordBatch) -> pa.Array:
        sizes.append(args.num_rows)
        return pc.add(args["x"], args["y"])

    functions = schema().scalar_function("add", add, [Parameter("x", NUMBER), Parameter("y", NUMBER)], NUMBER)
    with attached(functions) as lake:
        result = lake.call_scalar("add", pa.array(range(5000)), pa.array([10] * 5000))
    assert result.to_pylist() == list(range(10, 5010))
    assert sizes == [2048, 2048, 904]


def test_a_scalar_function_sees_nulls_and_may_give_them() -> None:
    functions = schema().scalar_function(
        "upper", lambda ctx, args: pc.utf8_upper(args["s"]), [Parameter("s", TEXT)], TEXT
    )
    with attached(functions) as lake:
        assert lake.call_scalar("upper", pa.array(["a", None, "æ"])).to_pylist() == ["A", None, "Æ"]


def test_a_scalar_function_without_arguments_is_called_for_each_row() -> None:
    functions = schema().scalar_function("one", lambda ctx, args: pa.repeat(1, args.num_rows), [], NUMBER)
    with attached(functions) as lake:
        assert lake.call_scalar("one", rows=3000).to_pylist() == [1] * 3000


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array([1, 2], pa.int8()), "int8"),
        (pa.array(["x", None]), "string"),
        (pa.array([Decimal("1.5"), None]), "decimal128(2, 1)"),
        (pa.array([[1], None]), "list<item: int64>"),
        (pa.array([{"a": 1}, None]), "struct<a: int64>"),
    ],
    ids=["int8", "text", "decimal", "list", "struct"],
)
def test_a_parameter_of_any_type_gets_what_it_is_given(values: pa.Array, name: str) -> None:
    functions = schema().scalar_function(
        "type_of", lambda ctx, args: pa.repeat(str(args["v"].type), args.num_rows), [Parameter("v")], TEXT
    )
    with attached(functions) as lake:
        assert lake.call_scalar("type_of", values).to_pylist() == [name, name]


@pytest.mark.parametrize("answer", [[7, 7], pa.scalar(7, NUMBER), pa.chunked_array([[7], [7]])])
def test_a_scalar_function_may_answer_with_a_list_a_scalar_or_chunks(answer: object) -> None:
    functions = schema().scalar_function("seven", lambda ctx, args: answer, [Parameter("x", NUMBER)], NUMBER)
    with attached(functions) as lake:
        assert lake.call_scalar("seven", pa.array([1, 2])).to_pylist() == [7, 7]


def test_arguments_may_be_named_otherwise_than_declared() -> None:
    functions = schema().scalar_function(
        "minus",
        lambda ctx, args: pc.subtract(args["x"], args["y"]),
        [Parameter("x", NUMBER), Parameter("y", NUMBER)],
        NUMBER,
    )
    rows = pa.record_batch({"col0": [5], "col1": [3]})
    with attached(functions) as lake, open_scalar(lake, "minus", rows.schema) as exchange:
        exchange.write(rows)
        assert exchange.read().column(0).to_pylist() == [2]


def open_scalar(lake: Attached, name: str, columns: pa.Schema) -> Exchange:
    return lake.exchange(lake.entry(name, "scalar_function"), "scalar_function", columns, returning=True)


def test_the_wrong_number_of_arguments_is_an_invalid_argument() -> None:
    functions = schema().scalar_function("same", lambda ctx, args: args["x"], [Parameter("x", NUMBER)], NUMBER)
    columns = pa.schema([("x", NUMBER), ("y", NUMBER)])
    with attached(functions) as lake, pytest.raises(AirportError, match="takes 1 arguments, got 2") as caught:
        open_scalar(lake, "same", columns)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_an_error_inside_a_function_reaches_duckdb_with_its_kind() -> None:
    def refuse(ctx: CallContext, args: pa.RecordBatch) -> pa.Array:
        raise InvalidArgument("x must be even")

    functions = schema().scalar_function("even", refuse, [Parameter("x", NUMBER)], NUMBER)
    with attached(functions) as lake, pytest.raises(AirportError) as caught:
        lake.call_scalar("even", pa.array([1]))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.extra == {"exception_type": "InvalidInputException", "message": "x must be even"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [(pa.array([1]), "returned 1 values for 2 rows"), (pa.array(["a", "b"]), "returned string, declared is int64")],
    ids=["too_few", "other_type"],
)
def test_a_function_that_breaks_its_promise_is_told_so(answer: pa.Array, said: str) -> None:
    functions = schema().scalar_function("odd", lambda ctx, args: answer, [Parameter("x", NUMBER)], NUMBER)
    with attached(functions) as lake, pytest.raises(AirportError, match=said) as caught:
        lake.call_scalar("odd", pa.array([1, 2]))
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_an_answer_over_the_batch_size_still_comes_as_one_batch() -> None:
    functions = schema().scalar_function(
        "pad", lambda ctx, args: pc.utf8_lpad(args["s"], 100), [Parameter("s", TEXT)], TEXT
    )
    with attached(functions, limits=SMALL_MESSAGES) as lake:
        result = lake.call_scalar("pad", pa.array(["x"] * 2048))
    assert result.num_chunks == 1
    assert len(result) == 2048


def test_a_scalar_function_knows_its_transaction_and_a_table_function_does_not() -> None:
    catalog = MemoryCatalog("lake")
    helpers = (
        schema()
        .scalar_function("mine", lambda ctx, args: pa.repeat(transaction_id() or "", args.num_rows), [], TEXT)
        .table_function(
            "theirs", lambda ctx, args, request: pa.table([[transaction_id() or "none"]], schema=WORDS), [], WORDS
        )
        .build()
    )
    ctx = CallContext()
    (public,) = helpers.schemas(ctx)
    for function in public.functions(ctx):
        catalog.add("public", function)
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        lake = client.attach("lake")
        with lake.transaction() as known:
            assert known is not None
            assert lake.call_scalar("mine", rows=1).to_pylist() == [known]
            assert lake.call_table("theirs").rows["word"].to_pylist() == ["none"]


# Table functions


def repeat(ctx: CallContext, args: Arguments, request: ScanRequest) -> pa.Table:
    return pa.table([[args["word"] + args.get("suffix", "")] * args["times"]], schema=WORDS)


REPEAT = [Parameter("word", TEXT), Parameter("times", NUMBER), Parameter("suffix", TEXT, named=True)]


def test_a_table_function_takes_positional_and_named_arguments() -> None:
    with attached(schema().table_function("repeat", repeat, REPEAT, WORDS)) as lake:
        assert lake.call_table("repeat", "a", 2).rows["word"].to_pylist() == ["a", "a"]
        assert lake.call_table("repeat", "a", 1, suffix="!").rows["word"].to_pylist() == ["a!"]
        assert lake.call_table("repeat", "a", 0).rows.num_rows == 0


def test_a_table_function_without_arguments_is_called() -> None:
    functions = schema().table_function("hello", lambda ctx, args, request: pa.table([["hi"]], schema=WORDS), [], WORDS)
    with attached(functions) as lake:
        assert lake.call_table("hello").rows["word"].to_pylist() == ["hi"]


def test_the_schema_of_a_table_function_may_depend_on_its_arguments() -> None:
    def columns(args: Arguments | None) -> pa.Schema:
        return pa.schema([(f"c{i}", NUMBER) for i in range(1 if args is None else args["width"])])

    def scan(ctx: CallContext, args: Arguments, request: ScanRequest) -> pa.Table:
        return pa.table([[i] for i in range(args["width"])], schema=columns(args))

    with attached(schema().table_function("wide", scan, [Parameter("width", NUMBER)], columns)) as lake:
        assert lake.call_table("wide", 3).rows.to_pylist() == [{"c0": 0, "c1": 1, "c2": 2}]


def test_a_table_function_that_fails_fails_the_query() -> None:
    def scan(ctx: CallContext, args: Arguments, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([["a"]], schema=WORDS)
        raise InvalidArgument("no more words")

    functions = schema().table_function("words", scan, [], WORDS)
    with attached(functions) as lake, pytest.raises(AirportError, match="no more words") as caught:
        lake.call_table("words")
    assert caught.value.exception_type == "InvalidInputException"


# Table in-out functions


class Sums(InOutCall):
    """Each batch's sum, only for even ones; the total at the end."""

    def __init__(self, closed: threading.Event) -> None:
        self._total = 0
        self._closed = closed

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        number = pc.sum(batch.column(0)).as_py()
        self._total += number
        return [pa.record_batch({"sum": [number]})] if number % 2 == 0 else []

    def finish(self) -> Iterable[pa.RecordBatch]:
        return [pa.record_batch({"sum": [self._total]}), pa.record_batch({"sum": [-self._total]})]

    def close(self) -> None:
        self._closed.set()


SUM = pa.schema([("sum", NUMBER)])
TABLE = Parameter("rows", table=True)


def test_an_in_out_function_answers_with_none_one_or_several_batches_and_is_closed() -> None:
    closed = threading.Event()
    functions = schema().in_out_function("sums", lambda ctx, args, columns: Sums(closed), [TABLE], SUM)
    rows = pa.table({"x": [1] * 2048 + [1] * 2047})
    with attached(functions) as lake:
        assert lake.call_in_out("sums", rows)["sum"].to_pylist() == [2048, 4095, -4095]
    assert closed.wait(timeout=20)


def test_an_in_out_function_without_input_still_has_its_last_round() -> None:
    functions = schema().in_out_function("sums", lambda ctx, args, columns: Sums(threading.Event()), [TABLE], SUM)
    with attached(functions) as lake:
        assert lake.call_in_out("sums", pa.table({"x": pa.array([], NUMBER)}))["sum"].to_pylist() == [0, 0]


def test_an_in_out_function_takes_arguments_and_the_schema_of_its_input() -> None:
    def columns(args: Arguments | None, given: pa.Schema | None) -> pa.Schema:
        return (given or pa.schema([])).append(pa.field("tag", TEXT))

    def tag(ctx: CallContext, args: Arguments, given: pa.Schema) -> Callable[[pa.RecordBatch], list[pa.RecordBatch]]:
        label = args["label"] + args.get("end", ".")
        return lambda batch: [batch.append_column("tag", pa.repeat(label, batch.num_rows))]

    parameters = [Parameter("label", TEXT), Parameter("end", TEXT, named=True), TABLE]
    functions = schema().in_out_function("tag", tag, parameters, columns)
    with attached(functions) as lake:
        rows = lake.call_in_out("tag", pa.table({"x": [1, 2]}), "hm", end="!")
    assert rows.to_pylist() == [{"x": 1, "tag": "hm!"}, {"x": 2, "tag": "hm!"}]


def test_an_in_out_function_that_fails_fails_the_query_and_is_closed() -> None:
    closed = threading.Event()

    class Failing(Sums):
        def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
            raise InvalidArgument("not these rows")

    functions = schema().in_out_function("sums", lambda ctx, args, columns: Failing(closed), [TABLE], SUM)
    with attached(functions) as lake:
        with pytest.raises(AirportError, match="not these rows") as caught:
            lake.call_in_out("sums", pa.table({"x": [1]}))
        assert closed.wait(timeout=20)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_an_in_out_answer_over_the_batch_size_arrives_whole_and_marked() -> None:
    functions = schema().in_out_function("same", lambda ctx, args, columns: lambda batch: [batch], [TABLE], WORDS)
    rows = pa.table({"word": ["x" * 100] * 4000})
    with attached(functions, limits=SMALL_MESSAGES) as lake:
        assert lake.call_in_out("same", rows).num_rows == 4000


@pytest.mark.parametrize("rows", [2048, 4096])
def test_an_in_out_round_of_full_vectors_does_not_leave_duckdb_waiting(rows: int) -> None:
    words = pa.record_batch([["x"] * rows], schema=WORDS)
    functions = schema().in_out_function("many", lambda ctx, args, columns: lambda batch: [words], [TABLE], WORDS)
    with attached(functions) as lake:
        assert lake.call_in_out("many", pa.table({"x": [1]})).num_rows == rows


def test_the_table_parameter_is_told_last_wherever_it_is_declared() -> None:
    parameters = [TABLE, Parameter("label", TEXT)]
    columns = pa.schema([("label", TEXT)])

    def label(ctx: CallContext, args: Arguments, given: pa.Schema) -> Callable[[pa.RecordBatch], list[pa.RecordBatch]]:
        return lambda batch: [pa.record_batch([pa.repeat(args["label"], batch.num_rows)], schema=columns)]

    with attached(schema().in_out_function("label", label, parameters, columns)) as lake:
        assert lake.call_in_out("label", pa.table({"x": [1, 2]}), "hm")["label"].to_pylist() == ["hm", "hm"]


def test_a_function_that_is_not_there_is_not_found() -> None:
    functions = schema().scalar_function("same", lambda ctx, args: args["x"], [Parameter("x", NUMBER)], NUMBER)
    with attached(functions) as lake:
        headers = lake.headers(("airport-operation", "scalar_function"), ("return-chunks", "1"))
        descriptor = pf.FlightDescriptor.for_path("lake", "public", "scalar_function", "x").serialize()
        columns = pa.schema([("x", NUMBER)])
        with pytest.raises(AirportError, match=r"function 'public\.x' not found") as caught:
            Exchange(lake.client.connection, headers, descriptor=descriptor, schema=columns)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
