"""What a caller may see of a table that may not be seen whole: row filters and column masks, rule by rule.

Rules add up. Each gives some rows, and shows some columns of them as they are, some masked and some not at all; a
caller gets whatever one of the rules gives. So a row is seen if one rule gives it, and a value of it is seen as it is
if one of the rules that give this row shows the column as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparkport.auth.operations import Operation
from sparkport.filters.rule_expressions import BoundExpression

__all__ = ["Mask", "Policy", "Share"]

Mask: TypeAlias = BoundExpression | None
"""What is shown in place of a value; None hides the column as if it were not there."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rule gives a caller of a table. ``rows`` of None means all rows.

    ``columns`` are those that are not shown as they are, by name in small letters. ``any_new_rows``: rows that the
    caller writes need not be among those that it sees.
    """

    rule: str
    operations: frozenset[Operation]
    rows: BoundExpression | None = None
    columns: tuple[tuple[str, Mask], ...] = ()
    any_new_rows: bool = False

    @property
    def is_whole(self) -> bool:
        return self.rows is None and not self.columns

    @property
    def masks(self) -> dict[str, Mask]:
        return dict(self.columns)


Policy: TypeAlias = tuple[Share, ...]
"""All that the rules give a caller of one table. An empty one gives nothing."""
