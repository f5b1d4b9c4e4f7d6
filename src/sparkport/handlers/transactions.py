"""The actions that begin, end and ask about transactions."""

from __future__ import annotations

import json
from contextlib import suppress

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog
from sparkport.catalog.steps import step
from sparkport.catalog.transaction import Isolation, TransactionManager, TransactionState, require_committable
from sparkport.errors import (
    InternalError,
    InvalidArgument,
    SparkportError,
    TransactionNotActive,
    TransactionNotFound,
    Unsupported,
)
from sparkport.handlers.directory import Directory
from sparkport.handlers.operations import Operations, require_manager
from sparkport.protocol.maps import MapReader, pack

__all__ = ["TransactionActions"]


class TransactionActions:
    def __init__(self, directory: Directory, operations: Operations) -> None:
        self._directory = directory
        self._operations = operations

    def create_for_duckdb(self, ctx: CallContext, body: MapReader) -> bytes:
        """DuckDB asks at the start of every transaction; an empty answer where there is no manager lets it attach."""
        catalog = self._directory.catalog(ctx, body.optional_text("catalog_name") or "")
        manager = catalog.transactions
        return pack({"identifier": None if manager is None else self._begin(ctx, catalog, manager)})

    def create(self, ctx: CallContext, body: MapReader) -> bytes:
        catalog = self._directory.catalog(ctx, body.optional_text("catalog_name") or "")
        manager = require_manager(catalog)
        isolation = body.optional_text("isolation") or Isolation.SNAPSHOT.value
        if isolation not in {item.value for item in Isolation}:
            raise InvalidArgument("body key 'isolation' must be snapshot or serializable")
        transaction_id = self._begin(
            ctx,
            catalog,
            manager,
            auto_commit=body.flag("auto_commit", default=True),
            isolation=Isolation(isolation),
        )
        return _json(transaction_id=transaction_id)

    def status(self, ctx: CallContext, body: MapReader) -> bytes:
        transaction_id = body.text("transaction_id")
        manager = require_manager(self._catalog_of(ctx, body, transaction_id))
        state = self._operations.state(ctx, manager, transaction_id)
        return _json(transaction_id=transaction_id, transaction_status=state.value)

    def commit(self, ctx: CallContext, body: MapReader) -> bytes:
        transaction_id = body.text("transaction_id")
        manager = self._manager_to_end(ctx, body, transaction_id)
        self._operations.require_owner(ctx, manager, transaction_id)
        require_committable(manager, transaction_id)
        with step("commit"):
            self._operations.commit(manager, transaction_id)
        return self._ended(manager, transaction_id)

    def rollback(self, ctx: CallContext, body: MapReader) -> bytes:
        transaction_id = body.text("transaction_id")
        manager = self._manager_to_end(ctx, body, transaction_id)
        state = self._operations.state(ctx, manager, transaction_id)
        if state is TransactionState.COMMITTED and self._operations.is_ended(manager, transaction_id):
            raise TransactionNotActive(transaction_id, state.value)
        manager.rollback(transaction_id)
        return self._ended(manager, transaction_id)

    def _ended(self, manager: TransactionManager, transaction_id: str) -> bytes:
        self._operations.ended(manager, transaction_id)
        state = manager.status(transaction_id)
        return _json(transaction_id=transaction_id, transaction_status=None if state is None else state.value)

    def _begin(
        self,
        ctx: CallContext,
        catalog: Catalog,
        manager: TransactionManager,
        *,
        auto_commit: bool = True,
        isolation: Isolation = Isolation.SNAPSHOT,
    ) -> str:
        self._directory.require(ctx, Operation.TRANSACTION, Resource(catalog.name))
        try:
            return manager.begin(ctx, auto_commit=auto_commit, isolation=isolation)
        except SparkportError:
            raise
        except Exception as exc:
            raise InternalError(f"failed to create transaction: {exc}") from exc

    def _manager_to_end(self, ctx: CallContext, body: MapReader, transaction_id: str) -> TransactionManager:
        catalog = self._catalog_of(ctx, body, transaction_id)
        self._directory.require(ctx, Operation.TRANSACTION, Resource(catalog.name))
        return require_manager(catalog)

    def _catalog_of(self, ctx: CallContext, body: MapReader, transaction_id: str) -> Catalog:
        """The catalog that is named, or else the one that knows the transaction."""
        name = body.optional_text("catalog_name") or ctx.catalog
        if name:
            return self._directory.catalog(ctx, name)
        catalogs = [item for item in self._directory.catalogs(ctx) if item.transactions is not None]
        if not catalogs:
            raise Unsupported("transaction manager not configured")
        for catalog in catalogs:
            with suppress(TransactionNotFound):
                self._operations.state(ctx, require_manager(catalog), transaction_id)
                return catalog
        raise TransactionNotFound(transaction_id)


def _json(**values: str | None) -> bytes:
    return json.dumps({"status": "success", **values}).encode()
