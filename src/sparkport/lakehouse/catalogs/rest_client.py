"""HTTP to an Iceberg REST catalog: who we are, where things are, and what an answer means.

A request that may have changed something and got no answer is told apart from one that failed: its outcome has to be
looked up before anybody tries again.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkport.errors import FailedPrecondition, InternalError, PermissionDenied, Unavailable, Unsupported

__all__ = ["Answer", "RequestRefused", "RestClient", "Unanswered"]

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Answer = dict[str, Any]

_EARLY = 60.0
"""Seconds before its end at which a token is replaced."""


class RequestRefused(Exception):
    """The catalog said no, for a reason that depends on what was asked. Never leaves the engine."""

    def __init__(self, status: int, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.message = message


class Unanswered(Exception):
    """A change was asked for, and nobody knows whether it was made. Never leaves the engine."""


class RestClient:
    """Called from several threads at once.

    ``properties`` are those of Iceberg's REST catalogs: ``token``, or ``credential`` (``id:secret``) with ``scope`` and
    ``oauth2-server-uri``; ``prefix``; ``warehouse``; ``header.<name>``.
    """

    def __init__(self, uri: str, properties: Mapping[str, str], *, timeout: float = 30.0) -> None:
        self._uri = uri.rstrip("/")
        self._properties = dict(properties)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._configured = False
        self._endpoints: frozenset[str] | None = None
        self._token = properties.get("token")
        self._token_until = float("inf")

    def get(self, *path: str, query: Mapping[str, str] | None = None) -> Answer:
        return self._call("GET", path, query=query)

    def post(self, *path: str, body: Json) -> Answer:
        return self._call("POST", path, body=body)

    def delete(self, *path: str, query: Mapping[str, str] | None = None) -> Answer:
        return self._call("DELETE", path, query=query)

    def pages(self, key: str, *path: str) -> Iterator[object]:
        """What is listed under a key, over all pages of a list."""
        query: dict[str, str] = {}
        followed: set[str] = set()
        while True:
            answer = self.get(*path, query=query)
            listed = answer.get(key) or []
            if not isinstance(listed, list):
                raise InternalError("the catalog answers with something else than a list")
            yield from listed
            token = str(answer.get("next-page-token") or "")
            if not token:
                return
            if token in followed:
                raise Unavailable("the catalog's list has no end: it leads to the same page again")
            followed.add(token)
            query = {"pageToken": token}

    def offers(self, endpoint: str, *, unlisted: bool = True) -> bool:
        """Whether the catalog has an endpoint, as ``POST /v1/{prefix}/…``; ``unlisted`` if it lists none at all."""
        self._configure()
        return unlisted if self._endpoints is None else endpoint in self._endpoints

    def property(self, name: str) -> str | None:
        """One of ours, or one that the catalog tells its clients."""
        self._configure()
        return self._properties.get(name)

    def _call(
        self, method: str, path: Sequence[str], *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Answer:
        self._configure()
        prefix = self._properties.get("prefix")
        # A prefix may have several parts; names may hold anything, slashes too.
        parts = ["v1", *([prefix.strip("/")] if prefix else []), *[urllib.parse.quote(part, safe="") for part in path]]
        address = f"{self._uri}/{'/'.join(parts)}"
        if query:
            address += f"?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._send(method, address, data, "application/json")
        except RequestRefused as exc:
            if exc.status not in (401, 419) or not self._properties.get("credential"):
                raise self._translated(exc) from exc
        self._renew(force=True)
        try:
            return self._send(method, address, data, "application/json")
        except RequestRefused as exc:
            raise self._translated(exc) from exc

    @staticmethod
    def _translated(refused: RequestRefused) -> Exception:
        """What means the same whatever was asked."""
        match refused.status:
            case 401 | 419:
                return FailedPrecondition("the catalog does not accept this server's token or credential")
            case 403:
                return PermissionDenied(f"the catalog does not allow it: {refused.message}")
            case 405 | 406 | 501:
                return Unsupported(f"the catalog cannot do this: {refused.message}")
            case 429 | 503:
                return Unavailable("the catalog is busy; try again")
        return refused

    def _send(self, method: str, address: str, data: bytes | None, content_type: str) -> Answer:
        request = urllib.request.Request(address, data=data, method=method)
        request.add_header("Accept", "application/json")
        if data is not None:
            request.add_header("Content-Type", content_type)
        for key, value in self._properties.items():
            if key.startswith("header."):
                request.add_unredirected_header(key.removeprefix("header."), value)
        token = self._renew()
        if token is not None:
            # Not sent along when the catalog redirects to somebody else.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                text = response.read()
            return dict(json.loads(text)) if text.strip() else {}
        except urllib.error.HTTPError as exc:
            with exc:
                refused = _refused(exc)
            # Proxies answer 503 for a server that went away in the middle of it, too.
            if refused.status >= 500 and refused.status != 501 and (method != "GET" or refused.status != 503):
                raise _lost(method, f"status {refused.status}: {refused.message}") from exc
            raise refused from exc
        except urllib.error.URLError as exc:
            reason = exc.reason
            if isinstance(reason, (ConnectionRefusedError, socket.gaierror, str)):
                raise Unavailable(f"the catalog cannot be reached: {reason}") from exc
            raise _lost(method, str(reason)) from exc
        except (OSError, http.client.HTTPException, TypeError, ValueError, RecursionError) as exc:
            raise _lost(method, str(exc) or type(exc).__name__) from exc

    # Who we are, and what the catalog wants us to know

    def _configure(self) -> None:
        with self._lock:
            if self._configured:
                return
            warehouse = self._properties.get("warehouse")
            query = f"?{urllib.parse.urlencode({'warehouse': warehouse})}" if warehouse else ""
            try:
                told = self._send("GET", f"{self._uri}/v1/config{query}", None, "application/json")
            except RequestRefused as exc:
                raise self._final(exc) from exc
            defaults, overrides = (_texts(told.get(name)) for name in ("defaults", "overrides"))
            endpoints = told.get("endpoints") or []
            if not isinstance(endpoints, list) or not all(isinstance(endpoint, str) for endpoint in endpoints):
                raise FailedPrecondition("this is not a usable Iceberg REST catalog: its endpoints are no list")
            self._properties = {**defaults, **self._properties, **overrides}
            self._endpoints = frozenset(endpoints) or None
            self._configured = True

    def _final(self, refused: RequestRefused) -> Exception:
        error = self._translated(refused)
        if isinstance(error, RequestRefused):
            return FailedPrecondition(f"this is not a usable Iceberg REST catalog: {refused.message}")
        return error

    def _renew(self, *, force: bool = False) -> str | None:
        """The token to use now; a credential is turned into one, and again before it ends."""
        credential = self._properties.get("credential")
        if credential is None or (self._token is not None and not force and time.monotonic() < self._token_until):
            return self._token
        name, _, secret = credential.rpartition(":")
        form = {"grant_type": "client_credentials", "client_secret": secret}
        form["scope"] = self._properties.get("scope", "catalog")
        if name:
            form["client_id"] = name
        address = self._properties.get("oauth2-server-uri") or f"{self._uri}/v1/oauth/tokens"
        request = urllib.request.Request(address, data=urllib.parse.urlencode(form).encode(), method="POST")
        request.add_header("Content-Type", "application/x-www-form-urlencoded")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer = json.loads(response.read())
            token: str = answer["access_token"]
            self._token_until = time.monotonic() + float(answer.get("expires_in") or 3600) - _EARLY
        except urllib.error.HTTPError as exc:
            with exc:
                raise FailedPrecondition(f"the catalog gives no token for this credential ({exc.code})") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise Unavailable("the catalog's token service cannot be reached") from exc
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise InternalError("the catalog's token service answers with something else than a token") from exc
        self._token = token
        return token


def _refused(exc: urllib.error.HTTPError) -> RequestRefused:
    try:
        told = json.loads(exc.read()).get("error", {})
        message, error_type = str(told.get("message") or exc.reason), str(told.get("type") or "")
    except (ValueError, AttributeError, OSError, http.client.HTTPException, RecursionError):
        message, error_type = str(exc.reason), ""
    return RequestRefused(exc.code, error_type, message.splitlines()[0][:300] if message else "no reason given")


def _texts(told: object) -> dict[str, str]:
    """Properties that a catalog sends. Numbers and truth values are taken as JSON writes them; null is nothing."""
    properties = {} if told is None else told
    if not isinstance(properties, dict) or not all(
        value is None or isinstance(value, str | int | float) for value in properties.values()
    ):
        raise FailedPrecondition("this is not a usable Iceberg REST catalog: its configuration is no mapping of texts")
    there = {key: value for key, value in properties.items() if value is not None}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in there.items()}


def _lost(method: str, reason: str) -> Exception:
    if method == "GET":
        return Unavailable(f"the catalog does not answer: {reason}")
    logger.warning("the outcome of a change to the catalog is not known: %s", reason)
    return Unanswered(reason)
