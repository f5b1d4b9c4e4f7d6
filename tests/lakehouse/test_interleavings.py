"""What others do in the middle of a commit: each pair of changes, at each named point, with the outcome written down.

A quick run takes every pair at one point, so that each of the others' changes meets every point. With
``SPARKPORT_CONSISTENCY_SCALE`` above 1 it is every pair at every point, by every writer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import count, product

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names, people, wait_until
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.ddl import AddColumn, TableDefinition
from sparkport.catalog.transaction import TransactionState
from sparkport.errors import Conflict, InternalError, NotFound, SparkportError, TransactionNotActive, Unavailable
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.names import TableName

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_SCALE = int(os.environ.get("SPARKPORT_CONSISTENCY_SCALE", "1"))
_numbers = count()

Contents = dict[int, str | None]

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED

START: Contents = {key: f"n{key}" for key in range(5)}


class Outcome(Enum):
    """How a commit ends when somebody else was at the table meanwhile. All but the first leave nothing of it."""

    BOTH = "both changes are there"
    CONFLICT = "1 row changed by another transaction"
    ALTERED = "has been altered"
    DROPPED = "has been dropped"

    @property
    def error(self) -> type[SparkportError]:
        """To run the transaction again is of no use where the table is gone."""
        return NotFound if self is Outcome.DROPPED else Conflict


@dataclass(frozen=True)
class Own:
    """What the transaction does."""

    change: Callable[[Handle, Tx], object]
    after: Callable[[Contents], Contents]
    is_branch: bool = False


def _append(table: Handle, tx: Tx) -> None:
    table.insert(people((10, "own")), tx.ctx)


def _update(table: Handle, tx: Tx) -> None:
    table.update([table.ids()[0]], names("own"), tx.ctx)


def _delete(table: Handle, tx: Tx) -> None:
    table.delete([table.ids()[0]], tx.ctx)


def _append_and_update(table: Handle, tx: Tx) -> None:
    _append(table, tx)
    _update(table, tx)


OWN = {
    "append": Own(_append, lambda rows: {**rows, 10: "own"}),
    "update": Own(_update, lambda rows: {**rows, 0: "own"}),
    "delete": Own(_delete, lambda rows: {key: rows[key] for key in rows if key != 0}),
    "append and update": Own(_append_and_update, lambda rows: {**rows, 0: "own", 10: "own"}, is_branch=True),
}


@dataclass(frozen=True)
class RowChange:
    """What another does to rows: as plain Spark says it, and as another sparkport server does it."""

    sql: str
    sparkport: Callable[[Handle], object]
    after: Callable[[Contents], Contents]


def _change_row(key: int) -> RowChange:
    return RowChange(
        f"UPDATE {{t}} SET name = 'other' WHERE id = {key}",
        lambda table: table.update([table.ids()[key]], names("other")),
        lambda rows: {**rows, key: "other"},
    )


def _delete_row(key: int) -> RowChange:
    return RowChange(
        f"DELETE FROM {{t}} WHERE id = {key}",
        lambda table: table.delete([table.ids()[key]]),
        lambda rows: {found: rows[found] for found in rows if found != key},
    )


ROWS = {
    "append": RowChange(
        "INSERT INTO {t} VALUES (20, 'other')",
        lambda table: table.insert(people((20, "other"))),
        lambda rows: {**rows, 20: "other"},
    ),
    "update of the same row": _change_row(0),
    "update of another row": _change_row(1),
    "delete of the same row": _delete_row(0),
    "delete of another row": _delete_row(1),
}


def _compact(table: Handle) -> None:
    done = table.lake.opened.maintenance.run(TableName("public", table.name), ["compact"])
    assert done.counts["compacted_files"] >= 2


def _add_column(table: Handle) -> None:
    table.alter(AddColumn(pa.field("more", pa.int64())))


def _drop(table: Handle) -> None:
    main_of(table.lake).drop_table(NOBODY, table.name)


def _drop_and_create(table: Handle) -> None:
    """The new table has rows with the ids of the old one's."""
    _drop(table)
    main_of(table.lake).create_table(NOBODY, TableDefinition(name=table.name, columns=FIVE.schema))
    table.sql("INSERT INTO {t} VALUES (0, 'anew'), (1, 'anew')")


def _rename(table: Handle) -> None:
    main_of(table.lake).rename_table(NOBODY, table.name, f"{table.name}_renamed")


WHOLE_TABLE: dict[str, Callable[[Handle], None]] = {
    "compaction": _compact,
    "schema change": _add_column,
    "drop": _drop,
    "drop and create anew": _drop_and_create,
    "rename": _rename,
}

