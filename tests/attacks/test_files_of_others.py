"""Other users of the machine read no row: files and folders are the server's user's own, or also the group's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.faults.rig import Rig

from sparkport.lakehouse.file_modes import FileMode
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("thorough")

OTHERS = 0o007
GROUP = 0o070


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of all that is below a folder, and of itself. That jars may be executed, as Spark wants it, is left out."""
    found = {str(path): path.lstat().st_mode for path in (folder, *folder.rglob("*"))}
    return {name: stat.S_IMODE(mode) & (0o7777 if stat.S_ISDIR(mode) else 0o666) for name, mode in found.items()}


def test_a_new_warehouse_is_closed_whatever_the_umask_is(tmp_path: Path) -> None:
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path / "warehouse")))
    try:
        found = modes(tmp_path / "warehouse")
        assert found[str(tmp_path / "warehouse")] == 0o700
        assert found[str(tmp_path / "warehouse" / ".staging")] == 0o700
        database = {name: mode for name, mode in found.items() if "catalog.db" in name}
        assert database
        assert set(database.values()) == {0o600}
    finally:
        opened.stop()


def test_a_database_and_a_staging_folder_elsewhere_are_closed_too(tmp_path: Path) -> None:
    settings = LakehouseSettings(
        warehouse=str(tmp_path / "warehouse"),
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
        staging=str(tmp_path / "staging"),
    )
    opened = Lakehouse(settings)
    try:
        assert stat.S_IMODE((tmp_path / "catalog.db").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "staging").stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("catalog.db*")} == {0o600}
    finally:
        opened.stop()


def test_a_warehouse_for_a_group_is_open_to_it_and_to_nobody_else(tmp_path: Path) -> None:
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path / "warehouse"), file_mode=FileMode.GROUP))
    try:
        assert stat.S_IMODE((tmp_path / "warehouse").stat().st_mode) == 0o2770
        assert stat.S_IMODE((tmp_path / "warehouse" / ".staging").stat().st_mode) == 0o2770
    finally:
        opened.stop()


def test_a_warehouse_that_is_there_stays_as_it_is_and_an_open_one_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    Lakehouse(LakehouseSettings(warehouse=str(tmp_path))).stop()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert "open to other users (mode 755)" in caplog.text
    caplog.clear()
    tmp_path.chmod(0o750)
    Lakehouse(LakehouseSettings(warehouse=str(tmp_path), file_mode=FileMode.GROUP)).stop()
    assert "open to" not in caplog.text


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("flag", "closed"), [("private", GROUP | OTHERS), ("group", OTHERS)])
def test_no_file_of_a_server_or_of_its_spark_is_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, closed: int
) -> None:
    """With the files that Spark has written, and what it keeps elsewhere while it runs."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(scratch))
    monkeypatch.setenv("SPARKPORT_FILE_MODE", flag)
    with Rig(tmp_path / "server") as rig:
        rig.client.create_table("public.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
        rows = pa.table({"id": range(1000), "v": ["x"] * 1000})
        rig.client.insert("public.t", rows)
        rig.client.update("public.t", rows.slice(0, 2), row_ids=[1, 2])
        found = {**modes(rig.warehouse), **modes(scratch)}
        del found[str(scratch)]
    assert any(name.endswith(".parquet") for name in found)
    assert any(name.endswith(".puffin") for name in found)
    assert any("blockmgr" in name for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & closed} == {}
    if flag == "group":
        shared = {name: oct(mode) for name, mode in found.items() if mode & 0o060 != 0o060 and "scratch" not in name}
        assert shared == {}
