"""Every type through a deferred transaction's own file, on its way in and on its way back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.lakehouse.type_samples import SAMPLES, Sample, same
from tests.support.lakehouse import Lake

from sparkport.catalog import ROW_ID, CallContext, DMLOptions

pytestmark = pytest.mark.tier("thorough")

ROWS = max(len(sample.column) for sample in SAMPLES)


def _rows() -> pa.Table:
    columns = [pa.concat_arrays([s.column, pa.nulls(ROWS - len(s.column), s.column.type)]) for s in SAMPLES]
    fields = [sample.field.with_name(f"v{at}") for at, sample in enumerate(SAMPLES)]
    number = pa.array(range(ROWS), pa.int64())
    return pa.Table.from_arrays([number, *columns], schema=pa.schema([pa.field("number", pa.int64()), *fields]))


@pytest.fixture(scope="module")
def seen(lake: Lake) -> dict[str, pa.Table]:
    """The same rows at each stage: as they come back from a statement, inserted, changed beside, and committed."""
    table: Handle = create(lake, "every_type", _rows().slice(0, 0))
    manager = lake.opened.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(NOBODY, auto_commit=False))
    table.insert(_rows(), ctx)
    found = {"inserted": table.read(ctx)}
    manager.commit(ctx.transaction_id or "")
    found["committed"] = table.read()
    # Another column is set, so that the rest comes out of the table's files into the transaction's.
    ctx = CallContext(transaction_id=manager.begin(NOBODY, auto_commit=False))
    beside = pa.table({"number": pa.array([row + 1000 for row in range(ROWS)], pa.int64())})
    ids = found["committed"].column(ROW_ID).to_pylist()
    table.update(ids, beside, ctx)
    found["changed beside"] = table.read(ctx)
    again = pa.table({"number": pa.array(range(ROWS), pa.int64())})
    back = table.update(ids, again, ctx, DMLOptions(returning=True)).returning_data
    assert back is not None
    found["returned"] = back.read_all()
    manager.commit(ctx.transaction_id or "")
    found["changed"] = table.read()
    for rows in found.values():
        assert [number % 1000 for number in rows.column("number").to_pylist()] == list(range(ROWS))
    return found


@pytest.mark.parametrize("stage", ["inserted", "committed", "changed beside", "returned", "changed"])
@pytest.mark.parametrize("at", range(len(SAMPLES)), ids=[sample.label for sample in SAMPLES])
def test_a_type_survives(seen: dict[str, pa.Table], stage: str, at: int) -> None:
    sample: Sample = SAMPLES[at]
    read: Any = seen[stage].column(f"v{at}").chunks
    sent = pa.concat_arrays([sample.column, pa.nulls(ROWS - len(sample.column), sample.column.type)])
    assert seen[stage].schema.field(f"v{at}").type == sample.field.type
    assert same(pa.concat_arrays(read), sent)