# The table's rows after a change of the whole table; none where there is no table of this name.
LEFT: dict[str, Contents | None] = {
    "compaction": START,
    "schema change": START,
    "drop": None,
    "drop and create anew": {0: "anew", 1: "anew"},
    "rename": None,
}

_BOTH, _CONFLICT = Outcome.BOTH, Outcome.CONFLICT
_WHOLE = {
    "compaction": _BOTH,
    "schema change": Outcome.ALTERED,
    "drop": Outcome.DROPPED,
    "drop and create anew": Outcome.ALTERED,
    "rename": Outcome.DROPPED,
}
_BESIDE = {"append": _BOTH, "update of another row": _BOTH, "delete of another row": _BOTH, **_WHOLE}

EXPECTED: dict[str, dict[str, Outcome]] = {
    "append": _BESIDE,
    "update": {**_BESIDE, "update of the same row": _CONFLICT, "delete of the same row": _CONFLICT},
    "delete": {**_BESIDE, "update of the same row": _CONFLICT, "delete of the same row": _BOTH},
    "append and update": {**_BESIDE, "update of the same row": _CONFLICT, "delete of the same row": _CONFLICT},
}

POINTS = ("commit.decided", "apply.before", "apply.after", "publish.before")
BRANCH_POINTS = (*POINTS[:2], "apply.between", *POINTS[2:])
WRITERS = ("Spark", "sparkport")
FIRST_POINTS = (0, 1, 2, 1)
"""At which point each kind of own change is first met in a quick run; the next pair is at the next point."""


