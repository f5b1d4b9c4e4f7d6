"""How tables are named."""

from __future__ import annotations

__all__ = ["TableName"]

TableName = tuple[str, str]
"""Schema and table."""
