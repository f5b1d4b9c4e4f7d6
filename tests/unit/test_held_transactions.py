"""What keeps a transaction open while a call of it is under way, and what a listing inside one leaves behind."""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import CatalogVersion
from sparkport.errors import TransactionNotActive
from sparkport.handlers.directory import Directory
from sparkport.handlers.discovery import Discovery
from sparkport.handlers.reads import Reads
from sparkport.memory.catalog import MemoryCatalog
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.streams import BatchMessage
from sparkport.protocol.targets import Kind, Target, Ticket

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array(range(200_000), pa.int64())})
HOUR = timedelta(hours=1)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class VersionOfNow(MemoryCatalog):
    """Its version is the newest one whoever asks, as the lakehouse's is."""

    def version(self, ctx: CallContext) -> CatalogVersion:
        return super().version(CallContext())


def listing(discovery: Discovery, ctx: CallContext) -> bytes:
    return discovery.list_schemas(ctx, MapReader.from_msgpack(pack({"catalog_name": "lake"}), what="body"))


def test_a_transaction_does_not_expire_while_its_own_scan_is_read() -> None:
    clock = Clock()
    catalog = MemoryCatalog("lake", clock=clock)
    catalog.create_table("public.t", ROWS.schema, rows=ROWS)
    assert catalog.transactions is not None
    ctx = replace(CallContext(), transaction_id=catalog.transactions.begin(CallContext(), auto_commit=False))
    ticket = Ticket(target=Target("lake", "public", Kind.TABLE, "t"), columns=("id",))
    stream = Reads(Directory([catalog])).do_get(ctx, ticket.encode())
    next(stream)
    clock.now += HOUR
    assert [item.id for item in catalog.transactions.open_transactions()] == [ctx.transaction_id]
    rows = sum(message.batch.num_rows for message in stream if isinstance(message, BatchMessage))
    assert rows == ROWS.num_rows
    clock.now += HOUR
    assert not catalog.transactions.open_transactions()


def test_a_transaction_does_not_expire_while_its_statement_waits_for_rows() -> None:
    clock = Clock()
    catalog = MemoryCatalog("lake", clock=clock)
    assert catalog.transactions is not None
    transaction_id = catalog.transactions.begin(CallContext(), auto_commit=False)
    directory = Directory([catalog])
    with directory.operations.running(replace(CallContext(), transaction_id=transaction_id), catalog):
        clock.now += HOUR
        assert [item.id for item in catalog.transactions.open_transactions()] == [transaction_id]
    clock.now += HOUR
    with (
        pytest.raises(TransactionNotActive),
        directory.operations.running(replace(CallContext(), transaction_id=transaction_id), catalog),
    ):
        raise AssertionError("an expired transaction was joined")


def test_a_listing_inside_an_old_transaction_is_not_kept_for_others() -> None:
    catalog = VersionOfNow("lake")
    discovery = Discovery(Directory([catalog]))
    assert catalog.transactions is not None
    transaction_id = catalog.transactions.begin(CallContext(), auto_commit=False)
    before = listing(discovery, CallContext())
    catalog.create_table("public.t", ROWS.schema)
    inside = listing(discovery, replace(CallContext(), transaction_id=transaction_id))
    after = listing(discovery, CallContext())
    fresh = listing(Discovery(Directory([catalog])), CallContext())
    assert after == fresh
    assert after not in (before, inside)


def test_a_catalog_never_gets_the_listing_of_one_that_was_removed() -> None:
    directory = Directory()
    discovery = Discovery(directory)
    seen = set()
    gc.collect()
    gc.freeze()  # else each collection below looks at all that the whole run has in memory
    for number in range(50):
        catalog = MemoryCatalog("lake")
        catalog.create_table(f"public.t{number}", ROWS.schema)
        directory.add(catalog)
        seen.add(listing(discovery, CallContext()))
        directory.remove("lake")
        del catalog
        gc.collect()
    assert len(seen) == 50
