"""Which tests `make test` runs, and which only `make test-all`: each test says it by a mark.

``@pytest.mark.tier("fast")`` of a function counts before the mark of a parameter, and that before its module's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

__all__ = ["FAST", "THOROUGH", "TIERS", "WITHOUT_TIER", "on_engines", "tier_of"]

TIERS: Final = ("fast", "thorough")
WITHOUT_TIER: Final[pytest.StashKey[list[str]]] = pytest.StashKey()
"""Tests of a run that are in no tier."""

FAST, THOROUGH = map(pytest.mark.tier, TIERS)


def on_engines(names: Iterable[str]) -> list[object]:
    """Engines as parameters: what needs no Spark is fast."""
    return [pytest.param(name, marks=FAST if name == "memory" else THOROUGH) for name in names]


def tier_of(item: pytest.Item) -> str | None:
    """None for a test that says nothing, or something else."""
    callspec = getattr(item, "callspec", None)
    own = list(getattr(getattr(item, "obj", None), "pytestmark", ()))
    for marks in (own, [] if callspec is None else callspec.marks, list(item.iter_markers("tier"))):
        names = [mark.args for mark in marks if mark.name == "tier"]
        if names:
            return names[0][0] if len(names[0]) == 1 and names[0][0] in TIERS else None
    return None
