"""A browser's request as values, the answer, and what is asked of every request before it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from sparkport.auth.model import Peer
from sparkport.errors import InvalidArgument, PermissionDenied, ResourceExhausted
from sparkport.http import peer_of

__all__ = ["Request", "Response", "link", "redirect", "require_same_origin"]

_BODY_BYTES = 16 * 1024
_FIELDS = 50
_COOKIES = 200
_COOKIE_CHARACTERS = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    cookies: Mapping[str, str]
    host: str
    is_https: bool
    origin: str | None
    fetch_site: str | None
    peer: Peer

    @classmethod
    def read(cls, environ: Mapping[str, Any]) -> Request:
        method = str(environ.get("REQUEST_METHOD", "GET"))
        return cls(
            method=method,
            path=_text(str(environ.get("PATH_INFO", ""))) or "/",
            query=_fields(str(environ.get("QUERY_STRING", ""))),
            form=_form(environ) if method == "POST" else {},
            cookies=_cookies(str(environ.get("HTTP_COOKIE", ""))),
            host=str(environ.get("HTTP_HOST", "")),
            is_https=environ.get("wsgi.url_scheme") == "https",
            origin=environ.get("HTTP_ORIGIN"),
            fetch_site=environ.get("HTTP_SEC_FETCH_SITE"),
            peer=peer_of(environ),
        )

    @property
    def port(self) -> str:
        """The port that the browser knows: in front of a proxy it is not ours."""
        port = self.host.rpartition(":")[2]
        return port if port.isascii() and port.isdigit() else ""

    @property
    def place(self) -> str:
        """Where the browser is, to come back to."""
        return link(self.path, **self.query)


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = field(default=())

    def send(self, start_response: Callable[..., Any], *, head: bool = False) -> Iterable[bytes]:
        headers = [*self.headers, ("Content-Length", str(len(self.body)))]
        start_response(f"{self.status.value} {self.status.phrase}", headers)
        return [] if head else [self.body]


def link(path: str, **query: str) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path


def redirect(place: str, *headers: tuple[str, str]) -> Response:
    return Response(HTTPStatus.SEE_OTHER, b"", (("Location", place), *headers))


def require_same_origin(request: Request) -> None:
    """A form that changes something comes from a page of ours. Every browser says where it comes from."""
    if request.fetch_site is not None and request.fetch_site != "same-origin":
        raise PermissionDenied("this form was sent by another site")
    if request.origin is None:
        if request.fetch_site is None:
            raise PermissionDenied("the request does not say which site it comes from")
        return
    if not request.host or _netloc(request.origin) != request.host.lower():
        raise PermissionDenied("this form was sent by another site")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _text(raw: str) -> str:
    """WSGI hands over bytes as Latin-1."""
    try:
        return raw.encode("latin-1").decode()
    except UnicodeError as exc:
        raise InvalidArgument("the address is not UTF-8") from exc


def _fields(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS, errors="strict"))
    except ValueError as exc:
        raise InvalidArgument("the fields cannot be read") from exc


def _form(environ: Mapping[str, Any]) -> dict[str, str]:
    kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidArgument("a form is expected")
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not length.isascii() or not length.isdigit():
        raise InvalidArgument("the form's length is missing")
    if len(length) > 9 or int(length) > _BODY_BYTES:
        raise ResourceExhausted("the form is too large")
    try:
        return _fields(environ["wsgi.input"].read(int(length)).decode("ascii"))
    except UnicodeError as exc:
        raise InvalidArgument("the fields cannot be read") from exc


def _cookies(text: str) -> dict[str, str]:
    """Names and values as they stand there: ours are plain words, so nothing has to be unquoted.

    The standard library's reader takes the square of the length for some texts. What is too long, or has too many
    parts, is as good as nothing: a browser sends the cookies of all servers of a host, and who logs in gets new ones.
    """
    if len(text) > _COOKIE_CHARACTERS:
        return {}
    parts = text.split(";", _COOKIES)[:_COOKIES]
    pairs = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
