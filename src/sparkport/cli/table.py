"""``sparkport table upgrade NAME``: have a running server give a table of an older format row ids."""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.remote import Remote, connected
from sparkport.client.names import parse_name

__all__ = ["upgrade"]


def upgrade(remote: Remote, table: str, *, out: TextIO) -> int:
    name = parse_name(table)
    with connected(remote) as session:
        report = list(session.act("upgrade_table", schema_name=name.schema, table_name=name.name))[-1]
    if report["changed"]:
        text = f"upgraded from format v{report['format_before']} to v{report['format']}: UPDATE and DELETE work now"
    else:
        text = f"is of format v{report['format']} already"
    print(f"{report['table']} {text}", file=out)
    return 0
