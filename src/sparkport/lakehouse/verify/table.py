"""One table from its pointer down to its rows: whether all that is named is there, and is what it is said to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from sparkport.lakehouse.backup.copying import in_parallel
from sparkport.lakehouse.backup.reach import Kind, kind_of, statistics_of
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import read_records
from sparkport.lakehouse.iceberg.metadata import Snapshot, TableMetadata, parse
from sparkport.lakehouse.verify.data_files import DataFiles
from sparkport.lakehouse.verify.findings import Findings, Wrong
from sparkport.lakehouse.verify.keys import check_keys

__all__ = ["check_table"]

_DELETED = 2
_PUFFIN = b"PFA1"


def check_table(fs: FileSystem, where: str, location: str, *, deep: bool, keys: bool) -> Findings:
    """``deep`` reads all rows, too, ``keys`` the columns of the table's keys."""
    findings = Findings(where)
    with findings.catching(Kind.METADATA.value, location):
        findings.files += 1
        metadata = parse(fs.read_bytes(location), location)
        _Table(fs, metadata, findings, deep=deep).check()
        if keys and not findings.found:  # rows cannot be read where files are missing
            check_keys(fs, metadata, findings)
    return findings


class _Table:
    def __init__(self, fs: FileSystem, metadata: TableMetadata, findings: Findings, *, deep: bool) -> None:
        self._fs = fs
        self._metadata = metadata
        self._findings = findings
        self._manifests: dict[str, list[dict[str, Any]]] = {}
        self._lists: dict[int, list[dict[str, Any]]] = {}
        self._data = DataFiles(fs, findings, deep=deep)

    def check(self) -> None:
        self._check_metadata()
        self._check_old_metadata()
        self._check_statistics()
        for snapshot in self._metadata.snapshots:
            self._check_snapshot(snapshot)
        in_parallel(self._data.check, self._data.files())
        for name, head in self._heads().items():
            self._check_rows(name, head)

    # What is said in the metadata

    def _check_metadata(self) -> None:
        metadata, path = self._metadata, self._metadata.metadata_location

        def wrong(problem: str) -> None:
            self._findings.add(Kind.METADATA.value, path, problem)

        json = metadata.json
        if json.get("current-schema-id", next(iter(metadata.schemas))) not in metadata.schemas:
            wrong("the current schema is not among the schemas")
        if json.get("default-spec-id", next(iter(metadata.specs))) not in metadata.specs:
            wrong("the current partition spec is not among the specs")
        for name, ref in metadata.refs.items():
            if not metadata.has_snapshot(ref["snapshot-id"]):
                wrong(f"'{name}' points to snapshot {ref['snapshot-id']}, which is not there")
        main = metadata.main_snapshot_id
        if main is not None and not metadata.has_snapshot(main):
            wrong(f"the current snapshot {main} is not there")
        last = json.get("last-sequence-number", 0)
        for snapshot in metadata.snapshots:
            if snapshot.sequence_number > last:
                wrong(f"snapshot {snapshot.id} has sequence number {snapshot.sequence_number}, after the last, {last}")
        self._check_row_id_counter(wrong)

    def _check_row_id_counter(self, wrong: Any) -> None:
        if self._metadata.format_version < 3:
            return
        end = self._metadata.json.get("next-row-id")
        if not isinstance(end, int):
            wrong("it has no next row id")
            return
        for snapshot in self._metadata.json.get("snapshots") or ():
            first, added = snapshot.get("first-row-id"), snapshot.get("added-rows") or 0
            if first is not None and first + added > end:
                wrong(f"snapshot {snapshot['snapshot-id']} has row ids up to {first + added}, and the next is {end}")

    def _check_old_metadata(self) -> None:
        for entry in self._metadata.metadata_log:
            path = entry["metadata-file"]
            self._findings.files += 1
            with self._findings.catching(Kind.OLD_METADATA.value, path):
                old = parse(self._fs.read_bytes(path), path)
                if old.uuid != self._metadata.uuid:
                    raise Wrong("it is another table's")

    def _check_statistics(self) -> None:
        for path, size in statistics_of(self._metadata):
            self._findings.files += 1
            with self._findings.catching(Kind.STATISTICS.value, path):
                found = self._fs.stat(path).size
                if found != size:
                    raise Wrong(f"it has {found:,} bytes, not {size:,}")
                if path.endswith((".stats", ".puffin")) and self._fs.read_range(path, 0, length=4) != _PUFFIN:
                    raise Wrong("it is no Puffin file")

    # What snapshots lead to

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        self._findings.files += 1
        with self._findings.catching(Kind.MANIFEST_LIST.value, snapshot.manifest_list):
            listed = list(read_records(self._fs, snapshot.manifest_list))
            self._lists[snapshot.id] = listed
            for entry in listed:
                if entry["manifest_path"] not in self._manifests:
                    self._manifests[entry["manifest_path"]] = self._manifest(entry)

    def _manifest(self, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its records of files that are live, in their order."""
        path = entry["manifest_path"]
        self._findings.files += 1
        with self._findings.catching(Kind.MANIFEST.value, path):
            size = self._fs.stat(path).size
            if size != entry["manifest_length"]:
                raise Wrong(f"it has {size:,} bytes, not {entry['manifest_length']:,}")
            records = list(read_records(self._fs, path))
            live = [record for record in records if record["status"] != _DELETED]
            self._check_counts(entry, records)
            for record in live:
                self._data.add(record["data_file"])
            return [record["data_file"] for record in live]
        return []

    def _check_counts(self, entry: Mapping[str, Any], records: list[dict[str, Any]]) -> None:
        for status, name in enumerate(("existing", "added", "deleted")):
            told = entry.get(f"{name}_files_count", entry.get(f"{name}_data_files_count"))
            found = sum(record["status"] == status for record in records)
            if told is not None and told != found:
                raise Wrong(f"it has {found} {name} files, not {told}")

    # Row ids and deleted rows

    def _heads(self) -> dict[str, int]:
        heads = {name: ref["snapshot-id"] for name, ref in self._metadata.refs.items()}
        if self._metadata.main_snapshot_id is not None:
            heads.setdefault("main", self._metadata.main_snapshot_id)
        return heads

    def _check_rows(self, name: str, snapshot_id: int) -> None:
        listed = self._lists.get(snapshot_id)
        if listed is None:
            return
        files = list(self._live(listed))
        data = {file["file_path"]: file["record_count"] for file, _ in files if kind_of(file) is Kind.DATA}
        if self._metadata.format_version >= 3:
            self._check_row_ids(name, [(file, first) for file, first in files if kind_of(file) is Kind.DATA])
        for file, _ in files:
            if kind_of(file) is Kind.DELETION_VECTORS:
                self._data.check_vector(file, data)
        if name == "main":
            self._data.check_unique_rows([(f, first) for f, first in files if kind_of(f) is Kind.DATA])

    def _live(self, listed: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int | None]]:
        """Files with their first row ids: their own, else what follows from their place in the manifest."""
        for entry in listed:
            following = entry.get("first_row_id")
            for file in self._manifests.get(entry["manifest_path"], ()):
                first = None if entry.get("first_row_id") is None else file.get("first_row_id")
                if first is None and following is not None and kind_of(file) is Kind.DATA:
                    first, following = following, following + file["record_count"]
                yield file, first

    def _check_row_ids(self, name: str, files: list[tuple[dict[str, Any], int | None]]) -> None:
        end = self._metadata.json.get("next-row-id") or 0
        ranges = []
        for file, first in files:
            if first is None:
                continue  # the table was of an older format when it was written
            ranges.append((first, first + file["record_count"], file["file_path"]))
            if first + file["record_count"] > end:
                self._findings.add(
                    Kind.DATA.value, file["file_path"], f"its row ids go beyond the table's next, {end} ('{name}')"
                )
        for (_, before, _), (first, _, path) in pairwise(sorted(ranges)):
            if first < before:
                self._findings.add(
                    Kind.DATA.value, path, f"its row ids, from {first}, are another file's too ('{name}')"
                )
