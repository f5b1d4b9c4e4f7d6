"""How tables are named."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TableName"]


class TableName(NamedTuple):
    """A table's name, with the schema that it is in."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"
