"""A function call that DuckDB runs itself, as the location of an endpoint: a ``data:`` address that holds all of it."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from sparkport.catalog.scan import DuckDBCall
from sparkport.errors import InternalError
from sparkport.protocol.maps import pack

__all__ = ["CALL_PREFIX", "call_location"]

CALL_PREFIX = "data:application/x-msgpack-duckdb-function-call;base64,"


def call_location(call: DuckDBCall) -> str:
    """One row of arguments goes with the function's name: ``arg_0``, ``arg_1`` …, then those that have names."""
    columns = {f"arg_{number}": value for number, value in enumerate(call.arguments)} | dict(call.named)
    row = pa.record_batch({name: _column(call, name, value=value) for name, value in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    body = pack({"function_name": call.function, "data": sink.getvalue().to_pybytes()})
    return CALL_PREFIX + base64.b64encode(body).decode()


def _column(call: DuckDBCall, name: str, *, value: Any) -> pa.Array:
    try:
        return pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else pa.array([value])
    except pa.ArrowException as exc:
        raise InternalError(f"the table's call of '{call.function}': argument '{name}' has no Arrow type") from exc
