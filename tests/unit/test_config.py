"""Settings: every one from every source, which source wins, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from sparkport.auth import (
    ANONYMOUS,
    AnyOf,
    Identity,
    JwtAuthenticator,
    MutualTls,
    Operation,
    Peer,
    Resource,
    RuleAuthorizer,
    Secret,
    StaticTokens,
)
from sparkport.cli.reference import reference_page
from sparkport.config import SETTINGS, Setting, Settings, load, parse_size
from sparkport.errors import InvalidArgument

pytestmark = pytest.mark.tier("fast")

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

# For each setting: the text of a flag or variable, the same in TOML, the value that both mean.
VALUES: dict[str, tuple[str, Any, Any]] = {
    "host": ("::1", "::1", "::1"),
    "port": ("0", 0, 0),
    "http_host": ("::1", "::1", "::1"),
    "http_port": ("50062", 50062, 50062),
    "catalog": ("sea", "sea", "sea"),
    "schema": ("deep", "deep", "deep"),
    "engine": ("memory", "memory", "memory"),
    "warehouse": ("/data", "/data", "/data"),
    "catalog_uri": ("postgresql://h/db", "postgresql://h/db", "postgresql://h/db"),
    "ledger_uri": ("postgresql://h/ledger", "postgresql://h/ledger", "postgresql://h/ledger"),
    "spark": ("sc://h:15002", "sc://h:15002", "sc://h:15002"),
    "driver_memory": ("8g", "8g", "8g"),
    "silence_seconds": ("30", 30, 30.0),
    "statement_seconds": ("30", 30, 30.0),
    "spark_programs": ("yes", True, True),
    "jars": ("/jars", "/jars", Path("/jars")),
    "staging": ("/stage", "/stage", "/stage"),
    "file_mode": ("GROUP", "group", "group"),
    "direct_reads": ("yes", True, True),
    "backups": ("/backups", "/backups", "/backups"),
    "properties": ("", {"s3.endpoint": "x"}, {"s3.endpoint": Secret("x")}),
    "maintenance": ("no", False, False),
    "maintenance_seconds": ("5", 5, 5.0),
    "small_files": ("3", 3, 3),
    "retention_seconds": ("60", 60, 60.0),
    "max_snapshots": ("9", 9, 9),
    "dropped_seconds": ("60", 60, 60.0),
    "journal": ("on", True, True),
    "journal_rows": ("500", 500, 500),
    "journal_bytes": ("64KiB", "64KiB", 2**16),
    "journal_seconds": ("0.2", 0.2, 0.2),
    "journal_limit": ("3GiB", "3GiB", 3 * 2**30),
    "transaction_seconds": ("60", 60, 60.0),
    "max_transactions": ("5", 5, 5),
    "max_transactions_per_subject": ("7", 7, 7),
    "max_transaction_bytes": ("3GiB", "3GiB", 3 * 2**30),
    "expression_seconds": ("2.5", 2.5, 2.5),
    "log_level": ("DEBUG", "debug", "debug"),
    "log_format": ("json", "json", "json"),
    "slow_seconds": ("2.5", 2.5, 2.5),
    "audit": ("/logs/audit.jsonl", "/logs/audit.jsonl", Path("/logs/audit.jsonl")),
    "max_concurrent_calls": ("9", 9, 9),
    "max_calls_per_subject": ("7", 7, 7),
    "max_message_bytes": ("64MB", "64MB", 64_000_000),
    "max_batch_bytes": ("1048576", 1_048_576, 1_048_576),
    "max_held_bytes": ("1GiB", "1GiB", 2**30),
    "first_message_seconds": ("5", 5, 5.0),
    "idle_seconds": ("60", 60, 60.0),
    "write_seconds": ("60", 60, 60.0),
    "keepalive_seconds": ("2.5", 2.5, 2.5),
    "keepalive_timeout_seconds": ("5", 5, 5.0),
    "grace_seconds": ("0", 0, 0.0),
    "insecure": ("yes", True, True),
    "reflection": ("yes", True, True),
    "tls_cert": ("/c.pem", "/c.pem", Path("/c.pem")),
    "tls_key": ("/k.pem", "/k.pem", Path("/k.pem")),
    "tls_client_ca": ("/ca.pem", "/ca.pem", Path("/ca.pem")),
    "tls_require_client": ("true", True, True),
    "token_file": ("/tokens", "/tokens", Path("/tokens")),
    "tokens": ("alice=t1,bob=t2", "alice=t1,bob=t2", Secret("alice=t1,bob=t2")),
    "token": ("t0", "t0", Secret("t0")),
    "jwt_key": ("/jwt.pem", "/jwt.pem", Path("/jwt.pem")),
    "jwt_jwks": ("https://id.example.com/keys", "https://id.example.com/keys", "https://id.example.com/keys"),
    "jwt_issuer": ("https://id.example.com", "https://id.example.com", "https://id.example.com"),
    "jwt_audience": ("lake", "lake", "lake"),
    "jwt_algorithms": ("RS256, ES256", ["RS256", "ES256"], ("RS256", "ES256")),
    "rules": ("/rules.toml", "/rules.toml", Path("/rules.toml")),
    "authorization": ("", {"rules": []}, MappingProxyType({"rules": []})),
}

# Settings that say something only together with others.
COMPANIONS: dict[str, tuple[str, ...]] = {
    "tls_cert": ("tls_key",),
    "tls_key": ("tls_cert",),
    "tls_client_ca": ("tls_cert", "tls_key"),
    "tls_require_client": ("tls_cert", "tls_key", "tls_client_ca"),
    "jwt_issuer": ("jwt_key",),
    "jwt_audience": ("jwt_key",),
    "jwt_algorithms": ("jwt_key",),
}

every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
every_flag = pytest.mark.parametrize("setting", [s for s in SETTINGS if s.flag], ids=lambda setting: setting.name)
every_variable = pytest.mark.parametrize("setting", [s for s in SETTINGS if s.env], ids=lambda setting: setting.name)


def with_companions(setting: Setting) -> list[str]:
    return [setting.name, *COMPANIONS.get(setting.name, ())]


def toml(path: Path, values: Mapping[str, Any]) -> Path:
    def write(value: Any) -> str:
        return (
            "{" + ", ".join(f"{k} = {write(v)}" for k, v in value.items()) + "}"
            if isinstance(value, dict)
            else json.dumps(value)
        )

    path.write_text("".join(f"{key} = {write(value)}\n" for key, value in values.items()))
    return path


def test_the_values_above_are_for_every_setting_and_not_its_default() -> None:
    assert [setting.name for setting in SETTINGS] == list(VALUES)
    assert [s.name for s in SETTINGS if VALUES[s.name][2] == s.default] == []


def test_without_any_source_the_defaults_hold() -> None:
    assert load({}, {}) == Settings()
    assert (Settings().host, Settings().port, Settings().catalog, Settings().schema) == (
        "127.0.0.1",
        50051,
        "lake",
        "public",
    )


@every_setting
def test_every_setting_is_read_from_the_file(setting: Setting, tmp_path: Path) -> None:
    file = toml(tmp_path / "sparkport.toml", {name: VALUES[name][1] for name in with_companions(setting)})
    assert getattr(load({}, {}, file=file), setting.name) == VALUES[setting.name][2]


@every_variable
def test_every_setting_is_read_from_the_environment(setting: Setting) -> None:
    names = {s.name: str(s.env) for s in SETTINGS}
    environ = {names[name]: VALUES[name][0] for name in with_companions(setting)}
    assert getattr(load({}, environ), setting.name) == VALUES[setting.name][2]


@every_flag
def test_every_setting_is_read_from_a_flag(setting: Setting) -> None:
    flags = {name: VALUES[name][0] for name in with_companions(setting)}
    assert getattr(load(flags, {}), setting.name) == VALUES[setting.name][2]


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path / "s.toml", {"port": 1, "max_snapshots": 1, "catalog": "file"})
    environ = {"SPARKPORT_PORT": "2", "SPARKPORT_MAX_SNAPSHOTS": "2"}
    settings = load({"port": "3"}, environ, file=file)
    assert (settings.port, settings.max_snapshots, settings.catalog) == (3, 2, "file")


def test_a_variable_names_the_file_unless_a_flag_does(tmp_path: Path) -> None:
    one, other = toml(tmp_path / "one.toml", {"port": 1}), toml(tmp_path / "other.toml", {"port": 2})
    assert load({}, {"SPARKPORT_CONFIG": str(one)}).port == 1
    assert load({}, {"SPARKPORT_CONFIG": str(one)}, file=other).port == 2


def test_paths_in_a_file_start_from_its_folder(tmp_path: Path) -> None:
    file = toml(tmp_path / "s.toml", {"token_file": "tokens", "jwt_jwks": "keys.json"})
    settings = load({}, {}, file=file)
    assert settings.token_file == tmp_path / "tokens"
    assert settings.jwt_jwks == str(tmp_path / "keys.json")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({}, {"SPARKPORT_PORT": "", "SPARKPORT_TOKEN": ""}) == Settings()


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_ignored() -> None:
    environ = {
        "SPARKPORT_PORT": "tcp://10.0.0.7:50051",
        "SPARKPORT_SERVICE_HOST": "10.0.0.7",
        "SPARKPORT_SERVICE_PORT_GRPC": "50051",
        "SPARKPORT_PORT_50051_TCP_ADDR": "10.0.0.7",
    }
    assert load({}, environ) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "x"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "1.5"),
        ("port", "٣"),
        ("max_snapshots", "0"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("insecure", "maybe"),
        ("max_message_bytes", "64 parsecs"),
        ("max_message_bytes", "2GiB"),
        ("max_message_bytes", "12"),
        ("keepalive_seconds", "0"),
        ("grace_seconds", "-1"),
        ("grace_seconds", "nan"),
        ("grace_seconds", "inf"),
        ("host", "  "),
        ("jwt_algorithms", "RS256,,ES256"),
    ],
)
def test_bad_values_are_refused_by_their_name_and_source(name: str, text: str) -> None:
    setting = next(s for s in SETTINGS if s.name == name)
    with pytest.raises(InvalidArgument, match=rf"^{setting.flag}: '.*' is not "):
        load({name: text}, {})
    with pytest.raises(InvalidArgument, match=rf"^environment: {setting.env}: '.*' is not "):
        load({}, {str(setting.env): text})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("port = '50051'", "port: a TOML string is not of kind: number"),
        ("port = true", "port: a TOML boolean is not of kind: number"),
        ("port = 70000", "port: 70000 is not a whole number from 0 to 65535"),
        ("insecure = 'yes'", "insecure: a TOML string is not of kind: true or false"),
        ("log_level = 3", "log_level: a TOML integer is not of kind: debug | info | warning | error"),
        ("jwt_algorithms = 'RS256'", "jwt_algorithms: a TOML string is not of kind: an array"),
        ("jwt_algorithms = [1]", "jwt_algorithms: [1] is not a list of texts"),
        ("host = 2020-01-01", "host: a TOML date or time is not of kind: text"),
        ("hots = 'x'", "unknown setting 'hots'"),
        ("[server]\nport = 1", "unknown setting 'server'"),
        ("port = ", " is not TOML: "),
    ],
)
def test_bad_lines_in_a_file_are_refused_by_their_name_and_file(line: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(line)
    with pytest.raises(InvalidArgument) as caught:
        load({}, {}, file=file)
    assert str(file) in caught.value.message
    assert reason in caught.value.message


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"none\.toml cannot be read"):
        load({}, {}, file=tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        load({}, {}, file=tmp_path / "bytes.toml")


def test_unknown_variables_and_flags_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="environment: unknown setting SPARKPORT_HOTS"):
        load({}, {"SPARKPORT_HOTS": "x", "OTHER": "y"})
    with pytest.raises(InvalidArgument, match="flags: unknown setting 'hots'"):
        load({"hots": "x"}, {})


def test_a_secret_cannot_be_a_flag_and_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="flags: unknown setting 'token'"):
        load({"token": "hunter2"}, {})
    assert "hunter2" not in repr(load({}, {"SPARKPORT_TOKEN": "hunter2"}))
    broken = tmp_path / "s.toml"
    broken.write_text("token = hunter2")
    with pytest.raises(InvalidArgument) as caught:
        load({}, {}, file=broken)
    assert "hunter2" not in caught.value.message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["tls_cert"], "tls_cert and tls_key go together"),
        (["tls_key"], "tls_cert and tls_key go together"),
        (["tls_client_ca"], "client certificates need TLS"),
        (["tls_require_client"], "client certificates need TLS"),
        (["jwt_key", "jwt_jwks"], "jwt_key and jwt_jwks are both set"),
        (["jwt_audience"], "jwt_audience is set, but no key"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        load({name: VALUES[name][0] for name in names}, {})


def test_a_batch_cannot_be_larger_than_a_message() -> None:
    with pytest.raises(InvalidArgument, match="max_batch_bytes is above max_message_bytes"):
        load({"max_message_bytes": "1MB"}, {})


@pytest.mark.parametrize(
    ("text", "size"),
    [("2048", 2048), ("64MB", 64_000_000), ("8MiB", 8 * 2**20), ("1.5 kib", 1536), ("1gb", 10**9), (4096, 4096)],
)
def test_sizes_take_units(text: str | int, size: int) -> None:
    assert parse_size(text) == size


def test_the_ways_to_authenticate_follow_from_the_settings(tmp_path: Path) -> None:
    key, tokens = tmp_path / "key", tmp_path / "tokens"
    key.write_text("k" * 40)
    tokens.write_text("carol: t3\n")
    tokens.chmod(0o600)
    mutual = Settings(tls_cert=Path("c"), tls_key=Path("k"), tls_client_ca=Path("ca"))
    assert Settings().authenticator() is None
    assert isinstance(Settings(token=Secret("t")).authenticator(), StaticTokens)
    assert isinstance(Settings(token_file=tokens).authenticator(), StaticTokens)
    assert isinstance(Settings(jwt_key=key).authenticator(), JwtAuthenticator)
    assert isinstance(mutual.authenticator(), MutualTls)
    both = Settings(tokens=Secret("alice=t1"), token_file=tokens, jwt_key=key).authenticator()
    assert isinstance(both, AnyOf)
    assert both.authenticate(Secret("t1"), Peer("ipv4:127.0.0.1:1")) == Identity("alice")
    assert both.authenticate(Secret("t3"), Peer("ipv4:127.0.0.1:1")) == Identity("carol")


def test_rules_come_from_their_own_file_or_from_the_settings_file(tmp_path: Path) -> None:
    rule = 'rules = [{subjects = "*", operations = "read", resources = "lake.public"}]\n'
    (tmp_path / "rules.toml").write_text(rule)
    (tmp_path / "s.toml").write_text("[authorization]\n" + rule)
    assert Settings().authorizer() is None
    for settings in (Settings(rules=tmp_path / "rules.toml"), load({}, {}, file=tmp_path / "s.toml")):
        authorizer = settings.authorizer()
        assert isinstance(authorizer, RuleAuthorizer)
        assert authorizer.allows(ANONYMOUS, Operation.READ, Resource("lake", "public", "t"))
        assert not authorizer.allows(ANONYMOUS, Operation.DROP, Resource("lake", "public", "t"))
    with pytest.raises(InvalidArgument, match="rules and authorization are both set"):
        load({"rules": "r"}, {}, file=tmp_path / "s.toml")


def test_the_reference_page_is_the_one_that_is_printed() -> None:
    assert PAGE.read_text() == reference_page()
