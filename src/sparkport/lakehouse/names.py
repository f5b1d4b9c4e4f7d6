"""How tables are named."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TableName", "is_shadow_catalog", "shadow_catalog"]

_SHADOWS = "_sparkport_shadows"


class TableName(NamedTuple):
    """A table's name, with the schema that it is in."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def shadow_catalog(catalog: str) -> str:
    """What the shadows of a catalog's tables are kept under, in its database and in the sessions that write."""
    return catalog + _SHADOWS


def is_shadow_catalog(catalog: str) -> bool:
    """Whether that is the name of shadows: no catalog of tables is called so."""
    return catalog.endswith(_SHADOWS)
