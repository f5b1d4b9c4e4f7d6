"""Our side of every comparison: servers as a user would start them, with the tables that the benchmarks ask for.

The server is imported where it is started, in a child: what that does to a process (settings of gRPC's) must not
reach the processes of the baselines, which the same parent starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from benchmarks.data import GENERATED, SCANS, SMALL, WIDE, generated, wide
from sparkport.catalog import CallContext, CatalogBuilder

__all__ = ["listing_server", "scan_server", "write_server"]

LISTED_TABLES = 1_000
LISTED_COLUMNS = 20


@contextmanager
def scan_server() -> Iterator[str]:
    from sparkport.app import Server

    schema = CatalogBuilder("lake").schema("public")
    for name, make in SCANS.items():
        schema.table(name, make())
    schema.scan_table("generated", GENERATED, lambda ctx, request: generated())
    schema.table("wide", wide(WIDE)).table("narrow", wide(1))
    with Server(schema.build(), port=0) as server:
        yield server.location


@contextmanager
def listing_server() -> Iterator[str]:
    """The action ``touch`` changes the catalog, so that the next listing is a first one."""
    from sparkport.app import CustomAction, Server
    from sparkport.memory import MemoryCatalog

    catalog = MemoryCatalog("lake")
    for number in range(LISTED_TABLES - 1):
        catalog.create_table(f"public.table_{number}", _listed(number))
    catalog.create_table("public.touched", _listed(LISTED_TABLES))

    def touch(ctx: CallContext, body: bytes) -> list[bytes]:
        catalog.drop_table("public.touched")
        catalog.create_table("public.touched", _listed(LISTED_TABLES))
        return []

    with Server(catalog, port=0, actions=[CustomAction("touch", touch)]) as server:
        yield server.location


def _listed(table: int) -> pa.Schema:
    """No two tables alike, so that nothing is gained by remembering schemas."""
    return pa.schema([(f"column_{table}_{index}", pa.int64()) for index in range(LISTED_COLUMNS)])


@contextmanager
def write_server() -> Iterator[str]:
    """The action ``empty`` empties the table; ``nothing`` is the least that a call can do."""
    from sparkport.app import CustomAction, Server
    from sparkport.memory import MemoryCatalog

    catalog = MemoryCatalog("lake")
    catalog.create_table("public.items", SMALL)

    def empty(ctx: CallContext, body: bytes) -> list[bytes]:
        catalog.drop_table("public.items")
        catalog.create_table("public.items", SMALL)
        return []

    def nothing(ctx: CallContext, body: bytes) -> list[bytes]:
        return [b""]

    actions = [CustomAction("empty", empty), CustomAction("nothing", nothing)]
    with Server(catalog, port=0, actions=actions) as server:
        yield server.location
