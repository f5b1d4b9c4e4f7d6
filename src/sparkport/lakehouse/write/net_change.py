"""What a deferred transaction has changed and not committed: per table the net change, in a DuckDB of its own.

A statement in the transaction only changes that, in milliseconds and without a Spark job. A row of the table that
was changed is here under its row id, with its kind of change and all its values; a new row is here under a provisional
id below zero. Several statements on one row leave one row here. Reads put it on top of the table's own rows.
As long as it is about a few rows, a transaction needs no database.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.row_ids import ROW_ID
from sparkport.errors import (
    Conflict,
    RowNotFound,
    SparkportError,
)
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.columns.types import stored_columns
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.base_rows import streamed
from sparkport.lakehouse.write.change_set import IS_DELETED, ChangeSet, changed_rows_schema
from sparkport.lakehouse.write.few_rows import DELETED, INSERTED, UNDONE, UPDATED, FewRows, last_of_each
from sparkport.lakehouse.write.new_rows import staged_new_rows
from sparkport.lakehouse.write.own_rows import OwnRows
from sparkport.lakehouse.write.sent import Sent
from sparkport.lakehouse.write.workspace import Workspace

__all__ = ["NetChange", "TableChange"]

_BATCH_ROWS = 2_048  # they may be long, and DuckDB reads no fewer
_MOST_BASE_BYTES = 1 << 20
"""Of rows that a statement is about, as the table has them: more are streamed into a database."""


class NetChange:
    """One transaction's database. Its transaction's lock guards what changes it."""

    def __init__(self, workspace: Workspace, transaction_id: str) -> None:
        self._workspace = workspace
        self._id = transaction_id
        self._generation = workspace.generation
        self._attached = self._closed = False
        self.tables: dict[TableName, TableChange] = {}

    def table(self, version: TableVersion) -> TableChange:
        """The part for a table, made when it is first written."""
        change = self.tables.get(version.table)
        if change is None:
            name = f"{_alias(self._id)}.t{len(self.tables)}"
            change = TableChange(self, name, version)
            self.tables[version.table] = change
        return change

    def attach(self) -> None:
        """Make the database, if there is none yet."""
        self.require_open()
        if not self._attached:
            self._workspace.attach(self._generation, _alias(self._id))
            self._attached = True

    def keeps(self, nbytes: int) -> None:
        """So many bytes more, or fewer, are kept beside the database."""
        self.require_open()
        self._workspace.keeps(nbytes)

    def lasting(self) -> duckdb.DuckDBPyConnection:
        self.require_open()
        return self._workspace.lasting_cursor(self._generation)

    def cursor(self) -> contextlib.AbstractContextManager[duckdb.DuckDBPyConnection]:
        self.require_open()
        return self._workspace.cursor(self._generation)

    def translated(self) -> contextlib.AbstractContextManager[None]:
        return self._workspace.translated(self._generation)

    def require_open(self) -> None:
        if self._closed:
            raise Conflict("the transaction has ended meanwhile")

    @contextlib.contextmanager
    def change_sets(
        self, staging: Staging, *, returned: Collection[TableName]
    ) -> Iterator[Mapping[TableName, ChangeSet]]:
        """What is to be committed, staged while the block runs. Of ``returned`` tables old rows were handed out."""
        self.require_open()
        with contextlib.ExitStack() as staged:
            changes = {}
            for table, part in self.tables.items():
                if part.rows:
                    changes[table] = part.change_set(staging, returned=table in returned)
                    staged.callback(changes[table].discard)
            fault("stage.after")
            yield changes

    def close(self) -> None:
        """Safe to repeat. Readers under way keep what they have begun to read."""
        if self._closed:
            return
        self._closed = True
        self._workspace.keeps(-sum(part.bytes_waiting for part in self.tables.values()))
        if self._attached:
            with contextlib.suppress(SparkportError):
                self._workspace.detach(self._generation, _alias(self._id))


class TableChange:
    """One table's part of a transaction's net change."""

    def __init__(self, net: NetChange, name: str, version: TableVersion) -> None:
        self.version = version
        self._net = net
        self._name = name
        self.names = tuple(str(field["name"]) for field in version.columns.fields)
        self.stored = stored_columns(version.columns.fields)
        self.step = 0
        self._last_id = 0
        self._ids_lock = threading.Lock()
        self.counts: Mapping[int, int] = {}
        self._few = FewRows(self.stored)
        self.bytes_waiting = 0
        self._made = False
        self._making = threading.Lock()

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to the database, with all rows in it."""
        with self._making:
            self._make()
        with self._net.cursor() as cursor:
            yield cursor

    def _make(self) -> None:
        if self._made:
            return
        self._net.attach()
        with self._net.cursor() as cursor:
            cursor.register("few_rows", self._few.rows)
            cursor.execute(f"CREATE TABLE {self._name} AS FROM few_rows")
        self._made = True
        self._keep(0)
        self._few.reset()

    def _keep(self, nbytes: int) -> None:
        """So many bytes are beside the database now."""
        self._net.keeps(nbytes - self.bytes_waiting)
        self.bytes_waiting = nbytes

    @property
    def rows(self) -> int:
        """How many rows the net change is about."""
        return sum(count for kind, count in self.counts.items() if kind != UNDONE)

    def new_ids(self, count: int) -> pa.Int64Array:
        """Provisional ids for new rows, -1 downwards."""
        with self._ids_lock:
            first, self._last_id = self._last_id - 1, self._last_id - count
        return pa.array(np.arange(first, first - count, -1), pa.int64())

    # Statements

    def insert(self, sent: Sent) -> int:
        """The rows bring ids of ``new_ids``."""
        with self._making:
            if not self._made and self._few.has_room(sent.rows, sent.nbytes):
                with self._few_change():
                    self._few.insert(sent.reader(self.stored).read_all(), sent.columns, self.step + 1)
                return sent.rows
        with self._cursor() as cursor:
            cursor.register("sent", sent.reader(self.stored))
            chosen = self._chosen(sent.columns, lambda _: "NULL")
            cursor.execute(f"INSERT INTO {self._name} SELECT s.id, {INSERTED}, {self.step + 1}, {chosen} FROM sent s")
            return int(self._done(cursor))

    def update(self, sent: Sent, *, since: int, refuse: bool) -> int:
        """New values for some columns of rows; how many rows there are of those that were named.

        ``since`` is the step at which the statement began: another one that has changed the same rows since conflicts.
        """
        rest = [at for at in range(len(self.names)) if at not in sent.columns]

        def change(named: pa.Table, base: pa.Table) -> pa.Table:
            return self._few.update(named, sent.columns, base, self.step + 1)

        count = self._changed_few(sent, rest, change, since=since, refuse=refuse)
        if count is not None:
            return count
        with self._cursor() as cursor:
            self._take(cursor, sent)
            self._check_steps(cursor, since)
            with self._base(rest, self._ids_beneath(cursor)) as base:
                cursor.register("base", base)
                own = self._chosen(sent.columns, lambda at: f"t.c{at}")
                beneath = self._chosen(sent.columns, lambda at: f"b.c{at}")
                step = self.step + 1
                cursor.execute(
                    f"CREATE TEMP TABLE changed AS SELECT t.row_id, t.kind, {step} AS step, {own} FROM {self._name} t "
                    f"JOIN named s ON t.row_id = s.id WHERE t.kind IN ({INSERTED}, {UPDATED}) "
                    f"UNION ALL SELECT b.row_id, {UPDATED}, {step}, {beneath} "
                    "FROM base b JOIN named s ON b.row_id = s.id"
                )
            return self._put(cursor, refuse=refuse)

    def delete(self, sent: Sent, *, since: int, refuse: bool) -> int:
        def change(named: pa.Table, base: pa.Table) -> pa.Table:
            ids, there = (rows.column(name).to_numpy() for rows, name in ((named, "id"), (base, "row_id")))
            return self._few.delete(ids, there, self.step + 1)

        count = self._changed_few(sent, [], change, since=since, refuse=refuse)
        if count is not None:
            return count
        with self._cursor() as cursor:
            self._take(cursor, sent)
            self._check_steps(cursor, since)
            step = self.step + 1
            with self._base([], self._ids_beneath(cursor)) as base:
                cursor.register("base", base)
                cursor.execute(
                    f"CREATE TEMP TABLE changed AS SELECT t.row_id, CASE t.kind WHEN {INSERTED} THEN {UNDONE} "
                    f"ELSE {DELETED} END AS kind, {step} AS step FROM {self._name} t "
                    f"JOIN named s ON t.row_id = s.id WHERE t.kind IN ({INSERTED}, {UPDATED}) "
                    f"UNION ALL SELECT b.row_id, {DELETED}, {step} FROM base b"
                )
            return self._put(cursor, refuse=refuse)

    @contextlib.contextmanager
    def _few_change(self) -> Iterator[None]:
        """One step that needs no database. Nothing has changed if the block raises."""
        self._net.require_open()
        rows = self._few.rows
        try:
            yield
            self._keep(self._few.nbytes)
        except BaseException:
            self._few.reset(rows)
            raise
        self.step += 1
        self.counts = self._few.counts

    def _changed_few(
        self,
        sent: Sent,
        columns: Sequence[int],
        change: Callable[[pa.Table, pa.Table], pa.Table],
        *,
        since: int,
        refuse: bool,
    ) -> int | None:
        """Change a few rows without a database; None where there is one, or has to be.

        ``change`` gets what was sent, and these columns of the table's own rows, and gives the rows as they are then.
        """
        with self._making:
            if self._made or not self._few.has_room(sent.rows, sent.nbytes):
                return None
            sent.keep()
            rows = sent.reader(self.stored).read_all()
            if rows.column("id").null_count:
                return None
            named = last_of_each(rows)
            ids: Ids = named.column("id").to_numpy()
            if since != self.step and (later := self._few.changed_after(ids, since)):
                raise self._conflict(later)
            base = self._few_base(columns, self._few.beneath(ids))
            if base is None:
                return None
            changed = change(named, base)
            if refuse and changed.num_rows < len(ids):
                missing = ~np.isin(ids, changed.column("row_id").to_numpy())
                first = np.argmin(np.where(missing, named.column("number").to_numpy(), np.iinfo(np.int64).max))
                raise RowNotFound(int(ids[first]))
            with self._few_change():
                self._few.replace(changed)
            return int(changed.num_rows)

    def _few_base(self, columns: Sequence[int], ids: Ids) -> pa.Table | None:
        """The table's own rows, None where they are large."""
        held, batches = 0, []
        with self._base(columns, ids) as base:
            for batch in base:
                batches.append(batch)
                held += batch.nbytes
                if held > _MOST_BASE_BYTES:
                    return None
            return pa.Table.from_batches(batches, base.schema)

    def _take(self, cursor: duckdb.DuckDBPyConnection, sent: Sent) -> None:
        """The statement's rows as ``named``: of several about one row the last."""
        cursor.register("sent", sent.reader(self.stored))
        # By row_number() DuckDB would put the values through an aggregate, which makes 0.0 of -0.0.
        last = "number = max(number) OVER (PARTITION BY id)"
        cursor.execute(f"CREATE TEMP TABLE named AS SELECT * FROM sent QUALIFY {last}")

    def _check_steps(self, cursor: duckdb.DuckDBPyConnection, since: int) -> None:
        if since == self.step:
            return
        later = cursor.execute(
            f"SELECT count(*) FROM {self._name} t JOIN named s ON t.row_id = s.id WHERE t.step > {since}"
        ).fetchone()
        if later and later[0]:
            raise self._conflict(later[0])

    def _conflict(self, rows: int) -> Conflict:
        return Conflict(
            f"table '{self.version.table.name}': {rows} rows changed by another statement of this transaction "
            "that ran at the same time"
        )

    def _ids_beneath(self, cursor: duckdb.DuckDBPyConnection) -> NDArray[np.int64]:
        """Of the named rows those that the transaction has not touched: the table itself says whether they are."""
        untouched = cursor.execute(
            f"SELECT s.id FROM named s ANTI JOIN {self._name} t ON t.row_id = s.id WHERE s.id >= 0"
        ).fetchnumpy()
        return np.asarray(untouched["id"], np.int64)

    def _put(self, cursor: duckdb.DuckDBPyConnection, *, refuse: bool) -> int:
        if refuse:
            missing = cursor.execute(
                "SELECT s.id FROM named s ANTI JOIN changed c ON c.row_id = s.id ORDER BY s.number LIMIT 1"
            ).fetchone()
            if missing is not None:
                raise RowNotFound(missing[0])
        cursor.execute("BEGIN")
        cursor.execute(f"DELETE FROM {self._name} WHERE row_id IN (SELECT row_id FROM changed)")
        cursor.execute(f"INSERT INTO {self._name} BY NAME FROM changed")
        cursor.execute("COMMIT")
        return self._done(cursor)

    def _done(self, cursor: duckdb.DuckDBPyConnection) -> int:
        self.step += 1
        rows = cursor.execute(
            f"SELECT kind, count(*), count(*) FILTER (step = {self.step}) FROM {self._name} GROUP BY kind"
        ).fetchall()
        self.counts = {kind: count for kind, count, _ in rows}
        return sum(fresh for _, _, fresh in rows)

    def _chosen(self, columns: Sequence[int], other: Callable[[int], str]) -> str:
        places = {column: place for place, column in enumerate(columns)}
        chosen = (f"s.s{places[at]}" if at in places else other(at) for at in range(len(self.names)))
        return ", ".join(f"{text} AS c{at}" for at, text in enumerate(chosen))

    def _base(self, columns: Sequence[int], ids: Ids) -> contextlib.AbstractContextManager[pa.RecordBatchReader]:
        """The table's own rows beneath a statement, the id last."""
        schema = pa.schema([*(self.stored.field(at) for at in columns), pa.field("row_id", pa.int64())])
        return streamed(self.version.rows, [self.names[at] for at in columns], schema, ids)

    # Looking

    def find(self, row_ids: Sequence[int]) -> tuple[pa.Table, set[int]]:
        """Of these rows the ones that are here, as stored and with row id last; and ids of deleted ones."""
        rows = self._rows_of(pa.array(row_ids, pa.int64()))
        kinds = rows.column("kind").to_pylist()
        here = [place for place, kind in enumerate(kinds) if kind in (INSERTED, UPDATED)]
        ids = rows.column("row_id").to_pylist()
        gone = {row_id for row_id, kind in zip(ids, kinds, strict=True) if kind in (UNDONE, DELETED)}
        chosen = rows.take(pa.array(here, pa.int64())).select([*self.stored.names, "row_id"])
        schema = self.stored.append(pa.field(ROW_ID, pa.int64()))
        return pa.Table.from_batches([conformed_batch(batch, schema) for batch in chosen.to_batches()], schema), gone

    def _rows_of(self, row_ids: pa.Array) -> pa.Table:
        with self._making:
            if not self._made:
                self._net.require_open()
                return self._few.rows.filter(pa.array(np.isin(self._few.ids, row_ids.to_numpy())))
        with self._cursor() as cursor:
            cursor.register("wanted", pa.table({"id": row_ids}))
            rows: pa.Table = cursor.sql(f"FROM {self._name} WHERE row_id IN (SELECT id FROM wanted)").to_arrow_table()
            return rows

    def own_rows(self, columns: Sequence[int]) -> OwnRows:
        """The transaction's own rows as they are now, whatever it changes while they are read. Row ids come last."""
        schema = pa.schema([*(self.stored.field(at) for at in columns), pa.field(ROW_ID, pa.int64())])
        with self._making:
            if not self._made:
                self._net.require_open()
                hidden = self._few.ids[np.isin(self._few.kinds, (UPDATED, DELETED))]
                visible = self._few.of_kinds(INSERTED, UPDATED).select([*schema.names[:-1], "row_id"])
                return OwnRows(hidden, (conformed_batch(batch, schema) for batch in visible.to_batches()))
        cursor = self._net.lasting()
        try:
            with self._net.translated():
                cursor.execute("BEGIN")
                replaced = cursor.execute(
                    f"SELECT row_id FROM {self._name} WHERE kind IN ({UPDATED}, {DELETED})"
                ).fetchnumpy()
                chosen = "".join(f"c{at}, " for at in columns)
                reader = cursor.sql(
                    f"SELECT {chosen}row_id FROM {self._name} WHERE kind IN ({INSERTED}, {UPDATED})"
                ).to_arrow_reader(_BATCH_ROWS)
        except BaseException:
            cursor.close()
            raise
        batches = (conformed_batch(batch, schema) for batch in reader)
        hidden = np.asarray(replaced["row_id"], np.int64)
        return OwnRows(hidden, batches, cursor=cursor, translated=self._net.translated)

    # For the commit

    def _changed_ids(self) -> tuple[Ids, Ids]:
        """The rows of the table that are updated, and those that are deleted, by ascending ids."""
        if not self._made:
            ids, kinds = self._few.ids, self._few.kinds
        else:
            with self._cursor() as cursor:
                rows = cursor.execute(
                    f"SELECT row_id, kind FROM {self._name} WHERE kind IN ({UPDATED}, {DELETED})"
                ).fetchnumpy()
            ids, kinds = np.asarray(rows["row_id"], np.int64), np.asarray(rows["kind"], np.int8)
        return np.sort(ids[kinds == UPDATED]), np.sort(ids[kinds == DELETED])

    def change_set(self, staging: Staging, *, returned: bool) -> ChangeSet:
        """All that the transaction did to the table, staged; whoever asks discards the rows."""
        updated, deleted = self._changed_ids()
        inserts = changes = None
        try:
            if self.counts.get(INSERTED):
                inserts = staged_new_rows(staging, self.version)
                self._stage(inserts, self.stored.names, INSERTED)
            if len(updated) or len(deleted):
                # Where all are deleted no values are needed, and the columns of others would be in their place.
                values = self.stored if len(updated) else pa.schema([])
                changes = staging.new(changed_rows_schema(values.types))
                self._stage(changes, ["row_id", IS_DELETED, *values.names], UPDATED, DELETED)
        except BaseException:
            for rows in (inserts, changes):
                if rows is not None:
                    rows.discard()
            raise
        return ChangeSet(
            base=self.version,
            inserts=inserts,
            changes=changes,
            columns=self.names if len(updated) else (),
            updated=updated,
            deleted=deleted,
            returned=returned,
        )

    def _stage(self, rows: StagedRows, columns: Sequence[str], *kinds: int) -> None:
        """Rows of these kinds; new ones in the order in which they got their ids, from -1 downwards."""
        if not self._made:
            for batch in self._few.of_kinds(*kinds).select(columns).to_batches():
                rows.append(conformed_batch(batch, rows.schema))
            return
        with self._cursor() as cursor:
            order = "ORDER BY row_id DESC" if kinds == (INSERTED,) else ""
            query = (
                f"SELECT {', '.join(columns)} FROM (SELECT *, kind = {DELETED} AS {IS_DELETED} FROM {self._name}) "
                f"WHERE kind IN ({', '.join(map(str, kinds))}) {order}"
            )
            for batch in cursor.sql(query).to_arrow_reader(_BATCH_ROWS):
                rows.append(conformed_batch(batch, rows.schema))


def _alias(transaction_id: str) -> str:
    return '"tx_' + transaction_id.replace('"', "") + '"'
