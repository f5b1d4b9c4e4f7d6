"""Every setting of the server in one class: the file, the environment, the flags and the reference page follow from it.

A later source wins: file (TOML) < environment (``SPARKPORT_*``) < flags. What no source knows by that name, or gives a
value of another kind, is an error that names the setting and the source; nothing is guessed and nothing is skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

from sparkport.auth import (
    AnyOf,
    Authenticator,
    Authorizer,
    JwtAuthenticator,
    MutualTls,
    RuleAuthorizer,
    Secret,
    StaticTokens,
)
from sparkport.auth.files import read_toml
from sparkport.errors import InvalidArgument

__all__ = ["CONFIG_VARIABLE", "Kind", "PREFIX", "SETTINGS", "Setting", "Settings", "load", "parse_size"]

PREFIX = "SPARKPORT_"
CONFIG_VARIABLE = "SPARKPORT_CONFIG"
"""Names the settings file where ``--config`` does not."""

_NO_SETTINGS = frozenset({CONFIG_VARIABLE, "SPARKPORT_CACHE", "SPARKPORT_FAULT"})
"""Variables that others read: where jars are kept, and where a test wants the server to die."""

_MAX_BYTES = 2**31 - 1
"""gRPC counts a message's bytes in 32 bits."""

# As DuckDB writes them: MB is a million bytes, MiB is 2 to the 20.
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

