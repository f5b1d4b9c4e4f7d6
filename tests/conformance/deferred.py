"""A ground within a deferred transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.conformance.engines import Ground

from sparkport.catalog.context import CallContext

__all__ = ["begun", "commit"]


def begun(ground: Ground, **more: Any) -> Ground:
    """The same catalog within a deferred transaction."""
    manager = ground.catalog.transactions
    assert manager is not None
    transaction = manager.begin(CallContext(), auto_commit=False, **more)
    return replace(ground, ctx=replace(ground.ctx, transaction_id=transaction))


def commit(ground: Ground) -> None:
    manager = ground.catalog.transactions
    assert manager is not None
    assert ground.ctx.transaction_id is not None
    manager.commit(ground.ctx.transaction_id)
