"""What somebody who sees a part of a table is told of rows that break a key or a CHECK, by the error's fields alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkport.catalog.key_values import duplicate_key
from sparkport.catalog.table import Key
from sparkport.errors import ConstraintViolation, DuplicateKey, SparkportError
from sparkport.handlers.operations import Operations
from sparkport.policies.discretion import Discretion, Violation

pytestmark = pytest.mark.tier("fast")

SEEN, HIDDEN = Key(("id",), primary=True), Key(("ssn", "id"))
LIMITED = Discretion("people", (SEEN,), ("id > 0",))


def check(expression: str, table: str = "people") -> ConstraintViolation:
    message = f"CHECK constraint failed on table {table} with expression: {expression}"
    return ConstraintViolation(message, table=table, check=expression)


class Manager:
    """Commits nothing, for a reason."""

    def __init__(self, failure: SparkportError) -> None:
        self.failure = failure

    def commit(self, transaction_id: str) -> None:
        raise self.failure


def told_at_commit(failure: Violation, *limits: Discretion) -> str:
    operations = Operations()
    for limit in limits:
        operations.limit("1", limit)
    with pytest.raises(type(failure)) as caught:
        operations.commit(Manager(failure), "1")  # type: ignore[arg-type]
    assert caught.value.__cause__ is caught.value.__context__ is None
    return caught.value.message


@pytest.mark.parametrize("failure", [duplicate_key("people", SEEN, [pa.scalar(7)]), check("id > 0")])
def test_what_the_caller_knows_of_is_told_as_it_is(failure: Violation) -> None:
    assert LIMITED.told(failure) is failure
    assert told_at_commit(failure, LIMITED) == failure.message


@pytest.mark.parametrize(
    "failure",
    [
        duplicate_key("people", HIDDEN, [pa.scalar("secret"), pa.scalar(7)]),
        # Words that end as those of a key and a check that are seen, and that nothing is decided by.
        DuplicateKey("table 'people': duplicate key (ssn = 'secret') violates PRIMARY KEY (id)"),
        check("salary > 10 AND note <> 'with expression: id > 0'"),
        check("'secret' <> ssn with expression: id > 0"),
        ConstraintViolation("CHECK constraint on table people cannot be evaluated: could not convert 'secret'"),
    ],
)
def test_of_all_else_no_word_is_told(failure: Violation) -> None:
    told = LIMITED.told(failure)
    assert type(told) is type(failure)
    assert told.message in (
        "a key of table 'people' does not hold for these rows",
        "a constraint of table 'people' does not hold for these rows",
    )
    assert told_at_commit(failure, LIMITED) == told.message
    assert told_at_commit(failure, Discretion("another", (SEEN,), ("id > 0",)), LIMITED).endswith("for these rows")


def test_without_limits_everything_is_told() -> None:
    failure = duplicate_key("people", HIDDEN, [pa.scalar("secret"), pa.scalar(7)])
    assert told_at_commit(failure) == failure.message
    assert told_at_commit(failure, Discretion("another")) == failure.message


def test_of_two_tables_of_one_name_only_what_both_show_is_told() -> None:
    other = Discretion("people", (HIDDEN,), ())
    assert told_at_commit(duplicate_key("people", SEEN, [pa.scalar(7)]), LIMITED, other).startswith("a key of")
    assert told_at_commit(duplicate_key("people", SEEN, [pa.scalar(7)]), LIMITED, LIMITED).startswith(
        "table 'people': dup"
    )


def test_a_key_knows_its_violation_by_columns_and_kind() -> None:
    assert SEEN.is_violated(duplicate_key("t", SEEN, [pa.scalar(1)]))
    assert not Key(("id",)).is_violated(duplicate_key("t", SEEN, [pa.scalar(1)]))
    assert not SEEN.is_violated(DuplicateKey("table 't': duplicate key (id = 1) violates PRIMARY KEY (id)"))
