"""What a soak makes of its samples: one picture, and whether memory stayed flat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from sparkport.console.charts import chart

__all__ = ["CHARTS", "Sample", "growth", "lives", "memory_problem", "picture", "quarters", "table"]

MOST_GROWTH = 1.2
"""Of the memory of a server that was never killed, from the second quarter of a run to its last."""

_FEWEST = 8
_WIDTH, _HEIGHT, _GAP, _HEAD = 560, 150, 24, 26

_STYLE = (
    "svg{font-family:system-ui,sans-serif}.background{fill:#fff}.title{font-size:13px;font-weight:600;fill:#1f2933}"
    ".chart text{fill:#5f6c7b;font-size:11px}.grid{stroke:#d9dfe5;stroke-width:1}.area{fill:#2563eb1a}"
    ".line{fill:none;stroke:#2563eb;stroke-width:1.6;stroke-linejoin:round}.dot{fill:#2563eb}"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen so many seconds after the begin. Of what was not there for a moment there is no value."""

    seconds: float
    values: tuple[tuple[str, float], ...]

    def get(self, what: str) -> float | None:
        return next((value for name, value in self.values if name == what), None)


def _megabytes(value: float) -> str:
    return f"{value:.0f} MB"


def _number(value: float) -> str:
    return f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


CHARTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "one memory": ("Memory of the server that is never killed", _megabytes),
    "two memory": ("Memory of the server that is killed", _megabytes),
    "one threads": ("Threads of the first", _number),
    "one descriptors": ("Open files of the first", _number),
    "spark memory": ("Memory of Spark", _megabytes),
    "journal lag": ("Lag of the journal", _seconds),
    "files data": ("Data files of the clients' tables", _number),
    "files metadata": ("Metadata files of the clients' tables", _number),
    "python median": ("Python client, median", _seconds),
    "python p95": ("Python client, 95th percentile", _seconds),
    "json median": ("JSON client, median", _seconds),
    "json p95": ("JSON client, 95th percentile", _seconds),
    "duckdb median": ("DuckDB-like client, median", _seconds),
    "duckdb p95": ("DuckDB-like client, 95th percentile", _seconds),
    "ddl median": ("DDL, median", _seconds),
    "spark client median": ("Plain Spark, median", _seconds),
}


def picture(samples: Sequence[Sample], begun: datetime) -> str:
    """All charts in one SVG, two beside each other."""
    drawn = []
    for what, (title, text) in CHARTS.items():
        points = [(begun + timedelta(seconds=seconds), value) for seconds, value in _course(samples, what)]
        if points:
            until = begun + timedelta(seconds=samples[-1].seconds)
            drawn.append((title, chart(points, title=title, text=text, until=until)))
    parts = []
    for number, (title, drawing) in enumerate(drawn):
        left = number % 2 * (_WIDTH + _GAP)
        top = number // 2 * (_HEIGHT + _HEAD + _GAP)
        parts.append(Markup('<text class="title" x="{}" y="{}">{}</text>').format(left + 8, top + 18, title))
        place = Markup('<svg x="{}" y="{}" width="{}" height="{}" ').format(left, top + _HEAD, _WIDTH, _HEIGHT)
        parts.append(drawing.replace(Markup("<svg "), place, 1))
    width, height = 2 * _WIDTH + _GAP, (len(drawn) + 1) // 2 * (_HEIGHT + _HEAD + _GAP)
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}"><style>{2}</style>'
        '<rect class="background" width="{0}" height="{1}"/>'
    ).format(width, height, Markup(_STYLE))
    return str(Markup("\n").join([head, *parts, Markup("</svg>")]))


def quarters(samples: Sequence[Sample], what: str) -> list[float]:
    """The median of each quarter; nothing where there is too little to say something."""
    values = [value for _, value in _course(samples, what)]
    if len(values) < _FEWEST:
        return []
    bounds = [len(values) * quarter // 4 for quarter in range(5)]
    return [median(values[begin:end]) for begin, end in pairwise(bounds)]


def growth(samples: Sequence[Sample], what: str) -> float | None:
    """From the second quarter to the last: in the first a server still fills its caches."""
    found = quarters(samples, what)
    return found[3] / found[1] if found and found[1] else None


def memory_problem(samples: Sequence[Sample]) -> str:
    """Empty where memory stayed flat, or there is too little to say something."""
    grown = growth(samples, "one memory")
    if grown is None or grown <= MOST_GROWTH:
        return ""
    return f"the memory of the server that was not killed grew by {grown - 1:.0%} after the first quarter"


def lives(samples: Sequence[Sample], server: str) -> list[float]:
    """The highest memory of each process that the server has been; one that nobody saw in time is not among them."""
    highest: dict[float, float] = {}
    for sample in samples:
        process, memory = sample.get(f"{server} process"), sample.get(f"{server} memory")
        if process is not None and memory is not None:
            highest[process] = max(memory, highest.get(process, 0.0))
    return list(highest.values())


def table(samples: Sequence[Sample]) -> list[str]:
    """A line for each number: the median of each quarter."""
    lines = [f"{'median of each quarter':45}{'first':>10}{'second':>10}{'third':>10}{'last':>10}"]
    for what, (title, text) in CHARTS.items():
        found = quarters(samples, what)
        if found:
            lines.append(f"{title:45}" + "".join(f"{text(value):>10}" for value in found))
    grown = growth(samples, "one memory")
    lines.append(
        "too few samples to judge memory"
        if grown is None
        else f"memory of the server that is never killed, second quarter to last: {grown - 1:+.0%}"
    )
    lived = lives(samples, "two")
    if lived:
        lines.append(f"lives of the server that is killed: {len(lived)}, of at most {_megabytes(max(lived))}")
    return lines


def _course(samples: Sequence[Sample], what: str) -> list[tuple[float, float]]:
    found = ((sample.seconds, sample.get(what)) for sample in samples)
    return [(seconds, value) for seconds, value in found if value is not None]
