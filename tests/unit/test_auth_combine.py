"""Several ways to authenticate, client certificates, and a sweep: no token is shown, whatever happens."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import jwt
import pytest

from sparkport.auth import AnyOf, Authenticator, Identity, JwtAuthenticator, MutualTls, Peer, Secret, StaticTokens
from sparkport.auth.keys import RemoteKeys
from sparkport.errors import InvalidArgument, SparkportError, Unauthenticated, Unavailable

pytestmark = pytest.mark.tier("fast")

PEER = Peer("ipv4:127.0.0.1:1")
HS = "h" * 32


class Away(Authenticator):
    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        raise Unavailable("away")


def test_the_first_that_knows_the_caller_decides() -> None:
    any_of = AnyOf([Away(), StaticTokens({Secret("a"): "alice"}), StaticTokens({Secret("a"): "x", Secret("b"): "bob"})])
    assert any_of.authenticate(Secret("a"), PEER).subject == "alice"
    assert any_of.authenticate(Secret("b"), PEER).subject == "bob"
    with pytest.raises(Unavailable, match="away"):
        any_of.authenticate(Secret("c"), PEER)


def test_a_caller_nobody_knows_hears_each_reason_once() -> None:
    tokens = StaticTokens({Secret("a"): "alice"})
    with pytest.raises(Unauthenticated) as failure:
        AnyOf([tokens, tokens, MutualTls()]).authenticate(Secret("c"), PEER)
    assert failure.value.message == "the token is not known; a client certificate is required"


def test_nothing_to_ask_is_refused_and_not_open() -> None:
    with pytest.raises(InvalidArgument):
        AnyOf([])


def test_a_client_certificate_names_the_caller() -> None:
    assert MutualTls().authenticate(None, Peer("x", "alice")) == Identity("alice")
    for peer in (Peer("x"), Peer("x", "")):
        with pytest.raises(Unauthenticated, match="a client certificate is required"):
            MutualTls().authenticate(Secret("alice"), peer)


def test_no_token_is_ever_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every authenticator, with good and bad tokens: errors with their chains, reprs and log records are searched."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "tokens"
    path.write_text("alice: file-token-123")
    now = [0.0]
    environment = StaticTokens.from_environment({"SPARKPORT_TOKENS": "bob=env-token-123"})
    assert environment is not None

    def away(url: str) -> bytes:
        raise OSError("away")

    authenticators: list[Authenticator] = [
        StaticTokens.from_file(path, clock=lambda: now[0]),
        environment,
        JwtAuthenticator.from_key(Secret(HS), issuer="i"),
        JwtAuthenticator(RemoteKeys("https://user:pass-word-1@id.example/", fetch=away)),
        MutualTls(),
    ]
    authenticators.append(AnyOf(authenticators))
    claims = {"sub": "carol", "exp": 1 << 40, "iss": "i"}
    good = jwt.encode(claims, HS, algorithm="HS256", headers={"kid": "key-id-1"})
    tokens = ["file-token-123", "env-token-123", "wrong-token-123", good, good[:-4] + "AAAA", "a." + good]
    tokens += [jwt.encode(claims | {"exp": 1}, HS, algorithm="HS256"), jwt.encode(claims, "k" * 32, algorithm="HS256")]
    shown: list[str] = []
    identities = 0
    for authenticator in authenticators:
        for token in tokens:
            try:
                shown.append(repr(authenticator.authenticate(Secret(token), PEER)))
                identities += 1
            except SparkportError as exc:
                shown += traceback.format_exception(exc)
                shown += [repr(exc), repr(exc.__context__), repr(exc.__cause__), repr(vars(exc))]
        shown += [repr(authenticator), str(authenticator), repr(vars(authenticator))]
    path.write_text("alice: broken file-token-456")
    now[0] += 10
    authenticators[0].authenticate(Secret("file-token-123"), PEER)
    shown += [record.getMessage() + repr(record.args) + str(record.exc_text) for record in caplog.records]
    assert identities == 6
    assert "broken" not in caplog.text
    assert "line 1" in caplog.text
    pieces = {piece for token in tokens for piece in token.split(".") if len(piece) > 4}
    forbidden = pieces | {"file-token-456", "pass-word-1", HS}
    everything = "\n".join(shown)
    assert [piece for piece in forbidden if piece in everything] == []
