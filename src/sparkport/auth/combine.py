"""Authenticators made of others, and the one that needs no token: the client's certificate."""

from __future__ import annotations

from collections.abc import Iterable

from sparkport.auth.identity import Identity
from sparkport.auth.model import Authenticator, Peer
from sparkport.auth.secret import Secret
from sparkport.errors import InvalidArgument, Unauthenticated, Unavailable

__all__ = ["AnyOf", "MutualTls"]


class AnyOf(Authenticator):
    """Asks in the order given; the first that knows the caller decides who it is.

    When nobody does and one could not tell, the answer is ``Unavailable``: the same call may work later.
    """

    def __init__(self, authenticators: Iterable[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)
        if not self._authenticators:
            raise InvalidArgument("there must be at least one way to authenticate")

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        reasons: dict[str, None] = {}
        unavailable: Unavailable | None = None
        for authenticator in self._authenticators:
            try:
                return authenticator.authenticate(token, peer)
            except Unauthenticated as exc:
                reasons[exc.message] = None
            except Unavailable as exc:
                unavailable = exc
        if unavailable is not None:
            raise unavailable
        raise Unauthenticated("; ".join(reasons))


class MutualTls(Authenticator):
    """The caller is whom its certificate names. TLS has checked the certificate before any call arrives."""

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        if not peer.certificate_subject:
            raise Unauthenticated("a client certificate is required")
        return Identity(peer.certificate_subject)
