"""Ways in which a journalled table comes to a state that Spark cannot apply its changes to, each with its mending."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import FIVE, names, people
from tests.support.lakehouse import Lake

from sparkport.lakehouse.catalogs.pointers import Edit

__all__ = ["POISONS", "Poison", "Poisoned", "lost_file"]


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A table that cannot be flushed, with changes that wait; ``rows`` are those that were acknowledged, by key."""

    table: Handle
    rows: dict[int, str | None]
    mend: Callable[[], None]


Poison = Callable[[Lake, str], Poisoned]


def lost_file(lake: Lake, name: str) -> Poisoned:
    """A data file is gone, of whose rows one was changed."""
    table = _published(lake, name)
    table.update([table.ids()[0]], names("changed"))
    table.insert(people((9, "new")))
    folder = Path(table.current.metadata.location.removeprefix("file:"))
    mends = [_taken(path) for path in folder.glob("data/**/*.parquet")]
    assert mends

    def mend() -> None:
        for one in mends:
            one()

    return Poisoned(table, {**_FIVE, 0: "changed", 9: "new"}, mend)


def lost_metadata(lake: Lake, name: str) -> Poisoned:
    """The metadata file is gone."""
    table = _published(lake, name)
    table.insert(people((9, "new")))
    mend = _taken(Path(table.current.location.removeprefix("file:")))
    return Poisoned(table, {**_FIVE, 9: "new"}, mend)


def broken_promise(lake: Lake, name: str) -> Poisoned:
    """A row without a name waits, and others have said since that every row has one: Spark's MERGE refuses it."""
    table = _published(lake, name)
    table.update([table.ids()[0]], names(None))
    _require_name(table, required=True)
    return Poisoned(table, {**_FIVE, 0: None}, lambda: _require_name(table, required=False))


POISONS: dict[str, Poison] = {
    "lost data file": lost_file,
    "lost metadata": lost_metadata,
    "NOT NULL is broken": broken_promise,
}

_FIVE: dict[int, str | None] = {number: f"n{number}" for number in range(5)}


def _published(lake: Lake, name: str) -> Handle:
    table = create(lake, name, FIVE)
    lake.opened.engine.flush_of([table.current.table], 60)
    return table


def _taken(path: Path) -> Callable[[], None]:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)

    def mend() -> None:
        aside.rename(path)

    return mend


def _require_name(table: Handle, *, required: bool) -> None:
    """As a writer does that knows nothing of us, and goes past Spark's own checks."""
    current = table.current
    after = copy.deepcopy(dict(current.json))
    for schema in after["schemas"]:
        for column in schema["fields"]:
            if column["name"] == "name":
                column["required"] = required
    table.lake.pointers.commit([Edit(current.table, current.json, after, current.location)])
