"""What a deferred transaction has changed and not committed: per table the net change, in a DuckDB file of its own.

A statement in the transaction only changes this file, in milliseconds and without a Spark job. A row of the table that
was changed is here under its row id, with its kind of change and all its values; a new row is here under a provisional
id below zero. Several statements on one row leave one row here. Reads put it on top of the table's own rows.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.errors import (
    Conflict,
    InternalError,
    ResourceExhausted,
    RowNotFound,
    SparkportError,
    Unavailable,
)
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.columns.types import stored_columns
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.duck import DuckDB, is_broken
from sparkport.lakehouse.scan.read import ROW_ID
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.own_rows import OwnRows

__all__ = ["NetChange", "Sent", "TableChange", "Workspace"]

UNDONE, INSERTED, UPDATED, DELETED = 0, 1, 2, 3
"""Kinds of rows: one of the transaction's own that it deleted again stays as ``UNDONE``, so that it can be told."""

_BATCH_ROWS = 65_536


class Sent:
    """The rows of one statement, as they are stored: row id, number in the statement, and the columns that it sets.

    ``columns`` are the places of these columns in the table.
    """

    HEAD = (pa.field("id", pa.int64()), pa.field("number", pa.int64()))

    def __init__(self, batches: Iterable[pa.RecordBatch], columns: Sequence[int]) -> None:
        self._batches = batches
        self.columns = tuple(columns)

    def reader(self, change: TableChange) -> pa.RecordBatchReader:
        kinds = [change.stored.field(column).type for column in self.columns]
        body = [pa.field(f"s{place}", kind) for place, kind in enumerate(kinds)]
        schema = pa.schema([*self.HEAD, *body])
        renamed = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in self._batches)
        return pa.RecordBatchReader.from_batches(schema, renamed)


