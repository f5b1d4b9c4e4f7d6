"""Where the keys that check tokens come from: a fixed key, a key set in a file, or one served by an identity provider.

A key knows which algorithms it may be used with. That, and never the token's header, decides how it is used: so a
public key cannot be taken for an HMAC secret.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK, PyJWTError

from sparkport.auth.files import Reloaded, read_file
from sparkport.auth.hosts import is_loopback
from sparkport.errors import InvalidArgument, Unavailable

__all__ = [
    "ASYMMETRIC",
    "FileKeys",
    "FixedKey",
    "HMAC",
    "Key",
    "Keys",
    "RemoteKeys",
    "download",
    "parse_key",
    "parse_key_set",
]

logger = logging.getLogger(__name__)

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

# A key shorter than the digest can be guessed offline from one token.
_HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_RSA_BITS = 2048
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

HMAC = frozenset(_HMAC_BYTES)
ASYMMETRIC = _RSA | frozenset(_CURVES.values()) | {"EdDSA"}

_TIMEOUT = 5.0
_LONGEST = 10.0
_MOST_WAITING = 16
_MAX_BYTES = 1 << 20
_STALE_AFTER = 86_400.0


@dataclass(frozen=True, slots=True)
class Key:
    material: PublicKey | bytes = field(repr=False)
    algorithms: frozenset[str]
    id: str | None = None


class Keys(ABC):
    """Finds the key for a token. Called from several threads at once."""

    @abstractmethod
    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """The key of that id for that algorithm, or None; raises ``Unavailable`` when that is not known now."""

    @abstractmethod
    def algorithms(self) -> frozenset[str]:
        """All algorithms that a key from here can have: HMAC ones or asymmetric ones, never both."""


class FixedKey(Keys):
    """One key, whatever id the token names."""

    def __init__(self, key: Callable[[], Key]) -> None:
        self._key = key

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        key = self._key()
        return key if algorithm in key.algorithms else None

    def algorithms(self) -> frozenset[str]:
        return self._key().algorithms


class FileKeys(Keys):
    """A JWKS file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._current = Reloaded([path], lambda: parse_key_set(read_file(path))).current

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        return _choose(self._current(), key_id, algorithm)

    def algorithms(self) -> frozenset[str]:
        return ASYMMETRIC


