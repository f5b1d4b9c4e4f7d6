"""Python values, arrays and tables as the arguments of functions, brought to the declared types.

DuckDB casts before it calls; whoever calls from Python would otherwise have to know each parameter's exact type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkport.catalog.functions import Parameter
from sparkport.client.catalog import FunctionInfo
from sparkport.errors import InvalidArgument

__all__ = ["argument_row", "argument_table"]


def argument_row(function: FunctionInfo, args: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """The arguments of one call as an Arrow stream of one row; nothing for a call without arguments."""
    declared = {parameter.name: parameter for parameter in function.parameters if not parameter.table}
    positional = [parameter for parameter in declared.values() if not parameter.named]
    if len(args) > len(positional):
        raise _wrong(function, f"takes {len(positional)} positional arguments, got {len(args)}")
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for index, (parameter, value) in enumerate(zip(positional, args, strict=False)):
        arrays.append(_one(function, parameter, value))
        fields.append(pa.field(f"arg_{index}", arrays[-1].type))
    given = {parameter.name for parameter in positional[: len(args)]}
    for name, value in named.items():
        if name not in declared:
            raise _wrong(function, f"has no parameter '{name}'")
        if name in given:
            raise _wrong(function, f"got argument '{name}' twice")
        arrays.append(_one(function, declared[name], value))
        fields.append(pa.field(name, arrays[-1].type))
    missing = [parameter.name for parameter in positional if parameter.name not in given | set(named)]
    if missing:
        raise _wrong(function, f"lacks argument '{missing[0]}'")
    if not arrays:
        return b""
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def argument_table(function: FunctionInfo, args: Sequence[Any], rows: int | None) -> pa.Table:
    """The arguments of a scalar function, one row per call of it.

    One table or batch gives its columns in order. Otherwise each argument is a column (an array, a list) or one value
    for all rows. ``rows`` says how many where no column does; without it, one.
    """
    if len(args) == 1 and isinstance(args[0], pa.Table | pa.RecordBatch):
        if rows is None:
            rows = args[0].num_rows
        args = args[0].columns
    parameters = function.parameters
    if len(args) != len(parameters):
        raise _wrong(function, f"takes {len(parameters)} arguments, got {len(args)}")
    lengths = {len(arg) for arg in args if _is_column(arg)} | (set() if rows is None else {rows})
    if len(lengths) > 1:
        raise _wrong(function, f"got columns of different lengths: {', '.join(map(str, sorted(lengths)))}")
    length = lengths.pop() if lengths else 1
    if not parameters:
        return pa.table({"none": pa.nulls(length)}).select([])
    columns = [
        _column(function, parameter, arg) if _is_column(arg) else pa.repeat(_one(function, parameter, arg)[0], length)
        for parameter, arg in zip(parameters, args, strict=True)
    ]
    return pa.table(columns, names=[parameter.name for parameter in parameters])


def _is_column(value: Any) -> bool:
    """Arrays of any library; texts and single values are none."""
    if isinstance(value, pa.Array | pa.ChunkedArray | list | tuple):
        return True
    return hasattr(value, "__len__") and (hasattr(value, "__arrow_c_array__") or hasattr(value, "__array__"))


def _type(parameter: Parameter) -> pa.DataType | None:
    return parameter.type if isinstance(parameter.type, pa.DataType) else None


def _one(function: FunctionInfo, parameter: Parameter, value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return _column(function, parameter, pa.repeat(value, 1))
    return _column(function, parameter, [value])


def _column(function: FunctionInfo, parameter: Parameter, values: Any) -> Any:
    wanted = _type(parameter)
    try:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return pa.array(values, wanted)
        return values if wanted is None or values.type == wanted else values.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise _wrong(function, f"argument '{parameter.name}' cannot be {wanted or 'an Arrow value'}: {exc}") from exc


def _wrong(function: FunctionInfo, what: str) -> InvalidArgument:
    return InvalidArgument(f"function '{function.name}' {what}")
