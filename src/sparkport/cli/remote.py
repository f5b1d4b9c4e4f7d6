"""Commands that ask a running server, over plain Arrow Flight: what they show is what any client would see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgpack
import pyarrow as pa
from pyarrow import flight

from sparkport.auth import Secret
from sparkport.auth.files import read_file
from sparkport.client.errors import is_unreachable
from sparkport.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    PermissionDenied,
    SparkportError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

__all__ = ["Item", "Remote", "RemoteSession", "connected", "list_actions", "list_tables"]

# The first that fits.
_ERRORS: tuple[tuple[type[Exception], type[SparkportError]], ...] = (
    (flight.FlightUnauthenticatedError, Unauthenticated),
    (flight.FlightUnauthorizedError, PermissionDenied),
    (flight.FlightTimedOutError, DeadlineExceeded),
    (pa.ArrowNotImplementedError, Unsupported),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server to ask, and how."""

    location: str
    token: Secret | None = None
    ca: Path | None = None
    timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class Item:
    """A table or a function in a server's listing."""

    catalog: str
    schema: str
    name: str
    kind: str
    columns: pa.Schema


class RemoteSession:
    def __init__(self, remote: Remote, client: Any) -> None:
        headers = [] if remote.token is None else [(b"authorization", f"Bearer {remote.token.reveal()}".encode())]
        self._options = flight.FlightCallOptions(timeout=remote.timeout, headers=headers)
        self._client = client

    def items(self) -> Iterator[Item]:
        for info in self._client.list_flights(b"", self._options):
            about = msgpack.unpackb(info.app_metadata, unicode_errors="surrogateescape")
            yield Item(about["catalog"], about["schema"], about["name"], about["type"], info.schema)

    def actions(self) -> list[tuple[str, str]]:
        return [(action.type, action.description) for action in self._client.list_actions(self._options)]

    def act(self, name: str, **body: Any) -> Iterator[dict[str, Any]]:
        """An action that takes a JSON object and answers with some, each as soon as it comes."""
        for result in self._client.do_action(flight.Action(name, json.dumps(body).encode()), self._options):
            answer = json.loads(result.body.to_pybytes())
            if not isinstance(answer, dict):
                raise TypeError(f"action '{name}' answers with no object")
            yield answer

    def change(self, name: str, **body: object) -> None:
        """An action that takes a msgpack map and answers with nothing."""
        list(self._client.do_action(flight.Action(name, msgpack.packb(body)), self._options))

    def version(self, catalog: str) -> int:
        action = flight.Action("catalog_version", msgpack.packb({"catalog_name": catalog}))
        results = list(self._client.do_action(action, self._options))
        return int(msgpack.unpackb(results[0].body.to_pybytes())["catalog_version"])


@contextmanager
def connected(remote: Remote) -> Iterator[RemoteSession]:
    """A session; whatever goes wrong in it is an error of ours, in one sentence."""
    roots = None if remote.ca is None else read_file(remote.ca)
    try:
        client = flight.connect(remote.location, tls_root_certs=roots)
    except (pa.ArrowException, ValueError) as exc:
        raise InvalidArgument(f"'{remote.location}' is no location such as grpc://127.0.0.1:50051") from exc
    with client:
        try:
            yield RemoteSession(remote, client)
        except flight.FlightUnavailableError as exc:
            reached = f"{remote.location}: {_sentence(exc)}"
            unreached = f"no server can be reached at {remote.location}"
            raise Unavailable(unreached if is_unreachable(str(exc)) else reached) from exc
        except (pa.ArrowException, OSError) as exc:
            error_class = next((ours for theirs, ours in _ERRORS if isinstance(exc, theirs)), InternalError)
            raise error_class(f"{remote.location}: {_sentence(exc)}") from exc
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise InternalError(f"{remote.location} answers like no sparkport server") from exc


def _sentence(exc: Exception) -> str:
    """Arrow puts what gRPC knows of the connection behind the server's own words."""
    return str(exc).partition(". gRPC client debug context:")[0].partition(". Client context:")[0]


def list_tables(remote: Remote, out: TextIO) -> int:
    """A line for each table and function, tables with their columns."""
    with connected(remote) as session:
        items = list(session.items())
    for item in sorted(items, key=lambda item: (item.catalog, item.schema, item.kind, item.name)):
        columns = ", ".join(f"{column.name} {column.type}" for column in item.columns)
        what = f"({columns})" if item.kind == "table" else item.kind.replace("_", " ")
        print(f"{item.catalog}.{item.schema}.{item.name} {what}", file=out)
    return 0


def list_actions(remote: Remote, out: TextIO) -> int:
    with connected(remote) as session:
        actions = session.actions()
    width = max((len(name) for name, _ in actions), default=0)
    for name, description in sorted(actions):
        print(f"{name:<{width}}  {description}".rstrip(), file=out)
    return 0
