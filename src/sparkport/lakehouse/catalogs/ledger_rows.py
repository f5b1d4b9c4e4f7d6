"""The ledger's rows as the database has them: transactions, and the servers that have begun them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.lakehouse.names import TableName

__all__ = [
    "ABORTED",
    "ACTIVE",
    "ALL_SINCE",
    "COMMITTED",
    "ENDED",
    "INDEX",
    "OPEN",
    "PUBLISHING",
    "Recorded",
    "Row",
    "SELECT",
    "TABLES",
    "UNKNOWN",
    "as_row",
]

ACTIVE, PUBLISHING, COMMITTED, ABORTED = "active", "publishing", "committed", "aborted"
OPEN = f"state IN ('{ACTIVE}', '{PUBLISHING}')"
ENDED = f"state IN ('{COMMITTED}', '{ABORTED}')"

TABLES = (
    """CREATE TABLE IF NOT EXISTS sparkport_transactions (
        catalog_name VARCHAR(255) NOT NULL, id VARCHAR(255) NOT NULL, server VARCHAR(255) NOT NULL,
        owner TEXT NOT NULL, isolation VARCHAR(32) NOT NULL, state VARCHAR(16) NOT NULL, tables TEXT NOT NULL,
        begun DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION, PRIMARY KEY (catalog_name, id))""",
    """CREATE TABLE IF NOT EXISTS sparkport_servers (
        catalog_name VARCHAR(255) NOT NULL, server VARCHAR(255) NOT NULL, seen DOUBLE PRECISION NOT NULL,
        needs TEXT NOT NULL, PRIMARY KEY (catalog_name, server))""",
)

INDEX = ("sparkport_transactions_by_state", "sparkport_transactions (catalog_name, state, ended)")
"""Few are open and many have ended: every beat looks for the open ones, and for the others by their time."""

ALL_SINCE = "*"
"""Stands instead of a table for what is not known: all snapshots may be needed that were the newest since a time."""

UNKNOWN = 0
"""Stands for such a snapshot."""

SELECT = (
    "SELECT t.id, t.server, t.owner, t.isolation, t.state, t.tables, t.begun, t.ended, s.seen "
    "FROM sparkport_transactions t "
    "LEFT JOIN sparkport_servers s ON s.catalog_name = t.catalog_name AND s.server = t.server "
    "WHERE t.catalog_name = ? AND "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``ended`` is when the row last changed its state: for one that is publishing, when that began."""

    id: str
    server: str
    owner: str
    isolation: str
    state: str
    tables: tuple[TableName, ...]
    begun: float
    ended: float | None
    here: bool
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A transaction as the database has it. ``here`` is one of this server's, ``alive`` one whose server is alive."""

    id: str
    state: TransactionState
    server: str
    here: bool
    alive: bool
    owner: str
    isolation: Isolation
    begun: datetime
    tables: tuple[TableName, ...]


def as_row(values: tuple[Any, ...], server: str, since: float) -> Row:
    transaction_id, at, owner, isolation, state, tables, begun, ended, seen = values
    here = at == server
    return Row(
        id=transaction_id,
        server=at,
        owner=owner,
        isolation=isolation,
        state=state,
        tables=tuple(TableName(schema, table) for schema, table in json.loads(tables)),
        begun=begun,
        ended=ended,
        here=here,
        alive=here or (seen is not None and seen > since),
    )
