"""A change of each kind to a table of five rows, for tests that meet it with something else."""

from __future__ import annotations

from collections.abc import Callable

from tests.lakehouse.handles import Handle
from tests.lakehouse.transacting import names, people

from sparkport.catalog import CallContext

__all__ = ["CHANGES", "Do", "START", "SingleChange", "delete_one", "insert_two", "update_one"]

START = {number: f"n{number}" for number in range(5)}

Do = Callable[[Handle, CallContext], int]
SingleChange = tuple[Do, int, dict[int, str]]
"""What does it, how many rows it changes, and all rows after it."""


def insert_two(table: Handle, ctx: CallContext) -> int:
    return table.insert(people((10, "ten"), (11, "eleven")), ctx).affected_rows


def update_one(table: Handle, ctx: CallContext) -> int:
    return table.update([table.ids()[0]], names("changed"), ctx).affected_rows


def delete_one(table: Handle, ctx: CallContext) -> int:
    return table.delete([table.ids()[0]], ctx).affected_rows


CHANGES: dict[str, SingleChange] = {
    "insert": (insert_two, 2, {**START, 10: "ten", 11: "eleven"}),
    "update": (update_one, 1, {**START, 0: "changed"}),
    "delete": (delete_one, 1, {key: name for key, name in START.items() if key}),
}
