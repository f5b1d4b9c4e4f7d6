"""JSON Web Tokens: which are taken, which are refused and with what words, and how key sets are kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from sparkport.auth import JwtAuthenticator, Peer, Secret
from sparkport.auth.keys import RemoteKeys, download
from sparkport.errors import InvalidArgument, SparkportError, Unauthenticated, Unavailable

pytestmark = pytest.mark.tier("fast")

PEER = Peer("ipv4:127.0.0.1:1")
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
HS = "h" * 32
ISSUER, AUDIENCE = "https://id.example", "sparkport"


def pem(key: Any) -> str:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data.decode()


def claims(**changes: object) -> dict[str, object]:
    made = {"sub": "alice", "exp": time.time() + 600, "iss": ISSUER, "aud": AUDIENCE, "role": "x"} | changes
    return {key: value for key, value in made.items() if value is not None}


def sign(key: Any = RSA, algorithm: str = "RS256", *, kid: str | None = None, **changes: Any) -> Secret:
    return Secret(jwt.encode(claims(**changes), key, algorithm=algorithm, headers={"kid": kid} if kid else None))


def forge(header: dict[str, object], secret: bytes | None = None) -> Secret:
    """A token as an attacker makes it, past the guards of the library."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims())]
    signature = hmac.digest(secret, b".".join(parts), hashlib.sha256) if secret else b""
    return Secret(b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode())


def jwk(key: Any, **members: object) -> dict[str, object]:
    kinds = {rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm, ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm}
    kind = next(algorithm for base, algorithm in kinds.items() if isinstance(key, base))
    made: dict[str, object] = json.loads(kind.to_jwk(key.public_key()))  # type: ignore[attr-defined]
    return made | members


def key_set(*keys: dict[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.fixture(scope="module")
def authenticator() -> JwtAuthenticator:
    return JwtAuthenticator.from_key(Secret(pem(RSA)), issuer=ISSUER, audience=AUDIENCE, leeway=5)


def refusal(authenticator: JwtAuthenticator, token: Secret | None) -> str:
    with pytest.raises(Unauthenticated) as failure:
        authenticator.authenticate(token, PEER)
    assert failure.value.__context__ is None
    assert not token or all(piece not in failure.value.message for piece in token.reveal().split(".") if piece)
    return failure.value.message


def test_a_good_token_gives_its_subject_and_claims(authenticator: JwtAuthenticator) -> None:
    identity = authenticator.authenticate(sign(), PEER)
    assert identity.subject == "alice"
    assert identity.claims["role"] == "x"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": time.time() - 60}, "the token is expired"),
        ({"nbf": time.time() + 1e8}, "the token is not valid yet"),
        ({"aud": "other"}, "the token is for another audience"),
        ({"aud": ["other"]}, "the token is for another audience"),
        ({"iss": "https://evil.example"}, "the token is from another issuer"),
        ({"exp": None}, "the token lacks the claim 'exp'"),
        ({"sub": None}, "the token lacks the claim 'sub'"),
        ({"aud": None}, "the token lacks the claim 'aud'"),
        ({"iss": None}, "the token lacks the claim 'iss'"),
        ({"sub": " "}, "the token's subject is empty"),
        ({"sub": 7}, "the token's subject is not a text"),
        ({"exp": float("inf")}, "the token is malformed"),
        ({"exp": "soon"}, "the token is malformed"),
    ],
)
def test_claims_that_do_not_hold_are_refused(
    authenticator: JwtAuthenticator, changes: dict[str, Any], reason: str
) -> None:
    assert refusal(authenticator, sign(**changes)) == reason


@pytest.mark.parametrize("changes", [{"exp": time.time() - 60}, {"nbf": time.time() + 60}])
def test_clocks_may_differ_by_the_leeway(changes: dict[str, Any]) -> None:
    generous = JwtAuthenticator.from_key(Secret(pem(RSA)), leeway=3600)
    assert generous.authenticate(sign(**changes), PEER).subject == "alice"


def test_other_keys_and_algorithms_are_refused(authenticator: JwtAuthenticator) -> None:
    assert refusal(authenticator, sign(OTHER_RSA)) == "the token's signature is wrong"
    assert refusal(authenticator, sign(EC, "ES256")) == "the token's algorithm is not allowed"
    assert refusal(authenticator, sign(HS, "HS256")) == "the token's algorithm is not allowed"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