def _cases() -> Iterator[tuple[str, str, str, str]]:
    for (own, outcomes), first in zip(EXPECTED.items(), FIRST_POINTS, strict=True):
        points = BRANCH_POINTS if OWN[own].is_branch else POINTS
        for number, other in enumerate(outcomes):
            writers = WRITERS if other in ROWS else ("sparkport",)
            if _SCALE > 1:
                yield from ((own, other, point, writer) for point, writer in product(points, writers))
            else:
                yield own, other, points[(first + number) % len(points)], writers[(first // 2 + number) % len(writers)]


@pytest.fixture(scope="module")
def neighbour(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog: one's own writers of a table wait while a commit runs."""
    with lakehouse(lake.warehouse) as opened:
        yield Lake(opened)


@pytest.fixture(scope="module")
def template(lake: Lake) -> TableMetadata:
    """A table with its rows in two files, so that there is something to compact."""
    handle = create(lake, "template", FIVE.slice(0, 0))
    handle.sql("INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id, concat('n', id) FROM range(5)")
    return handle.current.metadata


@pytest.fixture
def table(lake: Lake, template: TableMetadata) -> Handle:
    return _new_table(lake, template)


def _new_table(lake: Lake, template: TableMetadata) -> Handle:
    """Another table with the template's files, which no Spark job is needed for."""
    name = f"i{next(_numbers)}"
    own = {"table-uuid": str(uuid.uuid4()), "location": f"{template.location}_{name}", "metadata-log": []}
    location = write_metadata(lake.opened.engine.storage.files, {**template.json, **own}, None)
    lake.pointers.create(TableName("public", name), location)
    return Handle(lake, name)


@pytest.mark.parametrize(("own", "other", "point", "writer"), list(_cases()))
def test_another_in_the_middle_of_a_commit(
    lake: Lake, neighbour: Lake, table: Handle, own: str, other: str, point: str, writer: str
) -> None:
    def disturb() -> None:
        if other in WHOLE_TABLE:
            WHOLE_TABLE[other](table)
        elif writer == "Spark":
            table.sql(ROWS[other].sql)
        else:
            ROWS[other].sparkport(Handle(neighbour, table.name))

    expected = EXPECTED[own][other]
    tx = Tx(lake)
    OWN[own].change(table, tx)
    with at_point(point, disturb):
        if expected is Outcome.BOTH:
            tx.commit()
        else:
            with pytest.raises(expected.error, match=f"table '{table.name}'.*{expected.value}"):
                tx.commit()

    committed = expected is Outcome.BOTH
    assert tx.status is (COMMITTED if committed else ABORTED)
    left = LEFT[other] if other in LEFT else ROWS[other].after(START)
    if left is None:
        assert main_of(lake).table(NOBODY, table.name) is None
    else:
        assert by_key(table.agreed()) == (OWN[own].after(left) if committed else left)
        _check_nothing_left(table)
    if other == "rename":
        renamed = Handle(lake, f"{table.name}_renamed")
        assert by_key(renamed.agreed()) == START
        _check_nothing_left(renamed)
    _check_nothing_staged(lake)
    if left is not None and not committed:
        _run_again(lake, table, own, left)


def _run_again(lake: Lake, table: Handle, own: str, left: Contents) -> None:
    """What a client does after a refusal; a row that is gone by then is not changed."""
    tx = Tx(lake)
    if 0 in left:
        OWN[own].change(table, tx)
    else:
        _append(table, tx)
    tx.commit()
    assert by_key(table.sparkport()) == (OWN[own].after(left) if 0 in left else {**left, 10: "own"})
    assert tx.status is COMMITTED


def _check_nothing_left(table: Handle) -> None:
    assert set(table.current.metadata.refs) <= {"main"}


def _check_nothing_staged(lake: Lake) -> None:
    folder = lake.opened.engine.storage.staging.folder
    assert not [*folder.glob("*.parquet"), *folder.glob("tx-*")]


def test_every_pair_and_every_point_has_a_case() -> None:
    cases = list(_cases())
    assert {(own, other) for own, other, _, _ in cases} == {
        (own, other) for own, outcomes in EXPECTED.items() for other in outcomes
    }
    assert {other for outcomes in EXPECTED.values() for other in outcomes} == {*ROWS, *WHOLE_TABLE}
    for other in {*ROWS, *WHOLE_TABLE}:
        assert len({point for _, found, point, _ in cases if found == other}) >= 3
    assert {point for _, _, point, _ in cases} == set(BRANCH_POINTS)


# Two tables, one of which is disturbed


@pytest.mark.parametrize(
    ("other", "point", "expected"),
    [
        ("append", "apply.after", Outcome.BOTH),
        ("update of another row", "publish.before", Outcome.BOTH),
        ("update of the same row", "apply.before", Outcome.CONFLICT),
        ("delete of the same row", "publish.before", Outcome.CONFLICT),
        ("drop", "publish.before", Outcome.DROPPED),
    ],
)
def test_a_table_that_nobody_disturbed_shares_the_outcome_of_one_that_somebody_did(
    lake: Lake, neighbour: Lake, template: TableMetadata, other: str, point: str, expected: Outcome
) -> None:
    calm, table = _new_table(lake, template), _new_table(lake, template)
    tx = Tx(lake)
    OWN["append and update"].change(calm, tx)
    OWN["update"].change(table, tx)

    def disturb() -> None:
        if other in ROWS:
            ROWS[other].sparkport(Handle(neighbour, table.name))
        else:
            WHOLE_TABLE[other](table)

    with at_point(point, disturb):
        if expected is Outcome.BOTH:
            tx.commit()
        else:
            with pytest.raises(expected.error, match=f"table '{table.name}'.*{expected.value}"):
                tx.commit()
    committed = expected is Outcome.BOTH
    assert tx.status is (COMMITTED if committed else ABORTED)
    assert by_key(calm.agreed()) == (OWN["append and update"].after(START) if committed else START)
    _check_nothing_left(calm)
    if other in ROWS:
        left = ROWS[other].after(START)
        assert by_key(table.agreed()) == (OWN["update"].after(left) if committed else left)
    _check_nothing_staged(lake)


# Two transactions in one commit


def _commit_together(lake: Lake, table: Handle, *group: Tx) -> list[Exception | None]:
    """Transactions that wait for each other, and then go together."""
    committer = lake.opened.engine.committer

    def error_of(tx: Tx) -> Exception | None:
        try:
            tx.commit()
        except Exception as exc:
            return exc
        return None

    with ThreadPoolExecutor(len(group)) as pool:
        with committer.turn(TableName("public", table.name)):
            outcomes = [pool.submit(error_of, tx) for tx in group]
            wait_until(lambda: committer.waiting() == len(group))
        return [outcome.result() for outcome in outcomes]


def _failing(times: int, error: Exception) -> Callable[[], None]:
    left = [error] * times

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


@pytest.fixture
def group(lake: Lake, table: Handle) -> tuple[Tx, Tx]:
    """Two transactions that touch different rows."""
    one, two = Tx(lake), Tx(lake)
    table.update([table.ids()[0]], names("one"), one.ctx)
    table.update([table.ids()[1]], names("two"), two.ctx)
    table.insert(people((11, "two")), two.ctx)
    return one, two


ONE: Contents = {**START, 0: "one"}
TWO: Contents = {**START, 1: "two", 11: "two"}


def _check_group(
    lake: Lake, table: Handle, group: tuple[Tx, Tx], states: tuple[TransactionState, TransactionState], rows: Contents
) -> None:
    assert by_key(table.agreed()) == rows
    assert (group[0].status, group[1].status) == states
    assert not lake.opened.engine.committer.waiting()
    _check_nothing_left(table)
    _check_nothing_staged(lake)


def test_a_group_is_one_commit(lake: Lake, table: Handle, group: tuple[Tx, Tx]) -> None:
    applied: list[str] = []
    on_fault("commit.decided", lambda: applied.append("once"))
    assert _commit_together(lake, table, *group) == [None, None]
    assert applied == ["once"]
    _check_group(lake, table, group, (COMMITTED, COMMITTED), {**TWO, 0: "one"})


@pytest.mark.parametrize(("point", "writer"), [("apply.between", "Spark"), ("publish.before", "sparkport")])
def test_of_a_group_only_the_one_whose_row_another_has_changed_is_refused(
    lake: Lake, neighbour: Lake, table: Handle, group: tuple[Tx, Tx], point: str, writer: str
) -> None:
    def disturb() -> None:
        if writer == "Spark":
            table.sql(_change_row(0).sql)
        else:
            _change_row(0).sparkport(Handle(neighbour, table.name))

    with at_point(point, disturb):
        refused, none = _commit_together(lake, table, *group)
    assert isinstance(refused, Conflict)
    assert f"table '{table.name}': 1 row changed" in str(refused)
    assert none is None
    _check_group(lake, table, group, (ABORTED, COMMITTED), {**TWO, 0: "other"})


@pytest.mark.parametrize("point", BRANCH_POINTS if _SCALE > 1 else ["apply.between", "publish.before"])
def test_of_a_group_one_that_is_declared_dead_is_left_out(
    lake: Lake, table: Handle, group: tuple[Tx, Tx], point: str
) -> None:
    """As by another server that has not heard of this one for long."""
    with at_point(point, lambda: lake.opened.engine.storage.ledger.end(group[0].id, ABORTED)):
        refused, none = _commit_together(lake, table, *group)
    assert isinstance(refused, TransactionNotActive)
    assert none is None
    _check_group(lake, table, group, (ABORTED, COMMITTED), TWO)


def test_a_group_that_is_declared_dead_leaves_nothing(lake: Lake, table: Handle, group: tuple[Tx, Tx]) -> None:
    with at_point("publish.before", lambda: [lake.opened.engine.storage.ledger.end(tx.id, ABORTED) for tx in group]):
        refused = _commit_together(lake, table, *group)
    assert all(isinstance(error, TransactionNotActive) for error in refused)
    _check_group(lake, table, group, (ABORTED, ABORTED), START)


@pytest.mark.parametrize("point", BRANCH_POINTS if _SCALE > 1 else ["apply.between", "apply.after"])
def test_a_group_that_spark_fails_at_is_tried_one_by_one(
    lake: Lake, table: Handle, group: tuple[Tx, Tx], point: str
) -> None:
    on_fault(point, _failing(1, InternalError("Spark failed")))
    assert _commit_together(lake, table, *group) == [None, None]
    _check_group(lake, table, group, (COMMITTED, COMMITTED), {**TWO, 0: "one"})


def test_a_transaction_that_spark_fails_at_does_not_take_its_group_with_it(
    lake: Lake, table: Handle, group: tuple[Tx, Tx]
) -> None:
    """It fails in the group, and then once more where one is tried alone."""
    on_fault("apply.before", _failing(2, InternalError("Spark failed")))
    errors = _commit_together(lake, table, *group)
    failed = [error for error in errors if error is not None]
    assert [type(error) for error in failed] == [InternalError]
    if errors[0] is None:
        _check_group(lake, table, group, (COMMITTED, ABORTED), ONE)
    else:
        _check_group(lake, table, group, (ABORTED, COMMITTED), TWO)


def test_a_group_without_an_answer_of_the_database_is_told_the_truth(
    lake: Lake, table: Handle, group: tuple[Tx, Tx]
) -> None:
    on_fault("pointer.after", _failing(1, Unavailable("no answer")))
    assert _commit_together(lake, table, *group) == [None, None]
    _check_group(lake, table, group, (COMMITTED, COMMITTED), {**TWO, 0: "one"})


def test_a_group_that_the_database_does_not_commit_is_aborted(lake: Lake, table: Handle, group: tuple[Tx, Tx]) -> None:
    on_fault("pointer.before", _failing(1, Unavailable("no answer")))
    errors = _commit_together(lake, table, *group)
    assert all(isinstance(error, Unavailable) for error in errors)
    _check_group(lake, table, group, (ABORTED, ABORTED), START)


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    for point in (*BRANCH_POINTS, "pointer.before", "pointer.after"):
        on_fault(point, None)
