"""Authentication by JSON Web Tokens, as identity providers issue them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jwt

from sparkport.auth.files import Reloaded, read_file
from sparkport.auth.identity import Identity
from sparkport.auth.keys import ASYMMETRIC, HMAC, FileKeys, FixedKey, Keys, RemoteKeys, parse_key
from sparkport.auth.model import Authenticator, Peer
from sparkport.auth.secret import Secret
from sparkport.errors import InvalidArgument, Unauthenticated

__all__ = ["JwtAuthenticator"]

logger = logging.getLogger(__name__)

# The first that fits; the texts are shown to the caller and say nothing that the token says.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "the token is expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidAudienceError, "the token is for another audience"),
    (jwt.InvalidIssuerError, "the token is from another issuer"),
    (jwt.exceptions.InvalidSubjectError, "the token's subject is not a text"),
    (jwt.InvalidAlgorithmError, "the token's algorithm is not allowed"),
    (jwt.InvalidSignatureError, "the token's signature is wrong"),
    (jwt.DecodeError, "the token is malformed"),
)


class JwtAuthenticator(Authenticator):
    """Takes tokens that are signed by a known key, not expired, and meant for this server.

    ``exp`` and ``sub`` are required, and ``iss`` and ``aud`` where they are configured. Algorithms come from the key
    and can be narrowed by ``algorithms``; ``none`` is never one, and HMAC and asymmetric ones are never mixed.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        algorithms: Iterable[str] | None = None,
        issuer: str | None = None,
        audience: str | None = None,
        leeway: float = 30.0,
    ) -> None:
        if leeway < 0:
            raise InvalidArgument("the leeway for tokens must not be negative")
        self._keys = keys
        self._algorithms = _allowed(algorithms, keys)
        self._checks: dict[str, Any] = {"issuer": issuer, "audience": audience, "leeway": leeway}
        required = {"exp": True, "sub": True, "iss": issuer is not None, "aud": audience is not None}
        self._options: Any = {
            "require": [claim for claim, wanted in required.items() if wanted],
            "verify_aud": audience is not None,
        }

    @classmethod
    def from_key(cls, key: Secret, **settings: Any) -> JwtAuthenticator:
        """With a PEM public key, a certificate, or an HMAC secret of 32 bytes or more."""
        parsed = parse_key(key.reveal().encode())
        return cls(FixedKey(lambda: parsed), **settings)

    @classmethod
    def from_key_file(cls, path: Path, **settings: Any) -> JwtAuthenticator:
        """As ``from_key``, from a file that is read again when it changes."""
        return cls(FixedKey(Reloaded([path], lambda: parse_key(read_file(path))).current), **settings)

    @classmethod
    def from_jwks(cls, location: str, **settings: Any) -> JwtAuthenticator:
        """With a key set from a file or an https address. An address is first asked when the first token comes."""
        if not settings.get("audience"):
            logger.warning("tokens are taken for any audience: the issuer's tokens for other services work here too")
        keys: Keys = RemoteKeys(location) if "://" in location else FileKeys(Path(location))
        return cls(keys, **settings)

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        if not token:
            raise Unauthenticated("a bearer token is required")
        header = self._read(lambda: jwt.get_unverified_header(token.reveal()))
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise Unauthenticated("the token's algorithm is not allowed")
        key = self._keys.find(header.get("kid"), algorithm)
        if key is None:
            raise Unauthenticated("the token's key is not known")
        claims = self._read(
            lambda: jwt.decode(
                token.reveal(), key=key.material, algorithms=[algorithm], options=self._options, **self._checks
            )
        )
        subject = claims["sub"]
        if not subject.strip():
            raise Unauthenticated("the token's subject is empty")
        return Identity(subject, claims)

    @staticmethod
    def _read(decode: Any) -> dict[str, Any]:
        try:
            result: dict[str, Any] = decode()
            return result
        except Exception as exc:
            # Whatever goes wrong while a caller's token is taken apart, the token is at fault.
            reason = _reason(exc)
        # Raised out here and so without a cause: decoding errors hold parts of the token.
        raise Unauthenticated(reason)


def _reason(exc: Exception) -> str:
    if isinstance(exc, jwt.MissingRequiredClaimError):
        return f"the token lacks the claim '{exc.claim}'"
    return next((text for error_class, text in _REASONS if isinstance(exc, error_class)), "the token is not valid")


def _allowed(algorithms: Iterable[str] | None, keys: Keys) -> frozenset[str]:
    possible = keys.algorithms()
    if algorithms is None:
        return possible
    wanted = frozenset(algorithms)
    unknown = sorted(wanted - HMAC - ASYMMETRIC)
    if unknown or not wanted:
        raise InvalidArgument(f"'{unknown[0] if unknown else ''}' is not an algorithm that tokens may be signed with")
    if wanted & HMAC and wanted & ASYMMETRIC:
        raise InvalidArgument("HMAC and asymmetric algorithms for tokens cannot be mixed")
    if not wanted & possible:
        raise InvalidArgument(f"the key for tokens cannot be used with {', '.join(sorted(wanted))}")
    return wanted & possible
