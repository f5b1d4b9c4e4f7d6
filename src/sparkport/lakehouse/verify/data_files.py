"""Files of rows and of deleted rows: their sizes, what their footers say, and what is in them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import InternalError
from sparkport.lakehouse.backup.reach import Kind, kind_of
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import Positions, decode_vector
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD
from sparkport.lakehouse.verify.findings import Findings, Wrong

__all__ = ["DataFiles"]

_FIELD_ID = b"PARQUET:field_id"


class DataFiles:
    """Each is looked at once, however many snapshots have it. ``deep``: all rows are read, and checked by page."""

    def __init__(self, fs: FileSystem, findings: Findings, *, deep: bool) -> None:
        self._fs = fs
        self._findings = findings
        self._deep = deep
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], dict[str, Any]] = {}
        self._row_ids: dict[str, pa.ChunkedArray] = {}
        self._vectors: dict[str, Positions] = {}
        self._broken: set[str] = set()

    def add(self, file: dict[str, Any]) -> None:
        """``file`` is a manifest's record. Vectors of several files may be in one."""
        self._files.setdefault((file["file_path"], file.get("content_offset") or 0), file)

    def files(self) -> list[dict[str, Any]]:
        return list(self._files.values())

    def check(self, file: dict[str, Any]) -> None:
        """Called from several threads."""
        path, kind = file["file_path"], kind_of(file)
        whole = False
        with self._findings.catching(kind.value, path):
            size = self._fs.stat(path).size
            if size != file["file_size_in_bytes"]:
                raise Wrong(f"it has {size:,} bytes, not {file['file_size_in_bytes']:,}")
            if str(file["file_format"]).lower() == "parquet":
                self._check_parquet(file)
            if kind is Kind.DELETION_VECTORS:
                self._vector(file)
            whole = True
        with self._lock:
            self._findings.files += 1
            if not whole:
                self._broken.add(path)

    def _check_parquet(self, file: dict[str, Any]) -> None:
        path = file["file_path"]
        try:
            with self._fs.open(path) as source:
                parquet = pq.ParquetFile(source, page_checksum_verification=True)
                count = parquet.metadata.num_rows
                if count != file["record_count"]:
                    raise Wrong(f"it has {count:,} rows, not {file['record_count']:,}")
                if self._deep:
                    self._read_rows(path, parquet)
        except pa.ArrowException as exc:
            raise InternalError(f"cannot be read: {exc}") from exc

    def _read_rows(self, path: str, parquet: pq.ParquetFile) -> None:
        """One row group after the other, so that a large file takes no more memory than its largest one."""
        name = _row_id_column(parquet.schema_arrow)
        ids = []
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number)
            if rows.num_rows != parquet.metadata.row_group(number).num_rows:
                raise Wrong(f"row group {number} has {rows.num_rows:,} rows, not as many as its footer says")
            if name is not None:
                ids += rows.column(name).chunks
        if name is not None:
            with self._lock:
                self._row_ids[path] = pa.chunked_array(ids, pa.int64())

    def check_vector(self, file: dict[str, Any], data: Mapping[str, int]) -> None:
        """Whether a deletion vector takes rows out of a file of the snapshot, one that has so many."""
        path, target = file["file_path"], str(file.get("referenced_data_file"))
        if path in self._broken:
            return
        with self._findings.catching(Kind.DELETION_VECTORS.value, path):
            positions = self._vector(file)
            if target not in data:
                raise Wrong(f"it is about '{target}', which is not in the snapshot")
            if len(positions) and int(positions.max()) >= data[target]:
                raise Wrong(f"it takes row {positions.max():,} out of '{target}', which has {data[target]:,}")
            self._vectors[target] = positions

    def _vector(self, file: dict[str, Any]) -> Positions:
        blob = self._fs.read_range(file["file_path"], file["content_offset"], length=file["content_size_in_bytes"])
        positions = decode_vector(blob)
        if len(positions) != file["record_count"]:
            raise Wrong(f"it takes {len(positions):,} rows out, not {file['record_count']:,}")
        return positions

    def check_unique_rows(self, files: Sequence[tuple[dict[str, Any], int | None]]) -> None:
        """Whether each id is of one row only. Without ``deep`` it is not known which ids are in the files."""
        if not self._deep:
            return
        parts, owners = [], []
        for number, (file, first) in enumerate(files):
            ids = self._live_ids(file, first)
            if ids is not None:
                parts.append(ids)
                owners.append(np.full(len(ids), number))
        if not parts:
            return
        ids, owner = np.concatenate(parts), np.concatenate(owners)
        order = np.argsort(ids, kind="stable")
        ids, owner = ids[order], owner[order]
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        for number in sorted(set(owner[twice + 1].tolist())):
            path = files[number][0]["file_path"]
            same = ids[twice[owner[twice + 1] == number]]
            self._findings.add(Kind.DATA.value, path, f"{len(same):,} row ids are of two rows, such as {same[0]}")

    def _live_ids(self, file: dict[str, Any], first: int | None) -> Ids | None:
        path = file["file_path"]
        if path in self._broken or str(file["file_format"]).lower() != "parquet":
            return None
        derived = None if first is None else np.arange(first, first + file["record_count"], dtype=np.int64)
        stored = self._row_ids.get(path)
        if stored is not None:
            own = stored.to_numpy() if not stored.null_count else None
            if own is None:
                if derived is None:
                    return None
                mask = np.asarray(stored.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
                own = np.where(mask, stored.fill_null(0).to_numpy(), derived)
            derived = own
        if derived is None or path not in self._vectors:
            return derived
        kept: Ids = np.delete(derived, self._vectors[path])
        return kept


def _row_id_column(schema: pa.Schema) -> str | None:
    wanted = str(ROW_ID_FIELD).encode()
    return next((field.name for field in schema if (field.metadata or {}).get(_FIELD_ID) == wanted), None)