def test_unsigned_tokens_are_refused(authenticator: JwtAuthenticator, name: str) -> None:
    assert refusal(authenticator, forge({"typ": "JWT", "alg": name})) == "the token's algorithm is not allowed"


@pytest.mark.parametrize("algorithm", ["HS256", "RS256"])
def test_a_public_key_is_never_taken_for_an_hmac_secret(authenticator: JwtAuthenticator, algorithm: str) -> None:
    forged = forge({"typ": "JWT", "alg": algorithm}, pem(RSA).encode())
    assert "algorithm" in refusal(authenticator, forged) or "signature" in refusal(authenticator, forged)


@pytest.mark.parametrize(
    "token",
    [
        "xyz",
        "xx.yy.zz",
        "..",
        "é.é.é",
        "\ud800",
        "[" * 5000,
        base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".e30.e30",
    ],
)
def test_what_is_no_jwt_is_refused(authenticator: JwtAuthenticator, token: str) -> None:
    assert refusal(authenticator, Secret(token)) in ("the token is malformed", "the token is not valid")


def test_odd_headers_are_refused(authenticator: JwtAuthenticator) -> None:
    assert refusal(authenticator, forge({"alg": ["RS256"]})) != ""
    assert refusal(authenticator, forge({"alg": "RS256", "kid": 7})) != ""
    critical = jwt.encode(claims(), RSA, algorithm="RS256", headers={"crit": ["x"], "x": 1})
    assert refusal(authenticator, Secret(critical)) != ""


@pytest.mark.parametrize("token", [None, Secret("")])
def test_a_call_without_a_token_is_refused(authenticator: JwtAuthenticator, token: Secret | None) -> None:
    assert refusal(authenticator, token) == "a bearer token is required"


@pytest.mark.parametrize(
    ("key", "signer", "algorithm"),
    [
        (pem(RSA), RSA, "PS384"),
        (pem(EC), EC, "ES256"),
        (pem(ED), ED, "EdDSA"),
        (HS, HS, "HS256"),
        (HS * 2, HS * 2, "HS512"),
    ],
)
def test_each_kind_of_key_brings_its_algorithms(key: str, signer: Any, algorithm: str) -> None:
    assert JwtAuthenticator.from_key(Secret(key)).authenticate(sign(signer, algorithm), PEER).subject == "alice"


def test_a_short_hmac_key_is_not_used_with_a_long_digest() -> None:
    authenticator = JwtAuthenticator.from_key(Secret("h" * 63))
    with pytest.raises(Unauthenticated, match="algorithm"):
        authenticator.authenticate(forge({"alg": "HS512"}), PEER)


@pytest.mark.parametrize(
    ("key", "settings", "named"),
    [
        (pem(RSA), {"algorithms": ["none"]}, "'none'"),
        (pem(RSA), {"algorithms": []}, "algorithm"),
        (pem(RSA), {"algorithms": ["RS256", "HS256"]}, "mixed"),
        (pem(RSA), {"algorithms": ["HS256"]}, "HS256"),
        (pem(RSA), {"algorithms": ["ES256"]}, "ES256"),
        (HS, {"algorithms": ["RS256"]}, "RS256"),
        (HS, {"leeway": -1}, "leeway"),
        ("short", {}, "32 bytes"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", {}, "PEM"),
    ],
)
def test_settings_that_are_not_safe_are_refused(key: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        JwtAuthenticator.from_key(Secret(key), **settings)


def test_private_and_weak_keys_are_refused() -> None:
    private = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(InvalidArgument, match="private key"):
        JwtAuthenticator.from_key(Secret(private))
    with pytest.raises(InvalidArgument, match="2048 bits"):
        JwtAuthenticator.from_key(Secret(pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))))


def test_a_key_file_holds_a_pem_or_a_secret_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(HS + "\n")
    authenticator = JwtAuthenticator.from_key_file(tmp_path / "key")
    assert authenticator.authenticate(sign(HS, "HS256"), PEER).subject == "alice"
    with pytest.raises(InvalidArgument, match="cannot be read"):
        JwtAuthenticator.from_key_file(tmp_path / "missing")


