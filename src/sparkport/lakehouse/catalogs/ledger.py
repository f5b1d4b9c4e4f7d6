"""What a catalog's database remembers of deferred transactions, so that each has one outcome whatever dies.

A transaction is begun as a row that says ``active``. With a SQL catalog the row becomes ``committed`` in the same SQL
transaction that moves the tables, so the two cannot disagree. A REST catalog knows nothing of the row: there it says
``publishing`` while a commit is under way, and where that ended without an answer the tables show what became of it,
after a tag makes the catalog refuse it from then on. No clock has a part in that.

Servers on one database tell each other by a beat that they are alive. A transaction of a dead server counts as aborted:
whoever asks changes the row first, so that a server that only seemed dead cannot commit it afterwards. Times are those
of the servers' own clocks. A skew of more than ``alive_seconds`` less one beat makes live servers look dead to those
ahead of them: their transactions are aborted, never half committed. To those behind, the dead look alive for as much
longer.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from sparkport.catalog.repeats import KNOWN_SECONDS
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.errors import (
    AlreadyExists,
    InternalError,
    SparkportError,
    TransactionNotActive,
    TransactionNotFound,
    Unavailable,
)
from sparkport.lakehouse.catalogs.database import Database, Rows, Work
from sparkport.lakehouse.catalogs.ledger_rows import (
    ABORTED,
    ACTIVE,
    ALL_SINCE,
    COMMITTED,
    ENDED,
    INDEX,
    OPEN,
    PUBLISHING,
    SELECT,
    TABLES,
    UNKNOWN,
    Recorded,
    Row,
    as_row,
)
from sparkport.lakehouse.names import TableName

__all__ = ["Ledger", "Needs", "Recorded", "Resolve"]

logger = logging.getLogger(__name__)

Needs = Mapping[str, Collection[int]]
"""The snapshots that open transactions and scans read from, by table uuid."""

Resolve = Callable[[str, Sequence[TableName]], bool]
"""Whether a transaction's commit to these tables has been made. If not, it never is later."""

_BEATS_PER_CLEANING = 60
_IDS_AT_ONCE = 500
_LONG_DEAD = 60
"""A server's row is kept this many times longer than it takes to count as dead: it says when that was."""


