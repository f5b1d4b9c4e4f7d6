"""A row change that fails when all rows are there: the error is the first thing that the client hears after the schema.

DuckDB's client ends its statement with the message that has the count. What comes after that it writes to standard
error and forgets, so that a count sent ahead of the commit would make a success of every failure. (It would let the
client sleep meanwhile, see docs/performance.md, which is what might tempt one to send it.)
"""

from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from tests.support.duckdb_client import AirportError, DuckDBClient

from sparkport.catalog import (
    CallContext,
    CatalogBuilder,
    DeletableBatchTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    ScanRequest,
    UpdatableBatchTable,
)
from sparkport.errors import Conflict
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROW_ID = pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"})
SENT = {
    "insert": pa.table({"id": range(5000)}),
    "update": pa.table({"id": range(5000), "rowid": range(5000)}),
    "delete": pa.table({"rowid": range(5000)}),
}


class Failing(InsertableTable, UpdatableBatchTable, DeletableBatchTable):
    """Takes every row, and then does not commit unless told to."""

    name = "t"
    schema = pa.schema([pa.field("id", pa.int64()), ROW_ID])

    def __init__(self, *, commits: bool) -> None:
        self.commits = commits
        self.taken = 0

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        return self.schema.empty_table()

    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        self.taken = sum(batch.num_rows for batch in rows)
        if not self.commits:
            raise Conflict("others were faster")
        return DMLResult(self.taken)

    update_batches = insert
    delete_batches = insert


@pytest.mark.parametrize("operation", SENT)
@pytest.mark.parametrize("commits", [True, False])
def test_the_count_comes_after_the_commit_or_never(operation: str, *, commits: bool) -> None:
    table, rows = Failing(commits=commits), SENT[operation]
    catalog = CatalogBuilder("lake").schema("public").add(table).build()
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        lake = client.attach("lake")
        entry = lake.table("public.t")
        with lake.query(), lake.exchange(entry, operation, rows.schema, returning=False) as exchange:
            for batch in rows.to_batches(max_chunksize=2048):
                exchange.write(batch)
            exchange.done_writing()
            if commits:
                assert msgpack.unpackb(exchange.read_final_metadata()) == {"total_changed": 5000}
            else:
                with pytest.raises(AirportError, match="others were faster"):
                    exchange.messages.receive()
    assert table.taken == 5000
