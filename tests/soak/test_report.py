"""The picture of a soak, its verdict about memory, and the numbers that go into both."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.soak.latencies import Latencies, quantile
from tests.soak.report import Sample, growth, lives, memory_problem, picture, quarters, table
from tests.soak.sampler import process_figures, table_files

pytestmark = pytest.mark.tier("fast")

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def samples(*memory: float, what: str = "one memory") -> list[Sample]:
    return [Sample(5.0 * number, ((what, value),)) for number, value in enumerate(memory)]


def test_quarters_are_medians() -> None:
    assert quarters(samples(1, 1, 2, 2, 3, 3, 4, 40), "one memory") == [1, 2, 3, 22]


def test_too_few_samples_say_nothing() -> None:
    assert quarters(samples(1, 2, 3, 4), "one memory") == []
    assert growth(samples(1, 2, 3, 4), "one memory") is None
    assert memory_problem(samples(1, 2, 3, 400)) == ""


def test_memory_that_a_server_takes_at_its_start_is_no_growth() -> None:
    assert memory_problem(samples(100, 150, 300, 300, 310, 305, 350, 355)) == ""


def test_memory_that_goes_on_growing_is_a_problem() -> None:
    assert "grew by 33%" in memory_problem(samples(100, 150, 300, 300, 350, 350, 400, 400))


def test_only_the_server_that_is_never_killed_is_judged() -> None:
    assert memory_problem(samples(1, 1, 1, 1, 9, 9, 9, 9, what="two memory")) == ""


def test_the_picture_is_one_svg_with_a_chart_for_each_number_that_was_seen() -> None:
    some = [Sample(5.0 * number, (("one memory", 200.0), ("ddl median", 0.5))) for number in range(20)]
    root = ET.fromstring(picture(some, BEGUN))
    inner = root.findall("{http://www.w3.org/2000/svg}svg")
    titles = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert titles == ["Memory of the server that is never killed", "DDL, median"]
    assert [chart.get("x") for chart in inner] == ["0", "584"]
    assert all(chart.get("width") == "560" and chart.get("height") == "150" for chart in inner)


def test_moments_without_a_number_are_passed_over() -> None:
    some = [*samples(1, 1, 1, 1, 1, 1, 1, 1), Sample(99.0, ())]
    assert quarters(some, "one memory") == [1, 1, 1, 1]
    assert "Memory of the server that is never killed" in picture(some, BEGUN)


def test_the_table_has_a_line_for_each_number() -> None:
    head, line, memory = table(samples(*[200.0] * 8))
    assert head.split()[-4:] == ["first", "second", "third", "last"]
    assert line.split()[-8:] == ["200", "MB"] * 4
    assert memory == "memory of the server that is never killed, second quarter to last: +0%"
    assert table(samples(200.0))[-1] == "too few samples to judge memory"


def test_each_process_of_a_server_that_is_killed_counts_for_itself() -> None:
    seen = [(7, 100.0), (7, 120.0), (8, 90.0), (8, 80.0)]
    some = [Sample(5.0, (("two process", process), ("two memory", memory))) for process, memory in seen]
    assert lives([*some, Sample(9.0, ())], "two") == [120.0, 90.0]
    assert table(some)[-1] == "lives of the server that is killed: 2, of at most 120 MB"


def test_latencies_are_of_the_interval_and_only_of_what_was_answered() -> None:
    latencies = Latencies()
    with latencies.timed("json"):
        pass
    with pytest.raises(ValueError, match="lost"), latencies.timed("json"):
        raise ValueError("lost")
    assert [len(values) for values in latencies.taken().values()] == [1]
    assert latencies.taken() == {}
    assert latencies.counts["json statements"] == 1


def test_quantiles() -> None:
    values = list(range(1, 101))
    assert (quantile(values, 0.5), quantile(values, 0.95), quantile([7], 0.95)) == (51, 96, 7)


def test_a_process_is_looked_at_while_it_lives() -> None:
    figures = dict(process_figures(os.getpid()))
    assert figures["memory"] > 1
    assert figures["threads"] >= 1
    assert figures["descriptors"] > 2
    assert process_figures(2**30) == []


def test_files_are_counted_by_kind_for_tables_that_stay(tmp_path: Path) -> None:
    for name in ("soak_json-1/data/a.parquet", "soak_json-1/metadata/a.avro", "soak_ddl_1-1/data/b.parquet"):
        path = tmp_path / "public" / name
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / ".staging" / "server").mkdir(parents=True)
    (tmp_path / ".staging" / "server" / "rows").touch()
    counted = dict(table_files(tmp_path))
    assert counted == {"data": 1, "delete": 0, "manifest": 1, "metadata": 0, "staged": 1}
