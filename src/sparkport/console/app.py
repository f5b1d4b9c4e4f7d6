"""The console as a WSGI application: one page for each address, one button for each change.

Whoever asks is authenticated with every request, exactly as in Flight, and every page is made of the same calls that
Flight makes, with the caller's rights. So nothing can be seen or done here that Flight would refuse.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from sparkport.auth.identity import Identity
from sparkport.auth.model import Peer
from sparkport.auth.secret import Secret
from sparkport.catalog.context import CallContext, entered
from sparkport.console.activity import Activity
from sparkport.console.background import Background
from sparkport.console.buttons import Buttons
from sparkport.console.pages import Page, Pages
from sparkport.console.records import recorded
from sparkport.console.render import Renderer
from sparkport.console.requests import Request, Response, link, redirect, require_same_origin
from sparkport.console.sessions import SESSION_SECONDS, Sessions
from sparkport.console.shown_settings import ShownSetting
from sparkport.errors import (
    Code,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SparkportError,
    Unauthenticated,
    without_places,
)
from sparkport.handlers.service import Handlers
from sparkport.http import peer_of, require_local_name
from sparkport.observe.calls import Calls

__all__ = ["Console", "ConsoleSettings"]

logger = logging.getLogger(__name__)

_PAGE_SECONDS = 30.0
_LOGIN_SECONDS = 600
_READERS = 3
"""Of the HTTP port's eight threads."""

_STATUS = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    Code.ABORTED: HTTPStatus.CONFLICT,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """``authenticate`` is Flight's; ``has_login`` whether it asks for anything at all.

    On a server of this machine alone that has no login, ``local_only``, requests by any other name are refused.
    """

    authenticate: Callable[[Secret | None, Peer], Identity]
    has_login: bool
    local_only: bool
    settings: Sequence[ShownSetting] = ()


@dataclass(frozen=True, slots=True)
class _Caller:
    """``purpose`` is what the tokens of the caller's forms are made for; ``session`` the cookie, if there is one."""

    identity: Identity
    purpose: str
    session: str | None = None