# What Kubernetes puts into the environment of every pod near a service that is named "sparkport".
_SERVICE_LINK = re.compile(r"SPARKPORT_(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP|SCTP).*)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: ``native`` are the types that a TOML file may use, ``read`` takes one of them or a text and
    raises ValueError with the words that follow "must be"."""

    label: str
    native: tuple[type, ...]
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str

    @property
    def metavar(self) -> str:
        """How a flag's help calls the value."""
        return self.label.replace(" \\| ", "|") if "|" in self.label else self.label.upper().replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``flag`` is None for secrets: other users of the machine can see a command line. A table is for the
    file alone."""

    name: str
    kind: Kind
    default: Any
    help: str
    flag: str | None
    env: str | None

    @property
    def secret(self) -> bool:
        return self.kind in (SECRET, PROPERTIES)

    def parse(self, value: object, source: str) -> Any:
        """The value, of this setting's kind; ``source`` is how the error calls where it was found."""
        try:
            return self.kind.read(value)
        except ValueError as exc:
            shown = "the value" if self.secret else f"{value!r}"
            reason = exc.args[0]
        raise InvalidArgument(f"{source}: {shown} is not {reason}")


# Readers: a native TOML value or a text in, the setting's value out


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text with something in it")
    return value.strip()


def _path(value: str) -> Path:
    return Path(_text(value)).expanduser()


def _secret(value: str) -> Secret:
    return Secret(_text(value))


def _boolean(value: bool | str) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _texts(value: list[object] | str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("a list of texts")
    return tuple(str(part).strip() for part in parts)


def _integer(low: int, high: int) -> Callable[[int | str], int]:
    def read(value: int | str) -> int:
        text = str(value).strip()
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return read


def _seconds(low: float) -> Callable[[float | str], float]:
    def read(value: float | str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        # The upper end keeps milliseconds within gRPC's 32 bits.
        if not low <= number <= 2_000_000:
            raise ValueError(f"a number of seconds from {low:g} to 2000000")
        return number

    return read


def parse_size(value: int | str) -> int:
    """Bytes, from ``1048576``, ``"1MiB"`` or ``"1.5 MB"``. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)", str(value).strip().lower())
    unit = None if found is None else _UNITS.get(found[2])
    size = 0 if found is None or unit is None else int(float(found[1]) * unit)
    if not 1024 <= size <= _MAX_BYTES:
        raise ValueError("a size from 1KiB to 2GiB less one byte, such as 64MB or 8MiB")
    return size


def _room(value: int | str) -> int:
    """Bytes on a disk, which gRPC does not limit."""
    found = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", str(value).strip().lower())
    unit = None if found is None else _UNITS.get(found[2])
    if found is None or unit is None or not 1024 <= int(found[1]) * unit < 2**63:
        raise ValueError("a size from 1KiB, such as 500MB or 64GiB")
    return int(found[1]) * unit


def _show_size(size: int) -> str:
    for unit in ("gib", "mib", "kib"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit[0].upper()}iB"
    return str(size)


def _choice(*words: str) -> Kind:
    def read(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.strip().lower()

    return Kind(" \\| ".join(words), (str,), read)


def _table(value: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(value)


def _properties(value: dict[str, Any]) -> Mapping[str, Secret]:
    """Names with dots are tables in tables to TOML, unless they are quoted: both mean the same here."""
    return MappingProxyType(dict(_flat("", value)))


def _flat(head: str, value: object) -> Iterator[tuple[str, Secret]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{head}.{key}" if head else key, inner)
    elif isinstance(value, str | int | float):
        yield head, Secret(str(value).lower() if isinstance(value, bool) else str(value))
    else:
        raise ValueError("a table of texts and numbers")


TEXT = Kind("text", (str,), _text)
PATH = Kind("file", (str,), _path)
LOCATION = Kind("file or url", (str,), _text)
SECRET = Kind("secret", (str,), _secret)
BOOLEAN = Kind("true or false", (bool,), _boolean, lambda value: str(value).lower())
TABLE = Kind("table", (dict,), _table)
PROPERTIES = Kind("table", (dict,), _properties)
TEXTS = Kind("list", (list,), _texts, ",".join)
SIZE = Kind("size", (int, str), parse_size, _show_size)
ROOM = Kind("size", (int, str), _room, _show_size)
LEVEL = _choice("debug", "info", "warning", "error")
FORMAT = _choice("text", "json")
ENGINE = _choice("lakehouse", "memory")
FILE_MODE = _choice("private", "group")
PORT = Kind("number", (int,), _integer(0, 65_535))
COUNT = Kind("number", (int,), _integer(1, 100_000))
SECONDS = Kind("seconds", (int, float), _seconds(0), lambda value: f"{value:g}")
INTERVAL = Kind("seconds", (int, float), _seconds(1), lambda value: f"{value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is started with. Each field's kind and explanation stand with it; ``SETTINGS`` lists them."""

    host: Annotated[str, TEXT, "Address to listen on; beyond loopback it needs TLS and authentication"] = "127.0.0.1"
    port: Annotated[int, PORT, "Port to listen on; 0 takes a free one"] = 50051
    catalog: Annotated[str, TEXT, "Name of the built-in catalog"] = "lake"
    schema: Annotated[str, TEXT, "Name of the built-in catalog's default schema"] = "public"
    engine: Annotated[str, ENGINE, "Where the built-in catalog keeps its tables"] = "lakehouse"
    warehouse: Annotated[str, TEXT, "Folder of the lakehouse's tables"] = "warehouse"
    catalog_uri: Annotated[
        str | None, TEXT, "Database of the lakehouse's catalog; SQLite in the warehouse if unset"
    ] = None
    ledger_uri: Annotated[
        str | None,
        TEXT,
        "Database of a REST catalog's transactions and statements; SQLite in the staging folder if unset",
    ] = None
    spark: Annotated[str, TEXT, "Spark master to start a Connect server for, or sc://… of one that runs"] = "local[*]"
    driver_memory: Annotated[str, TEXT, "Memory of the Spark driver that is started"] = "2g"
    silence_seconds: Annotated[
        float,
        SECONDS,
        "How long Spark may give no answer before it is started again, or counts as away if it was not; 0: for ever",
    ] = 120.0
    statement_seconds: Annotated[
        float, SECONDS, "How long Spark may take for a statement before it is interrupted; 0: for ever"
    ] = 3_600.0
    jars: Annotated[Path | None, PATH, "Folder of jars for Spark, for sites without a repository"] = None
    staging: Annotated[str | None, TEXT, "Folder for rows on their way to Spark; in the warehouse if unset"] = None
    file_mode: Annotated[
        str, FILE_MODE, "Who may read files that are made: the server's user alone, or that user's group too"
    ] = "private"
    direct_reads: Annotated[
        bool,
        BOOLEAN,
        "Let DuckDB clients read whole tables from the warehouse's files, which they must reach by the same paths",
    ] = False
    properties: Annotated[
        Mapping[str, Secret] | None, PROPERTIES, "Settings of Spark (`spark.…`) and of the Iceberg catalog (`s3.…`)"
    ] = None
    maintenance: Annotated[bool, BOOLEAN, "Maintain the lakehouse's tables in the background"] = True
    maintenance_seconds: Annotated[float, INTERVAL, "How often to look at the tables that were written to"] = 60.0
    small_files: Annotated[int, COUNT, "How many small files of a table are put together into large ones"] = 24
    retention_seconds: Annotated[float, SECONDS, "How long a table's old versions stay"] = 432_000.0
    max_snapshots: Annotated[int, COUNT, "Old versions of a table beyond this many go after ten minutes"] = 500
    dropped_seconds: Annotated[float, SECONDS, "How long the folder of a dropped table stays; 0 keeps it for ever"] = (
        0.0
    )
    transaction_seconds: Annotated[float, INTERVAL, "How long a transaction may be idle before it is aborted"] = 900.0
    max_transactions: Annotated[int, COUNT, "Deferred transactions that may be open at once"] = 1_000
    max_transactions_per_subject: Annotated[int, COUNT, "How many of them one caller may have, by its token's name"] = (
        100
    )
    max_transaction_bytes: Annotated[
        int, ROOM, "What all deferred transactions together may hold on disk before they are committed"
    ] = 64 * 2**30
    expression_seconds: Annotated[
        float, INTERVAL, "How long a CHECK or a DEFAULT may compute for one batch of rows before it is ended"
    ] = 10.0
    log_level: Annotated[str, LEVEL, "What to log, to standard error"] = "info"
    log_format: Annotated[str, FORMAT, "How to log: lines for people, or one JSON object each"] = "text"
    max_concurrent_calls: Annotated[int, COUNT, "Calls served at once; further ones are refused"] = 256
    max_calls_per_subject: Annotated[int | None, COUNT, "Of these, one caller's; three quarters of them if unset"] = (
        None
    )
    max_message_bytes: Annotated[
        int, SIZE, "Largest message taken from a client, also when it is decompressed; an upload's dictionaries, too"
    ] = 32 * 2**20
    max_batch_bytes: Annotated[int, SIZE, "What larger batches are sliced to on their way out"] = 2 * 2**20
    max_held_bytes: Annotated[
        int, SIZE, "What messages of running calls may take at once; one caller's, three quarters of it"
    ] = 512 * 2**20
    first_message_seconds: Annotated[float, INTERVAL, "How long a call may take to send its first message"] = 30.0
    idle_seconds: Annotated[float, INTERVAL, "How long an upload may send nothing before it is ended"] = 1_800.0
    write_seconds: Annotated[float, INTERVAL, "How long a client may read nothing before its call is ended"] = 300.0
    keepalive_seconds: Annotated[float, INTERVAL, "How often a quiet client is asked whether it is still there"] = 30.0
    keepalive_timeout_seconds: Annotated[float, INTERVAL, "How long it has to answer before its calls are ended"] = 20.0
    grace_seconds: Annotated[float, SECONDS, "How long running calls may go on after SIGTERM or SIGINT"] = 30.0
    insecure: Annotated[bool, BOOLEAN, "Listen beyond loopback without TLS or without authentication"] = False
    reflection: Annotated[bool, BOOLEAN, "Describe the service to tools such as grpcurl, with a token"] = False
    tls_cert: Annotated[Path | None, PATH, "Certificate chain of the server, PEM"] = None
    tls_key: Annotated[Path | None, PATH, "Private key of the certificate, PEM"] = None
    tls_client_ca: Annotated[Path | None, PATH, "CA that signs client certificates, PEM: clients must show one"] = None
    tls_require_client: Annotated[bool | None, BOOLEAN, "Whether they must; follows tls_client_ca when not set"] = None
    token_file: Annotated[Path | None, PATH, "File of bearer tokens: lines `subject: token`, or a token alone"] = None
    tokens: Annotated[Secret | None, SECRET, "Bearer tokens: `alice=token1,bob=token2`"] = None
    token: Annotated[Secret | None, SECRET, "One bearer token; also what the client commands send"] = None
    jwt_key: Annotated[Path | None, PATH, "Key of JSON Web Tokens: file with a PEM public key or an HMAC secret"] = None
    jwt_jwks: Annotated[str | None, LOCATION, "Key set of JSON Web Tokens: a file, or an https address"] = None
    jwt_issuer: Annotated[str | None, TEXT, "Issuer that JSON Web Tokens must name"] = None
    jwt_audience: Annotated[str | None, TEXT, "Audience that JSON Web Tokens must name"] = None
    jwt_algorithms: Annotated[tuple[str, ...] | None, TEXTS, "Algorithms to take, of those that fit the key"] = None
    rules: Annotated[Path | None, PATH, "File of `[[rules]]` that say who may do what; without any, all may do all"] = (
        None
    )
    authorization: Annotated[Mapping[str, Any] | None, TABLE, "The same rules, here: `[[authorization.rules]]`"] = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls_cert and tls_key go together: only one of them is set")
        if self.tls_cert is None and (self.tls_client_ca is not None or self.tls_require_client):
            raise InvalidArgument("client certificates need TLS: set tls_cert and tls_key")
        for one, other in (("jwt_key", "jwt_jwks"), ("rules", "authorization")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise InvalidArgument(f"{one} and {other} are both set: only one can be")
        checks = [name for name in ("jwt_issuer", "jwt_audience", "jwt_algorithms") if getattr(self, name) is not None]
        if checks and self.jwt_key is None and self.jwt_jwks is None:
            raise InvalidArgument(f"{checks[0]} is set, but no key: set jwt_key or jwt_jwks")
        if self.max_batch_bytes > self.max_message_bytes:
            raise InvalidArgument("max_batch_bytes is above max_message_bytes")

    def authenticator(self) -> Authenticator | None:
        """Everything that can tell who is calling; a caller needs to satisfy one of them. None where none is set."""
        found = list(self._authenticators())
        return found[0] if len(found) == 1 else AnyOf(found) if found else None

    def authorizer(self) -> Authorizer | None:
        if self.rules is not None:
            return RuleAuthorizer.from_file(self.rules)
        return None if self.authorization is None else RuleAuthorizer.from_table(self.authorization)

    def _authenticators(self) -> Iterator[Authenticator]:
        if self.token_file is not None:
            yield StaticTokens.from_file(self.token_file)
        variables = {"SPARKPORT_TOKENS": self.tokens, "SPARKPORT_TOKEN": self.token}
        tokens = StaticTokens.from_environment({name: value.reveal() for name, value in variables.items() if value})
        if tokens is not None:
            yield tokens
        checks = {"issuer": self.jwt_issuer, "audience": self.jwt_audience, "algorithms": self.jwt_algorithms}
        if self.jwt_key is not None:
            yield JwtAuthenticator.from_key_file(self.jwt_key, **checks)
        if self.jwt_jwks is not None:
            yield JwtAuthenticator.from_jwks(self.jwt_jwks, **checks)
        if self.tls_client_ca is not None:
            yield MutualTls()


def _table_of_settings() -> Iterator[Setting]:
    notes = get_type_hints(Settings, include_extras=True)
    for item in fields(Settings):
        kind, text = notes[item.name].__metadata__
        yield Setting(
            name=item.name,
            kind=kind,
            default=item.default,
            help=text,
            flag=None if kind in (SECRET, TABLE, PROPERTIES) else "--" + item.name.replace("_", "-"),
            env=None if kind in (TABLE, PROPERTIES) else PREFIX + item.name.upper(),
        )


SETTINGS: tuple[Setting, ...] = tuple(_table_of_settings())


def load(flags: Mapping[str, object], environ: Mapping[str, str], *, file: Path | None = None) -> Settings:
    """Settings from all sources. ``flags`` has texts (or bools) by setting name; without ``file`` the variable
    ``SPARKPORT_CONFIG`` may name one."""
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {} if file is None else _from_file(file)
    values |= _from_environment(environ)
    values |= _from_flags(flags)
    return Settings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    known = {setting.name: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        setting = known.get(key)
        if setting is None:
            raise InvalidArgument(f"{path}: unknown setting '{key}'")
        source = f"{path}: {key}"
        # bool is an int to Python, not to whoever wrote the file.
        if not isinstance(value, setting.kind.native) or (isinstance(value, bool) and setting.kind is not BOOLEAN):
            kind = "an array" if setting.kind is TEXTS else setting.kind.label.replace("\\", "")
            raise InvalidArgument(f"{source}: a TOML {_toml_type(value)} is not of kind: {kind}")
        parsed = setting.parse(value, source)
        # Paths in a file mean the same wherever the server is started.
        if setting.kind is PATH:
            parsed = path.parent / parsed
        elif setting.kind is LOCATION and "://" not in parsed:
            parsed = str(path.parent / parsed)
        values[key] = parsed
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {setting.env: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in _NO_SETTINGS or _SERVICE_LINK.fullmatch(name):
            continue
        setting = known.get(name)
        if setting is None:
            raise InvalidArgument(f"environment: unknown setting {name}")
        # An empty variable is how most tools say that there is none.
        if text and not (name == "SPARKPORT_PORT" and _SERVICE_ADDRESS.match(text)):
            values[setting.name] = setting.parse(text, f"environment: {name}")
    return values


def _from_flags(flags: Mapping[str, object]) -> dict[str, Any]:
    known = {setting.name: setting for setting in SETTINGS if setting.flag is not None}
    unknown = sorted(flags.keys() - known.keys())
    if unknown:
        raise InvalidArgument(f"flags: unknown setting '{unknown[0]}'")
    return {name: known[name].parse(value, str(known[name].flag)) for name, value in flags.items()}


def _toml_type(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "float", str: "string", list: "array", dict: "table"}
    return names.get(type(value), "date or time")
