"""Disks that fill up, files that vanish or rot, a catalog out of reach: a clear error, nothing half done, then on."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tests.support.lakehouse import die, lakehouse
from tests.support.postgres import PostgresCluster
from tests.support.spark import shared_spark

from sparkport.catalog.statement import Change
from sparkport.client import Client, connect
from sparkport.errors import Conflict, InternalError, PermissionDenied, ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.duck import DuckDB
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.staging import Noted, Staging
from sparkport.testing import serving

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": [f"v{number}" for number in ids]}, SCHEMA)


def large() -> pa.Table:
    """12 MB that no codec makes smaller."""
    return pa.table({"id": range(12), "v": [os.urandom(500_000).hex() for _ in range(12)]}, SCHEMA)


@contextmanager
def client_of(opened: Lakehouse) -> Iterator[Client]:
    with serving(opened.catalog) as server, connect(server.location) as client:
        yield client


def ids(client: Client, table: str = "public.t") -> list[int]:
    found: list[int] = client.scan(table, columns=["id"]).read_all()["id"].to_pylist()
    return sorted(found)


def names(client: Client) -> list[str]:
    return [table.name for table in client.tables("public")]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakehouse]:
    with lakehouse(tmp_path / "warehouse") as opened:
        yield opened


@pytest.fixture
def client(lake: Lakehouse) -> Iterator[Client]:
    with client_of(lake) as client:
        client.create_table("public.t", SCHEMA)
        client.insert("public.t", rows(1, 2))
        yield client


def staged(opened: Lakehouse) -> list[Path]:
    return list(Path(opened.settings.staging_path).rglob("*.parquet"))


def folder_of(opened: Lakehouse, table: str = "t") -> Path:
    (found,) = (Path(opened.settings.warehouse_path) / "public").glob(f"{table}-*")
    return found


# Disks


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", *options, str(folder)], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=6m", "tmpfs") as folder:
        yield folder


def test_a_full_disk_under_the_staging_folder_is_resource_exhausted(small_disk: Path) -> None:
    with lakehouse(small_disk) as opened, client_of(opened) as client:
        client.create_table("public.t", SCHEMA)
        client.insert("public.t", rows(1))
        with pytest.raises(ResourceExhausted, match="disk is full"):
            client.insert("public.t", large())
        assert staged(opened) == []
        assert ids(client) == [1]
        client.insert("public.t", rows(2))
        assert ids(client) == [1, 2]


def test_a_disk_that_spark_fills_up_is_resource_exhausted(small_disk: Path, tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(small_disk), staging=str(tmp_path / "staging"), sessions=2)
    with Lakehouse(settings, spark=shared_spark()) as opened, client_of(opened) as client:
        client.create_table("public.t", SCHEMA)
        client.insert("public.t", rows(1))
        with pytest.raises(ResourceExhausted, match="disk is full"):
            client.insert("public.t", large())
        assert staged(opened) == []
        assert ids(client) == [1]
        # The file that Spark could not finish is still there; maintenance removes it when it is old enough.
        subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
        client.insert("public.t", rows(2))
        assert ids(client) == [1, 2]


def test_no_table_is_made_on_a_disk_that_is_full(small_disk: Path) -> None:
    with lakehouse(small_disk) as opened, client_of(opened) as client:
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(ResourceExhausted):
            client.create_table("public.t", SCHEMA)
        assert names(client) == []
        filler.unlink()
        client.create_table("public.t", SCHEMA)
        assert names(client) == ["t"]


def test_a_read_only_table_can_be_read_and_not_written(lake: Lakehouse, client: Client) -> None:
    folder = folder_of(lake)
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        for change in (
            lambda: client.insert("public.t", rows(3)),
            lambda: client.delete("public.t", [0]),
            lambda: client.add_column("public.t", pa.field("w", pa.int32())),
        ):
            with pytest.raises(PermissionDenied, match=r"[Rr]ead-only"):
                change()
        assert ids(client) == [1, 2]
    assert staged(lake) == []
    client.insert("public.t", rows(3))
    assert ids(client) == [1, 2, 3]


def test_no_server_starts_on_a_read_only_warehouse(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with mounted(warehouse, "-t", "tmpfs", "-o", "ro", "tmpfs"), pytest.raises(PermissionDenied, match="Read-only"):
        Lakehouse(LakehouseSettings(warehouse=str(warehouse)), spark=shared_spark())


# Files


def test_a_missing_data_file_is_told_and_other_tables_go_on(lake: Lakehouse, client: Client) -> None:
    client.create_table("public.other", SCHEMA)
    for path in folder_of(lake).rglob("data/*.parquet"):
        path.unlink()
    with pytest.raises(Conflict, match="gone"):
        ids(client)
    with pytest.raises(SparkportError):
        client.update("public.t", pa.table({"rowid": [0], "v": ["x"]}))
    client.insert("public.other", rows(5))
    assert ids(client, "public.other") == [5]


@pytest.mark.parametrize("change", [Change.INSERT, Change.UPDATE])
def test_a_corrupt_staged_file_fails_its_statement_alone(lake: Lakehouse, client: Client, change: Change) -> None:
    def spoil() -> None:
        for path in staged(lake):
            path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")

    statements = {
        Change.INSERT: lambda: client.insert("public.t", rows(3)),
        Change.UPDATE: lambda: client.update("public.t", pa.table({"rowid": [0], "v": ["x"]})),
    }
    on_fault("apply.before", spoil)
    try:
        with pytest.raises(InternalError, match=r"Spark failed|staged file"):
            statements[change]()
    finally:
        on_fault("apply.before", None)
    assert staged(lake) == []
    assert ids(client) == [1, 2]
    client.insert("public.t", rows(3))
    assert ids(client) == [1, 2, 3]


def test_corrupt_metadata_hides_its_table_and_no_other(lake: Lakehouse, client: Client, tmp_path: Path) -> None:
    client.create_table("public.other", SCHEMA)
    location = lake.engine.storage.pointers.location(TableName("public", "t"))
    assert location is not None
    whole = Path(location).read_bytes()
    Path(location).write_bytes(whole[:200])
    with lakehouse(tmp_path / "warehouse") as second, client_of(second) as other:
        assert names(other) == ["other"]
        with pytest.raises(InternalError, match="cannot be read"):
            ids(other)
        with pytest.raises(InternalError, match="cannot be read"):
            other.insert("public.t", rows(3))
        other.insert("public.other", rows(7))
        assert ids(other, "public.other") == [7]
        Path(location).write_bytes(whole)
        assert ids(other) == [1, 2]


# DuckDB


def test_an_internal_error_in_duckdb_ends_one_scan_and_not_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = pa.table(
        {"id": [1, 2], "many": [[1], []]}, pa.schema([("id", pa.int64()), ("many", pa.list_(pa.int32()))])
    )
    client.create_table("public.nested", nested.schema)  # what Arrow does not read itself
    client.insert("public.nested", nested)
    opened = DuckDB.cursor
    broken = iter([True])

    def cursor(self: DuckDB) -> object:
        if next(broken, False):
            return _Broken()
        return opened(self)

    monkeypatch.setattr(DuckDB, "cursor", cursor)
    with pytest.raises(InternalError, match="INTERNAL Error"):
        client.scan("public.nested").read_all()
    assert client.scan("public.nested").read_all().column("many").to_pylist() == [[1], []]
    client.insert("public.t", rows(3))
    assert ids(client) == [1, 2, 3]


class _Broken:
    """A connection to an instance that is ruined."""

    def __enter__(self) -> _Broken:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in ("close", "interrupt"):
            return lambda *_: None
        raise duckdb.InternalException("INTERNAL Error: of no importance")


# The catalog


class Gate:
    """A way to a port on this machine that can be shut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = True
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def shut(self) -> None:
        self._open = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reopen(self) -> None:
        self._open = True

    def close(self) -> None:
        self.shut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def gate(postgres: PostgresCluster) -> Iterator[Gate]:
    made = Gate(postgres.port)
    yield made
    made.close()


