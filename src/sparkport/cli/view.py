"""``sparkport view``: have a running server make a view of a query in Spark's SQL, or drop one."""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.remote import Remote
from sparkport.client import connect
from sparkport.client.names import parse_name

__all__ = ["create", "drop"]


def create(remote: Remote, view: str, *, query: str, out: TextIO) -> int:
    print(f"{_call(remote, 'create_view', view, query)} is a view now", file=out)
    return 0


def drop(remote: Remote, view: str, *, out: TextIO) -> int:
    print(f"{_call(remote, 'drop_view', view)} is dropped", file=out)
    return 0


def _call(remote: Remote, function: str, view: str, *arguments: str) -> str:
    name = parse_name(view)
    place = ".".join(part for part in (name.schema, name.name) if part)
    with connect(
        remote.location, token=remote.token, tls_root=remote.ca, timeout=remote.timeout, catalog=name.catalog
    ) as client:
        return str(client.call(f"spark.{function}", place, *arguments)[0])
