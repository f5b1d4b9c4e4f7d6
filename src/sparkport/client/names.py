"""How people name tables and functions: ``users``, ``public.users``, ``lake.public.users``, quoted, or as tuples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from sparkport.catalog.names import split_name
from sparkport.errors import InvalidArgument
from sparkport.protocol.targets import Kind, Target

__all__ = ["Name", "NameLike", "parse_name", "quote"]

NameLike: TypeAlias = "str | tuple[str, ...] | Name"

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Name:
    """An empty catalog is the client's own, an empty schema the catalog's default one."""

    catalog: str
    schema: str
    name: str

    def target(self, kind: Kind, catalog: str) -> Target:
        """What the name points at for a client whose own catalog is ``catalog``."""
        return Target(self.catalog or catalog, self.schema, kind, self.name)

    def __str__(self) -> str:
        return ".".join(quote(part) for part in (self.catalog, self.schema, self.name) if part)


def quote(part: str) -> str:
    """One part of a name as ``parse_name`` reads it back."""
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'


def parse_name(name: NameLike) -> Name:
    """A tuple is taken as it is; in a text, dots separate unless they stand in double quotes."""
    if isinstance(name, Name):
        return name
    parts = split_name(name) if isinstance(name, str) else list(name)
    if not 1 <= len(parts) <= 3:
        raise InvalidArgument(f"name {name!r} must have one to three parts: catalog, schema, name")
    if not all(isinstance(part, str) and part for part in parts):
        raise InvalidArgument(f"name {name!r} has an empty part")
    catalog, schema, last = [""] * (3 - len(parts)) + parts
    return Name(catalog, schema, last)
