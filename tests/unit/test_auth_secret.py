"""Secrets and identities show nothing that must not be seen."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass

import pytest

from sparkport.auth import ANONYMOUS, Identity, Secret

pytestmark = pytest.mark.tier("fast")

VALUE = "s3cr3t-value"


@dataclass(frozen=True, slots=True)
class Holder:
    secret: Secret


def test_a_secret_is_shown_by_reveal_only() -> None:
    secret = Secret(VALUE)
    assert secret.reveal() == VALUE
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", "%s %r" % (secret, secret), repr([secret])]  # noqa: UP031
    shown += [repr(Holder(secret)), str(asdict(Holder(secret))), json.dumps({"s": secret}, default=str)]
    assert all("***" in text and VALUE not in text for text in shown)


def test_a_secret_in_a_log_record_prints_as_stars(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("test").warning("token %s", Secret(VALUE))
    assert caplog.messages == ["token ***"]


def test_equality_is_between_secrets_and_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("é\ud800") == Secret("é\ud800")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert not Secret("")


@pytest.mark.parametrize("leak", [pickle.dumps, json.dumps], ids=["pickle", "json"])
def test_a_secret_cannot_be_written_by_accident(leak: object) -> None:
    assert callable(leak)
    with pytest.raises(TypeError) as failure:
        leak(Secret(VALUE))
    assert VALUE not in str(failure.value)


def test_copies_of_a_secret_stay_secrets() -> None:
    secret = Secret(VALUE)
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret]) == [secret]


def test_a_secret_cannot_be_changed_or_made_from_bytes() -> None:
    for part in Secret.__slots__:
        with pytest.raises(AttributeError):
            setattr(Secret(VALUE), part, "x")
    with pytest.raises(TypeError) as failure:
        Secret(VALUE.encode())  # type: ignore[arg-type]
    assert VALUE not in str(failure.value)


def test_an_identity_shows_its_subject_and_not_its_claims() -> None:
    identity = Identity("alice", {"email": VALUE})
    assert "alice" in repr(identity)
    assert VALUE not in repr(identity)
    assert identity.claims["email"] == VALUE


def test_an_identity_is_a_value_that_nobody_can_change() -> None:
    claims: dict[str, object] = {"role": "reader"}
    identity = Identity("alice", claims)
    claims["role"] = "admin"
    assert identity.claims == {"role": "reader"}
    assert identity == Identity("alice", {"role": "reader"})
    assert identity != Identity("alice")
    assert hash(identity) == hash(Identity("alice", {"role": "reader"}))
    with pytest.raises(TypeError):
        identity.claims["role"] = "admin"  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        identity.subject = "bob"  # type: ignore[misc]
    assert ANONYMOUS.subject == "anonymous"
