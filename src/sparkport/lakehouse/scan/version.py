"""A table as one metadata file describes it: its columns, its conditions, its place. It never changes, so it is shared.

Its rows are in ``rows.py``, its past in ``history.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TypeAlias

from sparkport.catalog.ddl import MERGE_COLUMNS
from sparkport.catalog.table import Key
from sparkport.errors import FailedPrecondition, NotFound, SparkportError, Unsupported
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.columns.columns import CHECKS, Columns, Json, read_columns, tags_in
from sparkport.lakehouse.columns.keys import UNIQUE, is_readable, read_keys
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.journalled_rows import JournalledRows
from sparkport.lakehouse.scan.rows import RowSource, TableRows

__all__ = ["JOURNAL", "Rows", "TableVersion", "VersionLoader"]

JOURNAL = "sparkport.journal"
"""The property of tables whose small changes go into the journal."""

Rows: TypeAlias = TableRows | JournalledRows

_UNREADABLE = "error('the property {} of the table is not a list of {}')::BOOLEAN"
"""The condition of a table whose constraints somebody else has spoiled: clients can read it, and no row keeps it."""


class VersionLoader(RowSource):
    """Makes versions."""

    def load(self, name: TableName, location: str) -> TableVersion:
        return TableVersion(name, load(self.files, location), self)


@dataclass(frozen=True)
class TableVersion:
    """``snapshot`` and ``schema_id`` say which of the states in the metadata is meant: the current one if None.

    ``journal`` is what is laid over it: changes that Spark has not applied yet. ``twin`` is another table with the same
    uuid, whose journal it is: others have given one metadata file two names.
    """

    table: TableName
    metadata: TableMetadata
    loader: VersionLoader
    snapshot: tuple[int | None] | None = None
    schema_id: int | None = None
    journal: TableJournal | None = None
    twin: TableName | None = None

    def with_journal(self, journal: TableJournal | None) -> TableVersion:
        """The table with its part of the journal."""
        if journal is None:
            return self
        version = replace(self, journal=journal)
        for name in ("schema", "columns", "checks", "keys", "no_journal", "published_rows"):  # what was found out once
            version.__dict__[name] = getattr(self, name)
        return version

    def without_journal(self) -> TableVersion:
        """As plain Spark sees it."""
        if self.journal is None:
            return self
        version = replace(self, journal=None)
        version.__dict__["rows"] = version.__dict__["published_rows"] = self.published_rows
        for name in ("schema", "columns", "checks", "keys", "no_journal"):
            version.__dict__[name] = getattr(self, name)
        return version

    @property
    def is_switched_to_journal(self) -> bool:
        return self.metadata.properties.get(JOURNAL) == "true"

    @property
    def is_journalled(self) -> bool:
        """A stranger may have set the property of a table that does not fit, or have changed one that did."""
        return self.is_switched_to_journal and self.no_journal is None

    @cached_property
    def no_journal(self) -> SparkportError | None:
        """Why not: the journal gives rows ids before Spark writes them, in the order in which they are written."""
        name, metadata = self.table.name, self.metadata
        if self.twin is not None:
            return FailedPrecondition(
                f"tables '{self.table}' and '{self.twin}' are one by their uuid, and the journal belongs to the "
                f"second: changes of '{name}' go through Spark"
            )
        if not self.has_row_ids:
            return FailedPrecondition(
                f"table '{name}' is of format v{self.format_version}, which has no row ids: "
                f"upgrade it with 'sparkport table upgrade {self.table}'"
            )
        if any(metadata.specs.values()) or any(order["fields"] for order in metadata.json.get("sort-orders") or ()):
            return Unsupported(f"table '{name}' is or was partitioned or sorted: it cannot be journalled")
        if metadata.properties.get("write.merge.mode", "copy-on-write") != "merge-on-read":
            return Unsupported(
                f"table '{name}' is copy-on-write: set its property 'write.merge.mode' to 'merge-on-read'"
            )
        if taken := [str(f["name"]) for f in self.schema["fields"] if str(f["name"]).casefold() in MERGE_COLUMNS]:
            return Unsupported(
                f"column '{taken[0]}' has a name that Spark uses in a MERGE: rename it to journal the table"
            )
        return None

    @property
    def revision(self) -> int:
        """Rows that were changed by a later entry of the journal have a higher one."""
        return 0 if self.journal is None else self.journal.last

    @property
    def location(self) -> str:
        """Where the metadata is."""
        return self.metadata.metadata_location

    @property
    def metadata_folder(self) -> str:
        return self.location.rpartition("/")[0] + "/"

    @property
    def json(self) -> Json:
        return dict(self.metadata.json)

    @property
    def uuid(self) -> str:
        return self.metadata.uuid

    @property
    def format_version(self) -> int:
        return self.metadata.format_version

    @property
    def has_row_ids(self) -> bool:
        return self.format_version >= 3

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.metadata.properties)

    @property
    def snapshot_id(self) -> int | None:
        return self.metadata.main_snapshot_id if self.snapshot is None else self.snapshot[0]

    @property
    def sequence_number(self) -> int:
        """Rows that were changed by a later commit have a higher one."""
        return 0 if self.snapshot_id is None else self.metadata.snapshot(self.snapshot_id).sequence_number

    @cached_property
    def schema(self) -> Json:
        if self.schema_id is None:
            return dict(self.metadata.current_schema)
        return dict(self.metadata.schemas[self.schema_id])

    @cached_property
    def columns(self) -> Columns:
        return read_columns(
            self.schema,
            self.metadata.properties,
            int(self.metadata.json.get("last-column-id", 0)),
            has_rows=self.snapshot_id is not None,
            keeps_defaults=self.format_version >= 3,
        )

    @cached_property
    def checks(self) -> tuple[str, ...]:
        try:
            checks = json.loads(self.metadata.properties.get(CHECKS) or "[]")
        except (ValueError, RecursionError):
            checks = None
        if not isinstance(checks, list) or not all(isinstance(check, str) for check in checks):
            return (_UNREADABLE.format(CHECKS, "conditions"),)
        if not is_readable(self.metadata.properties):
            checks.append(_UNREADABLE.format(UNIQUE, "keys"))
        return tuple(checks)

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        return read_keys(self.schema, self.metadata.properties, self.columns)

    @cached_property
    def tags(self) -> dict[str, str]:
        return tags_in(self.metadata.properties)

    @cached_property
    def fingerprint(self) -> str:
        """Equal as long as a listing would show the same."""
        columns = self.columns.declared.serialize().to_pybytes()
        shown = (
            self.uuid,
            columns,
            self.has_row_ids,
            self.checks,
            self.keys,
            self.properties.get("comment"),
            self.tags,
        )
        return hashlib.sha256(repr(shown).encode()).hexdigest()

    @cached_property
    def rows(self) -> Rows:
        return self.published_rows if self.journal is None else JournalledRows(self.published_rows, self.journal)

    @cached_property
    def published_rows(self) -> TableRows:
        """Without the journal."""
        return TableRows(self.table, self.metadata, self.schema, self.columns, self.snapshot_id, self.loader)

    def same_rows_as(self, earlier: TableVersion) -> bool:
        """Whether the table has the same rows and columns that it had: compaction leaves it so."""
        if self.uuid != earlier.uuid or not self.columns.takes_rows_of(earlier.columns):
            return False
        if self.revision > earlier.revision:
            return False
        at = self.snapshot_id
        while at != earlier.snapshot_id:
            if at is None:
                return False
            try:
                snapshot = self.metadata.snapshot(at)
            except NotFound:
                return False
            if snapshot.operation != "replace" and not self._is_flush(snapshot.sequence_number):
                return False
            at = snapshot.parent_id
        return True

    def _is_flush(self, sequence_number: int) -> bool:
        """Whether a snapshot only has what the journal had: it was seen before, or ``revision`` would be later."""
        flushes = () if self.journal is None else self.journal.flushes
        return any(flush.first_sequence <= sequence_number <= flush.last_sequence for flush in flushes)