def test_a_key_set_file_chooses_the_key_by_its_id(tmp_path: Path) -> None:
    keys = key_set(jwk(RSA, kid="r", alg="RS256", use="sig"), jwk(EC, kid="e"), jwk(OTHER_RSA, kid="enc", use="enc"))
    (tmp_path / "jwks.json").write_bytes(keys)
    authenticator = JwtAuthenticator.from_jwks(str(tmp_path / "jwks.json"), issuer=ISSUER, audience=AUDIENCE)
    assert authenticator.authenticate(sign(kid="r"), PEER).subject == "alice"
    assert authenticator.authenticate(sign(EC, "ES256", kid="e"), PEER).subject == "alice"
    assert authenticator.authenticate(sign(EC, "ES256"), PEER).subject == "alice"
    assert refusal(authenticator, sign(OTHER_RSA, kid="r")) == "the token's signature is wrong"
    for token in (sign(kid="x"), sign(kid="e"), sign(OTHER_RSA, kid="enc"), sign(algorithm="RS384", kid="r")):
        assert refusal(authenticator, token) == "the token's key is not known"


def test_a_token_that_names_no_key_is_refused_when_several_fit(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(jwk(RSA, kid="1"), jwk(OTHER_RSA, kid="2")))
    authenticator = JwtAuthenticator.from_jwks(str(tmp_path / "jwks.json"), audience=AUDIENCE)
    assert refusal(authenticator, sign()) == "the token's key is not known"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1, {}, {"kty": "oct", "k": "aGg", "kid": "x"}]}'],
)
def test_a_key_set_file_without_public_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jwks.json").write_bytes(content)
    with pytest.raises(InvalidArgument, match="key set"):
        JwtAuthenticator.from_jwks(str(tmp_path / "jwks.json"), audience=AUDIENCE)


def test_a_key_set_without_an_audience_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(jwk(RSA, kid="1")))
    JwtAuthenticator.from_jwks(str(tmp_path / "jwks.json"))
    assert "any audience" in caplog.text


class Provider:
    """An identity provider without a network: counts what it is asked, and can be away."""

    def __init__(self, *keys: dict[str, object]) -> None:
        self.keys, self.calls, self.away, self.now = keys, 0, False, 1000.0
        self.before: Callable[[], object] = lambda: None

    def fetch(self, url: str) -> bytes:
        self.before()
        self.calls += 1
        if self.away:
            raise OSError("away")
        return key_set(*self.keys)

    def authenticator(self) -> JwtAuthenticator:
        keys = RemoteKeys("https://id.example/jwks", fetch=self.fetch, clock=lambda: self.now)
        return JwtAuthenticator(keys, issuer=ISSUER, audience=AUDIENCE)


def test_a_key_set_is_fetched_once_and_again_when_it_is_old() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    assert provider.calls == 0
    for _ in range(5):
        authenticator.authenticate(sign(kid="1"), PEER)
    assert provider.calls == 1
    provider.now += 301
    authenticator.authenticate(sign(kid="1"), PEER)
    assert provider.calls == 2


def test_a_new_key_is_found_at_once_and_made_up_ids_cost_one_fetch() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    authenticator.authenticate(sign(kid="1"), PEER)
    provider.now += 11
    provider.keys = (jwk(OTHER_RSA, kid="2"),)
    assert authenticator.authenticate(sign(OTHER_RSA, kid="2"), PEER).subject == "alice"
    for number in range(20):
        assert refusal(authenticator, sign(kid=f"made-up-{number}")) == "the token's key is not known"
    assert provider.calls == 2
    assert refusal(authenticator, sign(kid="1")) == "the token's key is not known"


def test_tokens_of_a_forbidden_algorithm_cause_no_fetch() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    assert refusal(authenticator, forge({"alg": "none", "kid": "x"})) == "the token's algorithm is not allowed"
    assert refusal(authenticator, sign(HS, "HS256", kid="x")) == "the token's algorithm is not allowed"
    assert provider.calls == 0


