"""Column statistics on their way to DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkport.catalog.table import ColumnStatistics
from sparkport.protocol.statistics import encode_statistics

pytestmark = pytest.mark.tier("fast")


def decoded(kind: pa.DataType, statistics: ColumnStatistics | None) -> dict[str, object]:
    with pa.ipc.open_stream(encode_statistics(kind, statistics)) as stream:
        (row,) = stream.read_all().to_pylist()
    return dict(row)


def test_an_answer_that_is_kept_is_the_one_for_its_type_and_bounds() -> None:
    asked = [(pa.int64(), 1, 5), (pa.int64(), 1, 6), (pa.float64(), 1, 5), (pa.int64(), 1, 5)]
    answers = [decoded(kind, ColumnStatistics(minimum=low, maximum=high)) for kind, low, high in asked]
    assert [(row["min"], row["max"]) for row in answers] == [(1, 5), (1, 6), (1.0, 5.0), (1, 5)]
    assert type(answers[2]["min"]) is float


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_bounds_that_cannot_be_looked_up_by_are_told_all_the_same(kind: pa.DataType) -> None:
    found = decoded(kind, ColumnStatistics(minimum=[1, 2], maximum=[3, 4], has_null=False))
    assert (found["min"], found["max"], found["has_null"]) == ([1, 2], [3, 4], False)


def test_nothing_known_is_told_as_nothing() -> None:
    assert decoded(pa.int64(), None)["min"] is None
    assert decoded(pa.string(), None)["min"] == ""
