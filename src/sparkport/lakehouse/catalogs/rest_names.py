"""How a change of names is asked for in an Iceberg REST catalog, of schemas, tables and views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

from sparkport.errors import AlreadyExists, InvalidArgument, SchemaNotFound, TableNotFound, Unavailable
from sparkport.lakehouse.catalogs.rest_client import Answer, RequestRefused, Unanswered
from sparkport.lakehouse.names import TableName

__all__ = ["change_names", "is_name", "listed_names", "unexpected"]


def change_names(
    send: Callable[[], Answer],
    *,
    done: Callable[[], bool],
    exists: str = "it already exists",
    schema: str | None = None,
    table: TableName | None = None,
) -> None:
    """Ask for a change of names; ``done`` looks whether it is made, for when the answer does not come.

    A request may have come twice, and been refused the second time. Tables show that: their metadata is at a place
    of its own, or they were there the moment before.
    """
    try:
        send()
    except RequestRefused as exc:
        if exc.status in (404, 409) and table is not None and done():
            return
        if exc.status == 409:
            raise AlreadyExists(exists) from exc
        if exc.status == 404 and schema is None and table is not None and "Namespace" not in exc.error_type:
            raise TableNotFound(*table) from exc
        if exc.status == 404 and (schema or table):
            raise SchemaNotFound(schema or exc.message) from exc
        raise unexpected(exc) from exc
    except Unanswered as exc:
        if not done():
            raise Unavailable("the catalog gave no answer; look whether it was done before trying again") from exc


def listed_names(schema: str, entries: Iterable[object]) -> list[TableName]:
    """The tables or views in a catalog's list, in order. What has no name that can be asked for is left out."""
    names = (entry.get("name") for entry in entries if isinstance(entry, dict))
    return sorted(TableName(schema, name) for name in names if is_name(name))


def is_name(name: object) -> TypeGuard[str]:
    """JSON can have texts that no address can."""
    return isinstance(name, str) and name != "" and not any("\ud800" <= char <= "\udfff" for char in name)


def unexpected(refused: RequestRefused) -> Exception:
    return InvalidArgument(f"the catalog refuses: {refused.message}")
