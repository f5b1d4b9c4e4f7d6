"""Points in a table's history as callers write them: a version's number, a tag's name, or a time."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.errors import InvalidArgument

__all__ = ["point"]


def point(value: pa.Scalar, what: str) -> AsOf:
    """A number or a text is a version, a timestamp or a date the last version that was there by then."""
    given = value.type
    if not value.is_valid:
        raise InvalidArgument(f"{what} is NULL: give a version's number, a tag's name or a timestamp")
    if pa.types.is_timestamp(given) or pa.types.is_date(given):
        return AsOf(AsOfUnit.TIMESTAMP, _moment(value, what))
    if pa.types.is_integer(given):
        return AsOf(AsOfUnit.VERSION, str(value.as_py()))
    if pa.types.is_decimal(given) and value.as_py() == int(value.as_py()):
        return AsOf(AsOfUnit.VERSION, str(int(value.as_py())))
    if pa.types.is_string(given) or pa.types.is_large_string(given) or given == pa.string_view():
        return AsOf(AsOfUnit.VERSION, str(value.as_py()).strip())
    raise InvalidArgument(f"{what} is {given}: give a version's number, a tag's name or a timestamp")


def _moment(value: pa.Scalar, what: str) -> str:
    zone = getattr(value.type, "tz", None)
    try:
        # A nanosecond less is no other commit: they are told apart by the millisecond.
        moment: Any = pc.cast(value, pa.timestamp("us", tz=zone), safe=False).as_py()
    except (pa.ArrowException, ValueError, OverflowError) as exc:
        raise InvalidArgument(f"{what} is no point in time: {exc}") from exc
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return str(moment.isoformat(sep=" "))
