"""Judges histories of sets: tables of values of which each is inserted once, so that none can be taken for another.

What makes a value come or go happens at some moment between a call and its answer: a commit, or somebody rewriting the
whole table past the server. A read is of one moment, too, the one at which its transaction began. It is an anomaly
where no choice of moments explains what was read; where calls overlap, either is right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tests.consistency.checker import Anomaly, Kind
from tests.consistency.history import NO_CLIENT, Delete, Insert, Outcome, Read, Rewrite, Transaction

__all__ = ["check_sets"]

Place = tuple[str, int]
"""A table and a value."""


@dataclass(frozen=True, slots=True)
class _Event:
    """Something after which a value is there, or is not. It happened between two moments, if it happened."""

    by: int
    present: bool
    called: float
    answered: float
    rewrites: bool = False

    def may_precede(self, moment: float) -> bool:
        return self.called < moment

    def surely_between(self, earlier: _Event, moment: float) -> bool:
        return earlier.answered < self.called and self.answered < moment


@dataclass(frozen=True, slots=True)
class _View:
    """What a transaction saw of a table without its own changes."""

    reader: Transaction
    table: str
    values: frozenset[int]
    touched: frozenset[int]
    """Values that it had changed itself by then, of which the read says nothing about others."""


_BEGINNING = _Event(0, False, -math.inf, -math.inf)


def check_sets(history: Sequence[Transaction]) -> list[Anomaly]:
    """For transactions of ``Read``, ``Insert`` and ``Delete``, and ``Rewrite`` by others. Tables are empty at first."""
    judge = _Judge(history)
    for transaction in history:
        if transaction.outcome is Outcome.UNKNOWN and transaction.client != NO_CLIENT:
            judge.report(Kind.UNRESOLVED, "", transaction.id)
    views = [view for transaction in history for view in judge.views(transaction)]
    for view in views:
        judge.check_values(view)
        judge.check_whole(view)
    judge.check_order(views)
    return list(judge.found)


@dataclass(slots=True)
class _Judge:
    history: Sequence[Transaction]
    found: dict[Anomaly, None] = field(default_factory=dict)
    _events: dict[Place, list[_Event]] = field(default_factory=dict)
    _rewrites: dict[str, list[tuple[_Event, frozenset[int]]]] = field(default_factory=dict)
    _effects: dict[int, dict[Place, bool]] = field(default_factory=dict)
    _aborted: dict[Place, int] = field(default_factory=dict)
    _values: dict[str, set[int]] = field(default_factory=dict)
    _known: dict[Place, list[_Event]] = field(default_factory=dict)
    _parts: dict[tuple[int, int], dict[Place, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for transaction in self.history:
            for place, present in _net(transaction).items():
                self._values.setdefault(place[0], set()).add(place[1])
                if transaction.outcome is Outcome.ABORTED:
                    self._aborted.setdefault(place, transaction.id)
                else:
                    self._effects.setdefault(transaction.id, {})[place] = present
                    self._events.setdefault(place, []).append(_event(transaction, present=present))
            for operation in transaction.operations:
                if isinstance(operation, Rewrite) and transaction.outcome is not Outcome.ABORTED:
                    event = _event(transaction, present=False, rewrites=True)
                    self._rewrites.setdefault(operation.table, []).append((event, operation.content))

    def report(self, kind: Kind, detail: str, *transactions: int) -> None:
        self.found[Anomaly(kind, transactions, detail)] = None

    # What was read

    def views(self, transaction: Transaction) -> Iterator[_View]:
        own: dict[Place, bool] = {}
        first: dict[str, frozenset[int]] = {}
        for operation in transaction.operations:
            if isinstance(operation, Insert | Delete):
                own[operation.table, operation.value] = isinstance(operation, Insert)
            elif isinstance(operation, Read):
                table = str(operation.key)
                counts = Counter(operation.value)
                for value in sorted(value for value, count in counts.items() if count > 1):
                    self.report(Kind.DOUBLED, f"{table}: {value}", transaction.id)
                mine = {value: present for (name, value), present in own.items() if name == table}
                for value, present in mine.items():
                    if (value in counts) != present:
                        self.report(Kind.OWN_WRITE_MISSING, f"{table}: {value}", transaction.id)
                values = frozenset(counts)
                changed = (first.setdefault(table, values) ^ values) - frozenset(mine)
                if changed:
                    self.report(Kind.UNREPEATABLE_READ, f"{table}: {sorted(changed)}", transaction.id)
                yield _View(transaction, table, values, frozenset(mine))

    # One value

    def check_values(self, view: _View) -> None:
        for value in (self._values.get(view.table, set()) | view.values) - view.touched:
            present = value in view.values
            if not self._is_explained((view.table, value), view.reader, present=present):
                kind, others = self._kind((view.table, value), view.reader, present=present)
                self.report(kind, f"{view.table}: {value}", view.reader.id, *others)

    def _is_explained(self, place: Place, reader: Transaction, *, present: bool) -> bool:
        events = [_BEGINNING, *(event for event in self._all(place) if event.by != reader.id)]
        begun, called = reader.begun or math.inf, reader.begin_called
        contrary = [event for event in events if event.present != present]
        return any(
            event.present == present
            and event.may_precede(begun)
            and not any(other.surely_between(event, called) for other in contrary)
            for event in events
        )

    def _kind(self, place: Place, reader: Transaction, *, present: bool) -> tuple[Kind, list[int]]:
        events = self._all(place)
        coming, going = ([event for event in events if event.present is wanted] for wanted in (True, False))
        if not present:
            return Kind.LOST, [event.by for event in coming]
        if any(event.may_precede(reader.begun or math.inf) for event in coming):
            return Kind.RESURRECTED, [event.by for event in going]
        if coming:
            return Kind.FUTURE_READ, [event.by for event in coming]
        return (Kind.ABORTED_READ, [self._aborted[place]]) if place in self._aborted else (Kind.INVENTED, [])

    def _all(self, place: Place) -> list[_Event]:
        if place not in self._known:
            rewrites = [
                _Event(event.by, place[1] in content, event.called, event.answered, rewrites=True)
                for event, content in self._rewrites.get(place[0], [])
            ]
            self._known[place] = [*self._events.get(place, []), *rewrites]
        return self._known[place]

    # All that one transaction did

    def check_whole(self, view: _View) -> None:
        """Of a transaction that nobody else's changes have covered, all is seen or nothing."""
        for writer, effects in self._effects.items():
            if writer == view.reader.id or len(effects) < 2:
                continue
            seen = {
                place: (place[1] in view.values) == present
                for place, present in effects.items()
                if place[0] == view.table and place[1] not in view.touched and self._is_alone(place, writer, view)
            }
            whole = self._parts.setdefault((view.reader.id, writer), {})
            whole |= seen
            if len(set(whole.values())) > 1:
                parts = ", ".join(f"{place} {'seen' if here else 'not seen'}" for place, here in sorted(whole.items()))
                self.report(Kind.FRACTURED_READ, parts, view.reader.id, writer)

    def _is_alone(self, place: Place, writer: int, view: _View) -> bool:
        """Whether nobody else can have made the value come or go between this writer and the reader."""
        events = self._all(place)
        own = next(event for event in events if event.by == writer and not event.rewrites)
        begun = view.reader.begun or math.inf
        others = [event for event in events if event.by not in (writer, view.reader.id)]
        since = own.called
        if not own.present:  # what it deleted must have been there for sure, before it and for the reader
            before = min(own.called, view.reader.begin_called)
            earlier = [event for event in others if event.present and event.answered < before]
            if not earlier:
                return False
            others = [event for event in others if event not in earlier]
            since = max(event.called for event in earlier)  # another may have deleted it, too, and first
        return not any(event.may_precede(begun) and event.answered > since for event in others)

    # One read after another

    def check_order(self, views: Iterable[_View]) -> None:
        """Between two reads, of which one was over before the other began, nothing comes or goes by itself."""
        ordered = sorted((view for view in views if view.reader.begun), key=lambda view: view.table)
        for table, group in groupby(ordered, key=lambda view: view.table):
            reads = sorted(group, key=lambda view: view.reader.begun)
            for later in reads:
                before = [view for view in reads if view.reader.begun < later.reader.begin_called]
                if before:
                    self._check_pair(table, before[-1], later)

    def _check_pair(self, table: str, earlier: _View, later: _View) -> None:
        for value in (earlier.values ^ later.values) - earlier.touched - later.touched:
            present = value in later.values
            between = (
                event.present == present
                and event.called < later.reader.begun
                and event.answered > earlier.reader.begin_called
                for event in self._all((table, value))
                if event.by != later.reader.id
            )
            if not any(between):
                kind = Kind.RESURRECTED if present else Kind.LOST
                self.report(kind, f"{table}: {value}", later.reader.id, earlier.reader.id)


def _event(transaction: Transaction, *, present: bool, rewrites: bool = False) -> _Event:
    known = transaction.outcome is Outcome.OK and transaction.ended > 0
    return _Event(
        transaction.id, present, transaction.end_called, transaction.ended if known else math.inf, rewrites=rewrites
    )


def _net(transaction: Transaction) -> dict[Place, bool]:
    """Whether each value that it has changed is there afterwards; what it made and removed again never was."""
    found: dict[Place, bool] = {}
    inserted: set[Place] = set()
    for operation in transaction.operations:
        if isinstance(operation, Insert):
            inserted.add((operation.table, operation.value))
            found[operation.table, operation.value] = True
        elif isinstance(operation, Delete):
            found[operation.table, operation.value] = False
    return {place: present for place, present in found.items() if present or place not in inserted}
