"""Metrics for Prometheus, one registry for a server: counted as calls end, and asked of the parts when it scrapes.

Labels have few values. Names that a client sends are none of them: an action that does not exist is ``other``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.figures import Distribution, Figure

__all__ = ["Metrics", "STEPS", "Source"]

logger = logging.getLogger(__name__)

Source = Callable[[], Iterable[tuple[Mapping[str, str], Figure]]]
"""Gives figures, each with labels that say whose they are."""

STEPS: Final = frozenset(
    {"plan", "read", "stage", "commit", "spark", "match", "wait", "flush", "journal", "apply", "publish"}
)
_CHANGES: Final = frozenset({"insert", "update", "delete"})
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_PREFIX: Final = "sparkport_"
_REFUSALS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
_MOVED: Final = {
    "rows_in": "Rows that clients sent",
    "rows_out": "Rows that were sent to clients",
    "bytes_in": "Bytes that clients sent",
    "bytes_out": "Bytes that were sent to clients",
}

K = TypeVar("K", bound=Hashable)


class Metrics:
    """Told of every call that ends. ``registry`` is what is scraped.

    It counts in plain numbers, under one lock, and makes metrics of them when somebody scrapes: each of the library's
    own counters would cost a call as much as all of these together.
    """

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str, str], int] = {}
        self._seconds: dict[tuple[str, str], Distribution] = {}
        self._moved: dict[str, list[int]] = {}
        self._steps: dict[str, Distribution] = {}
        self._statements: dict[tuple[str, str], int] = {}
        self._changed: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._conflicts = self._slow = 0
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Asked((self._figures, *sources)))

    def ended(self, record: CallRecord) -> None:
        rpc, code = record.rpc, record.code
        action = record.action or ("other" if rpc == "DoAction" else "")
        with self._lock:
            _count(self._calls, (rpc, action, code))
            times = self._seconds.get((rpc, action))
            if times is None:
                times = self._seconds[rpc, action] = Distribution(_SECONDS)
            times.add(record.elapsed())
            moved = self._moved.get(rpc)
            if moved is None:
                moved = self._moved[rpc] = [0] * len(_MOVED)
            moved[0] += record.rows_in
            moved[1] += record.rows_out
            moved[2] += record.bytes_in
            moved[3] += record.bytes_out
            for part in record.steps:
                name = part.name if part.name in STEPS else "other"
                times = self._steps.get(name)
                if times is None:
                    times = self._steps[name] = Distribution(_SECONDS)
                times.add(part.seconds)
            if record.operation in _CHANGES:
                _count(self._statements, (record.operation, code))
                _count(self._changed, record.operation, record.changed_rows or 0)
            if code != "OK":
                self._conflicts += code == "ABORTED"
                if code in _REFUSALS:
                    _count(self._refused, code)

    def slow(self) -> None:
        with self._lock:
            self._slow += 1

    def _figures(self) -> Iterable[tuple[Mapping[str, str], Figure]]:
        with self._lock:
            calls, seconds, steps = dict(self._calls), dict(self._seconds), dict(self._steps)
            moved = {rpc: tuple(numbers) for rpc, numbers in self._moved.items()}
            statements, changed, refused = dict(self._statements), dict(self._changed), dict(self._refused)
            conflicts, slow = self._conflicts, self._slow
        for (rpc, action, code), number in calls.items():
            labels = {"rpc": rpc, "action": action, "code": code}
            yield labels, Figure("calls", "Calls that have ended", number, total=True)
        for (rpc, action), times in seconds.items():
            yield {"rpc": rpc, "action": action}, Figure("call_seconds", "How long calls took", times)
        for name, times in steps.items():
            yield {"step": name}, Figure("step_seconds", "How long the steps of calls took", times)
        for place, (name, text) in enumerate(_MOVED.items()):
            for rpc, numbers in moved.items():
                yield {"rpc": rpc}, Figure(name, text, numbers[place], total=True)
        for (operation, code), number in statements.items():
            labels = {"operation": operation, "code": code}
            yield labels, Figure("statements", "Row changes that have ended", number, total=True)
        for operation, number in changed.items():
            yield {"operation": operation}, Figure("changed_rows", "Rows that were changed", number, total=True)
        for code, number in refused.items():
            yield {"code": code}, Figure("refused", "Calls that were refused, by the reason", number, total=True)
        yield {}, Figure("conflicts", "Statements and commits that another was quicker than", conflicts, total=True)
        yield {}, Figure("slow_calls", "Calls that took slow_seconds or more", slow, total=True)


def _count(counts: dict[K, int], key: K, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number


class _Asked(Collector):
    """Asks the sources when somebody scrapes. One that fails leaves its metrics out, and no others."""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        families: dict[str, _Family] = {}
        for source in self._sources:
            try:
                for more, figure in source():
                    self._add(families, {**more, **figure.labels}, figure)
            except Exception:
                logger.exception("some metrics cannot be had")
        return [family.metric for family in families.values()]

    def _add(self, families: dict[str, _Family], labels: Mapping[str, str], figure: Figure) -> None:
        """A figure that does not fit, by name, labels or kind, is left out: a user's catalog has made it."""
        try:
            family = families.get(figure.name)
            if family is None:
                family = families[figure.name] = _Family(figure, labels)
            family.add(labels, figure)
        except ValueError as exc:
            logger.warning("the figure '%s' cannot be told: %s", figure.name[:100], exc)

    def describe(self) -> Iterable[Metric]:
        return ()


class _Family:
    """All figures of a name."""

    def __init__(self, figure: Figure, labels: Mapping[str, str]) -> None:
        self._labels = tuple(labels)
        self._kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = (
            HistogramMetricFamily
            if isinstance(figure.value, Distribution)
            else CounterMetricFamily
            if figure.total
            else GaugeMetricFamily
        )
        self.metric: Metric = self._kind(_PREFIX + figure.name, figure.help, labels=self._labels)

    def add(self, labels: Mapping[str, str], figure: Figure) -> None:
        if labels.keys() != set(self._labels):
            raise ValueError(f"it has the labels {sorted(labels)}, and others of its name have {sorted(self._labels)}")
        values = [labels[name] for name in self._labels]
        if isinstance(figure.value, Distribution) and isinstance(self.metric, HistogramMetricFamily):
            buckets, total = figure.value.buckets()
            self.metric.add_metric(values, buckets, total)
        elif isinstance(self.metric, CounterMetricFamily | GaugeMetricFamily) and not isinstance(
            figure.value, Distribution
        ):
            self.metric.add_metric(values, figure.value)
        else:
            raise ValueError("others of its name are of another kind")
