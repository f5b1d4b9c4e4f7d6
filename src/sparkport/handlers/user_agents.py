"""Which client is calling, where that matters: DuckDB can do, and needs, what other clients do not."""

from __future__ import annotations

from sparkport.catalog.context import CallContext

__all__ = ["is_duckdb"]

_DUCKDB = "airport/"
"""How DuckDB's extension begins its name."""


def is_duckdb(ctx: CallContext) -> bool:
    return (ctx.headers.get("airport-user-agent") or "").startswith(_DUCKDB)
