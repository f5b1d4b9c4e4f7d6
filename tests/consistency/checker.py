"""Finds out from a recorded history alone whether the engine kept its promises, in the spirit of Elle.

Two kinds of history are understood, because in both the order of a key's versions can be told from what was read:
lists, where a read shows all earlier appends, and registers with unique values, where each write follows a read of the
same key. From the orders come the dependencies between transactions, and from these the anomalies of Adya.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.consistency.cycles import CycleKind, Edge, find_cycles
from tests.consistency.history import Append, Key, Outcome, Read, Transaction, Write

from sparkport.catalog.transaction import Isolation

__all__ = ["Anomaly", "Kind", "check_bank", "check_lists", "check_registers", "violations"]


class Kind(Enum):
    ABORTED_READ = "G1a: a value of an aborted transaction was read"
    INTERMEDIATE_READ = "G1b: a value was read that its transaction had overwritten itself"
    DIRTY_WRITE = "G0: a cycle of writes"
    CIRCULAR_INFORMATION = "G1c: a cycle of writes and reads"
    READ_SKEW = "G-single: a cycle with one anti-dependency"
    NONADJACENT = "G-nonadjacent: a cycle whose anti-dependencies are all apart"
    WRITE_SKEW = "G2-item: a cycle of anti-dependencies"
    LOST_UPDATE = "lost update: a committed write has been overwritten by one who did not see it"
    FRACTURED_READ = "fractured read: a part of a transaction was seen, another part was not"
    UNREPEATABLE_READ = "the same key was read twice with different values"
    OWN_WRITE_MISSING = "a transaction did not see what it had written itself"
    DIVERGED = "two reads of one list, neither a beginning of the other"
    STALE_READ = "a commit that was acknowledged before the transaction began was not seen"
    FUTURE_READ = "a commit that was asked for after the transaction had begun was seen"
    WRONG_TOTAL = "the balances that one transaction saw do not add up"
    DOUBLED = "doubled: a value that was inserted once is there twice"
    LOST = "lost: a value that was inserted and that nobody removed is not there"
    RESURRECTED = "resurrected: a value that was removed is there again"
    INVENTED = "a value that nobody has inserted was read"
    UNRESOLVED = "nobody could find out whether a transaction was committed"


_CYCLES = {
    CycleKind.DIRTY_WRITE: Kind.DIRTY_WRITE,
    CycleKind.CIRCULAR_INFORMATION: Kind.CIRCULAR_INFORMATION,
    CycleKind.READ_SKEW: Kind.READ_SKEW,
    CycleKind.NONADJACENT: Kind.NONADJACENT,
    CycleKind.WRITE_SKEW: Kind.WRITE_SKEW,
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    transactions: tuple[int, ...]
    detail: str = ""

    def __str__(self) -> str:
        names = ", ".join(f"T{number}" for number in self.transactions)
        return f"{self.kind.value} ({names}) {self.detail}".rstrip()


def violations(anomalies: Iterable[Anomaly], isolation: Isolation) -> list[Anomaly]:
    """Those that the isolation does not allow: under snapshot, write skew is no violation."""
    allowed = {Kind.WRITE_SKEW} if isolation is Isolation.SNAPSHOT else set()
    return [anomaly for anomaly in anomalies if anomaly.kind not in allowed]


def check_lists(history: Sequence[Transaction]) -> list[Anomaly]:
    """For transactions of ``Read`` and ``Append``."""
    evidence = _Evidence(history)
    longest: dict[Key, tuple[Hashable, ...]] = {}
    for transaction in history:
        own: dict[Key, list[Hashable]] = {}
        for operation in transaction.operations:
            if isinstance(operation, Append):
                own.setdefault(operation.key, []).append(operation.element)
                evidence.wrote(transaction, operation.key, operation.element)
            elif isinstance(operation, Read):
                elements = tuple(operation.value or ())
                mine = tuple(own.get(operation.key, ()))
                if elements[len(elements) - len(mine) :] != mine:
                    evidence.report(Kind.OWN_WRITE_MISSING, transaction, f"{operation.key}: {elements}")
                    continue
                seen = elements[: len(elements) - len(mine)]
                known = longest.get(operation.key, ())
                lasting = seen if transaction.outcome is Outcome.ABORTED else elements
                shorter, longer = sorted((lasting, known), key=len)
                if longer[: len(shorter)] != shorter:
                    evidence.report(Kind.DIVERGED, transaction, f"{operation.key}: {lasting} and {known}")
                else:
                    longest[operation.key] = longer
                evidence.read(transaction, operation.key, seen[-1] if seen else None)
                for element in seen[:-1]:
                    evidence.check_aborted(transaction, operation.key, element)
    for key, order in longest.items():
        evidence.orders[key] = [None, *order]
    return evidence.judge()


def check_registers(history: Sequence[Transaction]) -> list[Anomaly]:
    """For transactions of ``Read`` and ``Write``."""
    return _registers(history).judge()


def check_bank(history: Sequence[Transaction], total: int, accounts: int) -> list[Anomaly]:
    """Registers whose values are pairs, the balance first; whoever saw all accounts saw ``total`` in them."""
    evidence = _registers(history)
    for transaction in history:
        balances: dict[Key, int] = {}
        for operation in transaction.operations:
            if isinstance(operation, Read):
                balances.setdefault(operation.key, operation.value[0])
        if len(balances) == accounts and sum(balances.values()) != total:
            evidence.report(Kind.WRONG_TOTAL, transaction, f"{sum(balances.values())} instead of {total}")
    return evidence.judge()


def _registers(history: Sequence[Transaction]) -> _Evidence:
    evidence = _Evidence(history)
    following: dict[tuple[Key, Hashable], list[Hashable]] = {}
    initial: dict[Key, Hashable] = {}
    written = {
        (item.key, item.value) for transaction in history for item in transaction.operations if isinstance(item, Write)
    }
    for transaction in history:
        seen: dict[Key, Any] = {}
        own: dict[Key, Any] = {}
        for operation in transaction.operations:
            if isinstance(operation, Write):
                own[operation.key] = operation.value
                evidence.wrote(transaction, operation.key, operation.value)
            elif isinstance(operation, Read) and operation.key in own:
                if operation.value != own[operation.key]:
                    evidence.report(Kind.OWN_WRITE_MISSING, transaction, f"{operation.key}: {operation.value}")
            elif isinstance(operation, Read):
                seen.setdefault(operation.key, operation.value)
                evidence.read(transaction, operation.key, operation.value)
                if (operation.key, operation.value) not in written:
                    initial[operation.key] = operation.value
        if transaction.outcome is not Outcome.ABORTED:
            for key, value in own.items():
                following.setdefault((key, seen.get(key)), []).append(value)
    for key, value in initial.items():
        order: list[Hashable] = [value]
        while (key, order[-1]) in following and len(order) <= len(written):
            order.append(following[(key, order[-1])][0])
        evidence.orders[key] = order
    return evidence


@dataclass(slots=True)
class _Evidence:
    """Who wrote what and who read what; ``orders`` has each key's versions, the initial one first."""

    history: Sequence[Transaction]
    orders: dict[Key, list[Hashable]] = field(default_factory=dict)
    _writers: dict[tuple[Key, Hashable], Transaction] = field(default_factory=dict)
    _written: dict[tuple[int, Key], Hashable] = field(default_factory=dict)
    _reads: dict[tuple[int, Key], Hashable] = field(default_factory=dict)
    _aborted_reads: list[tuple[Transaction, Key, Hashable]] = field(default_factory=list)
    _found: dict[Anomaly, None] = field(default_factory=dict)

    # Gathering

    def wrote(self, transaction: Transaction, key: Key, value: Hashable) -> None:
        self._writers[(key, value)] = transaction
        self._written[(transaction.id, key)] = value

    def read(self, transaction: Transaction, key: Key, value: Hashable) -> None:
        """What a transaction saw of others."""
        earlier = self._reads.setdefault((transaction.id, key), value)
        if earlier != value:
            self.report(Kind.UNREPEATABLE_READ, transaction, f"{key}: {earlier}, then {value}")
        self.check_aborted(transaction, key, value)

    def check_aborted(self, transaction: Transaction, key: Key, value: Hashable) -> None:
        self._aborted_reads.append((transaction, key, value))

    def report(self, kind: Kind, transaction: Transaction, detail: str, *others: Transaction) -> None:
        self._found[Anomaly(kind, (transaction.id, *(other.id for other in others)), detail)] = None

    # Judging

    def judge(self) -> list[Anomaly]:
        transactions = {transaction.id: transaction for transaction in self.history}
        positions = {key: {value: index for index, value in enumerate(order)} for key, order in self.orders.items()}
        reads: dict[int, dict[Key, int]] = {}
        for (number, key), value in self._reads.items():
            position = positions.get(key, {}).get(value)
            if position is not None:
                reads.setdefault(number, {})[key] = position
        for reader, key, value in self._aborted_reads:
            self._check_source(reader, key, value)
        self._check_lost(transactions)
        for number, seen in reads.items():
            self._check_view(transactions[number], seen, positions)
        counted = {item.id for item in self.history if item.outcome is not Outcome.ABORTED}
        edges = [edge for edge in self._edges(reads) if edge[0] in counted and edge[1] in counted]
        for kind, cycle in find_cycles(edges):
            self._found[Anomaly(_CYCLES[kind], cycle)] = None
        return list(self._found)

    def _check_source(self, reader: Transaction, key: Key, value: Hashable) -> None:
        writer = self._writers.get((key, value))
        if writer is None or writer.id == reader.id:
            return
        if writer.outcome is Outcome.ABORTED:
            self.report(Kind.ABORTED_READ, reader, f"{key}: {value}", writer)
        elif self._reads.get((reader.id, key)) == value and self._written[(writer.id, key)] != value:
            self.report(Kind.INTERMEDIATE_READ, reader, f"{key}: {value}", writer)

    def _check_lost(self, transactions: dict[int, Transaction]) -> None:
        """Two committed transactions that read the same version of a key and both wrote the key."""
        based_on: dict[tuple[Key, Hashable], list[Transaction]] = {}
        for number, key in self._written:
            if transactions[number].outcome is Outcome.OK and (number, key) in self._reads:
                based_on.setdefault((key, self._reads[(number, key)]), []).append(transactions[number])
        for (key, value), writers in based_on.items():
            if len(writers) > 1:
                self.report(Kind.LOST_UPDATE, writers[0], f"{key}: both read {value}", *writers[1:])

    def _check_view(self, reader: Transaction, seen: dict[Key, int], positions: dict[Key, dict[Hashable, int]]) -> None:
        """All that a transaction read must be of one moment, the one at which it began."""
        for (number, key), value in self._written.items():
            writer = self._writers[(key, value)]
            if number == reader.id or key not in seen or writer.outcome is Outcome.ABORTED:
                continue
            place = positions[key].get(value)
            if place is not None and place <= seen[key]:
                if 0 < reader.begun < writer.end_called:
                    self.report(Kind.FUTURE_READ, reader, f"{key}: {value}", writer)
                missed = [
                    other
                    for other, position in seen.items()
                    if (number, other) in self._written
                    and positions[other].get(self._written[(number, other)], -1) > position
                ]
                if missed:
                    self.report(Kind.FRACTURED_READ, reader, f"{key} seen, {missed[0]} not", writer)
            elif writer.outcome is Outcome.OK and 0 < writer.ended < reader.begin_called:
                kind = Kind.LOST_UPDATE if place is None else Kind.STALE_READ
                self.report(kind, reader, f"{key}: {value} was not there", writer)

    def _edges(self, reads: dict[int, dict[Key, int]]) -> Iterator[Edge]:
        for key, order in self.orders.items():
            writers = [self._writers.get((key, value)) for value in order]
            for before, after in itertools.pairwise(writers):
                if before is not None and after is not None and before.id != after.id:
                    yield before.id, after.id, "ww"
        for number, seen in reads.items():
            for key, position in seen.items():
                writer = self._writers.get((key, self.orders[key][position]))
                if writer is not None and writer.id != number:
                    yield writer.id, number, "wr"
                for value in self.orders[key][position + 1 : position + 2]:
                    overwriter = self._writers.get((key, value))
                    if overwriter is not None and overwriter.id != number:
                        yield number, overwriter.id, "rw"
