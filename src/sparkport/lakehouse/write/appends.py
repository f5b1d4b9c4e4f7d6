"""New rows put into a plain table by ourselves: their files get their places, and a snapshot names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkport.errors import InternalError
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.appends import Append, append_files, data_folder
from sparkport.lakehouse.iceberg.manifest_writer import AddedFile
from sparkport.lakehouse.spark.staging import StagedRows, Staging, disk_errors
from sparkport.lakehouse.write.change_set import TablePlan, new_rows_schema, widened
from sparkport.lakehouse.write.new_rows import FileForm, NewRows, WrittenFile, file_form

__all__ = ["Appends", "PreparedAppend"]

_SMALL_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """``places`` are where staged files go."""

    append: Append
    places: Mapping[str, WrittenFile]
    files: FileSystem

    def write(self) -> None:
        """All that the snapshot is; see ``sync_snapshot``. Its list comes first: by it the rest is found."""
        for path, data in self.append.lists.items():
            self.files.write_unseen(path, data)
            fault("append.listed")
        for path, staged in self.places.items():
            self._place(staged, path)
            fault("append.placed")

    def _place(self, staged: WrittenFile, path: str) -> None:
        """The very file, where both are in one file system: no byte of it is written again."""
        with disk_errors():
            if staged.path.stat().st_size != staged.size:
                raise InternalError("a staged file is not what was written")
            self.files.place(staged.path, path)


class Appends:
    def __init__(self, files: FileSystem, staging: Staging) -> None:
        self._files = files
        self._staging = staging

    @contextlib.contextmanager
    def prepared(self, plan: TablePlan, *, name: str, notes: Mapping[str, str]) -> Iterator[PreparedAppend | None]:
        """The plan's new rows, whose files are called by ``name``; None where there are none, or Spark writes them.

        Nothing is in the table's folder yet. What is staged stays while the block runs.
        """
        form = file_form(plan.version) if plan.inserted and self._staging.makes_data_files else None
        if form is None:
            yield None
            return
        parts = [change.inserts for change in plan.change_sets if change.inserts is not None]
        with self._as_files(parts, form) as written:
            folder = data_folder(plan.version.metadata)
            places = {f"{folder}/{name}-{number:05}.parquet": file for number, file in enumerate(written)}
            added = [AddedFile(path, file.rows, file.size, file.metrics) for path, file in places.items()]
            append = append_files(self._files, plan.version.metadata, added, notes=notes)
            if append is None:
                yield None
                return
            yield PreparedAppend(append, places, self._files)

    @contextlib.contextmanager
    def _as_files(self, parts: Sequence[StagedRows], form: FileForm) -> Iterator[Sequence[WrittenFile]]:
        """Small parts are put into one file, as are those that were written for a table that was another."""
        few = len(parts) > 1 and sum(part.rows for part in parts) <= _SMALL_ROWS
        if not few and all(isinstance(part, NewRows) and part.form.is_same(form) for part in parts):
            yield [file for part in parts if isinstance(part, NewRows) for file in part.files]
            return
        names = [str(field["name"]) for field in form.fields]
        types = [stored_type(field["type"]) for field in form.fields]
        joined = NewRows(self._staging.new_path(), new_rows_schema(names, types), form)
        try:
            for part in parts:
                for batch in part.batches():
                    joined.append(widened(batch, joined.schema))
            yield joined.files
        finally:
            joined.discard()
