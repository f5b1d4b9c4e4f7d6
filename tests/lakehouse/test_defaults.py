"""Defaults of columns: what rows have that were there before the column, what later rows get, for all who look."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.support.lakehouse import Lake

from sparkport.catalog import ScanRequest, as_scan
from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    ChangeType,
    DropColumn,
    DropNotNull,
    RenameColumn,
    SetDefault,
    SetNotNull,
)
from sparkport.catalog.defaults import default_of
from sparkport.errors import Unsupported
from sparkport.filters.predicates import Predicate, col
from sparkport.lakehouse.columns.defaults import INITIAL, WRITE
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

PAIR = pa.struct([("a", pa.int32())])
ROWS = pa.table(
    {"id": pa.array([1, 2, 3], pa.int64()), "pair": pa.array([{"a": 1}, None, {"a": None}], PAIR)},
)

PLAIN: dict[str, tuple[pa.DataType, str, Any]] = {
    "flag": (pa.bool_(), "true", True),
    "small": (pa.int8(), "-5", -5),
    "number": (pa.int64(), "2 + 3", 5),
    "real": (pa.float32(), "0.1", 0.10000000149011612),
    "double": (pa.float64(), "1e300", 1e300),
    "price": (pa.decimal128(9, 2), "14.2", Decimal("14.20")),
    "text": (pa.string(), "'it''s ' || 'ü'", "it's ü"),
    "empty": (pa.string(), "''", ""),
    "word": (pa.string(), "'NULL'", "NULL"),
    "bytes": (pa.binary(), r"'\x00\xFF'::BLOB", b"\x00\xff"),
    "day": (pa.date32(), "DATE '2020-02-29'", dt.date(2020, 2, 29)),
    "at": (pa.timestamp("us"), "TIMESTAMP '2020-01-02 03:04:05.000006'", dt.datetime(2020, 1, 2, 3, 4, 5, 6)),
    "zoned": (
        pa.timestamp("us", "UTC"),
        "TIMESTAMPTZ '2020-01-02 03:04:05+02'",
        dt.datetime(2020, 1, 2, 1, 4, 5, tzinfo=dt.UTC),
    ),
    "nothing": (pa.string(), "NULL", None),
}

OPAQUE: dict[str, tuple[pa.DataType, str]] = {
    "huge": (pa.uint64(), "18446744073709551615"),
    "unsigned": (pa.uint32(), "4294967295"),
    "clock": (pa.time64("us"), "TIME '01:02:03.000004'"),
    "nanos": (pa.timestamp("ns"), "TIMESTAMP_NS '2020-01-02 03:04:05.000000006'"),
    "seconds": (pa.timestamp("s"), "TIMESTAMP_S '2020-01-02 03:04:05'"),
    "span": (pa.month_day_nano_interval(), "INTERVAL '1 month 2 days 3 seconds'"),
    "key": (pa.uuid(), "'f79c3e09-677c-4bbd-a479-3f349cb785e7'::UUID"),
    "colour": (pa.dictionary(pa.uint8(), pa.string()), "'red'"),
    "fixed": (pa.binary(3), r"'\x01\x02\x03'::BLOB"),
    "json": (pa.json_(), """'{"a": 1}'"""),
}


def column(name: str, kind: pa.DataType, default: str, *, nullable: bool = True) -> AddColumn:
    return AddColumn(pa.field(name, kind, nullable=nullable, metadata={"default": default}))


def iceberg(table: Handle, name: str) -> dict[str, Any]:
    return table.current.columns.field(name)


VALUES = {name: value for name, (_, _, value) in PLAIN.items()}


@pytest.mark.tier("fast")
def test_rows_that_were_there_have_the_default_for_everybody_and_keep_it(lake: Lake) -> None:
    table = create(lake, "plain", ROWS)
    table.alter(*(column(name, kind, default) for name, (kind, default, _) in PLAIN.items()))
    before = table.agreed()
    assert [{name: row[name] for name in VALUES} for row in before.values()] == [VALUES] * 3
    ids = table.ids()
    assert table.update([ids[1]], pa.table({"id": pa.array([10], pa.int64())})).affected_rows == 1
    assert table.delete([ids[2]]).affected_rows == 1
    after = table.agreed()
    assert after == {ids[1]: {**before[ids[1]], "id": 10}, ids[3]: before[ids[3]]}


def test_what_spark_writes_and_compacts_keeps_defaults(lake: Lake) -> None:
    table = create(lake, "compacted", ROWS)
    table.alter(*(column(name, kind, default) for name, (kind, default, _) in PLAIN.items()))
    table.sql("UPDATE {t} SET id = 30 WHERE id = 3", "INSERT INTO {t} (id) VALUES (4)")
    after = table.agreed()
    found = {row["id"]: {name: row[name] for name in VALUES} for row in after.values()}
    assert found == dict.fromkeys([1, 2, 30, 4], VALUES)
    table.sql("CALL lake.system.rewrite_data_files(table => 'public.compacted', options => map('rewrite-all', 'true'))")
    assert table.agreed() == after


@pytest.mark.tier("fast")
def test_null_is_not_taken_for_the_default(lake: Lake) -> None:
    table = create(lake, "nulls", ROWS)
    table.alter(column("level", pa.int32(), "7"))
    table.insert(_filled(table, pa.table({"id": pa.array([5], pa.int64()), "level": pa.array([None], pa.int32())})))
    assert {row["id"]: row["level"] for row in table.agreed().values()} == {1: 7, 2: 7, 3: 7, 5: None}


def _filled(table: Handle, rows: pa.Table) -> pa.Table:
    declared = table.current.columns.declared
    given = {name: rows.column(name) for name in rows.column_names}
    return pa.table([given.get(field.name, pa.nulls(len(rows), field.type)) for field in declared], schema=declared)


def test_defaults_of_types_that_iceberg_lacks_are_kept_as_such_values_are(lake: Lake) -> None:
    table = create(lake, "opaque", ROWS)
    stored = {name: pa.field(name, kind, metadata={"default": default}) for name, (kind, default) in OPAQUE.items()}
    table.alter(*(AddColumn(field) for field in stored.values()))
    rows = table.read()
    assert table.update([table.ids()[1]], pa.table({"id": pa.array([10], pa.int64())})).affected_rows == 1
    written = table.read()  # one row is now in a file that has the columns
    for name, field in stored.items():
        assert rows.schema.field(name).type == field.type
        found = {str(value) for value in [*rows.column(name).to_pylist(), *written.column(name).to_pylist()]}
        assert len(found - {"None"}) == len(found) == 1, name
    first = rows.slice(0, 1).to_pylist()[0]
    assert (first["huge"], first["clock"], first["colour"]) == (2**64 - 1, dt.time(1, 2, 3, 4), "red")
    assert str(first["key"]) == "f79c3e09-677c-4bbd-a479-3f349cb785e7"
    assert first["fixed"] == b"\1\2\3"


@pytest.mark.tier("fast")
def test_filters_find_rows_by_a_default_that_is_in_no_file(lake: Lake) -> None:
    table = create(lake, "filtered", ROWS)
    table.alter(column("level", pa.int32(), "7"))
    table.insert(_filled(table, pa.table({"id": pa.array([4], pa.int64()), "level": pa.array([8], pa.int32())})))

    def found(condition: Predicate) -> list[int]:
        scan = as_scan(table.table().scan(NOBODY, ScanRequest(columns=("id", "level"), filter=condition.expr)))
        rows = pa.Table.from_batches(list(scan), pa.schema([("id", pa.int64()), ("level", pa.int32())]))
        return sorted(rows.column("id").to_pylist())

    assert found(col("level") == 7) == [1, 2, 3]
    assert set(found(col("level") > 7)) == {4}
    assert set(found(col("level").is_not_null())) == {1, 2, 3, 4}
    statistics = table.table().column_statistics(NOBODY, "level")
    assert statistics is not None
    assert (statistics.minimum, statistics.maximum, statistics.has_null) == (None, None, None)


def test_plain_spark_finds_rows_by_a_default_that_is_in_no_file(lake: Lake) -> None:
    table = create(lake, "found_by_spark", ROWS)
    table.alter(column("level", pa.int32(), "7"))
    with lake.spark() as spark:
        assert spark.sql(f"SELECT id FROM {table.sql_name} WHERE level = 7").toArrow().num_rows == 3


def test_a_field_added_to_a_struct_has_its_default_in_structs_that_were_there(lake: Lake) -> None:
    table = create(lake, "nested", ROWS)
    table.alter(AddField(("pair",), pa.field("b", pa.string(), metadata={"default": "'new'"})))
    rows = table.agreed()
    assert [row["pair"] for row in rows.values()] == [{"a": 1, "b": "new"}, None, {"a": None, "b": "new"}]


def test_a_column_with_a_default_can_be_not_null_from_the_start_or_later(lake: Lake) -> None:
    table = create(lake, "firm", ROWS)
    table.alter(column("level", pa.int32(), "7", nullable=False), column("later", pa.int32(), "8"), SetNotNull("later"))
    assert [(row["level"], row["later"]) for row in table.agreed().values()] == [(7, 8)] * 3
    table.alter(ChangeType("level", pa.int64()), RenameColumn("level", "height"), DropNotNull("later"))
    assert [(row["height"], row["later"]) for row in table.agreed().values()] == [(7, 8)] * 3
    table.alter(column("real", pa.float32(), "0.1"), ChangeType("real", pa.float64()))
    assert {row["real"] for row in table.agreed().values()} == {0.10000000149011612}
    with pytest.raises(Unsupported, match=r"column 'bare'.*without a default"):
        table.alter(AddColumn(pa.field("bare", pa.int32(), nullable=False)))
    with pytest.raises(Unsupported, match="column 'bare'"):
        table.alter(column("bare", pa.int32(), "NULL", nullable=False))


def test_a_default_that_is_set_is_for_rows_to_come_and_no_version(lake: Lake) -> None:
    table = create(lake, "later", ROWS)
    table.alter(column("level", pa.int32(), "7"))
    number = table.number
    table.alter(SetDefault("level", "8"))
    assert (iceberg(table, "level")[INITIAL], iceberg(table, "level")[WRITE]) == (7, 8)
    table.sql("INSERT INTO {t} (id) VALUES (4)")
    table.alter(SetDefault("level", "CAST(epoch(now()) % 2 AS INTEGER)"))
    assert (iceberg(table, "level")[INITIAL], iceberg(table, "level").get(WRITE)) == (7, None)
    table.alter(SetDefault("level", None))
    table.sql("INSERT INTO {t} (id) VALUES (5)")
    assert {row["id"]: row["level"] for row in table.agreed().values()} == {1: 7, 2: 7, 3: 7, 4: 8, 5: None}
    assert table.number == number + 2
    assert default_of(table.table().schema.field("level")) is None


def test_a_default_that_somebody_else_has_set_is_told_to_clients(lake: Lake) -> None:
    table = create(lake, "foreign_default", ROWS)
    table.alter(column("level", pa.int32(), "7"))
    table.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('sparkport.columns')")
    assert default_of(table.table().schema.field("level")) == "CAST('7' AS INTEGER)"


def test_now_is_one_moment_for_all_rows_that_are_there(lake: Lake) -> None:
    table = create(lake, "moment", ROWS)
    table.alter(column("since", pa.timestamp("us", "UTC"), "now()"))
    seen = {row["since"] for row in table.agreed().values()}
    assert len(seen) == 1
    assert None not in seen
    assert {row["since"] for row in table.agreed().values()} == seen
    assert default_of(table.table().schema.field("since")) == "now()"
    assert WRITE not in iceberg(table, "since")


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("volatile", pa.float64(), "random()"),
        ("inside", pa.string(), "CAST(uuid() AS VARCHAR)"),
        ("list", pa.list_(pa.int32()), "[1]"),
        ("struct", PAIR, "{'a': 1}"),
        ("infinite", pa.float64(), "'infinity'::DOUBLE"),
        ("eternal", pa.timestamp("us"), "'infinity'::TIMESTAMP"),
        ("far", pa.date32(), "DATE '12020-01-01'"),
    ],
)
def test_a_default_that_cannot_be_kept_for_rows_is_refused_where_there_are_some(
    lake: Lake, name: str, kind: pa.DataType, default: str
) -> None:
    table = create(lake, name, ROWS.slice(0, 0))
    table.alter(column("free", kind, default), DropColumn("free"))
    table.insert(ROWS)
    location = lake.pointers.location(TableName("public", name))
    with pytest.raises(Unsupported, match=r"column 'more': its default .* set the default"):
        table.alter(column("more", kind, default))
    assert lake.pointers.location(TableName("public", name)) == location
    table.alter(AddColumn(pa.field("more", kind)), SetDefault("more", default))
    assert [row["more"] for row in table.agreed(pyiceberg=False).values()] == [None] * 3


def test_a_table_of_an_old_format_has_no_place_for_defaults(lake: Lake) -> None:
    table = Handle(lake, "old")
    table.sql("CREATE TABLE {t} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    table.sql("INSERT INTO {t} VALUES (1)")
    with pytest.raises(Unsupported, match="format v3"):
        table.alter(column("level", pa.int32(), "7"))
    table.alter(AddColumn(pa.field("level", pa.int32())), SetDefault("level", "7"))
    assert iceberg(table, "level").keys().isdisjoint({INITIAL, WRITE})
    table.sql("INSERT INTO {t} VALUES (2, 3)")
    assert sorted(map(repr, table.read().to_pylist())) == sorted(map(repr, table.pyiceberg()))


@pytest.mark.parametrize("number", range(3))
def test_defaults_are_spelled_as_spark_spells_them(lake: Lake, number: int) -> None:
    """Spark writes the whole schema anew with each commit: what it spells otherwise looks like a change of columns."""
    spellings: dict[pa.DataType, tuple[str, str, str]] = {
        pa.float32(): ("0.1", "-0.0", "16777216"),
        pa.float64(): ("0.1 + 0.2::DOUBLE", "5e-324", "100"),
        pa.decimal128(20, 10): ("0", "0.0000000001", "-1234567890.5"),
        pa.timestamp("us"): (
            "TIMESTAMP '2020-01-02 03:04:00'",
            "TIMESTAMP '1969-01-02 00:00:00.1'",
            "TIMESTAMP '0001-01-01'",
        ),
        pa.timestamp("us", "UTC"): (
            "TIMESTAMPTZ '2020-01-02 00:00:00Z'",
            "TIMESTAMPTZ '2020-01-02 03:04:05.123450Z'",
            "TIMESTAMPTZ '9999-12-31 23:59:59.999999Z'",
        ),
        pa.date32(): ("DATE '0001-01-01'", "DATE '1969-12-31'", "DATE '9999-12-31'"),
        pa.binary(): (r"'\xAB'::BLOB", "''::BLOB", "'abc'::BLOB"),
        pa.string(): (r"'\\u00e9 \"'", "chr(0)", "'𝄞\n'"),
        pa.uuid(): ("'F79C3E09-677C-4BBD-A479-3F349CB785E7'::UUID",) * 3,
    }
    table = create(lake, f"spelled{number}", ROWS)
    table.alter(*(column(f"c{at}", kind, texts[number]) for at, (kind, texts) in enumerate(spellings.items())))
    ours = table.current.columns.fields
    assert all(INITIAL in field for field in ours[2:])
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert table.current.columns.fields == ours
