"""Who has logged in: a token is shown once, and then a cookie stands for it.

The cookie is a random number. The token stays here, in memory, and is checked again with every request, so that a
session ends with its token. What is kept is found by the number's digest, as tokens are.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sparkport.auth.secret import Secret

__all__ = ["SESSION_SECONDS", "Session", "Sessions"]

SESSION_SECONDS = 12 * 60 * 60.0
_PER_SUBJECT = 20
_AT_MOST = 2_000


@dataclass(frozen=True, slots=True)
class Session:
    token: Secret
    subject: str
    expires: float


class Sessions:
    """Called from several threads at once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Session] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def open(self, token: Secret, subject: str) -> str:
        """The cookie of a new session: never a number that a client has brought along."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            self._expire()
            own = [key for key, session in self._kept.items() if session.subject == subject]
            for key in own[: max(0, len(own) + 1 - _PER_SUBJECT)]:
                del self._kept[key]
            self._kept[_digest(number)] = Session(token, subject, self._clock() + SESSION_SECONDS)
            while len(self._kept) > _AT_MOST:
                self._kept.popitem(last=False)
        return number

    def find(self, number: str) -> Session | None:
        with self._lock:
            self._expire()
            return self._kept.get(_digest(number))

    def close(self, number: str) -> None:
        with self._lock:
            self._kept.pop(_digest(number), None)

    def form_token(self, purpose: str) -> str:
        """What the forms of a page carry, so that no other site can send one; ``purpose`` is known to nobody else."""
        return hmac.new(self._key, purpose.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_form_token(self, given: str, purpose: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.form_token(purpose).encode())

    def _expire(self) -> None:
        """All have the same time, so the oldest are the first."""
        now = self._clock()
        while self._kept and next(iter(self._kept.values())).expires <= now:
            self._kept.popitem(last=False)


def _digest(number: str) -> bytes:
    return hashlib.sha256(number.encode("utf-8", "surrogatepass")).digest()
