"""The transaction rules of the contract as plain dictionaries: what an engine has to equal, step by step.

One thread, no sharing, nothing incremental: every version of every table is kept whole, so that each rule is a line or
two that can be compared with the contract's own words. Rows are a number under a key that is never given out twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkport.errors import Code

__all__ = ["Model", "ModelTransaction", "Refused", "Rows"]

Rows = dict[int, int]
Changes = dict[int, int | None]
"""New values by key; None deletes."""


class Refused(Exception):
    """An operation that the contract does not let happen, by its status code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class ModelTable:
    """``history`` has the commit that made each version; ``touched`` the last commit that changed or deleted a key."""

    history: list[tuple[int, Rows]]
    touched: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> Rows:
        return self.history[-1][1]

    def at(self, commit: int) -> Rows:
        return next(rows for number, rows in reversed(self.history) if number <= commit)


@dataclass(slots=True, eq=False)
class ModelTransaction:
    auto_commit: bool
    serializable: bool
    begun: int
    status: str = "active"
    ended: bool = False
    wrote: bool = False
    pins: dict[str, int] = field(default_factory=dict)
    own: dict[str, Changes] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def pin(self, table: str) -> int:
        return self.pins.get(table, self.begun)

    def end(self, status: str) -> None:
        self.status, self.ended = status, True


class Model:
    def __init__(self, *tables: str) -> None:
        self._commit = 0
        self.tables = {name: ModelTable([(0, {})]) for name in tables}

    # Transactions

    def begin(self, *, auto_commit: bool, serializable: bool) -> ModelTransaction:
        return ModelTransaction(auto_commit, serializable, self._commit)

    def defer(self, transaction: ModelTransaction) -> None:
        _require_open(transaction)
        if transaction.auto_commit and transaction.wrote:
            raise Refused(Code.FAILED_PRECONDITION)
        transaction.auto_commit = False

    def commit(self, transaction: ModelTransaction) -> None:
        if transaction.ended:
            if transaction.status == "aborted":
                raise Refused(Code.FAILED_PRECONDITION)
            return  # safe to repeat
        effects: dict[str, Changes] = {}
        try:
            self._check_reads(transaction)
            for table, changes in transaction.own.items():
                effects[table] = self._effect(table, changes, transaction.pin(table))
        except Refused:
            transaction.end("aborted")
            raise
        self._publish(effects)
        transaction.end("committed")

    def rollback(self, transaction: ModelTransaction) -> None:
        if transaction.ended and transaction.status == "committed":
            raise Refused(Code.FAILED_PRECONDITION)
        transaction.end("aborted")

    # Reads

    def read(self, table: str, transaction: ModelTransaction | None = None) -> Rows:
        if transaction is None:
            return dict(self.tables[table].now)
        _require_open(transaction)
        transaction.read.add(table)
        return self._view(table, transaction)

    def read_version(self, table: str, version: int, transaction: ModelTransaction | None = None) -> Rows:
        """A version is the same for everyone; one that is not there is a failed read, which aborts nothing."""
        if transaction is not None:
            _require_open(transaction)
        if not 0 <= version < len(self.tables[table].history):
            raise Refused(Code.NOT_FOUND)
        return dict(self.tables[table].history[version][1])

    # Row changes

    def insert(self, table: str, rows: Rows, transaction: ModelTransaction | None = None) -> int:
        return self._statement(table, dict(rows), transaction)

    def update(
        self, table: str, rows: Rows, transaction: ModelTransaction | None = None, *, refuse_missing: bool = False
    ) -> int:
        changes = self._found(table, dict(rows), transaction, refuse_missing=refuse_missing)
        return self._statement(table, changes, transaction)

    def delete(
        self,
        table: str,
        keys: set[int],
        transaction: ModelTransaction | None = None,
        *,
        refuse_missing: bool = False,
        returning: bool = False,
    ) -> int:
        """RETURNING owes a row for each key, so one that is gone cannot be skipped."""
        changes = self._found(table, dict.fromkeys(keys), transaction, refuse_missing=refuse_missing)
        if returning and len(changes) < len(keys):
            raise _failed(transaction, Code.ABORTED)
        return self._statement(table, changes, transaction, all_of_them=returning)

    def _found(
        self, table: str, changes: Changes, transaction: ModelTransaction | None, *, refuse_missing: bool
    ) -> Changes:
        """The changes of rows that the statement sees."""
        if transaction is not None:
            _require_open(transaction)
        view = self._view(table, transaction)
        if refuse_missing and not changes.keys() <= view.keys():
            raise _failed(transaction, Code.NOT_FOUND)
        return {key: value for key, value in changes.items() if key in view}

    def _statement(
        self, table: str, changes: Changes, transaction: ModelTransaction | None, *, all_of_them: bool = False
    ) -> int:
        if transaction is None:
            self._publish({table: changes})
            return len(changes)
        _require_open(transaction)
        if transaction.auto_commit:
            try:
                self._check_reads(transaction)
                effect = self._effect(table, changes, transaction.pin(table))
            except Refused:
                transaction.end("aborted")
                raise
            if all_of_them and len(effect) < len(changes):
                raise _failed(transaction, Code.ABORTED)
            self._publish({table: effect})
            if effect:
                transaction.pins[table] = self._commit
            transaction.status = "committed"
            changes = effect
        else:
            transaction.own.setdefault(table, {}).update(changes)
        transaction.wrote = True
        return len(changes)

    # The rules

    def _view(self, table: str, transaction: ModelTransaction | None) -> Rows:
        """The state of the transaction's moment plus its own changes."""
        if transaction is None:
            return dict(self.tables[table].now)
        rows: Changes = {**self.tables[table].at(transaction.pin(table)), **transaction.own.get(table, {})}
        return {key: value for key, value in rows.items() if value is not None}

    def _effect(self, table: str, changes: Changes, pin: int) -> Changes:
        """What is left of the changes after those of others since ``pin``: the first committer wins, row by row."""
        model = self.tables[table]
        base = model.at(pin)
        effect: Changes = {}
        for key, value in changes.items():
            if key not in base:
                if value is not None:
                    effect[key] = value
            elif key not in model.now and value is None:
                continue  # both wanted it gone
            elif model.touched[key] > pin:
                raise Refused(Code.ABORTED)
            else:
                effect[key] = value
        return effect

    def _check_reads(self, transaction: ModelTransaction) -> None:
        if not transaction.serializable:
            return
        for table in transaction.read:
            if self.tables[table].history[-1][0] > transaction.pin(table):
                raise Refused(Code.ABORTED)

    def _publish(self, effects: dict[str, Changes]) -> None:
        """All tables at one instant. What changes nothing is no commit."""
        effects = {table: changes for table, changes in effects.items() if changes}
        if not effects:
            return
        self._commit += 1
        for table, changes in effects.items():
            model = self.tables[table]
            rows: Changes = {**model.now, **changes}
            model.history.append((self._commit, {key: value for key, value in rows.items() if value is not None}))
            model.touched.update(dict.fromkeys(changes, self._commit))


def _require_open(transaction: ModelTransaction) -> None:
    if transaction.ended:
        raise Refused(Code.FAILED_PRECONDITION)


def _failed(transaction: ModelTransaction | None, code: Code) -> Refused:
    """A failed operation aborts its transaction."""
    if transaction is not None:
        transaction.end("aborted")
    return Refused(code)
