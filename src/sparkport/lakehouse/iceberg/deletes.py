"""Positions of deleted rows, from deletion vectors (v3) and from lists of positions (v2), ready to be skipped."""

from __future__ import annotations

import struct
import zlib
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap

from sparkport.errors import Conflict, InternalError, NotFound
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import DataFile, DeleteFile

__all__ = ["Positions", "decode_vector", "deleted_positions"]

Positions: TypeAlias = "NDArray[np.int64]"

_MAGIC = b"\xd1\xd3\x39\x64"
_CACHED_BYTES = 128 << 20

_vectors: BoundedCache[tuple[FileSystem, str, int], Positions] = BoundedCache(
    _CACHED_BYTES, weigh=lambda positions: int(positions.nbytes), name="deletion_vectors"
)
_lists: BoundedCache[tuple[FileSystem, str], dict[str, Positions]] = BoundedCache(
    _CACHED_BYTES, weigh=lambda lists: sum(int(part.nbytes) + 200 for part in lists.values())
)


def deleted_positions(fs: FileSystem, file: DataFile) -> Positions:
    """The numbers of the rows that are gone from a file, ascending, each once."""
    parts = [_positions(fs, delete, file.path) for delete in file.deletes if not delete.equality]
    if len(parts) == 1:
        return parts[0]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _positions(fs: FileSystem, delete: DeleteFile, data_file: str) -> Positions:
    try:
        if delete.length is not None:
            length = delete.length
            return _vectors.get(
                (fs, delete.path, delete.offset),
                lambda: decode_vector(fs.read_range(delete.path, delete.offset, length=length)),
            )
        by_file = _lists.get((fs, delete.path), lambda: _read_list(fs, delete.path))
        return by_file.get(data_file, np.empty(0, dtype=np.int64))
    except NotFound as exc:
        raise Conflict(f"a snapshot's file is gone: '{delete.path}'; it was expired while it was being read") from exc


def decode_vector(blob: bytes) -> Positions:
    """A ``deletion-vector-v1`` blob: length, magic, 32-bit roaring bitmaps by their high bits, checksum."""
    if len(blob) < 20 or blob[4:8] != _MAGIC:
        raise InternalError("a deletion vector is damaged: it does not begin as one")
    length = int.from_bytes(blob[:4], "big")
    body, checksum = blob[4 : 4 + length], blob[4 + length : 8 + length]
    if len(checksum) != 4 or zlib.crc32(body) != int.from_bytes(checksum, "big"):
        raise InternalError("a deletion vector is damaged: its checksum is wrong")
    try:
        return _bitmaps(body[4:])
    except (ValueError, struct.error, IndexError) as exc:
        raise InternalError(f"a deletion vector is damaged: {exc}") from exc


def _bitmaps(data: bytes) -> Positions:
    (count,) = struct.unpack_from("<q", data)
    offset = 8
    parts: list[Positions] = []
    for _ in range(count):
        (key,) = struct.unpack_from("<i", data, offset)
        bitmap = BitMap.deserialize(data[offset + 4 :])
        offset += 4 + _serialized_length(data[offset + 4 :])
        parts.append(np.array(bitmap.to_array(), dtype=np.int64) + (key << 32))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _serialized_length(data: bytes) -> int:
    """How long the first bitmap in ``data`` is in the portable roaring format, which does not say so itself."""
    cookie: int = struct.unpack_from("<I", data)[0]
    has_runs = cookie & 0xFFFF == 12347
    if has_runs:
        size = (cookie >> 16) + 1
        flags = data[4 : 4 + (size + 7) // 8]
        start = 4 + len(flags)
    else:
        (size,) = struct.unpack_from("<I", data, 4)
        flags, start = bytes((size + 7) // 8), 8
    sizes: tuple[int, ...] = struct.unpack_from("<" + "HH" * size, data, start)[1::2]
    end = start + 4 * size + (4 * size if not has_runs or size >= 4 else 0)
    for number, cardinality in enumerate(sizes):
        if flags[number // 8] >> number % 8 & 1:
            (runs,) = struct.unpack_from("<H", data, end)
            end += 2 + 4 * runs
        else:
            end += 8192 if cardinality + 1 > 4096 else 2 * (cardinality + 1)
    return end


def _read_list(fs: FileSystem, path: str) -> dict[str, Positions]:
    """Positions by data file. Iceberg writes these sorted by file and position, but not everybody does."""
    try:
        with fs.open(path) as source:
            table: Any = pq.read_table(source, columns=["file_path", "pos"])
    except (pa.ArrowException, OSError) as exc:
        raise InternalError(f"the list of deleted rows '{path}' cannot be read: {exc}") from exc
    positions: dict[str, Positions] = {}
    paths = table.column("file_path").combine_chunks()
    for name in pc.unique(paths).to_pylist():
        rows = table.column("pos").filter(pc.equal(paths, name))
        positions[name] = np.unique(rows.to_numpy().astype(np.int64, copy=False))
    return positions
