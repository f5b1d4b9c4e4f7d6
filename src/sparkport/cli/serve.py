"""``sparkport serve``: a server in the foreground, from its ready line to an orderly end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import fields

from sparkport import __version__
from sparkport.app import (
    CustomAction,
    FileMode,
    HttpSettings,
    JournalSettings,
    Lakehouse,
    Limits,
    MaintenanceSettings,
    ObserveSettings,
    Server,
    SparkState,
    TlsSettings,
    TransactionSettings,
    lakehouse_actions,
    shown_settings,
)
from sparkport.catalog import Catalog
from sparkport.catalog.isolated import limit_seconds
from sparkport.cli.hints import SET_OPTIMIZER
from sparkport.cli.lakehouse_settings import lakehouse_settings
from sparkport.cli.logs import set_up_logging
from sparkport.cli.targets import load_catalogs
from sparkport.config import Settings
from sparkport.memory import MemoryCatalog

__all__ = ["journal_settings", "serve"]

logger = logging.getLogger(__name__)

_EXIT_SECONDS = 2.0
"""How long calls that do not notice their end may hold up the exit after the grace period."""


def serve(settings: Settings, target: str | None, *, stopping: threading.Event | None = None) -> int:
    """Serve until a signal comes, then let running calls end within the grace period. A second signal exits at once.

    With ``stopping`` it serves until that is set, and leaves to others what a process has but one of: its signals, the
    mode of its files and its end.
    """
    set_up_logging(settings.log_level, settings.log_format)
    limit_seconds(settings.expression_seconds)
    own_process = stopping is None
    if stopping is None:
        os.umask(FileMode(settings.file_mode).umask)
        stopping = _stop_on_signals()
    with contextlib.ExitStack() as ending:
        actions: list[CustomAction] = []
        catalogs = [_built_in(settings, ending, actions)] if target is None else load_catalogs(target)
        server = make_server(settings, catalogs, actions)
        server.start()
        _announce(server, settings, catalogs)
        stopping.wait()
        logger.info("stopping: running calls have %g seconds to end", settings.grace_seconds)
        server.stop(settings.grace_seconds)
    logger.info("stopped")
    if own_process:
        _exit_in_any_case()
    return 0


def make_server(settings: Settings, catalogs: list[Catalog], actions: Sequence[CustomAction] = ()) -> Server:
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = TlsSettings(settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_require_client)
    return Server(
        *catalogs,
        host=settings.host,
        port=settings.port,
        authenticator=settings.authenticator(),
        authorizer=settings.authorizer(),
        tls=tls,
        limits=Limits(**{field.name: getattr(settings, field.name) for field in fields(Limits)}),
        insecure=settings.insecure,
        actions=actions,
        http=_http(settings),
        observe=ObserveSettings(slow_seconds=settings.slow_seconds, audit=settings.audit),
        shown=shown_settings(settings),
    )


def _http(settings: Settings) -> HttpSettings | None:
    if settings.http_port == 0:
        return None
    if settings.http_port is None:
        return HttpSettings(host=settings.http_host, require=False)
    return HttpSettings(host=settings.http_host, port=settings.http_port)


def _built_in(settings: Settings, ending: contextlib.ExitStack, actions: list[CustomAction]) -> Catalog:
    """An empty database in memory, gone with the process, or the lakehouse, which is stopped when ``ending`` ends.

    The lakehouse has actions of its own, which are added to ``actions``.
    """
    transactions = TransactionSettings(
        idle_seconds=settings.transaction_seconds,
        max_deferred=settings.max_transactions,
        max_deferred_per_subject=settings.max_transactions_per_subject,
        max_staged_bytes=settings.max_transaction_bytes,
    )
    if settings.engine == "memory":
        return MemoryCatalog(settings.catalog, default_schema=settings.schema, settings=transactions)
    lakehouse = Lakehouse(
        lakehouse_settings(settings),
        default_schema=settings.schema,
        transactions=transactions,
        on_state=_tell_state,
        maintenance=_maintenance(settings) if settings.maintenance else None,
        journal=journal_settings(settings),
    )
    actions += lakehouse_actions(lakehouse)
    return ending.enter_context(lakehouse).catalog


def _maintenance(settings: Settings) -> MaintenanceSettings:
    return MaintenanceSettings(
        interval_seconds=settings.maintenance_seconds,
        small_files=settings.small_files,
        retention_seconds=settings.retention_seconds,
        max_snapshots=settings.max_snapshots,
        dropped_seconds=settings.dropped_seconds,
    )


def journal_settings(settings: Settings) -> JournalSettings:
    return JournalSettings(
        new_tables=settings.journal,
        rows=settings.journal_rows,
        bytes=settings.journal_bytes,
        seconds=settings.journal_seconds,
        limit=settings.journal_limit,
    )


def _tell_state(state: SparkState) -> None:
    logger.info("Spark: %s", state.value)


def _announce(server: Server, settings: Settings, catalogs: list[Catalog]) -> None:
    lines = [f"sparkport {__version__} listening on {server.location}"]
    if settings.authenticator() is not None:
        lines.append(f"CREATE SECRET (TYPE airport, AUTH_TOKEN '...', SCOPE '{server.location}');")
    for catalog in catalogs:
        name = catalog.name.replace("'", "''")
        lines.append(f"ATTACH '{name}' (TYPE airport, LOCATION '{server.location}');")
    lines.append(SET_OPTIMIZER)
    if server.http_location is not None:
        lines.append(f"console: {server.http_location}/")
    # Flushed, because whoever starts the server through a pipe waits for the first line.
    print("\n".join(lines), flush=True)


def _stop_on_signals() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process.

    A handler in Python runs in the main thread alone, once that is awake: a signal that the system hands to one of
    gRPC's threads would not wake it from a lock. The byte on the wake-up socket is written whichever thread is hit.
    """
    stopping = threading.Event()
    inbox, outbox = socket.socketpair()
    outbox.setblocking(False)
    signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)

    def watch() -> None:
        with inbox, outbox:
            inbox.recv(1)
            stopping.set()
            os._exit(128 + inbox.recv(1)[0])

    threading.Thread(target=watch, name="sparkport-signals", daemon=True).start()
    return stopping


def _exit_in_any_case() -> None:
    """Python waits for every thread of a pool before it exits, also for one that is stuck in a user's table."""

    def leave() -> None:
        logger.warning("some calls have not ended; leaving without them")
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(_EXIT_SECONDS, leave)
    timer.daemon = True
    timer.start()
