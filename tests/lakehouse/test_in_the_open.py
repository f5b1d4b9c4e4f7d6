"""Where a catalog has no place for shadows, Spark writes in the open when others take the table's property away, or put
another table in its place, after we had looked: what we were asked for is there once or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.lakehouse.single_changes import CHANGES, START, SingleChange, insert_two, update_one
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.transaction import TransactionState
from sparkport.errors import Conflict, NotFound, Unavailable
from sparkport.lakehouse.tables import engine
from sparkport.lakehouse.write.wap_applier import WapApplier

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()

UNSET = "ALTER TABLE {t} UNSET TBLPROPERTIES ('write.wap.enabled')"
APPEND = "INSERT INTO {t} VALUES (50, 'foreign')"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One whose changes are applied as those of REST catalogs are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "ShadowApplier", WapApplier)
        with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
            yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"open{next(_numbers)}", FIVE)


def properties(table: Handle) -> dict[str, str]:
    return dict(table.current.metadata.properties)


# The property is taken away


@pytest.mark.parametrize("others", [(UNSET,), (APPEND, UNSET)], ids=["unset", "append and unset"])
def test_a_statement_is_there_once_though_the_property_went_away(
    table: Handle,
    change: SingleChange,
    others: tuple[str, ...],
) -> None:
    do, rows, expected = change
    with at_point("apply.before", lambda: table.sql(*others)):
        assert do(table, NOBODY) == rows
    foreign = {50: "foreign"} if APPEND in others else {}
    assert by_key(table.agreed()) == {**expected, **foreign}
    assert properties(table)["write.wap.enabled"] == "true"


def test_a_statement_that_spark_does_not_answer_is_there_once(table: Handle) -> None:
    """Spark has written it in the open, and then its answer is lost."""

    def lost() -> None:
        raise Unavailable("Spark gives no answer")

    with at_point("apply.before", lambda: table.sql(UNSET)), at_point("apply.after", lost):
        assert insert_two(table, NOBODY) == 2
    assert by_key(table.agreed()) == CHANGES["insert"][2]


def test_a_statement_that_others_have_built_upon_is_there_once(table: Handle) -> None:
    with at_point("apply.before", lambda: table.sql(UNSET)), at_point("apply.after", lambda: table.sql(APPEND)):
        assert insert_two(table, NOBODY) == 2
    assert by_key(table.agreed()) == {**CHANGES["insert"][2], 50: "foreign"}


@pytest.mark.parametrize("tables", [1, 2])
def test_a_transaction_is_there_once_though_the_property_went_away(lake: Lake, tables: int) -> None:
    handles = [create(lake, f"open{next(_numbers)}", FIVE) for _ in range(tables)]
    tx = Tx(lake)
    for handle in handles:
        insert_two(handle, tx.ctx)
        update_one(handle, tx.ctx)
    with at_point("apply.before", lambda: handles[0].sql(UNSET)):
        tx.commit()
    for handle in handles:
        assert by_key(handle.agreed()) == {**START, 0: "changed", 10: "ten", 11: "eleven"}
        assert set(handle.current.metadata.refs) == {"main"}


def test_a_transaction_that_fails_leaves_nothing_in_the_open(lake: Lake, table: Handle) -> None:
    """One table is written in the open, and the other makes the commit fail."""
    other = create(lake, f"open{next(_numbers)}", FIVE)
    tx = Tx(lake)
    for handle in (table, other):
        update_one(handle, tx.ctx)

    def meddle() -> None:
        table.sql(UNSET)
        other.sql("UPDATE {t} SET name = 'theirs' WHERE id = 0")

    with at_point("apply.before", meddle), pytest.raises(Conflict):
        tx.commit()
    assert tx.status is TransactionState.ABORTED
    assert by_key(table.agreed()) == START
    assert by_key(other.agreed()) == {**START, 0: "theirs"}


def test_the_first_rows_of_a_table_are_taken_back_too(lake: Lake) -> None:
    table = create(lake, f"open{next(_numbers)}", FIVE.slice(0, 0))
    tx = Tx(lake)
    insert_two(table, tx.ctx)
    with at_point("apply.before", lambda: table.sql(UNSET)):
        tx.commit()
    assert by_key(table.agreed()) == {10: "ten", 11: "eleven"}


# Another table is in its place


def test_another_table_under_the_same_name_gets_no_rows(table: Handle, change: SingleChange) -> None:
    do, _, _ = change

    def replace() -> None:
        table.sql("DROP TABLE {t}", "CREATE TABLE {t} (id BIGINT, name STRING) TBLPROPERTIES ('format-version' = '3')")
        table.sql("INSERT INTO {t} VALUES (0, 'another')")

    with at_point("apply.before", replace), pytest.raises((Conflict, NotFound)):
        do(table, NOBODY)
    assert by_key(table.agreed()) == {0: "another"}


def test_another_table_under_the_same_name_gets_no_rows_of_a_transaction(lake: Lake, table: Handle) -> None:
    tx = Tx(lake)
    insert_two(table, tx.ctx)

    def replace() -> None:
        table.sql("DROP TABLE {t}", "CREATE TABLE {t} (id BIGINT, name STRING) TBLPROPERTIES ('format-version' = '3')")

    with at_point("apply.before", replace), pytest.raises((Conflict, NotFound)):
        tx.commit()
    assert by_key(table.sparkport()) == {}


# Others expire what nothing leads to yet


def _expire(table: Handle) -> None:
    table.sql(
        f"CALL `{table.lake.catalog}`.system.expire_snapshots(table => 'public.{table.name}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )


def test_a_statement_whose_snapshot_others_have_expired_is_made_again(table: Handle, change: SingleChange) -> None:
    do, rows, expected = change
    with at_point("apply.after", lambda: _expire(table)):
        assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == expected


def test_a_transaction_whose_snapshot_others_have_expired_is_made_again(lake: Lake, table: Handle) -> None:
    tx = Tx(lake)
    update_one(table, tx.ctx)
    with at_point("apply.after", lambda: _expire(table)):
        tx.commit()
    assert by_key(table.agreed()) == CHANGES["update"][2]


# Others publish what is aside


def _publish(table: Handle) -> None:
    """As a foreign job does that publishes all that waits for it."""
    metadata = table.current.metadata
    waiting = [snapshot for snapshot in metadata.snapshots if snapshot.parent_id == metadata.main_snapshot_id]
    for snapshot in waiting:
        table.sql(
            f"CALL `{table.lake.catalog}`.system.publish_changes(table => 'public.{table.name}', "
            f"wap_id => '{snapshot.summary['wap.id']}')"
        )
    assert waiting


def test_a_statement_that_others_publish_is_there_once(table: Handle, change: SingleChange) -> None:
    do, rows, expected = change
    with at_point("apply.after", lambda: _publish(table)):
        assert do(table, NOBODY) == rows
    assert by_key(table.agreed()) == expected


@pytest.mark.parametrize("name", ["insert", "update", "delete"])
def test_a_transaction_that_others_publish_is_there_once(lake: Lake, table: Handle, name: str) -> None:
    do, _, expected = CHANGES[name]
    tx = Tx(lake)
    do(table, tx.ctx)
    with at_point("publish.before", lambda: _publish(table)):
        tx.commit()
    assert by_key(table.agreed()) == expected
