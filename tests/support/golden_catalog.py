"""The catalog that the recordings presuppose: the shop's tables at several moments, and the functions in ``utils``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog import Arguments, CallContext, CatalogBuilder, InOutCall, Parameter, Stability, StaticCatalog
from sparkport.memory import MemoryCatalog

__all__ = ["ITEMS", "MORE_ITEMS", "MANY_ITEMS", "NEST", "PAIR", "functions_catalog", "shop_catalog"]

_ITEMS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("added", pa.timestamp("us")),
    ]
)


def _items(*rows: tuple[int, str, str | None, datetime | None]) -> pa.Table:
    ids, names, prices, added = zip(*rows, strict=True)
    decimals = [None if price is None else Decimal(price) for price in prices]
    return pa.table([ids, names, decimals, added], schema=_ITEMS)


ITEMS = _items(
    (1, "pen", "2.50", datetime(2026, 1, 1, 10)),
    (2, "cup", None, None),
    (3, "hat", "9.99", datetime(2026, 2, 3, 4, 5, 6, 789_000)),
    (4, "map", "1.50", None),
)
"""After the first two INSERTs."""

MORE_ITEMS = pa.concat_tables([ITEMS, _items((5, "ink", "1.50", None), (6, "jar", "1.50", None))])
"""After the INSERT with RETURNING."""

MANY_ITEMS = pa.concat_tables([ITEMS, _items(*((i, f"n{i}", f"{i / 100:.2f}", None) for i in range(10, 2300)))])
"""After the INSERT of a range."""

PAIR = pa.table({"name": ["a", "b"], "age": pa.array([1, 2], pa.int32())})

NEST = pa.table(
    {
        "k": pa.array([1], pa.int32()),
        "s": pa.array([{"a": 1, "b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "m": pa.array([[("k", Decimal("1.5"))]], pa.map_(pa.string(), pa.decimal128(2, 1))),
        "l": pa.array([[1, 2]], pa.list_(pa.field("l", pa.int32()))),
    }
)


def shop_catalog(items: pa.Table = ITEMS) -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("shop")
    for name, rows in {"items": items, "pair": PAIR, "nest": NEST}.items():
        catalog.create_table(f"shop.{name}", rows.schema, rows=rows)
    return catalog


class _InOut(InOutCall):
    """Each row's first column next to the argument; one row more at the end."""

    def __init__(self, argument: str, schema: pa.Schema) -> None:
        self._argument = argument
        self._schema = schema

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        columns = [pa.repeat(self._argument, batch.num_rows), batch.column(0)]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def finish(self) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["last"]), pa.array(["row"])], schema=self._schema)


def _in_out_schema(arguments: Arguments | None, columns: pa.Schema | None) -> pa.Schema:
    first = pa.field("a", pa.string()) if columns is None else columns.field(0)
    return pa.schema([pa.field("input", pa.string()), first])


def _open_in_out(ctx: CallContext, arguments: Arguments, columns: pa.Schema) -> InOutCall:
    return _InOut(arguments["input"], _in_out_schema(arguments, columns))


def _dynamic(arguments: Arguments | None) -> pa.Schema:
    if arguments is None:
        return pa.schema([])
    return pa.schema([pa.field(name, value.type) for name, value in arguments.values.items()])


def _as_text(values: pa.Array) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())


def functions_catalog() -> StaticCatalog:
    text, number, small = pa.string(), pa.int64(), pa.int32()
    result = pa.schema([pa.field("result", text)])
    return (
        CatalogBuilder("lake")
        .schema("utils")
        .scalar_function("test_uppercase", lambda ctx, args: pc.utf8_upper(args["a"]), [Parameter("a", text)], text)
        .scalar_function(
            "test_add",
            lambda ctx, args: pc.add(args["a"], args["b"]),
            [Parameter("a", number), Parameter("b", number)],
            number,
        )
        .scalar_function("test_any_type", lambda ctx, args: _as_text(args["a"]), [Parameter("a")], text)
        .scalar_function(
            "zero", lambda ctx, args: pa.repeat("called", args.num_rows), [], text, stability=Stability.VOLATILE
        )
        .table_function(
            "test_echo",
            lambda ctx, args, request: pa.table([[args["input"]]], schema=result),
            [Parameter("input", text)],
            result,
        )
        .table_function(
            "test_repeat",
            lambda ctx, args, request: pa.table([[args["input"]] * args["count"]], schema=result),
            [Parameter("input", text), Parameter("count", number)],
            result,
        )
        .table_function(
            "test_dynamic_schema_named_parameters",
            lambda ctx, args, request: pa.table(
                [pa.array([value.as_py()], value.type) for value in args.values.values()], schema=_dynamic(args)
            ),
            [
                Parameter("name", text),
                Parameter("location", text, named=True),
                Parameter("input", small),
                Parameter("city", text),
            ],
            _dynamic,
        )
        .in_out_function(
            "test_table_in_out", _open_in_out, [Parameter("input", text), Parameter("rows", table=True)], _in_out_schema
        )
        .build()
    )
