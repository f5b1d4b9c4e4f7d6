"""Commits to an Iceberg REST catalog, and the truth about those whose answer is late, lost or given twice.

Whether a commit was made is never decided by a clock. What got no answer is stopped first: a tag, which every commit
requires to be absent, is put on one of its tables, the first by name. Then the tables are looked at. Either they show
the commit, or from now on the catalog refuses it.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from sparkport.errors import (
    AlreadyExists,
    InternalError,
    InvalidArgument,
    SchemaNotFound,
    SparkportError,
    TransactionNotActive,
    Unavailable,
    Unsupported,
)
from sparkport.lakehouse.catalogs.ledger_rows import ABORTED
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown
from sparkport.lakehouse.catalogs.rest_client import Answer, RequestRefused, RestClient, Unanswered
from sparkport.lakehouse.catalogs.rest_notes import fence_updates, fences, transaction_key, unfenced
from sparkport.lakehouse.catalogs.rest_updates import Json, change_request, identifier, is_visible, meets, publishes
from sparkport.lakehouse.names import TableName

__all__ = ["CommitRequest", "PAUSES", "RestCommits", "table_path"]

logger = logging.getLogger(__name__)

_COMMIT_MANY = "POST /v1/{prefix}/transactions/commit"
_NOT_TOGETHER = "this catalog cannot commit several tables at once"

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between tries at a table that the catalog, busy with others, does not let change."""


def table_path(table: TableName) -> tuple[str, ...]:
    return ("namespaces", table.schema, "tables", table.name)


class CommitRequest:
    """A commit in the catalog's words: a request per table, and what each table will show of it."""

    def __init__(
        self,
        changes: Sequence[Edit],
        statements: Mapping[str, int],
        transactions: Sequence[str],
        forget: Mapping[TableName, Collection[str]] | None = None,
    ) -> None:
        """``forget`` are the keys of old notes that each table loses by it."""
        self.id = uuid.uuid4().hex
        self.changes = changes
        self.transactions = transactions
        self.statements = statements
        notes = {**statements, **{transaction_key(transaction_id): 0 for transaction_id in transactions}}
        self.requests = {
            change.table: change_request(change, notes, forget=(forget or {}).get(change.table, ()))
            for change in changes
        }
        existing = [change for change in changes if change.before is not None]
        self.guarded = min(existing, key=lambda change: change.table, default=None)
        """The change of the table that carries the tag if the commit is stopped."""
        if self.guarded is not None:
            self.requests[self.guarded.table]["requirements"] += unfenced([self.id, *transactions])

    def require(self, table: TableName, required: Sequence[Json]) -> None:
        """Require something of a table, which need not be one that is changed."""
        request = self.requests.setdefault(table, {"identifier": identifier(table), "requirements": [], "updates": []})
        request["requirements"] += [item for item in required if item not in request["requirements"]]

    @property
    def is_telling(self) -> bool:
        """Whether the tables distinguish this commit from another's that looks the same."""
        return bool(self.changes) and (bool(self.transactions) or all(map(publishes, self.changes)))

    def locations_if_made(self, answers: Mapping[TableName, Answer | None]) -> dict[TableName, str] | None:
        """Where the tables are that show the changes; None when none does.

        Raises InternalError when some do and others do not.
        """
        transactions = [transaction_key(transaction_id) for transaction_id in self.transactions]
        seen = {
            change.table: (now := answers[change.table]) is not None
            and is_visible(change, transactions, self.statements, now["metadata"])
            for change in self.changes
        }
        if any(seen.values()) and not all(seen.values()):
            changed, others = (
                ", ".join(f"'{table}'" for table, done in seen.items() if done is which) for which in (True, False)
            )
            raise InternalError(f"the catalog has made only a part of a commit: {changed} changed, {others} did not")
        if not any(seen.values()):
            return None
        return {table: str(now["metadata-location"]) for table in seen if (now := answers[table]) is not None}


