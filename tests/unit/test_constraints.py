"""CHECK conditions and defaults: SQL of a table's owner, evaluated where it can do no harm."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkport.catalog.constraints import check_rows, require_checks
from sparkport.catalog.defaults import default_of, default_values, require_default
from sparkport.errors import ConstraintViolation, InvalidArgument

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("id", pa.int64()), ("Odd Name", pa.string())])
ROWS = pa.RecordBatch.from_pylist([{"id": 1, "Odd Name": "a"}, {"id": None, "Odd Name": None}], COLUMNS)


def field(default: str, kind: pa.DataType | None = None) -> pa.Field:
    return pa.field("v", kind or pa.int64(), metadata={"default": default})


def test_rows_that_keep_all_conditions_pass_and_null_counts_as_kept() -> None:
    check_rows("t", ["id > 0", "\"odd name\" IN ('a', 'b')", "id IS NULL OR id < 10"], ROWS)


def test_the_condition_that_is_broken_is_named() -> None:
    with pytest.raises(ConstraintViolation) as failure:
        check_rows("t", ["id > 0", "id > 1"], ROWS)
    assert failure.value.message == "CHECK constraint failed on table t with expression: id > 1"


def test_a_condition_that_fails_on_the_rows_is_a_violation() -> None:
    with pytest.raises(ConstraintViolation, match="cannot be evaluated"):
        check_rows("t", ['"Odd Name"::INTEGER > 0'], ROWS)


def test_no_rows_and_no_conditions_need_no_look() -> None:
    check_rows("t", [], ROWS)
    check_rows("t", ["id > 5"], ROWS.slice(0, 0))


@pytest.mark.parametrize(
    "check",
    ["nothing > 0", "id >", "id > 0; DROP TABLE t", "id IN (SELECT id FROM read_csv('/etc/passwd'))", " "],
)
def test_a_condition_that_can_never_be_evaluated_is_refused_when_the_table_is_made(check: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be evaluated"):
        require_checks([check], COLUMNS)


def test_conditions_that_can_be_evaluated_are_taken() -> None:
    require_checks(["(id > 0)", 'length("Odd Name") < 10'], COLUMNS)


@pytest.mark.parametrize("default", ["nothing", "'abc'", "1 +", "getenv('HOME')", "(SELECT 1 FROM nowhere)"])
def test_a_default_that_can_never_be_used_is_refused_when_it_is_set(default: str) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'v': its default .* cannot be used"):
        require_default(field(default))


def test_defaults_are_expressions_of_the_columns_type() -> None:
    require_default(pa.field("v", pa.int64()))
    assert default_values(field("40 + 2"), 3).to_pylist() == [42] * 3
    assert default_values(field("NULL"), 2).to_pylist() == [None, None]
    assert default_values(field("1.50", pa.decimal128(10, 2)), 1).type == pa.decimal128(10, 2)
    assert len(set(default_values(field("random()", pa.float64()), 20).to_pylist())) > 1
    assert default_of(field("")) is None
