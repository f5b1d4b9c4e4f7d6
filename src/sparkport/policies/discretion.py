"""Errors about rows, as somebody may be told who sees only a part of a table.

What does not hold is named, with the values of the rows, where the caller knows of the key or the CHECK. Of all others
it is told that one does not hold: their words have columns and values in them that the caller does not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkport.catalog.table import Key
from sparkport.errors import ConstraintViolation, DuplicateKey

__all__ = ["Discretion", "Violation"]

Violation = DuplicateKey | ConstraintViolation


@dataclass(frozen=True, slots=True)
class Discretion:
    """``keys`` and ``checks`` are those of the table that the caller may know of."""

    table: str
    keys: Sequence[Key] = ()
    checks: Sequence[str] = ()

    def told(self, exc: Violation) -> Violation:
        """The error itself, or what may be told of it."""
        if isinstance(exc, DuplicateKey):
            if any(key.is_violated(exc) for key in self.keys):
                return exc
            return DuplicateKey(f"a key of table '{self.table}' does not hold for these rows", table=self.table)
        if exc.check is not None and exc.check in self.checks:
            return exc
        return ConstraintViolation(
            f"a constraint of table '{self.table}' does not hold for these rows", table=self.table
        )

    def common(self, others: Iterable[Discretion]) -> Discretion:
        """What may be told whichever of these it is: a table of the same name in another schema may hide more."""
        keys, checks = list(self.keys), list(self.checks)
        for other in others:
            keys = [key for key in keys if key in other.keys]
            checks = [check for check in checks if check in other.checks]
        return Discretion(self.table, tuple(keys), tuple(checks))
