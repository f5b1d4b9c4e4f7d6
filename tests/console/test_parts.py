"""The parts that pages are made of: cells, numbers, charts, settings."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from sparkport.auth import Secret
from sparkport.catalog.static import ArrowTable
from sparkport.config import Settings
from sparkport.console.cells import cells, shown
from sparkport.console.charts import chart, sparkline, total
from sparkport.console.formats import age, bytes_text, duration, short_count
from sparkport.console.shown_settings import shown_settings
from sparkport.console.tables import columns_of

pytestmark = pytest.mark.tier("fast")

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([1, None], pa.uint64()), ["1", "NULL"]),
        (pa.array(["12.30"], pa.string()).cast(pa.decimal128(38, 2)), ["12.30"]),
        (pa.array([True, False, None]), ["true", "false", "NULL"]),
        (pa.array([5_000_000], pa.int32()).cast(pa.date32()), ["15659-07-15"]),
        (pa.array([2**62], pa.timestamp("us", "UTC")), None),
        (pa.array([-(2**62)], pa.timestamp("ns")), None),
        (pa.array([86_400_000_000 - 1], pa.time64("us")), ["23:59:59.999999"]),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), None),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([[1, None], []]), ["[1, NULL]", "[]"]),
        (pa.array([list(range(9))]), ["[0, 1, 2, 3, 4, 5, … 9 in all]"]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), ["{k: 1}"]),
        (pa.array([{"a": 1, "b": {"c": [b"\x01"]}}]), ["{a: 1, b: {c: [0x01]}}"]),
        (pa.array([[[[[[1]]]]]]), ["[[[[[…]]]]]"]),
        (pa.array([b"\x00\xff"], pa.binary_view()), ["0x00ff"]),
        (pa.array(["x\ny\tz"], pa.string_view()), ["x↵y→z"]),
        (pa.array([b"0123456789abcdef"], pa.uuid()), [str(uuid.UUID(bytes=b"0123456789abcdef"))]),
        (pa.nulls(2), ["NULL", "NULL"]),
        (pa.array([float("nan"), float("inf")]), ["nan", "inf"]),
    ],
)
def test_every_type_has_a_text(column: pa.Array, texts: list[str] | None) -> None:
    found = [cell.text for cell in cells(column)]
    assert len(found) == len(column)
    assert texts is None or found == texts
    assert all(text for text in found)


def test_what_cannot_be_seen_is_shown() -> None:
    assert shown("a\u202e\u2066\u200b\ufeff\x00\x1b\x7f\u00a0b") == "a⟨U+202E⟩⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩␀␛␡ b"
    assert shown("\ud800x") == "⟨U+D800⟩x"
    assert shown("x" * 300) == "x" * 200 + "…"


def test_numbers_are_short() -> None:
    assert [short_count(n) for n in (None, 0, 9_999, 12_345, 999_999, 1_234_567, 10**15)] == [
        "\N{EN DASH}",
        "0",
        "9,999",
        "12.3k",
        "1.0M",
        "1.2M",
        "1000T",
    ]
    assert [bytes_text(n) for n in (0, 999, 1_000, 250_000, 3 * 10**9)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "250 KB",
        "3.0 GB",
    ]
    assert [duration(s) for s in (0.0015, 2.34, 75, 3_700, 300_000)] == [
        "2 ms",
        "2.3 s",
        "1 min 15 s",
        "1 h 01 min",
        "3 days",
    ]
    ages = [age(NOW - timedelta(seconds=s), NOW) for s in (-5, 59, 120, 7_200, 400_000)]
    assert ages == ["0 s ago", "59 s ago", "2 min ago", "2 h ago", "4 days ago"]


def test_a_chart_is_drawn_in_steps_up_to_now() -> None:
    points = [(NOW - timedelta(days=2), 1.0), (NOW - timedelta(days=1), 3.0)]
    drawn = chart(points, title="Rows <now>", text=short_count, until=NOW)
    assert "Rows &lt;now&gt;: 1 at first, 3 now" in drawn
    (line,) = re.findall(r'class="line" d="([^"]+)"', drawn)
    assert line.startswith("M72.0 ")
    assert line.endswith("H552.0")
    assert line.count("V") == 1


def test_charts_of_nothing_of_one_and_of_very_many_points() -> None:
    assert chart([], title="x", text=short_count) == ""
    assert sparkline([]) == ""
    assert "<path" in chart([(NOW, 0.0)], title="x", text=short_count, until=NOW)
    many = [(NOW + timedelta(seconds=number), float(number)) for number in range(100_000)]
    assert len(chart(many, title="x", text=short_count)) < 10_000
    assert "NaN" not in sparkline([(NOW, 0.0), (NOW, 0.0)])


def test_series_are_added_up_by_time() -> None:
    day = timedelta(days=1)
    one, other = [(NOW, 5.0), (NOW + 2 * day, 7.0)], [(NOW + day, 10.0), (NOW + 2 * day, 1.0)]
    assert total([one, other, []]) == [(NOW, 5.0), (NOW + day, 15.0), (NOW + 2 * day, 8.0)]


def test_no_secret_is_among_the_settings() -> None:
    settings = Settings(
        token=Secret("s3cret"),
        tokens=Secret("a=s3cret"),
        properties={"s3.secret-access-key": Secret("s3cret"), "spark.x": Secret("s3cret")},
        catalog_uri="postgresql://me:s3cret@db:5432/lake?password=s3cret&sslmode=require",
        spark="sc://host:15002/;token=s3cret;use_ssl=true",
        ledger_uri="postgresql://s3cret@db/x",
        token_file=Path("/etc/tokens"),
    )
    values = {item.name: item.value for item in shown_settings(settings)}
    assert "s3cret" not in str(values)
    assert values["catalog_uri"] == "postgresql://***@db:5432/lake?password=***&sslmode=***"
    assert values["properties"] == "s3.secret-access-key = ***, spark.x = ***"
    assert values["token_file"] == "/etc/tokens"
    assert values["token"] == "***"
    assert [item.name for item in shown_settings(Settings()) if not item.is_default] == []


def test_columns_have_the_types_that_duckdb_calls_them() -> None:
    types = {
        "a": pa.list_(pa.int32()),
        "b": pa.struct({"x": pa.string(), "y": pa.list_(pa.float64(), 3)}),
        "c": pa.map_(pa.string(), pa.decimal128(9, 2)),
        "d": pa.timestamp("us", "UTC"),
        "e": pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
        "f": pa.uuid(),
        "g": pa.null(),
    }
    table = ArrowTable("t", pa.schema(types).empty_table())
    assert {column.name: column.type for column in columns_of(table)} == {
        "a": "INTEGER[]",
        "b": "STRUCT(x VARCHAR, y DOUBLE[3])",
        "c": "MAP(VARCHAR, DECIMAL(9,2))",
        "d": "TIMESTAMP WITH TIME ZONE",
        "e": "HUGEINT",
        "f": "UUID",
        "g": "null",
    }