def test_an_unreachable_catalog_is_unavailable_until_it_is_back(
    tmp_path: Path, postgres: PostgresCluster, gate: Gate
) -> None:
    with postgres.database() as uri:
        through = uri.replace(f":{postgres.port}/", f":{gate.port}/")
        with lakehouse(tmp_path / "warehouse", catalog_uri=through) as opened, client_of(opened) as client:
            client.create_table("public.t", SCHEMA)
            gate.shut()
            for call in (
                lambda: client.tables(),
                lambda: client.create_table("public.u", SCHEMA),
                lambda: client.insert("public.t", rows(1)),
            ):
                with pytest.raises(SparkportError) as caught:
                    call()
                assert caught.value.code is Unavailable.code
            gate.reopen()
            assert names(client) == ["t"]
            client.create_table("public.u", SCHEMA)
            assert client.insert("public.t", rows(1)).count == 1
            assert staged(opened) == []


# Staging folders


def test_what_a_dead_server_staged_is_removed_and_what_a_living_one_staged_is_not(tmp_path: Path) -> None:
    living, dead, third = (Staging(str(tmp_path)) for _ in range(3))
    half = tmp_path / ("0" * 32)
    dead.note("/warehouse/t/metadata/1.metadata.json")
    die(dead)
    half.mkdir()
    (tmp_path / "not ours").mkdir()
    told: dict[str, list[Noted]] = {}
    third.clean(told.__setitem__)
    assert living.folder.exists()
    assert not dead.folder.exists()
    assert not half.exists()
    assert (tmp_path / "not ours").exists()
    assert told == {"0" * 32: [], dead.server: [Noted("/warehouse/t/metadata/1.metadata.json", False)]}
    living.close()
    third.close()
    assert {path.name for path in tmp_path.iterdir()} == {"not ours", "servers.lock"}


def test_other_servers_start_while_one_cleans_up_and_leave_it_to_that_one(tmp_path: Path) -> None:
    dead, cleaning = Staging(str(tmp_path)), Staging(str(tmp_path))
    dead.note("/warehouse/t/metadata/1.metadata.json")
    die(dead)
    told: list[str] = []

    def forget(server: str, written: list[Noted]) -> None:
        other = Staging(str(tmp_path))  # which waits for nothing
        other.clean(lambda name, noted: told.append(f"by another: {name}"))
        other.close()
        told.append(server)
        if len(told) == 1:
            raise Unavailable("not now")

    for _ in range(2):  # what failed is done the next time
        assert dead.folder.exists()
        cleaning.clean(forget)
    assert told == [dead.server, dead.server]
    assert not dead.folder.exists()
    cleaning.close()


def test_the_notes_of_metadata_files_stay_short(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path))
    for number in range(5_000):
        staging.note(f"/t/metadata/{number}.metadata.json")
    lines = (staging.folder / "metadata.jsonl").read_text().splitlines()
    staging.close()
    assert lines[-1] == '"/t/metadata/4999.metadata.json"'
    assert 512 <= len(lines) <= 4_096
