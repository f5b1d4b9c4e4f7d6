"""``sparkport rules test --as USER``: what the rules come to for somebody, before or while a server has them.

The rules are applied here, by the code that a server applies them with, to tables and rows that a server shows to
whoever runs the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import pyarrow as pa

from sparkport.auth import Authorizer, Identity, Operation, Resource, RuleAuthorizer
from sparkport.auth.files import read_file
from sparkport.auth.policy import Policy
from sparkport.catalog.plain_values import plain_rows
from sparkport.catalog.row_ids import data_schema
from sparkport.cli.remote import Item, Remote, connected
from sparkport.client import connect
from sparkport.client.names import Name, parse_name
from sparkport.errors import FailedPrecondition, InvalidArgument, TableNotFound
from sparkport.policies.view import View, view_of

__all__ = ["identity", "test"]

_SHOWN = tuple(item for item in Operation if item not in (Operation.LIST, Operation.TRANSACTION))


def identity(subject: str, *, claims: Sequence[str], roles: Sequence[str]) -> Identity:
    """A caller as a token would name it."""
    values: dict[str, object] = {"roles": list(roles)} if roles else {}
    for claim in claims:
        name, equals, text = claim.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"'{claim}' is no claim such as region=EU")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return Identity(subject, values)


def test(
    authorizer: Authorizer | None,
    who: Identity,
    *,
    remote: Remote | None,
    table: str | None,
    rows: int,
    out: TextIO,
) -> int:
    if not isinstance(authorizer, RuleAuthorizer):
        raise FailedPrecondition("there are no rules: name a file with --rules")
    if remote is None:
        return _offline(authorizer, who, table, out)
    with connected(remote) as session:
        items = [item for item in session.items() if item.kind == "table"]
    name = None if table is None else parse_name(table)
    chosen = [item for item in items if name is None or _is_named(item, name)]
    if name is not None and not chosen:
        raise TableNotFound(name.schema, name.name)
    for item in sorted(chosen, key=lambda item: (item.catalog, item.schema, item.name)):
        lines = list(_table(authorizer, who, item, remote, rows))
        if lines or table is not None:
            print(f"{item.catalog}.{item.schema}.{item.name}: {lines[0] if lines else 'is not seen'}", file=out)
            for line in lines[1:]:
                print(f"  {line}", file=out)
    return 0


def _offline(authorizer: RuleAuthorizer, who: Identity, table: str | None, out: TextIO) -> int:
    """The rules alone: which are about the user, and what each gives."""
    resource = None if table is None else _resource(parse_name(table))
    for name, rule, share in authorizer.rules_about(who, resource):
        operations = ", ".join(item.value for item in _SHOWN if item in rule.operations)
        print(f"{name}: {operations} on {', '.join(rule.resources)}", file=out)
        if rule.rows is not None:
            print(f"  rows: {rule.rows.text}", file=out)
        for column, mask in rule.columns.items():
            print(f"  {column}: {'hidden' if mask is None else mask.text}", file=out)
        if share is None:
            print("  gives nothing: a claim that it needs is missing, or of no use there", file=out)
    return 0


def _resource(name: Name) -> Resource:
    if not name.catalog:
        raise InvalidArgument(f"'{name}' must have three parts where no server is asked: catalog.schema.table")
    return Resource(name.catalog, name.schema, name.name)


def _is_named(item: Item, name: Name) -> bool:
    pairs = ((item.catalog, name.catalog), (item.schema, name.schema), (item.name, name.name))
    return all(not wanted or have.casefold() == wanted.casefold() for have, wanted in pairs)


def _table(authorizer: RuleAuthorizer, who: Identity, item: Item, remote: Remote, rows: int) -> Iterator[str]:
    """What the user may do with a table, then its columns, then some rows; nothing for one that it does not see."""
    resource = Resource(item.catalog, item.schema, item.name)
    if not authorizer.allows(who, Operation.LIST, resource):
        return
    allowed = [operation for operation in _SHOWN if authorizer.allows(who, operation, resource)]
    policy = authorizer.policy(who, resource)
    view = None if policy is None else view_of(item.name, policy, item.columns)
    if view is not None and view.is_empty:
        yield "nothing, because no rule about its rows and columns fits it, or claims are missing"
        return
    yield ", ".join(operation.value for operation in allowed) or "is listed, and nothing else"
    if view is not None and (condition := view.describe_rows()) is not None:
        yield f"rows: {condition}"
    for column in data_schema(item.columns):
        yield f"{column.name} {column.type}{_how(view, column.name)}"
    if Operation.READ in allowed and (view is None or view.is_readable) and rows > 0:
        for row in _sample(item, policy, remote, rows):
            yield json.dumps(row, default=str, ensure_ascii=False)


def _how(view: View | None, column: str) -> str:
    if view is None or column in view.clear:
        return ""
    return f": {view.describe(column)}" if column in view.masked else ": hidden"


def _sample(item: Item, policy: Policy | None, remote: Remote, rows: int) -> list[dict[str, Any]]:
    """The first rows that the user sees, as it sees them."""
    root = None if remote.ca is None else read_file(remote.ca)
    with connect(remote.location, token=remote.token, tls_root=root, timeout=remote.timeout) as client:
        scan = client.scan((item.catalog, item.schema, item.name))
        found: list[dict[str, Any]] = []
        with scan:
            for batch in scan:
                found += plain_rows(_seen(item, policy, batch).slice(0, rows - len(found)))
                if len(found) >= rows:
                    break
        return found


def _seen(item: Item, policy: Policy | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    if policy is None:
        return batch
    view = view_of(item.name, policy, batch.schema)
    return view.show(view.seen(batch), view.schema.names)
