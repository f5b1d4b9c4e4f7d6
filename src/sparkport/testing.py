"""A server in process, for tests of your own tables and functions.

def test_users_are_served() -> None:
    with serving(my_catalog) as server, connect(server.location) as client:
        assert client.scan("public.users").read_all().num_rows == 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sparkport.app import CustomAction, HttpSettings, Limits, ObserveSettings, Server, TlsSettings
from sparkport.auth.model import Authenticator, Authorizer
from sparkport.catalog.model import Catalog

__all__ = ["serving"]


@contextmanager
def serving(
    *catalogs: Catalog,
    authenticator: Authenticator | None = None,
    authorizer: Authorizer | None = None,
    tls: TlsSettings | None = None,
    limits: Limits | None = None,
    actions: Iterable[CustomAction] = (),
    http: HttpSettings | None = None,
    observe: ObserveSettings | None = None,
) -> Iterator[Server]:
    """A running server on a free loopback port, stopped at the end of the block.

    Unless ``observe`` says otherwise no call is slow: machines that tests run on may be.
    """
    server = Server(
        *catalogs,
        port=0,
        authenticator=authenticator,
        authorizer=authorizer,
        tls=tls,
        limits=limits or Limits(max_concurrent_calls=64),
        actions=actions,
        http=http,
        observe=observe or ObserveSettings(slow_seconds=0),
    )
    with server:
        yield server
