"""A client that sends a statement once, under an id of the test's choice, for tests that repeat it themselves."""

from __future__ import annotations

import pyarrow as pa

from sparkport.catalog.statement import Change
from sparkport.client.client import Client
from sparkport.client.connection import Connection, open_channel
from sparkport.client.locations import parse_location
from sparkport.client.rows import as_input
from sparkport.client.writes import Statement
from sparkport.protocol.targets import Kind

__all__ = ["AttemptingClient"]


class AttemptingClient(Client):
    def __init__(self, location: str, *, timeout: float) -> None:
        place = parse_location(location)
        super().__init__(Connection(place, open_channel(place, None), timeout=timeout))

    def attempt(
        self, table: str, change: Change, rows: pa.Table, *, statement: str, transaction: str | None = None
    ) -> int:
        """The count of changed rows, or the first error."""
        inside = {} if transaction is None else {"x-transaction-id": transaction}
        running = Statement(
            connection=self._connection.with_headers(inside),
            target=self._target(table, Kind.TABLE),
            operation=change.value,
            rows=as_input(rows, lambda: rows.schema),
            returning=False,
            in_transaction=False,
            statement_id=statement,
        )
        return running.attempt().count
