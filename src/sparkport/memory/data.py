"""One table over time: what it was called, what columns it had and which rows, since which commit."""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import Alteration, SetComment
from sparkport.catalog.evolve import evolve_batch
from sparkport.catalog.table import Key
from sparkport.memory.rows import Rows, Segment

__all__ = ["Author", "Commit", "Definition", "NOBODY", "TableData"]


@dataclass(frozen=True, slots=True)
class Author:
    """Who changed a name or a table.

    DuckDB does not send its transaction with DDL, so `CREATE TABLE t AS …` creates in one call and inserts in another
    whose transaction began before: it must see what its own session has made in between.
    """

    session: str | None = None
    transaction: str | None = None

    @classmethod
    def from_context(cls, ctx: CallContext) -> Author:
        return cls(ctx.session, ctx.transaction_id)

    def is_caller(self, ctx: CallContext) -> bool:
        if self.transaction is not None:
            return self.transaction == ctx.transaction_id
        return self.session is not None and self.session == ctx.session


NOBODY = Author()


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """What a table is from commit ``since`` on. ``columns`` are without row id; ``rows`` have exactly those."""

    since: int
    columns: pa.Schema
    rows: Rows = field(default_factory=Rows)
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    author: Author = NOBODY
    change: Alteration | None = None
    """What made it of the definition before it, if its rows were written anew for it."""

    def same_rows(self, other: Definition) -> bool:
        """Whether rows that were made for one can go into the other."""
        return self.rows is other.rows and self.checks == other.checks and self.keys == other.keys

    def altered(self, change: Alteration, columns: pa.Schema, *, commit: int, author: Author) -> Definition:
        """The definition after a change. Rows are written anew under their ids; the old ones stay for old readers."""
        if isinstance(change, SetComment) and change.column is None:
            return replace(self, since=commit, comment=change.comment, author=author, change=None)
        if columns.equals(self.columns):  # but for the metadata of columns, which rows do not have
            return replace(self, since=commit, columns=columns, author=author, change=None)
        rows = Rows()
        for segment in self.rows.segments(commit):
            batch, ids, first_id = segment.batch, segment.row_ids, segment.first_id
            alive = segment.alive(commit)
            if alive is not None:
                kept = pa.array(alive, pa.int64())
                batch, ids = batch.take(kept), segment.ids().take(kept)
            if batch.num_rows:
                rows.append(Segment(evolve_batch(batch, change, columns), commit, first_id, ids))
        return replace(self, since=commit, columns=columns, rows=rows, author=author, change=change)


class Commit(NamedTuple):
    """One that changed a table, and on whose behalf. An alteration may have written all rows anew."""

    number: int
    time: datetime
    author: str | None = None
    transaction: str | None = None
    statement: str | None = None
    is_alteration: bool = False
    is_rollback: bool = False


@dataclass(slots=True, eq=False)
class TableData:
    """A table's definitions, and its versions: the commits that changed it, the first of them its creation."""

    name: str
    definitions: list[Definition]
    commits: list[Commit]
    dropped: bool = False
    dropped_in: int | None = None
    """The commit that has dropped it."""
    dropped_at: datetime | None = None
    dropped_by: str | None = None
    version_tags: dict[str, int] = field(default_factory=dict)
    """Names of versions."""
    branches: dict[str, int] = field(default_factory=dict)
    """The versions that branches are at. Nobody commits to one here."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _next_id: int = 0
    _id_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def created(self) -> int:
        return self.commits[0][0]

    @property
    def newest(self) -> Definition:
        return self.definitions[-1]

    def at(self, commit: int) -> Definition:
        index = bisect_right(self.definitions, commit, key=lambda definition: definition.since)
        return self.definitions[max(0, index - 1)]

    def allocate(self, count: int) -> int:
        """The first of ``count`` new row ids; ids of rows that are never committed stay unused."""
        with self._id_lock:
            first = self._next_id
            self._next_id += count
            return first

    def last_commit(self) -> int:
        return self.commits[-1][0]

    def version_of(self, commit: int) -> int:
        """The number of the version that a commit has made, or that was there by then."""
        return bisect_right(self.commits, commit, key=lambda entry: entry[0]) - 1

    def own_alterations(self, commit: int, ctx: CallContext) -> int:
        """The commit up to which only the caller has changed the table since ``commit``, and only by ALTER."""
        for number, *_ in self.commits[bisect_right(self.commits, commit, key=lambda entry: entry[0]) :]:
            definition = self.at(number)
            if definition.since != number or not definition.author.is_caller(ctx):
                break
            commit = number
        return commit
