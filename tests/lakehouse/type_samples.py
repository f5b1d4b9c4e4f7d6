"""A column of every type that the lakehouse keeps, with the values that are easiest to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.support import golden

from sparkport.lakehouse.columns.types import plan_column, remember

__all__ = ["SAMPLES", "Sample", "recorded", "same"]

INT64 = (2**63 - 1, -(2**63 - 1), -(2**63), 0, -1, 1)
INT32 = (2**31 - 1, -(2**31 - 1), -(2**31), 0, -1, 1)
# Infinite in DuckDB, then the last seconds that microseconds reach.
SECONDS = (2**63 - 1, -(2**63 - 1), 9223372036854, -9223372036854, 0, 1)
MILLIS = (2**63 - 1, -(2**63 - 1), 9223372036854775, -9223372036854775, 0, 1)
UUIDS = [bytes(range(16)), bytes(16), b"\xff" * 16]
ODD_NAMES = ("a.b", "a b", "a`b", 'a"b', "a'b", "ü", "1st", "x\u00a0", "名", "🦆", "_", "A,;{}()=")


@dataclass(frozen=True, slots=True)
class Sample:
    label: str
    field: pa.Field
    values: pa.Array

    @property
    def column(self) -> pa.Array:
        """With nulls before, between and after, and cut out of a longer array, as slices of batches are."""
        null = pa.nulls(1, self.values.type)
        half = len(self.values) // 2
        return pa.concat_arrays([null, null, self.values[:half], null, self.values[half:], null, self.values])[1:-1]


def _sample(kind: pa.DataType, values: Any, label: str | None = None, **field: Any) -> Sample:
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return Sample(label or str(kind), pa.field("v", kind, **field), column)


def _raw(kind: pa.DataType, numbers: tuple[int, ...]) -> Sample:
    return _sample(kind, pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind))


def _extension(kind: Any, values: list[Any]) -> Sample:
    return _sample(kind, kind.wrap_array(pa.array(values, kind.storage_type)))


def _opaque(name: str, storage: pa.DataType, values: list[bytes]) -> Sample:
    return _extension(pa.opaque(storage, name, "DuckDB"), values)


def _integers() -> list[Sample]:
    found = []
    for bits in (8, 16, 32, 64):
        signed, unsigned = (getattr(pa, f"{kind}{bits}")() for kind in ("int", "uint"))
        found.append(_sample(signed, [-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1]))
        found.append(_sample(unsigned, [0, 1, 2**bits - 1]))
    return found


def _numbers() -> list[Sample]:
    special = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5]
    digits = [10**38 - 1, 1 - 10**38, 0, 1]
    return [
        *_integers(),
        _sample(pa.bool_(), [True, False]),
        _extension(pa.bool8(), [1, 0]),
        _sample(pa.float16(), [*special, 65504.0, 6e-8]),
        _sample(pa.float32(), [*special, 1e-45, 3.4028234663852886e38]),
        _sample(pa.float64(), [*special, 5e-324, 1.7976931348623157e308]),
        _sample(pa.decimal128(38, 0), digits),
        _sample(pa.decimal128(38, 38), pa.array(digits[:2], pa.decimal128(38, 0)).view(pa.decimal128(38, 38))),
        _sample(pa.decimal128(4, 1), pa.array([9999, -9999, 0], pa.decimal128(4, 0)).view(pa.decimal128(4, 1))),
        _sample(pa.decimal128(18, 3), pa.array([10**18 - 1, 0], pa.decimal128(18, 0)).view(pa.decimal128(18, 3))),
        _sample(pa.decimal32(9, 2), pa.array([999999999], pa.decimal32(9, 0)).view(pa.decimal32(9, 2))),
        _sample(pa.decimal64(18, 0), [10**18 - 1, 1 - 10**18]),
        _sample(pa.decimal256(38, 0), digits),
    ]


def _texts() -> list[Sample]:
    texts = ["", "x", "\0", "a\nb", "ünï🦆", "y" * 5000]
    blobs = [b"", b"\0", b"\xff\xfe", b"z" * 5000]
    return [
        *(_sample(kind, texts) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *(_sample(kind, blobs) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
        _sample(pa.binary(3), [b"abc", b"\0\0\0", b"\xff\xff\xff"]),
        _extension(pa.uuid(), UUIDS),
        _extension(pa.json_(), ['{"a": 1}', "null", "[]"]),
        _opaque("bignum", pa.binary(), [b"\x80\x00\x12", b""]),
        _opaque("bit", pa.binary(), [b"\x03\xf5"]),
        _opaque("hugeint", pa.binary(16), [b"\xff" * 15 + b"\x7f", bytes(16)]),
        _opaque("time_tz", pa.binary(8), [b"\xdf\xc4\x00\xc0x\xe8\xdd\x00"]),
        _sample(pa.dictionary(pa.uint8(), pa.string()), ["b", "a", "", "b"]),
        _sample(pa.dictionary(pa.int32(), pa.int64(), ordered=True), [7, -7, 7]),
        _sample(
            pa.binary(),
            [bytes.fromhex("0101000000000000000000f03f0000000000000040")],
            "geoarrow.wkb",
            metadata={"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": '{"crs": "EPSG:4326"}'},
        ),
    ]


def _times() -> list[Sample]:
    return [
        _raw(pa.date32(), INT32),
        _sample(pa.date64(), pa.array([0, 86_400_000, -86_400_000], pa.int64()).view(pa.date64())),
        _raw(pa.timestamp("s"), SECONDS),
        _raw(pa.timestamp("ms"), MILLIS),
        *(_raw(pa.timestamp(unit), INT64) for unit in ("us", "ns")),
        _raw(pa.timestamp("s", "UTC"), SECONDS),
        _raw(pa.timestamp("us", "UTC"), INT64),
        _raw(pa.timestamp("us", "Europe/Berlin"), INT64),
        _raw(pa.timestamp("ns", "UTC"), INT64),
        _raw(pa.time32("s"), (0, 86399)),
        _raw(pa.time32("ms"), (0, 86399999)),
        _raw(pa.time64("us"), (0, 86_399_999_999)),
        _raw(pa.time64("ns"), (0, 86_399_999_999_999)),
        *(_raw(pa.duration(unit), INT64) for unit in ("s", "ms", "us", "ns")),
        _sample(pa.month_day_nano_interval(), [(2**31 - 1, -(2**31), 2**63 - 1), (0, 3, 0), (-1, 0, -(2**63))]),
    ]


def _union(mode: str) -> Sample:
    members = [
        pa.field("n", pa.uint8()),
        pa.field("s", pa.string()),
        pa.field("l", pa.list_(pa.field("l", pa.int32()))),
    ]
    codes = pa.array([0, 1, 0, 7, 1], pa.int8())
    kind = pa.union(members, mode=mode, type_codes=[0, 1, 7])
    if mode == "sparse":
        offsets = []
        values = [[1, None, None, None, None], [None, "a", None, None, None], [None, None, None, [1, None], None]]
    else:
        offsets = [pa.array([0, 0, 1, 0, 1], pa.int32()).buffers()[1]]
        values = [[1, None], ["a", None], [[1, None]]]
    children = [pa.array(part, member.type) for part, member in zip(values, members, strict=True)]
    column = pa.Array.from_buffers(kind, 5, [None, codes.buffers()[1], *offsets], children=children)
    return Sample(f"{mode} union", pa.field("v", kind), column)


def _nested() -> list[Sample]:
    lists = [[1, None, 200], [], [None], [3]]
    deep = pa.struct(
        [
            pa.field("when", pa.timestamp("s"), metadata={"comment": "the time", "unit": "s"}),
            pa.field("sizes", pa.list_(pa.field("l", pa.uint64()))),
            pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
            pa.field(
                "more", pa.map_(pa.uint8(), pa.struct([pa.field("x", pa.float16()), pa.field("y", pa.time64("us"))]))
            ),
        ]
    )
    row = {"when": 5, "sizes": [2**64 - 1, None], "kind": "k", "more": [(1, {"x": 1.5, "y": 7}), (2, None)]}
    void = dict.fromkeys(row)
    odd = pa.struct([(name, pa.int16()) for name in ODD_NAMES])
    uuids = pa.list_(pa.field("l", pa.uuid()))
    uuid_lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 3], pa.int32()), pa.uuid().wrap_array(pa.array(UUIDS, pa.binary(16))), type=uuids
    )
    item = pa.field("l", pa.uint8())
    kinds = (pa.list_(item), pa.large_list(item), pa.list_view(item), pa.large_list_view(item))
    return [
        *(_sample(kind, lists) for kind in kinds),
        _sample(pa.list_(pa.field("l", pa.int32())), lists, "list as DuckDB sends it"),
        _sample(pa.list_(pa.field("element", pa.int32(), nullable=False)), [[1], []], "list of required items"),
        _sample(pa.list_(pa.field("", pa.int32()), 3), [[1, 2, 3], [None, None, None]]),
        _sample(pa.list_(pa.field("", pa.int32()), 2), [None, None], "arrays that are all null"),
        _sample(pa.list_(pa.list_(pa.int16(), 2), 1), [[[1, 2]], [None]]),
        _sample(pa.list_(pa.list_(pa.large_string())), [[["a", None], [], None], []]),
        _sample(pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": None}]),
        _sample(pa.struct([pa.field("a", pa.int8(), nullable=False)]), [{"a": 1}], "struct of a required field"),
        _sample(pa.map_(pa.string(), pa.int32()), [[("k", 1), ("", None)], []]),
        _sample(pa.map_(pa.uint64(), pa.duration("s")), [[(2**64 - 1, 5)], []]),
        _sample(pa.map_(pa.struct([("a", pa.int8())]), pa.list_(pa.uint8())), [[({"a": 1}, [1, None])]]),
        _sample(deep, [row, void], "deep struct"),
        _sample(pa.list_(deep), [[row, None, void], []], "list of deep structs"),
        _sample(odd, [{name: at for at, name in enumerate(ODD_NAMES)}], "odd names"),
        Sample("list of uuids", pa.field("v", uuids), uuid_lists),
        _union("sparse"),
        _union("dense"),
        _sample(pa.int32(), [1], "with metadata", metadata={"is_odd": "yes", "comment": "a number"}),
        _sample(pa.fixed_shape_tensor(pa.int32(), [2]), _tensor(), "tensor"),
    ]


def _tensor() -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.int32(), [2])
    return kind.wrap_array(pa.array([[1, 2], [3, 4]], kind.storage_type))


SAMPLES: list[Sample] = [*_numbers(), *_texts(), *_times(), *_nested()]


def recorded(name: str) -> list[Sample]:
    """The columns that the real client created, each with the rows that it sent, if any (an enum comes as text)."""
    calls = golden.load(name)
    found: dict[str, Sample] = {}
    for call in calls.values():
        if call.action == "create_table":
            field = pa.ipc.read_schema(pa.py_buffer(call.body[b"arrow_schema"])).field(0)
            table = call.body[b"table_name"].decode()
            found[table] = Sample(f"{name} {table} {field.type}", field, pa.nulls(0, field.type))
        elif call.headers.get("airport-operation") == "insert":
            for batch in call.sent_batches():
                table = call.headers["airport-flight-path"].rpartition("/")[2]
                sample = found[table]
                found[table] = Sample(sample.label, sample.field, batch.column(0))
    return list(found.values())


def same(one: pa.Array, other: pa.Array) -> bool:
    """Equal to the last bit that counts: NaN is NaN, and the sign of zero matters."""
    one.validate(full=True)
    other.validate(full=True)
    return one.type == other.type and str(_plain(one)) == str(_plain(other))


def _plain(column: pa.Array) -> list[Any]:
    return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return (scalar.type_code, None) if pa.types.is_union(kind) else None
    if pa.types.is_union(kind):
        return scalar.type_code, _value(scalar.value)
    if isinstance(kind, pa.BaseExtensionType):
        return _value(scalar.value)
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_map(kind):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
    if pa.types.is_struct(kind):
        return [_value(part) for part in scalar.values()]
    if pa.types.is_list(kind) or hasattr(scalar, "values"):
        return [_value(part) for part in scalar.values]
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return scalar.value
    return scalar.as_py()


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column as a new table's schema has it, and the declared field where that must be remembered."""

    iceberg: dict[str, Any]
    remembered: str | None


def stored_column(field: pa.Field, next_id: Callable[[], int]) -> StoredColumn:
    planned = plan_column(field, next_id)
    return StoredColumn(planned, remember(field, planned))
