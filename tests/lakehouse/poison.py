"""Journalled tables with changes that wait and cannot be applied, for one reason or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.poison import Mend, lose_data, lose_metadata, require_column
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import FIVE, names, people
from tests.support.lakehouse import Lake

__all__ = ["POISONS", "Poison", "Poisoned", "lost_file"]

_FIVE: dict[int, str | None] = {number: f"n{number}" for number in range(5)}


@dataclass(frozen=True, slots=True)
class Poisoned:
    """``rows`` are those that were acknowledged, by key."""

    table: Handle
    rows: dict[int, str | None]
    mend: Mend


Poison = Callable[[Lake, str], Poisoned]


def lost_file(lake: Lake, name: str) -> Poisoned:
    """A data file is gone, of whose rows one was changed."""
    table = _published(lake, name)
    table.update([table.ids()[0]], names("changed"))
    table.insert(people((9, "new")))
    mend = lose_data(lake.pointers, table.current.table)
    return Poisoned(table, {**_FIVE, 0: "changed", 9: "new"}, mend)


def lost_metadata(lake: Lake, name: str) -> Poisoned:
    table = _published(lake, name)
    table.insert(people((9, "new")))
    return Poisoned(table, {**_FIVE, 9: "new"}, lose_metadata(lake.pointers, table.current.table))


def broken_promise(lake: Lake, name: str) -> Poisoned:
    """A row without a name waits, and others have said since that every row has one: Spark's MERGE refuses it."""
    table = _published(lake, name)
    table.update([table.ids()[0]], names(None))
    return Poisoned(table, {**_FIVE, 0: None}, require_column(lake.pointers, table.current.table, "name"))


POISONS: dict[str, Poison] = {
    "lost data file": lost_file,
    "lost metadata": lost_metadata,
    "NOT NULL is broken": broken_promise,
}


def _published(lake: Lake, name: str) -> Handle:
    table = create(lake, name, FIVE)
    lake.opened.engine.flush_of([table.current.table], 60)
    return table
