"""Pages for machines: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever starts servers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sparkport.catalog.readiness import Readiness
from sparkport.errors import SparkportError, Unauthenticated

__all__ = ["alive_page", "metrics_page", "ready_page"]

logger = logging.getLogger(__name__)

_Start = Callable[..., Any]
_Page = Callable[[dict[str, Any], _Start], Iterable[bytes]]


def metrics_page(registry: CollectorRegistry, admit: Callable[[Mapping[str, Any]], None] | None) -> _Page:
    """``admit`` raises for those who may not see the metrics; without it everybody may who reaches the port."""

    def page(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        if environ.get("PATH_INFO"):
            return _answer(start, "404 Not Found", b"not found\n")
        try:
            if admit is not None:
                admit(environ)
        except SparkportError as exc:
            if isinstance(exc, Unauthenticated):
                return _answer(start, "401 Unauthorized", b"a token is needed\n", ("WWW-Authenticate", "Bearer"))
            return _answer(start, "403 Forbidden", b"not allowed\n")
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        return _answer(start, "200 OK", encode(registry), ("Content-Type", content_type))

    return page


def alive_page() -> _Page:
    def page(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        return _answer_json(start, "200 OK", {"alive": True})

    return page


def ready_page(readiness: Callable[[], Readiness]) -> _Page:
    """``/readyz`` is about reads and writes, ``/readyz/reads`` and ``/readyz/writes`` about one of them."""

    def page(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        asked = environ.get("PATH_INFO", "").strip("/")
        if asked not in ("", "reads", "writes"):
            return _answer(start, "404 Not Found", b"not found\n")
        found = readiness()
        parts = {"reads": found.reads, "writes": found.writes}
        wanted = parts if not asked else {asked: parts[asked]}
        ready = all(wanted.values())
        body: dict[str, object] = {"ready": ready, **wanted, **({"why": found.why} if found.why else {})}
        return _answer_json(start, "200 OK" if ready else "503 Service Unavailable", body)

    return page


def _answer_json(start: _Start, status: str, body: Mapping[str, object]) -> Iterable[bytes]:
    return _answer(start, status, json.dumps(body).encode() + b"\n", ("Content-Type", "application/json"))


def _answer(start: _Start, status: str, body: bytes, *headers: tuple[str, str]) -> Iterable[bytes]:
    named = {name for name, _ in headers}
    plain = [] if "Content-Type" in named else [("Content-Type", "text/plain; charset=utf-8")]
    start(status, [*headers, *plain, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
    return [body]
