"""Functions called by the client: scalar, table, and rows in and out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import ANY, Arguments, InOutCall, Parameter
from sparkport.catalog.scan import ScanRequest
from sparkport.client import Client, connect
from sparkport.errors import Cancelled, Conflict, InvalidArgument, NotFound
from sparkport.testing import serving
from sparkport.wire.limits import Limits

pytestmark = pytest.mark.tier("fast")

WAIT = 20
NUMBERS = pa.schema([("n", pa.int32())])
ROWS = pa.table({"a": [1, 2, 3, 4], "b": ["w", "x", "y", "z"]})


def repeat(ctx: CallContext, args: Arguments, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    for _ in range(args["times"]):
        yield pa.record_batch({"n": pa.array([args.get("value", 7)], pa.int32())})


def wide_schema(args: Arguments | None) -> pa.Schema:
    width = 1 if args is None else args["width"]
    return pa.schema([(f"c{number}", pa.int64()) for number in range(width)])


def wide(ctx: CallContext, args: Arguments, request: ScanRequest) -> pa.Table:
    return pa.table({name: [1] for name in wide_schema(args).names})


class Summing(InOutCall):
    """Echoes each batch row by row, nothing for odd batches, and ends with the sum."""

    closed = threading.Event()

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.total = 0
        self.number = 0

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        values = [value * self.factor for value in batch.column("a").to_pylist()]
        self.total += sum(values)
        self.number += 1
        if self.number % 2:
            yield from (pa.record_batch({"s": [value]}) for value in values)

    def finish(self) -> Iterable[pa.RecordBatch]:
        return [pa.record_batch({"s": [self.total]})]

    def close(self) -> None:
        self.closed.set()


def refuse(ctx: CallContext, args: pa.RecordBatch) -> pa.Array:
    raise Conflict("not today")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    x, y = Parameter("x", pa.int32()), Parameter("y", pa.int32())
    catalog = (
        CatalogBuilder()
        .schema("public")
        .scalar_function("add", lambda ctx, args: pc.add(args["x"], args["y"]), [x, y], pa.int32())
        .scalar_function("one", lambda ctx, args: pa.array([1] * args.num_rows), [], pa.int64())
        .scalar_function(
            "long_text",
            lambda ctx, args: pa.array(["x" * 100] * args.num_rows),
            [Parameter("v", ANY)],
            pa.string(),
        )
        .scalar_function("refuse", refuse, [x], pa.int32())
        .table_function(
            "repeat", repeat, [Parameter("times", pa.int64()), Parameter("value", pa.int32(), named=True)], NUMBERS
        )
        .table_function("wide", wide, [Parameter("width", pa.int8())], wide_schema)
        .table_function("nothing", lambda ctx, args, request: NUMBERS.empty_table(), [], NUMBERS)
        .in_out_function(
            "summing",
            lambda ctx, args, schema: Summing(args["factor"]),
            [Parameter("factor", pa.int64()), Parameter("rows", table=True)],
            pa.schema([("s", pa.int64())]),
        )
        .in_out_function(
            "same",
            lambda ctx, args, schema: lambda batch: [batch],
            [Parameter("rows", table=True)],
            lambda args, schema: ROWS.schema if schema is None else schema,
        )
        .build()
    )
    # Small batches, so that answers come in slices.
    with (
        serving(catalog, limits=Limits(max_batch_bytes=100_000)) as server,
        connect(server.location) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "args",
    [
        ([1, 2, 3], [10, 20, 30]),
        (pa.array([1, 2, 3]), pa.chunked_array([[10], [20, 30]])),
        (np.array([1, 2, 3]), (10, 20, 30)),
        (pa.table({"any": [1, 2, 3], "names": [10, 20, 30]}),),
        (pa.record_batch({"x": [1, 2, 3], "y": [10, 20, 30]}),),
    ],
)
def test_a_scalar_function_takes_columns_of_all_sorts(client: Client, args: tuple[object, ...]) -> None:
    found = client.call("public.add", *args)
    assert found.type == pa.int32()
    assert found.to_pylist() == [11, 22, 33]


def test_single_values_stand_for_all_rows(client: Client) -> None:
    assert client.call("add", [1, 2], 5).to_pylist() == [6, 7]
    assert client.call("add", 1, pa.scalar(2)).to_pylist() == [3]
    assert client.call("add", 1, 2, rows=3).to_pylist() == [3, 3, 3]
    assert client.call("add", [1, None], None).to_pylist() == [None, None]


def test_a_function_without_arguments_is_told_the_number_of_rows(client: Client) -> None:
    assert client.call("one").to_pylist() == [1]
    assert client.call("one", rows=100_000).to_pylist() == [1] * 100_000


def test_no_rows_give_no_values(client: Client) -> None:
    found = client.call("add", [], [])
    assert (len(found), found.type) == (0, pa.int32())


def test_answers_larger_than_a_message_are_put_together(client: Client) -> None:
    found = client.call("long_text", pa.array(range(150_000)))
    assert len(found) == 150_000
    assert set(found.to_pylist()) == {"x" * 100}
    assert found.num_chunks == 3  # one answer for each batch that was sent, however large


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1],), "function 'add' takes 2 arguments, got 1"),
        (([1], [1, 2]), "columns of different lengths: 1, 2"),
        (([1], ["text"]), "argument 'y' cannot be int32"),
        (([1], pa.array(["text"])), "argument 'y' cannot be int32"),
        (([1], [2**40]), "argument 'y' cannot be int32"),
        ((1, object()), "argument 'y' cannot be int32"),
    ],
)
def test_wrong_arguments_are_refused_before_the_call(client: Client, args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        client.call("add", *args)


def test_errors_of_a_function_arrive_as_they_were_raised(client: Client) -> None:
    with pytest.raises(Conflict, match=r"^not today$"):
        client.call("refuse", [1])


def test_unknown_functions_are_not_found(client: Client) -> None:
    for call in (
        lambda: client.call("nope", 1),
        lambda: client.call_table("public.nope"),
        lambda: client.call_in_out("nope", [], ROWS),
    ):
        with pytest.raises(NotFound, match=r"function 'public\.nope' not found"):
            call()


def test_a_table_function_takes_positional_and_named_arguments(client: Client) -> None:
    assert client.call_table("public.repeat", 2).read_all().to_pydict() == {"n": [7, 7]}
    assert client.call_table("repeat", 3, value=1).read_all().to_pydict() == {"n": [1, 1, 1]}
    assert client.call_table("repeat", times=pa.scalar(1), value=2).read_all().to_pydict() == {"n": [2]}
    assert client.call_table("nothing").read_all() == NUMBERS.empty_table()


def test_the_columns_of_a_table_function_may_depend_on_its_arguments(client: Client) -> None:
    result = client.call_table("wide", 3)
    assert result.schema.names == ["c0", "c1", "c2"]
    assert result.read_all().to_pydict() == {"c0": [1], "c1": [1], "c2": [1]}


def test_wrong_arguments_of_a_table_function_are_named(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="takes 1 positional arguments, got 2"):
        client.call_table("repeat", 1, 2)
    with pytest.raises(InvalidArgument, match="has no parameter 'colour'"):
        client.call_table("repeat", 1, colour="red")
    with pytest.raises(InvalidArgument, match="got argument 'times' twice"):
        client.call_table("repeat", 1, times=1)
    with pytest.raises(InvalidArgument, match="lacks argument 'times'"):
        client.call_table("repeat", value=1)
    with pytest.raises(InvalidArgument, match="argument 'width' cannot be int8"):
        client.call_table("wide", 1000)


def test_the_kinds_of_function_are_not_mixed_up(client: Client) -> None:
    with pytest.raises((InvalidArgument, NotFound), match="add"):
        client.call_table("add", 1, 2)
    with pytest.raises((InvalidArgument, NotFound), match="add"):
        client.call_in_out("add", [1, 2], ROWS)
    with pytest.raises((InvalidArgument, NotFound), match="repeat"):
        client.call("repeat", 1, 2)
    with pytest.raises(InvalidArgument, match=r"it is called with call_in_out\(\)"):
        client.call_table("same")
    with pytest.raises(InvalidArgument, match=r"it is called with call_table\(\)"):
        client.call_in_out("repeat", [1], ROWS)


def batched() -> Iterator[pa.RecordBatch]:
    yield from ROWS.to_batches(max_chunksize=1)


@pytest.mark.parametrize(
    "rows", [ROWS, ROWS.to_batches()[0], ROWS.to_reader(), ROWS.to_batches(max_chunksize=1), batched()]
)
def test_rows_of_all_sorts_go_in_and_come_out(client: Client, rows: pa.Table) -> None:
    assert client.call_in_out("public.same", [], rows).read_all() == ROWS


def test_an_in_out_function_may_answer_much_little_and_at_the_end(client: Client) -> None:
    result = client.call_in_out("summing", [10], ROWS.to_batches(max_chunksize=2))
    assert result.schema.names == ["s"]
    assert result.read_all().to_pydict() == {"s": [10, 20, 100]}
    assert client.call_in_out("summing", [], ROWS.slice(0, 0), factor=2).read_all().to_pydict() == {"s": [0]}


def test_rows_go_in_only_as_answers_are_read_and_an_abandoned_call_is_closed(client: Client) -> None:
    taken: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            taken.append(1)
            yield ROWS.to_batches()[0]

    Summing.closed.clear()
    result = client.call_in_out("summing", [1], endless())
    assert len(taken) == 1
    for _ in result:
        break
    assert len(taken) == 1
    assert Summing.closed.wait(WAIT)


def test_a_call_closed_in_the_middle_does_not_look_complete(client: Client) -> None:
    result = client.call_in_out("same", [], batched())
    batches = iter(result)
    next(batches)
    result.close()
    with pytest.raises(Cancelled):
        list(batches)


def test_rows_must_be_arrow(client: Client) -> None:
    for rows in ([], [1, 2]):
        with pytest.raises(InvalidArgument, match="rows must be an Arrow table"):
            client.call_in_out("same", [], rows)


def test_an_error_while_making_the_rows_ends_the_call(client: Client) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield ROWS.to_batches()[0]
        raise ZeroDivisionError

    Summing.closed.clear()
    with pytest.raises(ZeroDivisionError):
        client.call_in_out("summing", [1], failing()).read_all()
    assert Summing.closed.wait(WAIT)
