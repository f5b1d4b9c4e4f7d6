"""When a change is small enough for the journal, and how much may wait there for how long."""

from __future__ import annotations

from dataclasses import dataclass

from sparkport.errors import InvalidArgument

__all__ = ["JournalSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Limits of the journal.

    A commit of at most ``rows`` rows and ``bytes`` bytes goes into the journal, a larger one through Spark. What the
    journal holds is flushed after ``seconds``. Where flushing cannot keep up, changes are refused once it holds
    ``limit`` bytes. With ``new_tables`` a table is journalled from its creation on.
    """

    new_tables: bool = False
    rows: int = 10_000
    bytes: int = 4 << 20
    seconds: float = 1.0
    limit: int = 256 << 20

    def __post_init__(self) -> None:
        for name in ("rows", "bytes", "seconds", "limit"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"journal_{name} must be above 0")
        if self.limit < self.bytes:
            raise InvalidArgument(
                "journal_limit is below journal_bytes: the journal must have room for the largest change that may go "
                "into it"
            )
