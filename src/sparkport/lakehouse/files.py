"""One way to every file of the lakehouse, on the local disk or in an object store, whatever its address looks like.

Iceberg writes addresses as plain paths, ``file:/x``, ``file:///x`` or ``s3://bucket/x``; local ones go the short way
through the operating system, all others through fsspec.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.asyn import AsyncFileSystem

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import AlreadyExists, NotFound, SparkportError, Unavailable

__all__ = ["FileInfo", "FileSystem", "local_path", "plain_path", "protocol_of", "sync"]

_REMEMBERED = 20_000
_COPIED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file found by listing; ``modified`` is in seconds since the epoch, None where the store does not say."""

    path: str
    size: int
    modified: float | None


def protocol_of(path: str) -> str:
    """``s3`` for ``s3://bucket/x``; ``file`` for local files. A one-letter scheme is a drive, not a protocol."""
    scheme, separator, _ = path.partition(":")
    if not separator or len(scheme) < 2 or not scheme.replace("+", "").replace("-", "").isalnum():
        return "file"
    return scheme.lower()


def local_path(path: str) -> Path | None:
    """The plain path of a local file, None for a file elsewhere. Only true URIs are percent-decoded."""
    if protocol_of(path) != "file":
        return None
    if not path.startswith("file:"):
        return Path(path)
    rest = path[len("file:") :]
    if rest.startswith("//"):
        rest = "/" + rest[2:].partition("/")[2]
    return _existing(rest)


def plain_path(path: str) -> str:
    """The same for all ways in which the address of a place is written."""
    local = local_path(path)
    if local is not None:
        return str(local).rstrip("/")
    scheme, _, rest = path.partition(":")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{rest}".rstrip("/")


