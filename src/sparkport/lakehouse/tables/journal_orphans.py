"""Tables that others have dropped or renamed while the journal held changes of them."""

from __future__ import annotations

import contextlib
import io
import logging

import pyarrow.parquet as pq

from sparkport.errors import InternalError, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.journal.net import is_about
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.tables.versions import TableVersions
from sparkport.lakehouse.write.journal_flush import as_table

__all__ = ["Orphans"]

logger = logging.getLogger(__name__)


class Orphans:
    def __init__(self, storage: Storage, versions: TableVersions) -> None:
        self._storage = storage
        self._versions = versions

    def settle(self, records: JournalRecords, journal: TableJournal) -> None:
        """A table is not where the journal knows it: follow it, or put aside what waits for one that is gone."""
        if not self._followed(records, journal):
            self._put_aside(records, journal)

    def _followed(self, records: JournalRecords, journal: TableJournal) -> bool:
        for table, location in self._storage.pointers.cut().tables.items():
            try:
                version = self._versions.at(table, location)
            except (NotFound, InternalError):  # a table that nobody can read
                continue
            except SparkportError as exc:  # it may be this one
                raise Unavailable(f"where table '{journal.table}' is cannot be seen now") from exc
            if version.uuid == journal.uuid and is_about(journal, version.metadata):
                records.follow(journal, table)
                logger.info("the journal follows table '%s', which is '%s' now", journal.table, table)
                return True
        return False

    def _put_aside(self, records: JournalRecords, journal: TableJournal) -> None:
        name = "".join(c if c.isalnum() else "_" for c in journal.table.name)[:64]
        place = f"{self._storage.warehouse.root}/.journal/{name}-{journal.uuid}-{journal.last}.parquet"
        sink = io.BytesIO()
        pq.write_table(as_table(journal), sink)
        with contextlib.suppress(FileExistsError):
            self._storage.files.write_new(place, sink.getvalue())
        with records.changing() as work:
            view, revision = records.advance(work)
            if (now := view.by_uuid.get(journal.uuid)) is None or now.last != journal.last:
                return  # the next time, with what has come since
            records.remove(work, [journal.uuid], revision)
        logger.error(
            "table '%s' was dropped by others while the journal held changes of it: they are in %s",
            journal.table,
            place,
        )
