"""Where the layers meet: a server made of catalogs, an authenticator, an authorizer and limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from sparkport.auth.hosts import is_loopback
from sparkport.auth.model import AllowAll, Authenticator, Authorizer, Operation, Resource
from sparkport.catalog import isolated
from sparkport.catalog.figures import Figure
from sparkport.catalog.model import Catalog
from sparkport.catalog.readiness import Readiness
from sparkport.console import Console, ConsoleSettings, ShownSetting, shown_settings
from sparkport.errors import SparkportError, Unavailable
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import ActionFunction, CustomAction, Handlers
from sparkport.http import HttpServer, HttpSettings, Mounts, TlsFiles, bearer_token, peer_of, require_local_name
from sparkport.lakehouse.actions import LakehouseActions
from sparkport.lakehouse.backup.backup import back_up
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.backup.restore import find_backup, restore
from sparkport.lakehouse.file_modes import FileMode
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.jar_folder import fill_jar_folder
from sparkport.lakehouse.spark.server import SparkState
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.verify.check import check
from sparkport.observe.audit import Audit
from sparkport.observe.call_log import CallLog
from sparkport.observe.calls import Calls
from sparkport.observe.endpoints import alive_page, metrics_page, ready_page
from sparkport.observe.metrics import Metrics
from sparkport.observe.settings import ObserveSettings
from sparkport.observe.traces import open_traces
from sparkport.transactions.manager import TransactionSettings
from sparkport.wire.gate import Gate
from sparkport.wire.limits import Limits
from sparkport.wire.server import GrpcServer
from sparkport.wire.service import FlightService
from sparkport.wire.tls import TlsSettings, check_exposure, server_credentials

__all__ = [
    "CustomAction",
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "FileMode",
    "HttpSettings",
    "JournalSettings",
    "Lakehouse",
    "LakehouseSettings",
    "Limits",
    "MaintenanceSettings",
    "ObserveSettings",
    "Server",
    "ShownSetting",
    "SparkState",
    "TableName",
    "TlsSettings",
    "TransactionSettings",
    "back_up",
    "check",
    "fill_jar_folder",
    "find_backup",
    "hold",
    "lakehouse_actions",
    "restore",
    "shown_settings",
]

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051


def lakehouse_actions(lakehouse: Lakehouse) -> list[CustomAction]:
    """Actions to give to a server of this lakehouse: maintenance, upgrades, the journal, the demo."""
    return [
        CustomAction(
            action.name,
            action.function,
            action.description,
            catalog=lakehouse.catalog.name,
            table=Operation.ALTER if action.alters else None,
            fills=action.fills,
        )
        for action in LakehouseActions(lakehouse).all()
    ]


class Server:
    """Serves catalogs over Arrow Flight.

    Binding to anything but loopback needs both TLS and authentication, unless ``insecure`` says otherwise.
    Port 0 takes a free one; ``location`` has it.
    """

    def __init__(
        self,
        *catalogs: Catalog,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        authenticator: Authenticator | None = None,
        authorizer: Authorizer | None = None,
        tls: TlsSettings | None = None,
        limits: Limits | None = None,
        insecure: bool = False,
        actions: Iterable[CustomAction] = (),
        http: HttpSettings | None = None,
        observe: ObserveSettings | None = None,
        shown: Sequence[ShownSetting] = (),
    ) -> None:
        """Without settings of ``http`` there is no HTTP port. ``shown`` is what the console shows as settings."""
        check_exposure(host, tls=tls is not None, authentication=authenticator is not None, insecure=insecure)
        # Whoever can reach a server that asks nobody who they are, and is on this machine alone, has its Spark anyway.
        is_private = authenticator is None and is_loopback(host)
        self._directory = Directory(catalogs, authorizer or AllowAll(spark_sql=is_private))
        self._handlers = Handlers(self._directory)
        for action in actions:
            self._handlers.register_action(action)
        self._gate = gate = Gate(limits or Limits(), authenticator)
        self._observe = observe or ObserveSettings()
        self._metrics = Metrics([self._own_figures, self._catalog_figures])
        log = CallLog(lambda record: self.calls.is_slow(record), self._metrics.slow)
        self._audit = None if self._observe.audit is None else Audit(self._observe.audit)
        self._traces = open_traces()
        listeners = (self._metrics, log, self._audit, self._traces)
        self.calls = Calls(
            [listener for listener in listeners if listener is not None],
            slow_seconds=self._observe.slow_seconds,
            prepare=None if self._audit is None else self._audit.prepare,
        )
        credentials = None if tls is None else server_credentials(tls)
        self._serving = False
        self._http, self._http_settings, self._console = None, http, None
        if http is not None:
            secured = {"tls": tls is not None, "authentication": authenticator is not None}
            check_exposure(http.host, **secured, insecure=insecure)
            admit = require_local_name if is_loopback(http.host) else None
            if authenticator is not None:
                admit = self._admit_to_metrics
            console = ConsoleSettings(
                authenticate=gate.authenticate,
                has_login=authenticator is not None,
                local_only=authenticator is None and is_loopback(http.host),
                settings=shown,
            )
            self._console = Console(self._handlers, console, calls=self.calls)
            files = None if tls is None else TlsFiles(tls.certificate, tls.key, tls.client_ca)
            mounts: Mounts = {**self._mounts(admit), "/": self._console}
            self._http = HttpServer(http.host, http.port, mounts, tls=files)
        self._grpc = GrpcServer(
            FlightService(self._handlers, gate, self.calls), gate, host=host, port=port, credentials=credentials
        )
        self._scheme = "grpc" if tls is None else "grpc+tls"

    def _mounts(self, admit: Callable[[Mapping[str, Any]], None] | None) -> Mounts:
        """What is at the HTTP port. Probes need no token anywhere."""
        return {
            "/healthz": alive_page(),
            "/metrics": metrics_page(self._metrics.registry, admit),
            "/readyz": ready_page(self.readiness),
        }

    def _own_figures(self) -> Iterator[tuple[Mapping[str, str], Figure]]:
        for figure in self._gate.figures():
            yield {}, figure
        yield {}, Figure("expressions_running", "Conditions and defaults that are being computed", isolated.running())
        now = self.readiness()
        for figure in Figure.by_label(
            "ready", "Whether it is served now", "part", {"reads": now.reads, "writes": now.writes}
        ):
            yield {}, figure

    def _catalog_figures(self) -> Iterator[tuple[Mapping[str, str], Figure]]:
        for catalog in self._directory.all_catalogs():
            try:
                for figure in catalog.figures():
                    yield {"catalog": catalog.name}, figure
            except Exception:
                logger.exception("the figures of catalog '%s' cannot be had", catalog.name)

    def _admit_to_metrics(self, environ: Mapping[str, Any]) -> None:
        """Metrics name tables: they are for those who may run the action ``metrics`` in every catalog."""
        peer, user = peer_of(environ), ""
        try:
            identity = self._gate.authenticate(bearer_token(environ), peer)
            user = identity.subject
            for catalog in self._directory.all_catalogs():
                self._directory.authorizer.require(identity, Operation.ACTION, Resource(catalog.name, None, "metrics"))
        except SparkportError as exc:
            record = self.calls.begin("Metrics", peer.address)
            record.action, record.user = "metrics", user
            self.calls.end(record, exc)
            raise

    def readiness(self) -> Readiness:
        """Whether reads and writes are served now."""
        if not self._serving:
            return Readiness(False, False, "the server is starting or stopping")
        parts = [catalog.readiness() for catalog in self._directory.all_catalogs()]
        return Readiness.of_all(parts if self._audit is None else [*parts, self._audit.readiness()])

    @property
    def port(self) -> int:
        return self._grpc.port

    @property
    def location(self) -> str:
        """The address as clients write it."""
        host = f"[{self._grpc.host}]" if ":" in self._grpc.host else self._grpc.host
        return f"{self._scheme}://{host}:{self.port}"

    @property
    def http_location(self) -> str | None:
        """Where the HTTP port is; None where there is none."""
        return None if self._http is None else self._http.location

    def add_catalog(self, catalog: Catalog) -> None:
        self._directory.add(catalog)

    def remove_catalog(self, name: str) -> None:
        """Calls that are under way in it go on; new ones do not find it."""
        self._directory.remove(name)

    def register_action(self, name: str, function: ActionFunction, *, description: str = "") -> None:
        """Offer an action of your own: the raw body in, results out."""
        self._handlers.register_action(CustomAction(name, function, description))

    def start(self) -> Server:
        try:
            if self._audit is not None:
                self._audit.start()
            self._start_http()
            self._grpc.start()
        except BaseException:
            self.stop(0)
            raise
        self._serving = True
        logger.info("listening on %s", self.location)
        return self

    def _start_http(self) -> None:
        if self._http is None or self._http_settings is None:
            return
        try:
            self._http.start()
        except Unavailable as exc:
            if self._http_settings.require:
                raise
            logger.warning("%s; going on without metrics, health pages and console", exc.message)
            self._http = None
        else:
            logger.info("console, metrics and health on %s", self._http.location)

    def stop(self, grace: float | None = 5.0) -> None:
        """Take no more calls; let running ones end within ``grace`` seconds. Safe to repeat."""
        self._serving = False
        self._grpc.stop(grace)
        if self._http is not None:
            self._http.stop()
        if self._console is not None:
            self._console.close()
        for part in (self._audit, self._traces):
            if part is not None:
                part.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the server has stopped; False when ``timeout`` came first."""
        return self._grpc.wait(timeout)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(grace=0)
