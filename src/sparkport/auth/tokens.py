"""Authentication for small installations: a list of bearer tokens in a file or in the environment."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sparkport.auth.files import Reloaded, read_file
from sparkport.auth.identity import Identity
from sparkport.auth.model import Authenticator, Peer
from sparkport.auth.secret import Secret
from sparkport.errors import InvalidArgument, Unauthenticated

__all__ = ["DEFAULT_SUBJECT", "StaticTokens"]

logger = logging.getLogger(__name__)

DEFAULT_SUBJECT = "user"
"""The subject of a token that has no name."""

Digests = Mapping[bytes, tuple[bytes, str]]


class StaticTokens(Authenticator):
    """Knows its callers by fixed tokens. Only digests are kept, and they are what is looked up, so that the time an
    answer takes tells nothing about a token."""

    def __init__(self, tokens: Mapping[Secret, str]) -> None:
        digests = _digests((subject, token, f"token {n}") for n, (token, subject) in enumerate(tokens.items(), 1))
        self._current: Callable[[], Digests] = lambda: digests

    @classmethod
    def from_file(cls, path: Path, *, clock: Callable[[], float] = time.monotonic) -> StaticTokens:
        """Lines ``subject: token`` or a token alone; empty lines and lines that start with ``#`` are skipped.

        The file is read again when it changes (looked at once a second at most).
        """
        return cls._over(Reloaded([path], lambda: _read(path), clock=clock).current)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> StaticTokens | None:
        """``SPARKPORT_TOKENS="alice=token1,bob=token2"`` and ``SPARKPORT_TOKEN="token"``; None when neither is set."""
        entries = []
        for number, pair in enumerate(environ.get("SPARKPORT_TOKENS", "").split(","), start=1):
            if pair.strip():
                subject, _, token = pair.partition("=")
                entries.append((subject.strip(), Secret(token.strip()), f"SPARKPORT_TOKENS, entry {number}"))
        single = environ.get("SPARKPORT_TOKEN", "").strip()
        if single:
            entries.append((DEFAULT_SUBJECT, Secret(single), "SPARKPORT_TOKEN"))
        if not entries:
            return None
        digests = _digests(entries)
        return cls._over(lambda: digests)

    @classmethod
    def _over(cls, current: Callable[[], Digests]) -> StaticTokens:
        tokens = cls({})
        tokens._current = current
        return tokens

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        if not token:
            raise Unauthenticated("a bearer token is required")
        given = _digest(token)
        known, subject = self._current().get(given, (b"", ""))
        if not hmac.compare_digest(known, given):
            raise Unauthenticated("the token is not known")
        return Identity(subject)


def _read(path: Path) -> Digests:
    try:
        lines = read_file(path).decode().splitlines()
    except UnicodeDecodeError:
        # Not chained: the exception holds the file's content.
        lines = None
    if lines is None:
        raise InvalidArgument(f"{path} is not UTF-8 text")
    _warn_if_world_readable(path)
    entries = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            subject, colon, token = text.partition(":")
            if not colon:
                subject, token = DEFAULT_SUBJECT, text
            entries.append((subject.strip(), Secret(token.strip()), f"{path}, line {number}"))
    if not entries:
        logger.warning("%s holds no tokens: nobody can log in with one", path)
    return _digests(entries)


def _warn_if_world_readable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & stat.S_IROTH:
        logger.warning("%s can be read by every user of this machine; make it mode 600", path)


def _digests(entries: Iterable[tuple[str, Secret, str]]) -> Digests:
    digests: dict[bytes, tuple[bytes, str]] = {}
    for subject, token, where in entries:
        text = token.reveal()
        if not subject:
            raise InvalidArgument(f"{where}: the subject is empty")
        if not text or any(character.isspace() for character in text):
            raise InvalidArgument(f"{where}: a token is one word without spaces")
        digest = _digest(token)
        if digests.setdefault(digest, (digest, subject))[1] != subject:
            raise InvalidArgument(f"{where}: the same token stands for another subject already")
    return digests


def _digest(token: Secret) -> bytes:
    return hashlib.sha256(token.reveal().encode("utf-8", "surrogatepass")).digest()
