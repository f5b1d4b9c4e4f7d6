"""A lakehouse that cannot be opened leaves nothing open: no thread, no folder, no row in the database."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sparkport.errors import Unavailable
from sparkport.lakehouse import lakehouse as front_door
from sparkport.lakehouse.catalogs import open_catalog as opening
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.upkeep.recovery import Recovery

pytestmark = pytest.mark.tier("fast")

_WAIT_SECONDS = 10.0

STEPS: list[tuple[Any, str]] = [
    (FileSystem, "configure"),
    (SparkServer, "sessions"),
    (front_door, "Reader"),
    (front_door, "open_catalog"),
    (opening, "open_database"),
    (opening, "Ledger"),
    (opening, "SqlPointers"),
    (front_door, "LakeEngine"),
    (front_door, "LakehouseCatalog"),
    (front_door, "Maintenance"),
    (front_door, "DroppedFolders"),
    (front_door, "MaintenanceThread"),
    (Recovery, "start"),
]


def open_lakehouse(settings: LakehouseSettings) -> Lakehouse:
    return Lakehouse(settings, maintenance=MaintenanceSettings(dropped_seconds=1))


def rows(folder: Path) -> list[int]:
    """Of servers and of fences, which a server that is gone has none of."""
    with closing(sqlite3.connect(folder / "catalog.db")) as found:
        tables = ("sparkport_servers", "sparkport_fences")
        there = {name for (name,) in found.execute("SELECT name FROM sqlite_master")}
        return [found.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables if name in there]


@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[step for _, step in STEPS])
def test_a_step_that_fails_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: Any, step: str
) -> None:
    connections: list[Any] = []
    connect = sqlite3.connect

    def connected(*args: Any, **options: Any) -> Any:
        connections.append(connect(*args, **options))
        return connections[-1]

    def fails(*_: object, **__: object) -> NoReturn:
        raise Unavailable("not now")

    settings = LakehouseSettings(
        warehouse=str(tmp_path / "warehouse"),
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
        staging=str(tmp_path / "s"),
    )
    threads = set(threading.enumerate())
    monkeypatch.setattr(sqlite3, "connect", connected)
    with monkeypatch.context() as broken:
        broken.setattr(owner, step, fails)
        with pytest.raises(Unavailable, match="not now"):
            open_lakehouse(settings)
    left = set(threading.enumerate()) - threads
    for thread in left:
        thread.join(timeout=_WAIT_SECONDS)
    assert not [thread.name for thread in left if thread.is_alive()]
    assert [path for path in (tmp_path / "s").glob("*") if path.is_dir()] == []
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    if connections:
        assert sum(rows(tmp_path)) == 0
    opened = open_lakehouse(settings)  # nor is anything in the way of the next one
    opened.stop()
    opened.stop()
    assert sum(rows(tmp_path)) == 0
