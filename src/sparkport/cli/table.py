"""``sparkport table``: have a running server change how a table is stored.

``table upgrade NAME`` gives one of an older format row ids; ``table set NAME journal=on`` journals its changes.
"""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.remote import Remote, connected
from sparkport.client.names import parse_name
from sparkport.config import BOOLEAN
from sparkport.errors import InvalidArgument

__all__ = ["change", "upgrade"]


def change(remote: Remote, table: str, *, setting: str, out: TextIO) -> int:
    name = parse_name(table)
    journal = _journal(setting)
    place = {"catalog_name": name.catalog, "schema_name": name.schema, "table_name": name.name}
    with connected(remote) as session:
        report = list(session.act("set_table", **place, journal=journal))[-1]
    text = "is journalled: small changes are committed at once" if report["journal"] else "is not journalled"
    print(f"{report['table']} {text}", file=out)
    return 0


def _journal(setting: str) -> bool:
    """The one thing that can be set, as ``journal=on`` says it."""
    key, _, value = setting.partition("=")
    if key.strip() != "journal":
        raise InvalidArgument(f"'{setting}' is nothing that can be set: only journal=on and journal=off are")
    try:
        on: bool = BOOLEAN.read(value)
    except ValueError as exc:
        raise InvalidArgument(f"'{setting}': journal is on or off") from exc
    return on


def upgrade(remote: Remote, table: str, *, out: TextIO) -> int:
    name = parse_name(table)
    place = {"catalog_name": name.catalog, "schema_name": name.schema, "table_name": name.name}
    with connected(remote) as session:
        report = list(session.act("upgrade_table", **place))[-1]
    if report["changed"]:
        text = f"upgraded from format v{report['format_before']} to v{report['format']}: UPDATE and DELETE work now"
    else:
        text = f"is of format v{report['format']} already"
    print(f"{report['table']} {text}", file=out)
    return 0
