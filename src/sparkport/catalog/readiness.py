"""Whether a catalog can be read and written at the moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Readiness"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """``why`` tells whoever runs the server what is missing: no path, no address and no secret is in it."""

    reads: bool = True
    writes: bool = True
    why: str = ""

    @classmethod
    def of_all(cls, parts: Iterable[Readiness]) -> Readiness:
        found = list(parts)
        return cls(
            all(part.reads for part in found),
            all(part.writes for part in found),
            "; ".join(dict.fromkeys(part.why for part in found if part.why)),
        )