class RemoteKeys(Keys):
    """A JWKS address. Its keys are kept, fetched again when they are old or a token names an unknown one, but not until
    ``retry_after`` seconds after the last time: callers with made-up key ids cannot turn the server against the
    provider. All who wait for a fetch go by what it brings, and only a few may wait: they stand in others' way.
    """

    def __init__(
        self,
        url: str,
        *,
        lifetime: float = 300.0,
        retry_after: float = 10.0,
        fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_url(url)
        self._url = url
        self._lifetime = lifetime
        self._retry_after = retry_after
        self._fetch = fetch or download
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: tuple[Key, ...] = ()
        self._loaded = self._attempted = float("-inf")
        self._attempts = 0
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._failed = False

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        known = _choose(self._keys, key_id, algorithm)
        if known is None:
            self._wait_for_news()
        elif self._clock() - self._loaded >= self._lifetime:
            # One caller fetches, the others go on with what is known.
            self._refresh(wait=False)
        key = _choose(self._keys, key_id, algorithm)
        # While the provider is away, neither an unknown id nor a key from yesterday says anything.
        if self._failed and (key is None or self._clock() - self._loaded >= _STALE_AFTER):
            raise Unavailable("the token cannot be checked now: the key set cannot be reached")
        return key

    def algorithms(self) -> frozenset[str]:
        return ASYMMETRIC

    def _wait_for_news(self) -> None:
        """Fetch, or wait for the one who does. Where no key was ever known everybody waits."""
        if self._clock() - self._attempted < self._retry_after:
            return
        if self._loaded == float("-inf"):
            self._refresh(wait=True)
        elif self._waiting.acquire(blocking=False):
            try:
                self._refresh(wait=True)
            finally:
                self._waiting.release()
        else:
            raise Unavailable("the token cannot be checked now: the key set is being fetched")

    def _refresh(self, *, wait: bool) -> None:
        attempts = self._attempts
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if attempts != self._attempts or self._clock() - self._attempted < self._retry_after:
                return
            try:
                self._keys = parse_key_set(self._fetch(self._url))
            except (OSError, HTTPException, ValueError, InvalidArgument) as exc:
                self._failed = True
                # The address may carry a password: only its host is logged.
                logger.warning("no key set from %s: %s", urlsplit(self._url).hostname, type(exc).__name__)
            else:
                self._loaded, self._failed = self._clock(), False
            finally:
                # A fetch can take longer than the time between two: it counts from its end.
                self._attempted = self._clock()
                self._attempts += 1
        finally:
            self._lock.release()


def parse_key(data: bytes) -> Key:
    """A PEM public key or certificate, or else the bytes of an HMAC secret (without the newline at their end)."""
    if b"-----BEGIN" in data:
        return _public_key(_load_pem(data))
    secret = data.strip()
    algorithms = frozenset(name for name, least in _HMAC_BYTES.items() if len(secret) >= least)
    if not algorithms:
        raise InvalidArgument("an HMAC key for tokens must have at least 32 bytes")
    return Key(secret, algorithms)


def parse_key_set(data: bytes) -> tuple[Key, ...]:
    """The public signing keys of a JWKS; keys of other kinds are passed over."""
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidArgument("the key set is not a JWKS document") from exc
    if not isinstance(entries, list):
        raise InvalidArgument("the key set is not a JWKS document")
    keys = tuple(key for key in map(_key_of_set, entries) if key is not None)
    if not keys:
        raise InvalidArgument("the key set holds no public key that can check tokens")
    return keys


def _key_of_set(entry: object) -> Key | None:
    if not isinstance(entry, Mapping) or entry.get("use", "sig") != "sig":
        return None
    try:
        key = _public_key(PyJWK(dict(entry)).key)
    except (PyJWTError, InvalidArgument, ValueError, TypeError, KeyError):
        return None
    declared = entry.get("alg")
    algorithms = key.algorithms if declared is None else key.algorithms & {declared}
    key_id = entry.get("kid")
    return Key(key.material, algorithms, key_id if isinstance(key_id, str) else None) if algorithms else None


def _load_pem(data: bytes) -> object:
    if b"PRIVATE KEY-----" in data:
        raise InvalidArgument("the key for tokens is a private key: give the public key, or a certificate")
    try:
        if b"-----BEGIN CERTIFICATE-----" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except ValueError as exc:
        raise InvalidArgument("the key for tokens is not a PEM public key or certificate") from exc


def _public_key(material: object) -> Key:
    if isinstance(material, RSAPublicKey) and material.key_size >= _RSA_BITS:
        return Key(material, _RSA)
    if isinstance(material, EllipticCurvePublicKey) and material.curve.name in _CURVES:
        return Key(material, frozenset({_CURVES[material.curve.name]}))
    if isinstance(material, Ed25519PublicKey):
        return Key(material, frozenset({"EdDSA"}))
    raise InvalidArgument("a key for tokens is RSA of 2048 bits or more, EC (P-256, P-384, P-521) or Ed25519")


def _choose(keys: tuple[Key, ...], key_id: str | None, algorithm: str) -> Key | None:
    fitting = [key for key in keys if algorithm in key.algorithms and key_id in (None, key.id)]
    # A token that names no key is taken only when there is no choice.
    return None if not fitting or (key_id is None and len(fitting) > 1) else fitting[0]


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return
    raise InvalidArgument("a key set's address must begin with https:// (http:// only on this machine)")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _check_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, *, longest: float = _LONGEST) -> bytes:
    """All of it within so many seconds: the timeout is only for one part of an answer, which can come in a million."""
    opener = urllib.request.build_opener(_SafeRedirects())
    until = time.monotonic() + longest
    data = bytearray()
    with opener.open(url, timeout=_TIMEOUT) as response:
        while part := response.read1(_MAX_BYTES):
            data += part
            if len(data) > _MAX_BYTES:
                raise ValueError("the key set is too large")
            if time.monotonic() > until:
                raise TimeoutError("the key set takes too long")
    return bytes(data)