class Console:
    def __init__(self, handlers: Handlers, settings: ConsoleSettings, *, calls: Calls | None = None) -> None:
        self._settings = settings
        self._calls = calls
        self._sessions = Sessions()
        self._reading = threading.BoundedSemaphore(_READERS)
        self._background = Background()
        self._renderer = Renderer()
        activity = Activity(handlers, calls)
        self._pages = Pages(handlers, activity, self._background, settings.settings)
        self._buttons = Buttons(handlers, self._background, calls)

    def close(self) -> None:
        self._background.close()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        head = environ.get("REQUEST_METHOD") == "HEAD"
        nonce = secrets.token_urlsafe(16)
        try:
            response = self._answer(self._admitted(environ), nonce)
        except SparkportError as exc:
            response = self._refusal(exc, nonce)
        except Exception:
            logger.exception("a page of the console failed")
            response = self._error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the log has more", nonce)
        headers = (*response.headers, *_protection(nonce))
        return replace(response, headers=headers).send(start_response, head=head)

    def _admitted(self, environ: dict[str, Any]) -> Request:
        """The request, if it is sent by a name and from a site that we answer to."""
        try:
            if self._settings.local_only:
                require_local_name(environ)
            request = Request.read(environ)
            if request.method == "POST":
                require_same_origin(request)
        except PermissionDenied as exc:
            self._note_refusal(peer_of(environ), exc, asked=("page", "", str(environ.get("PATH_INFO", ""))))
            raise
        return request

    def _answer(self, request: Request, nonce: str) -> Response:
        if request.method not in ("GET", "HEAD", "POST"):
            return self._error(HTTPStatus.METHOD_NOT_ALLOWED, "only pages and forms are served here", nonce)
        if request.path == "/login" and self._settings.has_login:
            return self._log_in(request, nonce)
        try:
            caller = self._caller(request)
        except Unauthenticated as exc:
            self._note_refusal(request.peer, exc, asked=("page", "", request.path))
            return redirect(link("/login", next=_own_place(request.place) if request.method != "POST" else ""))
        ctx = CallContext(identity=caller.identity, deadline=time.monotonic() + _PAGE_SECONDS)
        try:
            with self._turn(request, ctx), self._recorded(request, ctx), entered(ctx):
                return self._served(request, caller, ctx, nonce)
        finally:
            ctx.cancellation.set()

    @contextmanager
    def _turn(self, request: Request, ctx: CallContext) -> Iterator[None]:
        """Rows can take long to come. Who asks for many at once leaves threads to other pages, and to probes."""
        if request.query.get("show") != "rows":
            yield
            return
        if not self._reading.acquire(blocking=False):
            raise ResourceExhausted("rows of other tables are being read: try again in a moment")
        end = threading.Timer(_PAGE_SECONDS, ctx.cancellation.set)
        end.daemon = True
        end.start()
        try:
            yield
        finally:
            end.cancel()
            self._reading.release()

    @contextmanager
    def _recorded(self, request: Request, ctx: CallContext) -> Iterator[None]:
        """Pages that show rows, and buttons, are calls like Flight's: in the log, the metrics and the audit.

        Of all others those are that were refused.
        """
        if self._calls is not None and (request.method == "POST" or request.query.get("show") == "rows"):
            with recorded(self._calls, ctx, request.peer.address):
                yield
            return
        try:
            yield
        except (PermissionDenied, NotFound) as exc:
            asked = ctx.record.asked
            if isinstance(exc, PermissionDenied) or asked != ctx.record.granted:
                asked = asked if any(asked) else ("page", "", request.path)
                self._note_refusal(request.peer, exc, asked=asked, user=ctx.identity.subject)
            raise

    def _served(self, request: Request, caller: _Caller, ctx: CallContext, nonce: str) -> Response:
        if request.method == "POST":
            if not self._sessions.is_form_token(request.form.get("form_token", ""), caller.purpose):
                raise PermissionDenied("this form is too old, or was not made here: load the page again")
            if request.path == "/logout":
                return self._log_out(request, caller)
            return redirect(self._buttons.press(request.path, ctx, request.form))
        page = self._pages.page(request.path, ctx, request.query)
        return self._rendered(page, ctx, caller, request, nonce)

    def _rendered(self, page: Page, ctx: CallContext, caller: _Caller, request: Request, nonce: str) -> Response:
        return self._html(
            HTTPStatus.OK,
            page.template,
            nonce,
            {
                **self._pages.around(ctx),
                **page.values,
                "page": page,
                "path": request.path,
                "query": request.query,
                "user": caller.identity.subject if self._settings.has_login else None,
                "may_log_out": caller.session is not None,
                "form_token": self._sessions.form_token(caller.purpose),
                "self_link": request.place,
            },
        )

    # Who is it

    def _caller(self, request: Request) -> _Caller:
        """A session is as good as its token is now. Who shows a certificate needs no session."""
        if not self._settings.has_login:
            identity = self._settings.authenticate(None, request.peer)
            return _Caller(identity, "anybody")
        number = request.cookies.get(_cookie_name(request), "")
        session = self._sessions.find(number) if number else None
        if session is None:
            identity = self._settings.authenticate(None, request.peer)
            return _Caller(identity, f"subject {identity.subject}")
        try:
            identity = self._settings.authenticate(session.token, request.peer)
        except Unauthenticated:
            self._sessions.close(number)
            raise
        if identity.subject != session.subject:
            self._sessions.close(number)
            raise Unauthenticated("the token is another's by now")
        return _Caller(identity, f"session {number}", number)

    def _log_in(self, request: Request, nonce: str) -> Response:
        """The form carries a token of its own, which goes with a cookie: nobody is logged in by another site."""
        place = _own_place(request.form.get("next") or request.query.get("next") or "/")
        if request.method != "POST":
            return self._login_form(request, nonce, place)
        visit = request.cookies.get(_cookie_name(request, "login"), "")
        if not visit or not self._sessions.is_form_token(request.form.get("form_token", ""), f"login {visit}"):
            return self._login_form(request, nonce, place, "The form was too old. Please try again.")
        token = Secret(request.form.get("token", "").strip())
        try:
            if not token:
                raise Unauthenticated("a token is required")
            identity = self._settings.authenticate(token, request.peer)
        except Unauthenticated as exc:
            logger.info("a login to the console was refused: %s", exc.message)
            self._note_refusal(request.peer, exc, action="login")
            return self._login_form(request, nonce, place, "That token is not valid.")
        if old := request.cookies.get(_cookie_name(request)):
            self._sessions.close(old)
        number = self._sessions.open(token, identity.subject)
        return redirect(place, _cookie(request, number, SESSION_SECONDS), _cookie(request, "", 0, "login"))

    def _note_refusal(
        self,
        peer: Peer,
        exc: SparkportError,
        *,
        action: str = "page",
        asked: tuple[str, str, str] = ("", "", ""),
        user: str = "",
    ) -> None:
        """What is refused here is a refused call as it is in Flight."""
        if self._calls is not None:
            record = self._calls.begin("Console", peer.address)
            record.action, record.asked, record.user = action, asked, user
            self._calls.end(record, exc)

    def _login_form(self, request: Request, nonce: str, place: str, failure: str = "") -> Response:
        visit = secrets.token_urlsafe(16)
        values = {"next": place, "failure": failure, "form_token": self._sessions.form_token(f"login {visit}")}
        response = self._html(HTTPStatus.FORBIDDEN if failure else HTTPStatus.OK, "login.html", nonce, values)
        return replace(response, headers=(*response.headers, _cookie(request, visit, _LOGIN_SECONDS, "login")))

    def _log_out(self, request: Request, caller: _Caller) -> Response:
        if caller.session is not None:
            self._sessions.close(caller.session)
        return redirect("/login", _cookie(request, "", 0))

    # Answers

    def _html(self, status: HTTPStatus, template: str, nonce: str, values: dict[str, Any]) -> Response:
        body = self._renderer.render(template, {**values, "nonce": nonce})
        return Response(status, body, (("Content-Type", "text/html; charset=utf-8"),))

    def _refusal(self, exc: SparkportError, nonce: str) -> Response:
        if isinstance(exc, NotFound | PermissionDenied):
            logger.debug("a page of the console was refused: %s", exc.message)
        status = _STATUS.get(exc.code, HTTPStatus.INTERNAL_SERVER_ERROR)
        return self._error(status, without_places(exc.message), nonce)

    def _error(self, status: HTTPStatus, message: str, nonce: str) -> Response:
        return self._html(status, "error.html", nonce, {"status": status, "message": message})


def _protection(nonce: str) -> tuple[tuple[str, str], ...]:
    """Nothing is fetched from anywhere, nothing runs but what we have written, and nobody keeps or frames a page."""
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return (
        ("Content-Security-Policy", policy),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )


def _cookie_name(request: Request, purpose: str = "session") -> str:
    """Cookies go to all ports of a host: two servers of one machine must not take each other's."""
    prefix = "__Host-" if request.is_https else ""
    return f"{prefix}sparkport-{purpose}-{request.port}"


def _cookie(request: Request, value: str, seconds: float, purpose: str = "session") -> tuple[str, str]:
    secure = "; Secure" if request.is_https else ""
    text = (
        f"{_cookie_name(request, purpose)}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict{secure}"
    )
    return "Set-Cookie", text


def _own_place(place: str) -> str:
    """A place on this server, and nothing that a browser could take for another one."""
    is_own = place.startswith("/") and not place.startswith(("//", "/\\", "/login", "/logout"))
    return place if is_own and place.isprintable() and place.isascii() and "\\" not in place else "/"
