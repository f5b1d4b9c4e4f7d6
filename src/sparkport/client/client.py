"""Where a program that uses a server begins: ``with connect("grpc://127.0.0.1:50051") as client: …``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from sparkport.auth.secret import Secret
from sparkport.client.connection import Connection, open_channel
from sparkport.client.ddl import Definitions
from sparkport.client.journal import FlushResult, flush_journal, set_journal
from sparkport.client.locations import Pem, channel_credentials, parse_location
from sparkport.client.names import NameLike
from sparkport.client.transaction import Transaction, begin, run
from sparkport.protocol.targets import Kind

__all__ = ["Client", "connect"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Client(Definitions):
    """A session that owns its connection. Made by ``connect``."""

    @property
    def location(self) -> str:
        return self._connection.location

    @property
    def catalog(self) -> str:
        """The catalog of names that do not say theirs; empty for the only one of the server."""
        return self._connection.catalog

    def transaction(self, *, isolation: str = "snapshot") -> Transaction:
        """A transaction, begun now, to be used in a ``with`` block: its end commits, an exception rolls back.

        ``serializable`` also refuses the commit when a table that it has read was changed by others.
        """
        return begin(self._connection, isolation)

    def resume_transaction(self, transaction_id: str) -> Transaction:
        """A transaction that was begun elsewhere, by its ``id``: to ask how it has ended, or to go on with it.

        Another client or a restarted program may have lost sight of it. Nothing is asked of the server here.
        """
        return Transaction(self._connection, transaction_id)

    def run_transaction(
        self, function: Callable[[Transaction], T], *, attempts: int = 5, isolation: str = "snapshot"
    ) -> T:
        """What ``function`` returns, called in a transaction of its own: again from its start after each Conflict.

        After so many ``attempts`` the last Conflict is raised. Any other error rolls back and is raised at once.
        """
        return run(self._connection, function, attempts=attempts, isolation=isolation)

    def set_journal(self, name: NameLike, on: bool) -> None:
        """Have small changes of a lakehouse's table committed at once and published soon after, or no more.

        Switching it off publishes first what waits. Not part of transactions.
        """
        set_journal(self._connection, self._target(name, Kind.TABLE), on)

    def flush_journal(self) -> FlushResult:
        """Publish what the journal holds for all tables of the lakehouse, and return when that is done."""
        return flush_journal(self._connection)

    def close(self) -> None:
        """End the connection and all that still runs on it. Safe to repeat."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client(location={self.location!r}, catalog={self.catalog!r})"


def connect(
    location: str,
    *,
    token: str | Secret | None = None,
    catalog: str = "",
    tls_root: Pem | None = None,
    client_certificate: tuple[Pem, Pem] | None = None,
    timeout: float | None = None,
) -> Client:
    """A client of the server at ``location``; the connection is made with the first call.

    ``tls_root`` is the certificate authority of a ``grpc+tls`` server whose own is not publicly known, and
    ``client_certificate`` the certificate and key to show it. ``timeout`` is how many seconds one call may take, the
    reading of a scan included; without it, as long as it takes.
    """
    place = parse_location(location)
    credentials = channel_credentials(place, tls_root=tls_root, client_certificate=client_certificate)
    secret = Secret(token) if isinstance(token, str) else token
    if secret is not None and not place.tls and not place.local:
        logger.warning("the token for %s is sent without TLS: others on the way can read it", place.text)
    return Client(Connection(place, open_channel(place, credentials), token=secret, catalog=catalog, timeout=timeout))
