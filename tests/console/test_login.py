"""Who gets in: a token once, then a cookie that is worth no more than the token is now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.rig import RULES, TOKENS, Rig, Visitor, serving_console

from sparkport.auth import Secret, StaticTokens
from sparkport.auth.identity import Identity
from sparkport.auth.model import Authenticator, Peer
from sparkport.console.sessions import SESSION_SECONDS, Sessions
from sparkport.errors import Unauthenticated, Unavailable

pytestmark = pytest.mark.tier("fast")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving_console(authenticator=TOKENS, authorizer=RULES) as made:
        yield made


def session_cookie(visitor: Visitor) -> str:
    return next(value for name, value in visitor.cookies.items() if "session" in name)


def with_session(rig: Rig, value: str) -> Visitor:
    visitor = rig.visitor()
    port = visitor.host.rpartition(":")[2]
    visitor.cookies[f"sparkport-session-{port}"] = value
    return visitor


@pytest.mark.parametrize("path", ["/", "/tables", "/settings", "/nothing", "/table?catalog=lake&name=users"])
def test_without_a_token_there_is_only_the_login(rig: Rig, path: str) -> None:
    answer = rig.visitor().get(path)
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/login?next=%2F" if path != "/" else "/login")
    assert answer.text == ""


def test_a_token_opens_a_session_and_is_not_in_the_cookie(rig: Rig) -> None:
    visitor = rig.visitor()
    answer = visitor.log_in("admin-token", next="/tables?sort=size")
    assert (answer.status, answer.headers["Location"]) == (303, "/tables?sort=size")
    (cookie,) = [text for text in answer.headers.get_all("Set-Cookie") or () if "session" in text]
    for words in ("; Path=/", "; HttpOnly", "; SameSite=Strict", f"; Max-Age={int(SESSION_SECONDS)}"):
        assert words in cookie
    assert "Secure" not in cookie
    assert "admin-token" not in str(answer.headers)
    assert "admin" in visitor.get("/").text


@pytest.mark.parametrize("token", ["", " ", "wrong", "admin-token2", "a" * 5000, "\u202e"])
def test_a_wrong_token_opens_none(rig: Rig, token: str) -> None:
    visitor = rig.visitor()
    answer = visitor.log_in(token)
    assert answer.status == 403
    assert "That token is not valid." in answer.text
    assert token.strip() == "" or token not in answer.text
    assert visitor.get("/").status == 303


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "\\x", "/a\r\nb: c", "x", "/ä"]
)
def test_after_the_login_nobody_is_sent_elsewhere(rig: Rig, place: str) -> None:
    answer = rig.visitor().log_in("admin-token", next=place)
    assert (answer.status, answer.headers["Location"]) == (303, "/")


def test_the_login_form_of_another_browser_is_not_taken(rig: Rig) -> None:
    """A site could send its own token and form, so that somebody works under a name that is not theirs."""
    theirs, ours = rig.visitor(), rig.visitor()
    form_token = theirs.get("/login").form_token
    for visitor in (ours, rig.visitor()):
        if visitor is ours:
            visitor.get("/login")
        answer = visitor.post("/login", {"token": "admin-token", "form_token": form_token})
        assert answer.status == 403
        assert visitor.get("/").status == 303


def test_a_session_that_a_client_brings_along_is_never_the_one_it_gets(rig: Rig) -> None:
    visitor = with_session(rig, "chosen-by-an-attacker")
    visitor.log_in("admin-token")
    assert session_cookie(visitor) != "chosen-by-an-attacker"
    assert with_session(rig, "chosen-by-an-attacker").get("/").status == 303


def test_a_second_login_ends_the_first_session_of_the_browser(rig: Rig) -> None:
    visitor = rig.logged_in("admin-token")
    first = session_cookie(visitor)
    visitor.log_in("reader-token")
    assert session_cookie(visitor) != first
    assert with_session(rig, first).get("/").status == 303


@pytest.mark.parametrize("value", ["", "x", "admin", "admin-token", "' OR 1", "../..", "A" * 3000, "%00", '"quoted"'])
def test_a_forged_cookie_is_worth_nothing(rig: Rig, value: str) -> None:
    assert with_session(rig, value).get("/").status == 303


def test_who_logs_out_is_out(rig: Rig) -> None:
    visitor = rig.logged_in("admin-token")
    old = session_cookie(visitor)
    assert visitor.press("/tables", "/logout").headers["Location"] == "/login"
    assert with_session(rig, old).get("/").status == 303


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("admin: one\nbob: two\n")
    clock = [0.0]
    tokens = StaticTokens.from_file(file, clock=lambda: clock[0])
    with serving_console(authenticator=tokens) as rig:
        visitor = rig.logged_in("one")
        assert visitor.get("/").status == 200
        file.write_text("bob: two and more\n".replace(" and more", ""))
        clock[0] += 10
        assert visitor.get("/").status == 303
        file.write_text("admin: one\nbob: two\n\n")
        clock[0] += 10
        assert visitor.get("/").status == 303, "it does not come back to life"


def test_a_session_ends_when_its_token_is_given_to_another() -> None:
    class Changing(Authenticator):
        subject = "alice"

        def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
            if token is None or token.reveal() != "t":
                raise Unauthenticated("no")
            return Identity(self.subject)

    changing = Changing()
    with serving_console(authenticator=changing) as rig:
        visitor = rig.logged_in("t")
        changing.subject = "bob"
        assert visitor.get("/").status == 303


def test_who_cannot_be_told_now_keeps_the_session() -> None:
    class Away(Authenticator):
        away = False

        def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
            if self.away:
                raise Unavailable("the key set cannot be read")
            if not token:
                raise Unauthenticated("no")
            return Identity("alice")

    authenticator = Away()
    with serving_console(authenticator=authenticator) as rig:
        visitor = rig.logged_in("t")
        authenticator.away = True
        assert visitor.get("/").status == 503
        authenticator.away = False
        assert visitor.get("/").status == 200


def test_who_shows_a_certificate_needs_no_login() -> None:
    class Named(Authenticator):
        def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
            return Identity("carol")

    with serving_console(authenticator=Named()) as rig:
        visitor = rig.visitor()
        assert "carol" in visitor.get("/").text
        assert "Log out" not in visitor.get("/").text
        assert visitor.press("/", "/flush").status == 303


def test_sessions_expire_and_one_caller_keeps_only_some() -> None:
    clock = [0.0]
    sessions = Sessions(clock=lambda: clock[0])
    other = sessions.open(Secret("o"), "other")
    many = [sessions.open(Secret("t"), "alice") for _ in range(30)]
    assert [sessions.find(number) is not None for number in many] == [False] * 10 + [True] * 20
    assert sessions.find(other) is not None
    clock[0] = SESSION_SECONDS
    assert sessions.find(other) is None
    assert sessions.find(many[-1]) is None
