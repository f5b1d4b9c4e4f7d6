"""A table that has another name just while Spark changes it, and its own again when we look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_each, by_key, names, people
from tests.support.lakehouse import Lake

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]


def insert(table: Handle) -> None:
    table.insert(people((9, "nine")))


def update(table: Handle) -> None:
    table.update([table.ids()[1]], names("one"))


def both(table: Handle) -> None:
    """In one commit."""
    tx = Tx(table.lake)
    table.update([table.ids()[1]], names("one"), tx.ctx)
    table.insert(people((9, "nine")), tx.ctx)
    tx.commit()


@pytest.mark.parametrize("change", [insert, update, both])
def test_a_change_goes_on_and_is_there_when_the_table_is_back(lake: Lake, change: Callable[[Handle], None]) -> None:
    """Spark does not know it by its name."""
    table = create(lake, f"t_{change.__name__}", FIVE)
    schema, tries = main_of(lake), list[str]()

    def away() -> None:
        tries.append(table.name)
        schema.rename_table(NOBODY, table.name, "elsewhere")

    def back() -> None:
        schema.rename_table(NOBODY, "elsewhere", table.name)

    with at_each("apply.before", away), at_each("apply.after", back):
        change(table)
    assert len(tries) == 1
    found = by_key(table.agreed())
    assert found.get(9) == (None if change is update else "nine")
    assert found[1] == ("n1" if change is insert else "one")
    assert len(found) == (5 if change is update else 6)
    assert [ref for ref in table.current.metadata.refs if ref != "main"] == []