class RestCommits:
    """Called from several threads at once."""

    def __init__(self, client: RestClient, pauses: Sequence[float] = PAUSES) -> None:
        self._client = client
        self._pauses = pauses

    def load(self, table: TableName, *, full: bool = False) -> Answer | None:
        """What the catalog says of a table, with all snapshots if ``full``; None for one that it does not have."""
        try:
            return self._client.get(*table_path(table), query={"snapshots": "all" if full else "refs"})
        except RequestRefused as exc:
            if exc.status == 404:
                return None
            raise InvalidArgument(f"the catalog refuses: {exc.message}") from exc

    def make(self, commit: CommitRequest) -> dict[TableName, str]:
        """Make the changes or, raising ``Moved``, none; where tables are now, as far as the catalog's answer says.

        OutcomeUnknown and InternalError say that it may have been made, all other errors that it was not and cannot be.
        """
        if not commit.requests:
            return {}
        for pause in (*self._pauses, None):
            try:
                answer = self._send(list(commit.requests.values()))
            except RequestRefused as exc:
                known = self._refused(commit, exc)
                if known is not None:
                    return known
                if pause is None:
                    return self._unanswered(commit, exc)
                time.sleep(pause * random.uniform(0.5, 1.5))
            except SparkportError:
                raise  # it was not sent, or not let in
            except Exception as exc:  # no answer, or one that nobody can read
                return self._unanswered(commit, exc)
            else:
                location = answer.get("metadata-location")
                alone = location is not None and len(commit.requests) == 1
                return {change.table: str(location) for change in commit.changes} if alone else {}
        raise InternalError("a commit was tried without end")

    def settle(self, commit: CommitRequest) -> dict[TableName, str] | None:
        """Where the tables of a commit are if it was made; None if it was not, which holds from now on.

        Raises Unavailable while that cannot be said. Safe to repeat.
        """
        known = self._shown(commit)
        if known is None and commit.changes:
            change = commit.guarded
            if change is None or change.before is None:
                raise Unavailable("the catalog does not say whether a table was made; look at it before trying again")
            publishing = all(map(publishes, commit.changes))
            self.fence(change.table, commit.id, publishing=publishing, table_uuid=change.before["table-uuid"])
            known = self._shown(commit)
        return known

    def fence(self, table: TableName, commit: str, *, publishing: bool, table_uuid: str | None = None) -> None:
        """Put a stop to a commit, or to all of a transaction, that requires its tag to be absent from this table.

        ``publishing`` ones make a snapshot visible that the table has already: one without any snapshot stops them by
        itself. A name that is gone, or another table's by now, stops them too. Raises Unavailable where the catalog
        does not show that it is done.
        """
        for pause in (0.0, *self._pauses):
            time.sleep(pause)
            answer = self._look([table])[table]
            if answer is None or table_uuid not in (None, answer["metadata"]["table-uuid"]):
                return
            metadata = answer["metadata"]
            if fences(metadata, [commit]):
                return
            updates = fence_updates(metadata, [commit])
            if updates is None:
                if publishing:
                    return
                raise Unavailable("a table without any snapshot does not show whether it will be changed; look again")
            same_table = {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}
            body = {"requirements": [same_table, *unfenced([commit])], "updates": updates}
            try:
                self._client.post(*table_path(table), body={"identifier": identifier(table), **body})
            except RequestRefused as exc:
                if exc.status not in (404, 409):
                    raise Unavailable(f"the catalog does not let a commit be stopped: {exc.message}") from exc
            except Unanswered:
                continue
        raise Unavailable("the catalog does not show that a commit is stopped")

    # Parts of it

    def _send(self, requests: Sequence[Json]) -> Answer:
        if len(requests) == 1:
            name = requests[0]["identifier"]
            return self._client.post(*table_path(TableName(name["namespace"][0], name["name"])), body=requests[0])
        if not self._client.offers(_COMMIT_MANY):
            raise Unsupported(_NOT_TOGETHER)
        try:
            return self._client.post("transactions", "commit", body={"table-changes": list(requests)})
        except Unsupported as exc:
            raise Unsupported(_NOT_TOGETHER) from exc

    def _refused(self, commit: CommitRequest, refused: RequestRefused) -> dict[TableName, str] | None:
        """Raise what a refusal means. None if nothing has changed that would explain it: to try again may help.

        A request may have come twice, and been refused the second time; and not every catalog keeps to all or nothing.
        """
        if refused.status not in (404, 409):
            raise InvalidArgument(f"the catalog refuses the change: {refused.message}") from refused
        try:
            answers = self._look(commit.requests)
        except SparkportError as exc:
            if not commit.is_telling:
                raise Moved(next(iter(commit.requests))) from refused
            raise self._unknown(commit) from exc
        known = commit.locations_if_made(answers) if commit.is_telling else None
        if known is not None:
            return known
        for change in commit.changes:
            if change.before is None:
                exists = AlreadyExists(f"table '{change.table}' already exists")
                raise (exists if refused.status == 409 else SchemaNotFound(change.table.schema)) from refused
        guarded = None if commit.guarded is None else answers[commit.guarded.table]
        for transaction in fences({} if guarded is None else guarded["metadata"], commit.transactions):
            raise TransactionNotActive(transaction, ABORTED) from refused
        for table, request in commit.requests.items():
            now = answers[table]
            if now is None or not meets(request["requirements"], now["metadata"]):
                raise Moved(table) from refused
        if refused.status == 404 and len(commit.requests) > 1:  # it is the way to change them together that is missing
            raise Unsupported(_NOT_TOGETHER) from refused
        logger.info("the catalog refuses a commit though nothing has changed: %s", refused.message)
        return None

    def _unanswered(self, commit: CommitRequest, cause: Exception) -> dict[TableName, str]:
        """What became of a commit whose answer is missing, or is not believed."""
        try:
            known = self.settle(commit)
        except InternalError:
            raise
        except SparkportError as exc:
            raise self._unknown(commit) from exc
        if known is None and isinstance(cause, RequestRefused):
            raise Unavailable(
                f"the catalog refuses the change though the table is as it was; try again later: {cause.message}"
            ) from cause
        if known is None:
            raise Unavailable("the catalog gave no answer to a commit: it was not made, and will not be") from cause
        return known

    def _unknown(self, commit: CommitRequest) -> OutcomeUnknown:
        return OutcomeUnknown(
            "the catalog gave no answer to a commit, and does not say what became of it",
            lambda: self.settle(commit) is not None,
        )

    def _shown(self, commit: CommitRequest) -> dict[TableName, str] | None:
        """Where the tables are if they show a commit. A catalog may be slow to show all of several tables."""
        for pause in self._pauses:
            try:
                return commit.locations_if_made(self._look(change.table for change in commit.changes))
            except InternalError:
                time.sleep(pause)
        return commit.locations_if_made(self._look(change.table for change in commit.changes))

    def _look(self, tables: Iterable[TableName]) -> dict[TableName, Answer | None]:
        answers = {table: self.load(table, full=True) for table in tables}
        for table, now in answers.items():
            if now is None:
                continue
            if not isinstance(now.get("metadata"), dict) or not isinstance(now.get("metadata-location"), str):
                raise Unavailable(f"the catalog does not show table '{table}'")
        return answers