def sync(paths: Iterable[str], *, below: str | None = None) -> None:
    """Make files that others have written survive a loss of power, and their names too.

    ``below`` is a folder that is known to survive: those between it and the files may be as new as they are. A store
    elsewhere has a file for good once it has answered, so only local ones are touched. One that is gone is NotFound.
    """
    root = None if below is None else local_path(below)
    folders: set[Path] = set()
    for path in paths:
        local = local_path(path)
        if local is None:
            continue
        with _translated(path):
            _sync(local)
            with contextlib.suppress(FileNotFoundError):
                _sync(local.with_name(f".{local.name}.crc"))  # Hadoop's: damaged, it keeps Spark from reading
        between = [parent for parent in local.parents if root is not None and parent.is_relative_to(root)]
        folders.update([local.parent, *between])
    for folder in folders:
        with _translated(str(folder)):
            _sync_folder(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise


def _make_folder(folder: Path) -> None:
    """With the names of all folders that had to be made, up to one that was there, safe from a loss of power."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _existing(rest: str) -> Path:
    """Hadoop writes ``file:`` addresses without percent-encoding, other tools with: what is there decides."""
    plain = Path(rest)
    if "%" in rest and not plain.exists() and (decoded := Path(unquote(rest))).exists():
        return decoded
    return plain


class FileSystem:
    """Reads and writes whole files. Safe to use from several threads.

    ``options`` holds fsspec's own options by protocol, e.g. ``{"s3": {"key": …, "endpoint_url": …}}``.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._options = {name: dict(values) for name, values in (options or {}).items()}
        self._lock = threading.Lock()
        self._registering = threading.Lock()
        self._remote: dict[tuple[str, bool], Any] = {}

    def configure(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """More of fsspec's options, for stores that have not been used yet."""
        with self._lock:
            self._options |= {name: dict(values) for name, values in options.items()}

    def read_bytes(self, path: str) -> bytes:
        with _translated(path):
            if (local := local_path(path)) is not None:
                return local.read_bytes()
            return bytes(self._filesystem(path).cat_file(path))

    def read_range(self, path: str, offset: int, *, length: int) -> bytes:
        with _translated(path):
            if (local := local_path(path)) is not None:
                with local.open("rb") as file:
                    file.seek(offset)
                    return file.read(length)
            return bytes(self._filesystem(path).cat_file(path, start=offset, end=offset + length))

    def open(self, path: str) -> Any:
        """A seekable binary file for reading; the caller closes it."""
        with _translated(path):
            if (local := local_path(path)) is not None:
                return local.open("rb")
            return self._filesystem(path).open(path, "rb")

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file that must not be there yet; nobody sees half of it. Raises AlreadyExists."""
        with _translated(path):
            if (local := local_path(path)) is not None:
                _write_local(local, data)
                return
            _write_remote(self._filesystem(path), path, data)

    def write_unseen(self, path: str, data: bytes) -> None:
        """Write a file that nobody looks for until he is told of it; see ``sync``. Raises AlreadyExists.

        A crash leaves half of it under its own name, by which whoever cleans up finds it.
        """
        with _translated(path):
            if (local := local_path(path)) is None:
                _write_remote(self._filesystem(path), path, data)
                return
            _make_folder(local.parent)
            with local.open("xb") as file:
                file.write(data)

    def place(self, source: Path, path: str) -> None:
        """Put a local file there likewise: as a second name for it where that can be, else as a copy.

        It is as new as its name then: who looks for files that nobody knows of goes by their age.
        """
        local = local_path(path)
        if local is None:
            with source.open("rb") as file, self.create(path) as copied:
                shutil.copyfileobj(file, copied, _COPIED_BYTES)
            return
        with _translated(path):
            _make_folder(local.parent)
            try:
                os.utime(source)
                os.link(source, local)
            except OSError as exc:
                if exc.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                    raise
                with source.open("rb") as file, local.open("xb") as copied:
                    shutil.copyfileobj(file, copied, _COPIED_BYTES)

    def published(self, paths: Sequence[str]) -> None:
        """A catalog points to these metadata files, or did: they are not this process's to remove any more."""

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """A binary file to write to, in the place of one that may be there; nobody sees half of it.

        It is there, and durable but for the folder's own entry (see ``sync``), when the block ends well.
        """
        with _translated(path):
            local = local_path(path)
            with _created_local(local) if local is not None else _created_remote(self._filesystem(path), path) as file:
                yield file

    def stat(self, path: str) -> FileInfo:
        """Raises NotFound."""
        with _translated(path):
            if (local := local_path(path)) is not None:
                stat = local.stat()
                return FileInfo(path, stat.st_size, stat.st_mtime)
            return _info(path, self._filesystem(path).info(path))

    def exists(self, path: str) -> bool:
        with _translated(path):
            if (local := local_path(path)) is not None:
                return local.exists()
            return bool(self._filesystem(path).exists(path))

    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with _translated(path), contextlib.suppress(FileNotFoundError):
            if (local := local_path(path)) is not None:
                local.unlink()
            else:
                self._filesystem(path).rm_file(path)

    def delete_tree(self, path: str) -> None:
        """Remove a folder and all that is in it; one that is gone already is no error."""
        with _translated(path), contextlib.suppress(FileNotFoundError):
            if (local := local_path(path)) is not None:
                shutil.rmtree(local)
            else:
                self._filesystem(path).rm(path, recursive=True)

    def list(self, prefix: str) -> list[FileInfo]:
        """Every file below a folder, sorted by path; none where there is no such folder."""
        with _translated(prefix):
            if (local := local_path(prefix)) is not None:
                return sorted(_walk(local), key=lambda info: info.path)
            remote = self._filesystem(prefix)
            entries = remote.find(prefix, detail=True)
            root, base = str(remote._strip_protocol(prefix)).rstrip("/"), prefix.rstrip("/")
            return [_info(base + name.removeprefix(root), entries[name]) for name in sorted(entries)]

    def duckdb_path(self, path: str) -> str:
        """The address to give to DuckDB, with nothing left in it that DuckDB would take for a pattern."""
        local = local_path(path)
        text = path if local is None else str(local)
        return "".join(f"[{char}]" if char in "*?[" else char for char in text)

    def register(self, connection: Any, path: str) -> None:
        """Let a DuckDB connection read the store that ``path`` is in."""
        protocol = protocol_of(path)
        if protocol == "file":
            return
        remote = self._filesystem(path, remembering=True)
        # Scans begin side by side, and what is registered is the instance's, not the connection's.
        with self._registering:
            if not connection.filesystem_is_registered(protocol):
                connection.register_filesystem(remote)

    def _filesystem(self, path: str, *, remembering: bool = False) -> Any:
        protocol = protocol_of(path)
        with self._lock:
            key = (protocol, remembering)
            if key not in self._remote:
                try:
                    filesystem_class = fsspec.get_filesystem_class(protocol)
                    chosen_class = _remembering(filesystem_class) if remembering else filesystem_class
                    self._remote[key] = chosen_class(**self._options.get(protocol, {}))
                except (ImportError, ValueError) as exc:
                    raise Unavailable(f"no access to {protocol}:// files here: {exc}") from exc
            return self._remote[key]


def _remembering(filesystem_class: type) -> type:
    """A file system that asks for the size of each file once. DuckDB asks for it ten times in each scan, and files of a
    table never change: one that is gone is noticed when it is read."""
    if not issubclass(filesystem_class, AsyncFileSystem):
        return filesystem_class

    class Remembering(filesystem_class):  # type: ignore[misc]
        cachable = False  # fsspec would hand out the same to whoever asks for one with these options

        def __init__(self, *args: Any, **options: Any) -> None:
            self._known: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
            super().__init__(*args, **options)

        async def _info(self, path: str, *args: Any, **options: Any) -> Any:
            key = self._strip_protocol(path)
            info = self._known.get(key)
            if info is None:
                info = await super()._info(path, *args, **options)
                if info["type"] == "file":
                    self._known[key] = info
                    while len(self._known) > _REMEMBERED:
                        self._known.popitem(last=False)
            return info

    return Remembering


def _write_local(path: Path, data: bytes) -> None:
    """Written aside, made durable, then linked to its name: a link, unlike a rename, fails where something is.

    The folder is made durable too, because the catalog's database, which is, will have the name next.
    """
    _make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextlib.contextmanager
def _created_local(path: Path) -> Iterator[Any]:
    _make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _created_remote(remote: Any, path: str) -> Iterator[Any]:
    file = remote.open(path, "wb")
    try:
        yield file
    except BaseException:
        file.discard()
        file.closed = True  # else it would be put there as far as it was written
        raise
    file.close()


def _write_remote(remote: Any, path: str, data: bytes) -> None:
    try:
        remote.pipe_file(path, data, mode="create")
    except OSError as exc:
        if exc.errno != errno.ENOSYS:
            raise
        # Not every store has the condition. Without it two writers of one name could meet, but names are drawn by lot.
        if remote.exists(path):
            raise FileExistsError(path) from exc
        remote.pipe_file(path, data)


def _walk(folder: Path) -> Iterator[FileInfo]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                stat = path.stat()
                yield FileInfo(str(path), stat.st_size, stat.st_mtime)


def _info(path: str, details: Mapping[str, Any]) -> FileInfo:
    modified = next((details[key] for key in ("LastModified", "mtime", "modified", "created") if key in details), None)
    if isinstance(modified, dt.datetime):
        modified = modified.timestamp()
    return FileInfo(path, int(details.get("size") or 0), modified)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as exc:
        raise NotFound(f"file '{path}' not found") from exc
    except FileExistsError as exc:
        raise AlreadyExists(f"file '{path}' exists already") from exc
    except OSError as exc:
        raise disk_error(exc, f"file '{path}'") from exc
    except SparkportError:
        raise
    except Exception as exc:  # a store's library has errors of its own, for instance for an address nobody answers at
        if protocol_of(path) == "file":
            if _can_be(path):
                raise
            raise NotFound(f"file {path!a} not found") from exc
        raise Unavailable(f"file '{path}': {exc}") from exc


def _can_be(path: str) -> bool:
    """Whether a file can have this name at all. Others have written it into a catalog."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
