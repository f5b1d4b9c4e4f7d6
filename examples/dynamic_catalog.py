"""A catalog that answers by looking: folders are schemas, the Parquet files in them are tables.

Nothing is registered. A file that is added or removed while the server runs shows up in the next transaction.

python examples/dynamic_catalog.py path/to/folders
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport import CallContext, Catalog, ScanRequest, Schema, Server, Table
from sparkport.catalog import CatalogVersion, Scan


class ParquetTable(Table):
    """One file. Only the columns asked for are read, a row group at a time."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._path = path

    @property
    def schema(self) -> pa.Schema:
        return pq.read_schema(self._path)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        # Filters are left to the caller, which applies its own in any case.
        file = pq.ParquetFile(self._path)
        columns = None if request.columns is None else list(request.columns)
        return Scan(file.iter_batches(columns=columns), total_rows=file.metadata.num_rows, close=file.close)

    def row_count(self, ctx: CallContext) -> int:
        return int(pq.read_metadata(self._path).num_rows)


class Folder(Schema):
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return (ParquetTable(path) for path in sorted(self._path.glob("*.parquet")))


class Folders(Catalog):
    name = "files"

    def __init__(self, root: Path) -> None:
        self._root = root

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        return (Folder(path) for path in self._folders())

    def version(self, ctx: CallContext) -> CatalogVersion:
        """Made of names and times: it changes whenever a file comes, goes or is replaced."""
        state = 0
        for folder in self._folders():
            state = crc32(folder.name.encode(), state)
            for path in sorted(folder.glob("*.parquet")):
                state = crc32(f"{path.name} {path.stat().st_mtime_ns}".encode(), state)
        return CatalogVersion(state)

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._root.iterdir() if path.is_dir())


def catalog() -> Folders:
    """What `sparkport serve examples/dynamic_catalog.py:catalog` serves: the folders in DATA, or in this folder."""
    return Folders(Path(os.environ.get("DATA", ".")))


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    server = Server(Folders(root)).start()
    print(f"ATTACH 'files' (TYPE airport, LOCATION '{server.location}');", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()
