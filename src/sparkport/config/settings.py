"""Every setting of the server in one class: file, environment, flags and the reference page follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
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
from sparkport.config.kinds import (
    BOOLEAN,
    COUNT,
    ENGINE,
    FILE_MODE,
    FORMAT,
    INTERVAL,
    LEVEL,
    LOCATION,
    PATH,
    PERIOD,
    PORT,
    PROPERTIES,
    ROOM,
    SECONDS,
    SECRET,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    Kind,
)
from sparkport.errors import InvalidArgument

__all__ = ["PREFIX", "SETTINGS", "Setting", "Settings"]

PREFIX = "SPARKPORT_"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is started with. Each field's kind and explanation stand with it; ``SETTINGS`` lists them."""

    host: Annotated[str, TEXT, "Address to listen on; beyond loopback it needs TLS and authentication"] = "127.0.0.1"
    port: Annotated[int, PORT, "Port to listen on; 0 takes a free one"] = 50051
    http_host: Annotated[
        str, TEXT, "Address of metrics, health pages and console; beyond loopback it needs TLS and authentication"
    ] = "127.0.0.1"
    http_port: Annotated[
        int | None, PORT, "Port of metrics, health pages and console; 50052 if unset and free; 0: none"
    ] = None
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
    spark_programs: Annotated[
        bool,
        BOOLEAN,
        "Let the Spark that is started here run programs; else Linux keeps it from all but `chmod`, by Landlock",
    ] = False
    jars: Annotated[Path | None, PATH, "Folder of jars for Spark, for sites without a repository"] = None
    staging: Annotated[str | None, TEXT, "Folder for rows on their way into tables; in the warehouse if unset"] = None
    file_mode: Annotated[
        str, FILE_MODE, "Who may read files that are made: the server's user alone, or that user's group too"
    ] = "private"
    direct_reads: Annotated[
        bool,
        BOOLEAN,
        "Let DuckDB clients read whole tables from the warehouse's files, which they must reach by the same paths",
    ] = False
    backups: Annotated[
        str | None, TEXT, "Folder or store at or below which clients may have the server put backups; none if unset"
    ] = None
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
    journal: Annotated[
        bool, BOOLEAN, "Journal new tables: their small changes are committed at once and published soon after"
    ] = False
    journal_rows: Annotated[int, COUNT, "Commits of more rows than this do not go through the journal"] = 10_000
    journal_bytes: Annotated[int, SIZE, "Nor do those of more bytes"] = 4 * 2**20
    journal_seconds: Annotated[float, PERIOD, "How long a change may wait in the journal until it is published"] = 1.0
    journal_limit: Annotated[
        int, ROOM, "What the journal may hold before changes are refused, while publishing does not keep up"
    ] = 256 * 2**20
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
    slow_seconds: Annotated[float, SECONDS, "Calls that take as long are logged with their steps; 0: none"] = 1.0
    audit: Annotated[Path | None, PATH, "File that says who read or changed what and what was refused, in JSON"] = None
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
        authenticators = list(self._authenticators())
        return authenticators[0] if len(authenticators) == 1 else AnyOf(authenticators) if authenticators else None

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
