"""The files of a table that name other files, with other names in them.

Rows of tables name no file, so data files, equality deletes and statistics stay as they are. What does: metadata, the
lists of manifests, manifests, and the lists of deleted positions, of which those of v3 do it in the footer alone.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkport.errors import InternalError, Unsupported
from sparkport.lakehouse.backup.avro import rewrite
from sparkport.lakehouse.backup.relocation import Relocation

__all__ = ["Rewriting", "rewritten_puffin"]

_GZIP = b"\x1f\x8b"
_PUFFIN = b"PFA1"
_FILE_PATH_FIELD = 2147483546
_TARGET = "referenced-data-file"
_PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class Rewriting:
    """``sizes`` are those of files that have been rewritten, by their old addresses: manifests tell them too."""

    def __init__(self, relocation: Relocation, sizes: Mapping[str, int]) -> None:
        self._relocation = relocation
        self._sizes = sizes

    def metadata(self, data: bytes, address: str) -> bytes:
        """Of a table or of a view. Compressed if it was."""
        try:
            value: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
            self._change_metadata(value)
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as exc:
            raise InternalError(f"metadata '{address}' cannot be rewritten: {exc}") from exc
        text = json.dumps(value).encode()
        return gzip.compress(text) if data.startswith(_GZIP) else text

    def _change_metadata(self, value: dict[str, Any]) -> None:
        place = self._relocation
        value["location"] = place.folder(value["location"])
        lists = {
            "metadata-log": "metadata-file",
            "snapshots": "manifest-list",
            "statistics": "statistics-path",
            "partition-statistics": "statistics-path",
        }
        for name, key in lists.items():
            for entry in value.get(name) or ():
                if key in entry:
                    entry[key] = place.file(entry[key])
        properties = value.get("properties") or {}
        for key in _PATH_PROPERTIES:
            if key in properties:
                properties[key] = place.folder(properties[key])

    def manifest_list(self, data: bytes, address: str) -> bytes:
        def change(record: dict[str, Any]) -> None:
            old = record["manifest_path"]
            record["manifest_path"] = self._relocation.file(old)
            record["manifest_length"] = self._sizes.get(old, record["manifest_length"])

        return rewrite(data, change, what=f"manifest list '{address}'")

    def manifest(self, data: bytes, address: str) -> bytes:
        def change(record: dict[str, Any]) -> None:
            file = record["data_file"]
            old = file["file_path"]
            file["file_path"] = self._relocation.file(old)
            if old in self._sizes:
                file["file_size_in_bytes"] = self._sizes[old]
                if file.get("split_offsets"):
                    file["split_offsets"] = file["split_offsets"][:1]
            if file.get("referenced_data_file") is not None:
                file["referenced_data_file"] = self._relocation.file(file["referenced_data_file"])
            if (file.get("content") or 0) == 1:
                self._change_bounds(file)

        return rewrite(data, change, what=f"manifest '{address}'")

    def _change_bounds(self, file: dict[str, Any]) -> None:
        """The least and the greatest path stay only where they are of one file: others need not keep their order.

        A missing bound says nothing, and so is never wrong.
        """
        lower, upper = (_path_in(file.get(name)) for name in ("lower_bounds", "upper_bounds"))
        target = file.get("referenced_data_file")
        if target is None and lower is not None and lower == upper and lower.endswith((b".parquet", b".orc", b".avro")):
            target = self._relocation.file(lower.decode())
        for name in ("lower_bounds", "upper_bounds"):
            if _path_in(file.get(name)) is not None:
                others = [pair for pair in file[name] if pair["key"] != _FILE_PATH_FIELD]
                bound = [] if target is None else [{"key": _FILE_PATH_FIELD, "value": target.encode()}]
                file[name] = [*others, *bound]

    def positions(self, data: bytes, address: str) -> bytes:
        """A list of deleted positions (v2): sorted by the new paths, as Iceberg wants it."""
        if data.startswith(b"Obj\x01"):
            return rewrite(data, self._change_position, what=f"list of deleted rows '{address}'")
        if not data.startswith(b"PAR1"):
            raise Unsupported(
                f"the list of deleted rows '{address}' is in ORC, and names files: restore it to where it was, or "
                "compact the table before the backup"
            )
        try:
            table = pq.read_table(io.BytesIO(data))
            index = table.schema.get_field_index("file_path")
            paths = table.column(index).combine_chunks()
            renamed = {old: self._relocation.file(old) for old in pc.unique(paths).to_pylist()}
            column = pa.array([renamed[old] for old in paths.to_pylist()], table.schema.field(index).type)
            table = table.set_column(index, table.schema.field(index), column)
            table = table.sort_by([("file_path", "ascending"), ("pos", "ascending")])
            written = io.BytesIO()
            pq.write_table(table, written, compression="zstd")
        except (pa.ArrowException, OSError, KeyError) as exc:
            raise InternalError(f"the list of deleted rows '{address}' cannot be rewritten: {exc}") from exc
        return written.getvalue()

    def _change_position(self, record: dict[str, Any]) -> None:
        record["file_path"] = self._relocation.file(record["file_path"])

    def vectors(self, data: bytes, address: str) -> bytes:
        """A file of deletion vectors (v3)."""
        return rewritten_puffin(data, self._relocation.file, what=address)


def _path_in(bounds: Any) -> bytes | None:
    """Of the column that lists of deleted positions have the data file's path in."""
    return next((pair["value"] for pair in bounds or () if pair["key"] == _FILE_PATH_FIELD), None)


def rewritten_puffin(data: bytes, rename: Any, *, what: str) -> bytes:
    """Blobs stay where they are, because manifests say where that is; the footer after them is made anew."""
    try:
        if not (data.startswith(_PUFFIN) and data.endswith(_PUFFIN)):
            raise ValueError("it is no Puffin file")
        size, flags = int.from_bytes(data[-12:-8], "little"), data[-8:-4]
        if flags != bytes(4):
            raise Unsupported(f"the footer of '{what}' is compressed, which is not done by Iceberg for deleted rows")
        start = len(data) - 12 - size - len(_PUFFIN)
        if data[start : start + len(_PUFFIN)] != _PUFFIN:
            raise ValueError("its footer does not begin as one")
        footer = json.loads(data[start + len(_PUFFIN) : -12])
        for blob in footer["blobs"]:
            properties = blob.get("properties") or {}
            if _TARGET in properties:
                properties[_TARGET] = rename(properties[_TARGET])
        text = json.dumps(footer, separators=(",", ":")).encode()
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InternalError(f"the file of deletion vectors '{what}' cannot be rewritten: {exc}") from exc
    return data[:start] + _PUFFIN + text + len(text).to_bytes(4, "little") + flags + _PUFFIN
