"""A table's columns and rows as one caller may see them, worked out from the rules once for each schema.

A rule that does not fit the table gives nothing: one that names a column which is not there, or whose expression
cannot be computed from the columns. The log says which, and why; callers only learn that there is such a rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa

from sparkport.auth.operations import ROW_OPERATIONS, Operation
from sparkport.auth.policy import Policy, Share
from sparkport.catalog.row_ids import find_row_id_column
from sparkport.errors import PermissionDenied
from sparkport.filters.evaluate import keep_rows
from sparkport.filters.expressions import (
    And,
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Not,
    NotIn,
    Or,
    conjunction,
    simplify,
)
from sparkport.filters.sql import quote_identifier
from sparkport.filters.types import ROW_ID, arrow_sql_type
from sparkport.policies.compute import (
    Branch,
    Condition,
    Misfit,
    ShownColumn,
    find_column,
    require_condition,
    shown_values,
)
from sparkport.policies.own_values import own_values

__all__ = ["View", "view_of"]

logger = logging.getLogger(__name__)

# A filter of these fails for no value, so that it cannot tell of a row by failing.
_NEVER_FAIL = (And, Or, Not, Comparison, IsNull, IsNotNull, In, NotIn, Between, Literal, Column)


_KEPT_BYTES = 64 * 1024
"""The size of a schema whose view is remembered: clients can write any amount into its metadata."""


@lru_cache(maxsize=1024)
def _view(table: str, policy: Policy, schema: bytes) -> View:
    return View(table, policy, pa.ipc.read_schema(pa.py_buffer(schema)))


def view_of(table: str, policy: Policy, schema: pa.Schema) -> View:
    serialized = schema.serialize().to_pybytes()
    return (_view if len(serialized) <= _KEPT_BYTES else _view.__wrapped__)(table, policy, serialized)


class View:
    """``raw`` is the table's own schema, ``schema`` what the caller sees of it. Safe to use from several threads."""

    def __init__(self, table: str, policy: Policy, raw: pa.Schema) -> None:
        self.table = table
        self.raw = raw
        index = find_row_id_column(raw)
        self.row_id: str | None = None if index is None else raw.field(index).name
        self._shares = [share for share in policy if self._fits(share)]
        readers = self._giving(Operation.READ)
        self.is_readable = bool(readers)
        self._shown_by = readers or self._shares
        self.rows = self._condition(self._shown_by)
        self._masked: dict[str, ShownColumn] = {}
        self._hidden: set[str] = set()
        for column in raw:
            self._add(column)
        fields = [
            column.with_nullable(True) if column.name in self._masked else column
            for column in raw
            if column.name not in self._hidden
        ]
        # Without the table's own metadata: what writers put there often names all columns.
        self.schema = pa.schema(fields)
        self.clear = frozenset(column.name for column in fields) - self._masked.keys()
        self.hidden = pa.schema([column for column in raw if column.name in self._hidden])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that the caller may do with the table's rows."""
        return not self._shares

    @property
    def masked(self) -> frozenset[str]:
        return frozenset(self._masked)

    def describe(self, column: str) -> str:
        """How a column is shown, in the rules' words."""
        texts = [mask.text for share in self._shown_by if (mask := share.masks.get(column.lower())) is not None]
        return " or ".join(dict.fromkeys(texts)) or "hidden"

    def describe_rows(self) -> str | None:
        """The rules' conditions; None where all rows are seen."""
        if self.rows.always:
            return None
        return " OR ".join(dict.fromkeys(share.rows.text for share in self._shown_by if share.rows is not None))

    # Rights

    def require(self, operation: Operation) -> None:
        """Raise PermissionDenied where no rule that fits gives the right; who may do nothing may not look either."""
        if not (self._giving(operation) if operation in ROW_OPERATIONS else self._shares):
            raise PermissionDenied(
                f"table '{self.table}': no rule about its rows and columns gives the right to {operation.value} here; "
                "ask whoever keeps the rules"
            )

    def touchable(self, operation: Operation) -> tuple[Condition, ...]:
        """Conditions that must all hold for a row that is to be changed."""
        return self._all(self._condition(self._giving(operation)), self.rows)

    def admitted(self, operation: Operation) -> tuple[Condition, ...]:
        """Conditions that must all hold for a row as it is after the change."""
        if any(share.any_new_rows for share in self._giving(operation)):
            return ()
        return self.touchable(operation)

    def settable(self, column: str) -> tuple[Condition, ...]:
        """Conditions under which an UPDATE may give a row another value there: where it is seen as it is."""
        name = column.lower()
        shown = self._condition([share for share in self._shown_by if name not in share.masks])
        given = self._condition([share for share in self._giving(Operation.UPDATE) if name not in share.masks])
        return self._all(shown, given)

    # What is seen

    def needed(self, names: Sequence[str]) -> tuple[str, ...]:
        """The table's own columns from which the named ones are made, and that say which rows are seen."""
        used = set(self.rows.columns.names)
        for name in names:
            used |= self._masked[name].columns if name in self._masked else {name}
        return tuple(name for name in self.raw.names if name in used)

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the caller may see, as they are."""
        if self.rows.always or not batch.num_rows:
            return batch
        mask = self.rows.mask(batch)
        return batch if mask.true_count == len(mask) else keep_rows(batch, mask)

    def show(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """The named columns of rows that may be seen, as the caller sees them."""
        if not names or (self.rows.always and not any(name in self._masked for name in names)):
            return batch.select(list(names))
        values = self.masks(batch, names)
        # Of rows that are not seen nothing may be left in what is shown of the others.
        keep: Callable[[pa.Array], pa.Array] = (lambda column: column) if self.rows.always else own_values
        arrays = [values[name] if name in values else keep(batch.column(name)) for name in names]
        fields = [(self.schema if name in values else batch.schema).field(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def masks(self, batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
        """What is seen of those of the columns that are not always shown as they are."""
        shown = [self._masked[name] for name in names if name in self._masked]
        arrays = shown_values(self.table, shown, batch)
        return {item.column.name: array for item, array in zip(shown, arrays, strict=True)}

    def pushed(self, asked: Expression | None) -> Expression | None:
        """What a scan of the table itself may be told of the caller's filter, and of the rules'.

        The caller's must not be evaluated on what the caller does not see. Of rows that it does not see, not even
        whether the filter fails for them.
        """
        kept = None if asked is None else simplify(asked, self._may_push)
        return conjunction(part for part in (self.rows.pushed, kept) if part is not None)

    def _may_push(self, node: Expression) -> bool:
        if not self.rows.always and not isinstance(node, _NEVER_FAIL):
            return False
        if not isinstance(node, Column):
            return True
        name = find_column(self.raw, node.name)
        if name is None:
            return node.name.lower() == ROW_ID and self.row_id is not None
        if name not in self.clear:
            return False
        return self.rows.always or node.type is None or node.type == arrow_sql_type(self.raw.field(name).type)

    # Making it

    def _fits(self, share: Share) -> bool:
        try:
            if share.rows is not None:
                require_condition(share.rows, self.raw)
            for name, mask in share.columns:
                column = find_column(self.raw, name)
                if column is None:
                    raise Misfit(f"the table has no column '{name}', or more than one")
                if column == self.row_id:
                    raise Misfit("row ids cannot be masked or hidden")
                if mask is not None:
                    always = Condition(self.table, self.raw, [None])
                    branch = Branch(always, mask.sql, self._named(mask.columns))
                    ShownColumn(self.raw.field(column), [branch]).require_fit(self.raw)
        except Misfit as exc:
            logger.error(
                "authorization rules: %s does not fit table '%s', and gives nothing there: %s",
                share.rule,
                self.table,
                exc,
            )
            return False
        return True

    def _add(self, column: pa.Field) -> None:
        """Find out how a column is shown."""
        if not self._shares:
            self._hidden.add(column.name)
            return
        name = column.name.lower()
        plain = [share for share in self._shown_by if name not in share.masks]
        if column.name == self.row_id or any(share.rows is None for share in plain):
            return
        if len(plain) == len(self._shown_by):
            return
        branches = []
        if plain:
            condition = self._condition(plain)
            branches.append(self._branch(condition, quote_identifier(column.name), frozenset({column.name})))
        for share in self._shown_by:
            mask = share.masks.get(name)
            if mask is not None:
                # Where there is one rule only, every row that is seen is given by it.
                alone = len(self._shown_by) == 1
                condition = Condition(self.table, self.raw, [None]) if alone else self._condition([share])
                branches.append(self._branch(condition, mask.sql, self._named(mask.columns)))
        if branches:
            self._masked[column.name] = ShownColumn(column, branches)
        else:
            self._hidden.add(column.name)

    def _branch(self, condition: Condition, sql: str, columns: frozenset[str]) -> Branch:
        return Branch(condition, sql, columns | frozenset(condition.columns.names))

    def _named(self, columns: frozenset[str]) -> frozenset[str]:
        return frozenset(found for name in columns if (found := find_column(self.raw, name)) is not None)

    def _giving(self, operation: Operation) -> list[Share]:
        return [share for share in self._shares if operation in share.operations]

    def _condition(self, shares: Sequence[Share]) -> Condition:
        return Condition(self.table, self.raw, [share.rows for share in shares])

    def _all(self, *conditions: Condition) -> tuple[Condition, ...]:
        return tuple(condition for condition in conditions if not condition.always)
