"""``sparkport schema rename OLD NEW``: another name for a schema. DuckDB cannot see one named ``main``."""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.remote import Remote, connected
from sparkport.client.names import parse_name

__all__ = ["rename"]


def rename(remote: Remote, schema: str, new_name: str, *, out: TextIO) -> int:
    name = parse_name(schema)
    with connected(remote) as session:
        session.change("rename_schema", catalog=name.schema or "", schema=name.name, new_schema_name=new_name)
    print(f"{schema} is named {new_name} now", file=out)
    return 0