class Workspace:
    """The files of all open transactions, in one DuckDB: its limit of memory holds for all of them together."""

    def __init__(self, folder: Path, *, memory_limit: str = "1GB") -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._generation = 0
        self._open: weakref.WeakSet[NetChange] = weakref.WeakSet()
        self._duckdb = DuckDB(memory_limit=memory_limit, temp_directory=str(folder / "transactions"))

    def open(self, transaction_id: str) -> NetChange:
        path = self.folder / f"tx-{transaction_id}.duckdb"
        with self.cursor(self.generation) as cursor:
            cursor.execute(f"ATTACH '{str(path).replace(chr(39), chr(39) * 2)}' AS {_alias(transaction_id)}")
        opened = NetChange(self, transaction_id, path, self.generation)
        with self._lock:
            self._open.add(opened)
        return opened

    def bytes_held(self) -> int:
        """By all transactions together."""
        with self._lock:
            held = list(self._open)
        return sum(net.bytes_held() for net in held)

    @property
    def generation(self) -> int:
        return self._generation

    @contextlib.contextmanager
    def cursor(self, generation: int) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for a block; errors come out of it as ours."""
        with self.translated(generation):
            cursor = self._cursor(generation)
            try:
                yield cursor
            finally:
                cursor.close()

    def lasting_cursor(self, generation: int) -> duckdb.DuckDBPyConnection:
        """A connection that the caller closes."""
        with self.translated(generation):
            return self._cursor(generation)

    @contextlib.contextmanager
    def translated(self, generation: int) -> Iterator[None]:
        try:
            yield
        except SparkportError:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as exc:
            if is_broken(exc):
                with self._lock:
                    if generation == self._generation:
                        self._generation += 1
                        self._duckdb.replace()
                raise _lost() from exc
            raise _translated(exc) from exc

    def close(self) -> None:
        self._duckdb.close()

    def _cursor(self, generation: int) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if generation != self._generation:
                raise _lost()
            return self._duckdb.cursor()


class NetChange:
    """One transaction's file. Its transaction's lock guards what changes it."""

    def __init__(self, workspace: Workspace, transaction_id: str, path: Path, generation: int) -> None:
        self._workspace = workspace
        self._id = transaction_id
        self._files = (path, path.with_name(path.name + ".wal"))
        self._generation = generation
        self._closed = False
        self.tables: dict[TableName, TableChange] = {}

    def table(self, version: TableVersion) -> TableChange:
        """The part for a table, made when it is first written."""
        found = self.tables.get(version.name)
        if found is None:
            name = f"{_alias(self._id)}.t{len(self.tables)}"
            found = TableChange(self, name, version)
            self.tables[version.name] = found
        return found

    def lasting(self) -> duckdb.DuckDBPyConnection:
        self._require_open()
        return self._workspace.lasting_cursor(self._generation)

    def cursor(self) -> contextlib.AbstractContextManager[duckdb.DuckDBPyConnection]:
        self._require_open()
        return self._workspace.cursor(self._generation)

    def translated(self) -> contextlib.AbstractContextManager[None]:
        return self._workspace.translated(self._generation)

    def _require_open(self) -> None:
        if self._closed:
            raise Conflict("the transaction has ended meanwhile")

    def bytes_held(self) -> int:
        sizes = 0
        for path in self._files:
            with contextlib.suppress(OSError):
                sizes += path.stat().st_size
        return sizes

    def close(self) -> None:
        """Safe to repeat. Readers under way keep what they have begun to read."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(SparkportError), self._workspace.cursor(self._generation) as cursor:
            cursor.execute(f"DETACH {_alias(self._id)}")
        for path in self._files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


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
        head = [pa.field("row_id", pa.int64()), pa.field("kind", pa.int8()), pa.field("step", pa.int64())]
        with self._net.cursor() as making:
            making.register("shape", pa.schema([*head, *self.stored]).empty_table())
            making.execute(f"CREATE TABLE {self._name} AS FROM shape")

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
        with self._net.cursor() as cursor:
            cursor.register("sent", sent.reader(self))
            chosen = self._chosen(sent.columns, lambda _: "NULL")
            cursor.execute(f"INSERT INTO {self._name} SELECT s.id, {INSERTED}, {self.step + 1}, {chosen} FROM sent s")
            return int(self._done(cursor))

    def update(self, sent: Sent, *, since: int, refuse: bool) -> int:
        """New values for some columns of rows; how many rows there are of those that were named.

        ``since`` is the step at which the statement began: another one that has changed the same rows since conflicts.
        """
        with self._net.cursor() as cursor:
            self._take(cursor, sent)
            self._check_steps(cursor, since)
            rest = [at for at in range(len(self.names)) if at not in sent.columns]
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
        with self._net.cursor() as cursor:
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

    def _take(self, cursor: duckdb.DuckDBPyConnection, sent: Sent) -> None:
        """The statement's rows as ``named``: of several about one row the last."""
        cursor.register("sent", sent.reader(self))
        last = "row_number() OVER (PARTITION BY id ORDER BY number DESC) = 1"
        cursor.execute(f"CREATE TEMP TABLE named AS SELECT * FROM sent QUALIFY {last}")

    def _check_steps(self, cursor: duckdb.DuckDBPyConnection, since: int) -> None:
        if since == self.step:
            return
        found = cursor.execute(
            f"SELECT count(*) FROM {self._name} t JOIN named s ON t.row_id = s.id WHERE t.step > {since}"
        ).fetchone()
        if found and found[0]:
            raise Conflict(
                f"table '{self.version.name[1]}': {found[0]} rows changed by another statement of this transaction "
                "that ran at the same time"
            )

    def _ids_beneath(self, cursor: duckdb.DuckDBPyConnection) -> NDArray[np.int64]:
        """Of the named rows those that the transaction has not touched: the table itself says whether they are."""
        found = cursor.execute(
            f"SELECT s.id FROM named s ANTI JOIN {self._name} t ON t.row_id = s.id WHERE s.id >= 0"
        ).fetchnumpy()
        return np.asarray(found["id"], np.int64)

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

    @contextlib.contextmanager
    def _base(self, columns: Sequence[int], ids: NDArray[np.int64]) -> Iterator[pa.RecordBatchReader]:
        """The table's own rows beneath a statement, as a stream for DuckDB; what goes wrong in it is told as it is."""
        schema = pa.schema([*(self.stored.field(at) for at in columns), pa.field("row_id", pa.int64())])
        if not len(ids):
            yield pa.RecordBatchReader.from_batches(schema, [])
            return
        errors: list[SparkportError] = []
        with contextlib.closing(self.version.stored_rows([self.names[at] for at in columns], row_ids=ids)) as stream:

            def batches() -> Iterator[pa.RecordBatch]:
                try:
                    for batch in stream:
                        yield conformed_batch(batch, schema)
                except SparkportError as exc:
                    errors.append(exc)  # of which DuckDB would leave the text only
                    raise

            try:
                yield pa.RecordBatchReader.from_batches(schema, batches())
            except duckdb.Error as exc:
                if errors:
                    raise errors[0] from exc
                raise

    # Looking

    def find(self, row_ids: Sequence[int]) -> tuple[pa.Table, set[int]]:
        """Of these rows the ones that are here, as stored and with row id last; and ids of deleted ones."""
        with self._net.cursor() as cursor:
            cursor.register("wanted", pa.table({"id": pa.array(row_ids, pa.int64())}))
            rows: pa.Table = cursor.sql(f"FROM {self._name} WHERE row_id IN (SELECT id FROM wanted)").to_arrow_table()
        kinds = rows.column("kind").to_pylist()
        here = [place for place, kind in enumerate(kinds) if kind in (INSERTED, UPDATED)]
        ids = rows.column("row_id").to_pylist()
        gone = {row_id for row_id, kind in zip(ids, kinds, strict=True) if kind in (UNDONE, DELETED)}
        chosen = rows.take(pa.array(here, pa.int64())).select([*self.stored.names, "row_id"])
        schema = self.stored.append(pa.field(ROW_ID, pa.int64()))
        return pa.Table.from_batches([conformed_batch(batch, schema) for batch in chosen.to_batches()], schema), gone

    def own_rows(self, columns: Sequence[int]) -> OwnRows:
        """The transaction's own rows as they are now, whatever it changes while they are read. Row ids come last."""
        cursor = self._net.lasting()
        try:
            with self._net.translated():
                cursor.execute("BEGIN")
                found = cursor.execute(
                    f"SELECT row_id FROM {self._name} WHERE kind IN ({UPDATED}, {DELETED})"
                ).fetchnumpy()
                chosen = "".join(f"c{at}, " for at in columns)
                reader = cursor.sql(
                    f"SELECT {chosen}row_id FROM {self._name} WHERE kind IN ({INSERTED}, {UPDATED})"
                ).to_arrow_reader(_BATCH_ROWS)
        except BaseException:
            cursor.close()
            raise
        schema = pa.schema([*(self.stored.field(at) for at in columns), pa.field(ROW_ID, pa.int64())])
        batches = (conformed_batch(batch, schema) for batch in reader)
        return OwnRows(cursor, np.asarray(found["row_id"], np.int64), batches, self._net.translated)

    # For the commit

    def changed_ids(self) -> tuple[Ids, Ids]:
        """The rows of the table that are updated, and those that are deleted, by ascending ids."""
        with self._net.cursor() as cursor:
            rows = cursor.execute(
                f"SELECT row_id, kind FROM {self._name} WHERE kind IN ({UPDATED}, {DELETED}) ORDER BY row_id"
            ).fetchnumpy()
        ids, kinds = np.asarray(rows["row_id"], np.int64), np.asarray(rows["kind"])
        return ids[kinds == UPDATED], ids[kinds == DELETED]

    def new_rows(self) -> Iterator[pa.RecordBatch]:
        """The inserted rows, by the names that their columns have in the table."""
        schema = pa.schema([pa.field(name, kind) for name, kind in zip(self.names, self.stored.types, strict=True)])
        with self._net.cursor() as cursor:
            chosen = ", ".join(self.stored.names)
            reader = cursor.sql(
                f"SELECT {chosen} FROM {self._name} WHERE kind = {INSERTED} ORDER BY row_id DESC"
            ).to_arrow_reader(_BATCH_ROWS)
            for batch in reader:
                yield conformed_batch(batch, schema)

    def changed_rows(self, schema: pa.Schema, *, without: Ids = NO_IDS) -> Iterator[pa.RecordBatch]:
        """Updated and deleted rows: the id, true where the row is to be deleted, all columns. ``schema`` names them."""
        with self._net.cursor() as cursor:
            cursor.register("gone", pa.table({"id": pa.array(without, pa.int64())}))
            chosen = "".join(f", {name}" for name in self.stored.names)
            reader = cursor.sql(
                f"SELECT row_id, kind = {DELETED}{chosen} FROM {self._name} WHERE kind IN ({UPDATED}, {DELETED}) "
                "AND row_id NOT IN (SELECT id FROM gone)"
            ).to_arrow_reader(_BATCH_ROWS)
            for batch in reader:
                yield conformed_batch(batch, schema)


def _alias(transaction_id: str) -> str:
    return '"tx_' + transaction_id.replace('"', "") + '"'


def _lost() -> Conflict:
    return Conflict("the transaction's changes are lost: run it again from its beginning")


def _translated(exc: Any) -> SparkportError:
    text = str(exc)
    if isinstance(exc, duckdb.OutOfMemoryException) or "Out of Memory" in text or "No space left" in text:
        return ResourceExhausted("a transaction's changes need more room than there is")
    if isinstance(exc, duckdb.IOException | OSError):
        return Unavailable(f"a transaction's changes cannot be kept: {text}")
    return InternalError(f"a transaction's changes cannot be kept: {text}")
