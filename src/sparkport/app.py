"""Where the layers meet: a server made of catalogs, an authenticator, an authorizer and limits."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType

from sparkport.auth.model import Authenticator, Authorizer, Operation
from sparkport.catalog.model import Catalog
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import ActionFunction, CustomAction, Handlers
from sparkport.lakehouse.actions import LakehouseActions
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.modes import FileMode
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkState
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
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
    "Lakehouse",
    "LakehouseSettings",
    "Limits",
    "MaintenanceSettings",
    "Server",
    "SparkState",
    "TlsSettings",
    "TransactionSettings",
    "lakehouse_actions",
]

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051


def lakehouse_actions(lakehouse: Lakehouse) -> list[CustomAction]:
    """Actions to give to a server of this lakehouse: maintenance, upgrades, the demo."""
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
    Port 0 takes a free one; ``location`` tells which.
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
    ) -> None:
        check_exposure(host, tls=tls is not None, authentication=authenticator is not None, insecure=insecure)
        self._directory = Directory(catalogs, authorizer)
        self._handlers = Handlers(self._directory)
        for action in actions:
            self._handlers.register_action(action)
        gate = Gate(limits or Limits(), authenticator)
        credentials = None if tls is None else server_credentials(tls)
        self._grpc = GrpcServer(
            FlightService(self._handlers, gate), gate, host=host, port=port, credentials=credentials
        )
        self._scheme = "grpc" if tls is None else "grpc+tls"

    @property
    def port(self) -> int:
        return self._grpc.port

    @property
    def location(self) -> str:
        """The address as clients write it."""
        host = f"[{self._grpc.host}]" if ":" in self._grpc.host else self._grpc.host
        return f"{self._scheme}://{host}:{self.port}"

    def add_catalog(self, catalog: Catalog) -> None:
        self._directory.add(catalog)

    def remove_catalog(self, name: str) -> None:
        """Calls that are under way in it go on; new ones do not find it."""
        self._directory.remove(name)

    def register_action(self, name: str, function: ActionFunction, *, description: str = "") -> None:
        """Offer an action of your own: the raw body in, results out."""
        self._handlers.register_action(CustomAction(name, function, description))

    def start(self) -> Server:
        self._grpc.start()
        logger.info("listening on %s", self.location)
        return self

    def stop(self, grace: float | None = 5.0) -> None:
        """Take no more calls; let running ones end within ``grace`` seconds. Safe to repeat."""
        self._grpc.stop(grace)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the server has stopped; False when ``timeout`` came first."""
        return self._grpc.wait(timeout)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(grace=0)