class Ledger:
    """Called from several threads at once; the database is the caller's to close."""

    def __init__(
        self,
        database: Database,
        catalog: str,
        *,
        server: str | None = None,
        clock: Callable[[], float] = time.time,
        alive_seconds: float = 60.0,
        remember_seconds: float = KNOWN_SECONDS,
        resolve: Resolve | None = None,
    ) -> None:
        """``server`` MUST be used by one server at a time: what an earlier one of that name left open is aborted.

        ``resolve`` is for catalogs that do not commit the row themselves.
        """
        self.server = server or uuid.uuid4().hex
        self._database = database
        self._catalog = catalog
        self._clock = clock
        self._alive_seconds = alive_seconds
        self._remember_seconds = remember_seconds
        self._resolve = resolve
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        database.prepare(self._prepare)
        database.add_index(*INDEX)

    def _prepare(self) -> None:
        with self._database.transaction(write=True) as work:
            for table in TABLES:
                work.change(table)
            self._abort_active(work, self.server)
            self._note_seen(work, "{}")

    # The life of a transaction

    def begin(self, transaction_id: str, *, owner: str, isolation: Isolation) -> None:
        values = [self.server, owner, isolation.value, ACTIVE, "[]", self._clock()]
        try:
            with self._database.transaction(write=True) as work:
                work.change(
                    "INSERT INTO sparkport_transactions "
                    "(catalog_name, id, server, owner, isolation, state, tables, begun) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [self._catalog, transaction_id, *values],
                )
        except Exception as exc:
            if self._database.is_duplicate(exc):
                raise AlreadyExists(f"transaction '{transaction_id}' has been begun already") from exc
            raise

    def end(self, transaction_id: str, state: TransactionState) -> TransactionState:
        """Note the outcome. Returns the one that holds, which is another if the transaction had ended already.

        Waits for a commit of the same transaction that is under way in a SQL catalog, so after a lost answer an end
        as ``ABORTED`` says for certain whether it was made. A commit elsewhere that got no answer is stopped, and
        looked up; while that cannot be done, Unavailable is raised and the end is left open.
        """
        if state is TransactionState.ACTIVE:
            raise InternalError("a transaction ends as committed or aborted")
        if state is TransactionState.ABORTED and self._resolve is not None:
            self._require_settled(transaction_id)
        with self._database.transaction(write=True) as work:
            self._turn(work, transaction_id, state.value, f"AND {OPEN}")
            recorded = self._state(work, transaction_id)
        with self._lock:
            self._under_way.discard(transaction_id)
        if recorded is None:
            if state is TransactionState.COMMITTED:
                raise TransactionNotFound(transaction_id)
            return TransactionState.ABORTED  # never begun, or forgotten: nothing of it can be committed any more
        return TransactionState(recorded)

    def publishing(self, ids: Sequence[str], tables: Sequence[TableName]) -> None:
        """Note before a commit that these may become committed by it; for catalogs that do not commit the row.

        Raises TransactionNotActive for one that an earlier commit without an answer has committed or still may: that
        one alone, because the others of a group may go on without it.
        """
        if self._resolve is None:
            raise InternalError("a ledger that cannot resolve commits cannot note that they are under way")
        for transaction_id in sorted(ids):
            try:
                self._require_settled(transaction_id)
            except SparkportError as exc:
                raise TransactionNotActive(transaction_id, PUBLISHING) from exc
        noted = json.dumps(sorted(tables))
        with self._lock:
            # Those of an earlier try that was refused are not in doubt, whatever becomes of this note.
            added = set(ids) - self._under_way
            self._under_way |= added
        try:
            with self._database.transaction(write=True) as work:
                for transaction_id in sorted(ids):
                    changed = work.change(
                        "UPDATE sparkport_transactions SET state = ?, tables = ?, ended = ? "
                        f"WHERE catalog_name = ? AND id = ? AND {OPEN}",
                        [PUBLISHING, noted, self._clock(), self._catalog, transaction_id],
                    )
                    if changed != 1:
                        raise TransactionNotActive(transaction_id, self._state(work, transaction_id) or ABORTED)
        except BaseException:
            self.unanswered(added)
            raise

    def unanswered(self, ids: Iterable[str]) -> None:
        """A commit has ended without an answer: from now on ``find`` looks what became of it."""
        with self._lock:
            self._under_way.difference_update(ids)

    def committing(self, work: Work, ids: Collection[str]) -> None:
        """Turn active transactions into committed ones as a part of ``work``, or raise TransactionNotActive."""
        for transaction_id in sorted(ids):
            if not self._turn(work, transaction_id, COMMITTED, f"AND state = '{ACTIVE}'"):
                # One that is not there was aborted so long ago that it has been forgotten.
                raise TransactionNotActive(transaction_id, self._state(work, transaction_id) or ABORTED)

    def find(self, transaction_id: str) -> Recorded | None:
        """The truth about a transaction; one that nobody can end any more is ended first."""
        row = self._look_up(transaction_id)
        if row is not None and row.state == ACTIVE and not row.alive:
            with self._database.transaction(write=True) as work:
                self._abort(work, [row.id])
            row = self._look_up(transaction_id)
        if row is not None and row.state == PUBLISHING and self._is_abandoned(row):
            self._settle(row)
            row = self._look_up(transaction_id)
        if row is None:
            return None
        return Recorded(
            id=row.id,
            state=TransactionState.ACTIVE if row.state == PUBLISHING else TransactionState(row.state),
            server=row.server,
            here=row.here,
            alive=row.alive,
            owner=row.owner,
            isolation=Isolation(row.isolation),
            begun=datetime.fromtimestamp(row.begun, UTC),
            tables=row.tables,
        )

    def ended(self, ids: Collection[str]) -> set[str]:
        """Those of some transactions whose end is recorded."""
        wanted, ended = sorted(ids), set[str]()
        with self._database.transaction() as work:
            for start in range(0, len(wanted), _IDS_AT_ONCE):
                some = wanted[start : start + _IDS_AT_ONCE]
                rows = work.query(
                    f"SELECT id FROM sparkport_transactions WHERE catalog_name = ? AND NOT {OPEN} "
                    f"AND id IN ({', '.join('?' * len(some))})",
                    [self._catalog, *some],
                )
                ended.update(str(known) for (known,) in rows)
        return ended

    def owner(self, transaction_id: str) -> str | None:
        """Who has begun a transaction; unlike ``find`` it changes nothing."""
        row = self._look_up(transaction_id)
        return None if row is None else row.owner

    def _is_abandoned(self, row: Row) -> bool:
        with self._lock:
            return row.id not in self._under_way if row.here else not row.alive

    def _settle(self, row: Row) -> None:
        """Find out what became of a commit whose answer nobody has seen."""
        if self._resolve is None:
            raise InternalError(f"it cannot be found out whether transaction '{row.id}' has been committed")
        is_committed = self._resolve(row.id, row.tables)
        with self._database.transaction(write=True) as work:
            self._turn(work, row.id, COMMITTED if is_committed else ABORTED, f"AND state = '{PUBLISHING}'")

    def _settle_abandoned(self) -> None:
        for row in self._rows(f"state = '{PUBLISHING}'"):
            if self._is_abandoned(row):
                try:
                    self._settle(row)
                except SparkportError as exc:  # the next time
                    logger.warning("what became of transaction '%s' is not known yet: %s", row.id, exc)
                    if isinstance(exc, Unavailable):
                        return  # waiting for it once more would keep this server from saying that it is alive

    def _require_settled(self, transaction_id: str) -> None:
        row = self._look_up(transaction_id)
        if row is not None and row.state == PUBLISHING and self._is_abandoned(row):
            self._settle(row)

    # This server and others

    def beat(self, needs: Needs, *, at: float | None = None) -> None:
        """Say that this server is alive, and what it needs. Snapshots pinned since are not known to others.

        ``at`` is when the look at what is needed began.
        """
        told = json.dumps({table: sorted(snapshots) for table, snapshots in needs.items() if snapshots})
        with self._database.transaction(write=True) as work:
            self._note_seen(work, told, at)

    def start(self, needs: Callable[[], Needs], every: float = 10.0) -> None:
        """Beat from a thread of its own, until ``stop``."""
        if self._thread is not None:
            raise InternalError("the ledger has been started already")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._beat_on, args=(needs, every), name="ledger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say that this server is gone: what it left active is aborted. Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._under_way.clear()
        try:
            with self._database.transaction(write=True) as work:
                self._abort_active(work, self.server)
                work.change(
                    "DELETE FROM sparkport_servers WHERE catalog_name = ? AND server = ?", [self._catalog, self.server]
                )
        except SparkportError as exc:  # others will find out by themselves
            logger.warning("the end of this server is not noted: %s", exc)

    def _beat_on(self, needs: Callable[[], Needs], every: float) -> None:
        failing = False
        beats = 0
        while not self._stopping.is_set():
            try:
                began = self._clock()
                self.beat(needs(), at=began)
                # Soon, because what a table says of a commit is not kept for ever.
                self._settle_abandoned()
                if beats % _BEATS_PER_CLEANING == 0:
                    self.clean(self._clock() - self._remember_seconds)
                beats += 1
            except Exception as exc:
                if not failing:
                    logger.warning(
                        "this server cannot say that it is alive; others may abort its transactions: %s",
                        exc,
                        exc_info=not isinstance(exc, SparkportError),
                    )
                failing = True
            else:
                if failing:
                    logger.info("this server can say again that it is alive")
                failing = False
            self._stopping.wait(every)

    def bury(self, server: str) -> None:
        """Somebody knows for certain that a server is dead: what it left active is aborted at once."""
        with self._database.transaction(write=True) as work:
            self._abort_active(work, server)
            work.change("DELETE FROM sparkport_servers WHERE catalog_name = ? AND server = ?", [self._catalog, server])

    def is_alive(self, server: str) -> bool:
        """Whether another server has said lately that it is there."""
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT 1 FROM sparkport_servers WHERE catalog_name = ? AND server = ? AND seen > ?",
                [self._catalog, server, self._clock() - self._alive_seconds],
            )
        return bool(rows)

    def oldest_report_elsewhere(self) -> float | None:
        """When the other live server that has been silent for longest last said what it needs; None without one.

        That server may need snapshots that were the newest after that, though it has not said so yet.
        """
        return min((since for seen, needs in self._told() for since in (seen, *needs.get(ALL_SINCE, ()))), default=None)

    def needed_elsewhere(self, table_uuid: str) -> set[int]:
        """The snapshots of a table that other live servers need, as of their last beats, ``UNKNOWN`` included."""
        told = [needs for _, needs in self._told()]
        unknown = {UNKNOWN} if any(ALL_SINCE in needs for needs in told) else set()
        return unknown | {snapshot for needs in told for snapshot in needs.get(table_uuid, ())}

    def _told(self) -> list[tuple[float, dict[str, list[int]]]]:
        """When other live servers have last said what they need, and what that is."""
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT seen, needs FROM sparkport_servers WHERE catalog_name = ? AND server <> ? AND seen > ?",
                [self._catalog, self.server, self._clock() - self._alive_seconds],
            )
        return [(float(seen), json.loads(needs)) for seen, needs in rows]

    def open_elsewhere(self) -> list[OpenTransaction]:
        """The open transactions of other live servers; when they were last used is not known here."""
        transactions = []
        for row in self._rows(f"{OPEN} ORDER BY t.begun, t.id"):
            if row.alive and not row.here:
                begun = datetime.fromtimestamp(row.begun, UTC)
                transactions.append(
                    OpenTransaction(
                        id=row.id,
                        owner=row.owner,
                        isolation=Isolation(row.isolation),
                        begun=begun,
                        last_used=begun,
                        changed_tables=tuple(str(table) for table in row.tables),
                    )
                )
        return transactions

    def clean(self, before: float) -> int:
        """Forget what ended before a time; the number of transactions. Those of dead servers are ended first."""
        self._settle_abandoned()
        gone = [row.id for row in self._rows(f"state = '{ACTIVE}'") if not row.alive]
        with self._database.transaction(write=True) as work:
            self._abort(work, gone)
            work.change(
                "DELETE FROM sparkport_servers WHERE catalog_name = ? AND server <> ? AND seen < ?",
                [self._catalog, self.server, self._clock() - _LONG_DEAD * self._alive_seconds],
            )
            count: int = work.change(
                f"DELETE FROM sparkport_transactions WHERE catalog_name = ? AND {ENDED} AND ended < ?",
                [self._catalog, before],
            )
        return count

    # Rows

    def _look_up(self, transaction_id: str) -> Row | None:
        return next(iter(self._rows("t.id = ?", [transaction_id])), None)

    def _rows(self, condition: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._database.transaction() as work:
            rows: Rows = work.query(SELECT + condition, [self._catalog, *parameters])
        since = self._clock() - self._alive_seconds
        return [as_row(row, self.server, since) for row in rows]

    def _state(self, work: Work, transaction_id: str) -> str | None:
        rows = work.query(
            "SELECT state FROM sparkport_transactions WHERE catalog_name = ? AND id = ?",
            [self._catalog, transaction_id],
        )
        return str(rows[0][0]) if rows else None

    def _turn(self, work: Work, transaction_id: str, state: str, condition: str) -> bool:
        changed = work.change(
            f"UPDATE sparkport_transactions SET state = ?, ended = ? WHERE catalog_name = ? AND id = ? {condition}",
            [state, self._clock(), self._catalog, transaction_id],
        )
        return changed == 1

    def _abort(self, work: Work, ids: Iterable[str]) -> None:
        """Row by row in the order in which others take them, so that nobody waits for ever."""
        for transaction_id in sorted(ids):
            if self._turn(work, transaction_id, ABORTED, f"AND state = '{ACTIVE}'"):
                logger.info("transaction '%s' is aborted: its server is gone", transaction_id)

    def _abort_active(self, work: Work, server: str) -> None:
        rows = work.query(
            f"SELECT id FROM sparkport_transactions WHERE catalog_name = ? AND server = ? AND state = '{ACTIVE}'",
            [self._catalog, server],
        )
        self._abort(work, [transaction_id for (transaction_id,) in rows])

    def _note_seen(self, work: Work, needs: str, at: float | None = None) -> None:
        work.change(
            "INSERT INTO sparkport_servers (catalog_name, server, seen, needs) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (catalog_name, server) DO UPDATE SET seen = excluded.seen, needs = excluded.needs",
            [self._catalog, self.server, self._clock() if at is None else at, needs],
        )