def test_while_the_provider_is_away_known_keys_work_for_a_day(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    authenticator.authenticate(sign(kid="1"), PEER)
    provider.away, provider.now = True, provider.now + 3600
    assert authenticator.authenticate(sign(kid="1"), PEER).subject == "alice"
    assert "id.example" in caplog.text
    with pytest.raises(Unavailable):
        authenticator.authenticate(sign(kid="unknown"), PEER)
    provider.now += 86_400
    with pytest.raises(Unavailable):
        authenticator.authenticate(sign(kid="1"), PEER)
    provider.away, provider.now = False, provider.now + 11
    assert authenticator.authenticate(sign(kid="1"), PEER).subject == "alice"


def test_a_provider_that_was_never_reached_makes_tokens_wait_and_not_fail() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    provider.away = True
    authenticator = provider.authenticator()
    for _ in range(3):
        with pytest.raises(Unavailable, match="cannot be reached"):
            authenticator.authenticate(sign(kid="1"), PEER)
    assert provider.calls == 1


def test_many_threads_that_start_at_once_fetch_once() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator, token = provider.authenticator(), sign(kid="1")
    subjects: list[str] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        subjects.append(authenticator.authenticate(token, PEER).subject)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert subjects == ["alice"] * 8
    assert provider.calls == 1


def test_made_up_ids_cost_one_fetch_also_when_it_takes_longer_than_the_time_between_two() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    authenticator.authenticate(sign(kid="1"), PEER)
    began, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        began.set()
        go_on.wait(30)
        provider.now += 60

    provider.before = slowly
    provider.now += 11
    reasons: list[str] = []
    barrier = threading.Barrier(8)

    def run(number: int) -> None:
        barrier.wait()
        reasons.append(refusal(authenticator, sign(kid=f"made-up-{number}")))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert began.wait(30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert reasons == ["the token's key is not known"] * 8
    assert refusal(authenticator, sign(kid="another")) == "the token's key is not known"
    assert provider.calls == 2


def test_who_waits_for_unknown_keys_leaves_room_for_those_with_known_ones() -> None:
    provider = Provider(jwk(RSA, kid="1"))
    authenticator = provider.authenticator()
    authenticator.authenticate(sign(kid="1"), PEER)
    go_on = threading.Event()
    provider.before = lambda: go_on.wait(30)
    provider.now += 11
    token, turned_away, ended = sign(kid="made-up"), threading.Event(), []

    def run() -> None:
        try:
            authenticator.authenticate(token, PEER)
        except Unavailable:
            turned_away.set()
        except Unauthenticated:
            ended.append(1)

    threads = [threading.Thread(target=run) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        assert turned_away.wait(30)
        assert authenticator.authenticate(sign(kid="1"), PEER).subject == "alice"
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
    assert len(ended) <= 16
    assert provider.calls == 2


Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def web() -> Iterator[tuple[str, dict[str, Answer]]]:
    answers: dict[str, Answer] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers[self.path](self)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
        server.shutdown()
        thread.join()


def reply(status: int, body: bytes = b"", location: str | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if location:
            handler.send_header("Location", location)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_key_set_that_comes_in_drops_is_given_up(web: tuple[str, dict[str, Answer]]) -> None:
    """Each part comes in time, and all of them never."""
    address, answers = web

    def drops(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b" ")

    answers["/jwks"] = drops
    with pytest.raises(TimeoutError):
        download(f"{address}/jwks", longest=-1.0)


def test_a_key_set_is_fetched_over_http(web: tuple[str, dict[str, Answer]]) -> None:
    address, answers = web
    answers["/jwks"] = reply(200, key_set(jwk(RSA, kid="1")))
    answers["/moved"] = reply(302, location=f"{address}/jwks")
    for path in ("/jwks", "/moved"):
        authenticator = JwtAuthenticator.from_jwks(address + path, issuer=ISSUER, audience=AUDIENCE)
        assert authenticator.authenticate(sign(kid="1"), PEER).subject == "alice"


@pytest.mark.parametrize(
    "answer",
    [
        reply(500),
        reply(200, b"<html>"),
        reply(200, b" " * ((1 << 20) + 1)),
        reply(302, location="http://id.example/jwks"),
        reply(302, location="file:///etc/hostname"),
    ],
    ids=["error", "no-json", "too-large", "plain-redirect", "file-redirect"],
)
def test_a_bad_answer_to_the_key_set_request_is_unavailable(web: tuple[str, dict[str, Answer]], answer: Answer) -> None:
    address, answers = web
    answers["/jwks"] = answer
    authenticator = JwtAuthenticator.from_jwks(address + "/jwks", audience=AUDIENCE)
    with pytest.raises(Unavailable):
        authenticator.authenticate(sign(kid="1"), PEER)


def test_a_provider_that_does_not_listen_is_unavailable() -> None:
    authenticator = JwtAuthenticator.from_jwks("http://127.0.0.1:1/jwks", audience=AUDIENCE)
    with pytest.raises(Unavailable):
        authenticator.authenticate(sign(kid="1"), PEER)


@pytest.mark.parametrize("url", ["http://id.example/jwks", "ftp://127.0.0.1/jwks", "https:///jwks", "file:///jwks"])
def test_a_key_set_must_come_over_https(url: str) -> None:
    with pytest.raises(SparkportError, match="https://"):
        JwtAuthenticator.from_jwks(url, audience=AUDIENCE)
