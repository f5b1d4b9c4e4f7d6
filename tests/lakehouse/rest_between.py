"""Stands between us and a real REST catalog, and does to commits what a network can do to them."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.lakehouse.crooked_catalog import crooked

__all__ = ["Between", "between"]

_CHANGE = re.compile(r"/v1/(namespaces/.*|tables/rename|transactions/commit|namespaces)")
_CLASH = (409, {"error": {"message": "busy", "type": "CommitFailedException"}})


class Between:
    """Each change that we send meets the next word of ``plan``, and passes when there is none. Spark's all pass.

    ``lost``: it is made, and the answer is not given. ``late``: no answer either, and it is kept until ``deliver``.
    ``twice``: it is made and sent again, and the second answer is given. ``clash``: it is refused without a reason.
    ``proxy``: it is made, and answered as by a proxy that lost the catalog. ``cut``: no change ever passes from now on.
    """

    def __init__(self, uri: str) -> None:
        self._catalog = uri
        self.plan: list[str] = []
        self.kept: list[tuple[str, str, bytes | None]] = []
        self.changes = 0
        self.looks: list[str] = []
        self.forbidden = ""
        self.is_cut = False
        self._lock = threading.Lock()

    def reply(self, request: BaseHTTPRequestHandler) -> tuple[int, object] | None:
        asked = (request.command, request.path, getattr(request, "body", b"") or None)
        if request.command in ("GET", "HEAD"):
            self.looks.append(request.path)
            if self.forbidden and f"/tables/{self.forbidden}" in request.path:
                return 403, {"error": {"message": "not for you", "type": "ForbiddenException"}}
            return self._forward(*asked)
        assert _CHANGE.match(request.path)
        if not request.headers.get("User-Agent", "").startswith("Python-urllib"):
            return self._forward(*asked)
        with self._lock:
            self.changes += 1
            action = self.plan.pop(0) if self.plan else "pass"
            self.is_cut |= action == "cut"
        if self.is_cut:
            return None
        if action == "clash":
            return _CLASH
        if action == "late":
            self.kept.append(asked)
            return None
        answer = self._forward(*asked)
        if action == "twice":
            return self._forward(*asked)
        if action == "proxy":
            return 503, {"error": {"message": "upstream connection closed"}}
        return None if action == "lost" else answer

    def deliver(self) -> list[int]:
        """Let the catalog have what was kept; what it answers, which nobody hears."""
        kept, self.kept = self.kept, []
        return [self._forward(*asked)[0] for asked in kept]

    def _forward(self, method: str, path: str, body: bytes | None) -> tuple[int, object]:
        headers = {"Content-Type": "application/json"} if body else {}
        asked = urllib.request.Request(self._catalog + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read()


@contextmanager
def between(uri: str) -> Iterator[tuple[Between, str]]:
    """What stands between, and the address of it."""
    made = Between(uri)
    with crooked(made.reply) as address:
        yield made, address
