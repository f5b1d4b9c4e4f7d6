"""A table that has another name just while Spark changes it, and its own again when we look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, by_key, names, people
from tests.support.lakehouse import Lake

from sparkport.lakehouse.write.appends import PreparedAppend
from sparkport.lakehouse.write.change_set import TablePlan
from sparkport.lakehouse.write.shadow_applier import Shadow, ShadowApplier

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
def test_a_change_goes_on_and_is_there_when_the_table_is_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: Callable[[Handle], None]
) -> None:
    """Spark does not know it by its name."""
    table = create(lake, f"t_{change.__name__}", FIVE)
    schema, spark, tries = main_of(lake), ShadowApplier._apply, list[str]()

    def run(applier: ShadowApplier, plan: TablePlan, name: str, append: PreparedAppend | None) -> Shadow | None:
        tries.append(name)
        schema.rename_table(NOBODY, table.name, "elsewhere")
        try:
            return spark(applier, plan, name, append)
        finally:
            schema.rename_table(NOBODY, "elsewhere", table.name)

    monkeypatch.setattr(ShadowApplier, "_apply", run)
    change(table)
    assert len(tries) == 1
    found = by_key(table.agreed())
    assert found.get(9) == (None if change is update else "nine")
    assert found[1] == ("n1" if change is insert else "one")
    assert len(found) == (5 if change is update else 6)
    assert [ref for ref in table.current.metadata.refs if ref != "main"] == []
