"""The lakehouse that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.lakehouse.single_changes import CHANGES, SingleChange
from tests.support.lakehouse import Lake, Start, lakehouse

from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield Lake(opened)


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A SQL catalog's database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    found: str = request.getfixturevalue("postgres_uri")
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> LakehouseSettings:
    """Those of a lakehouse on a SQL catalog, of each kind."""
    uri = request.getfixturevalue("postgres_uri") if request.param == "postgresql" else None
    return LakehouseSettings(warehouse=str(tmp_path / "warehouse"), catalog_uri=uri)


@pytest.fixture
def start() -> Iterator[Start]:
    """Lakehouses that are all stopped at the end, the dead ones too."""
    with ExitStack() as opened:

        def one(settings: LakehouseSettings) -> Lakehouse:
            lake = Lakehouse(settings)
            opened.callback(lake.stop)
            return lake

        yield one


@pytest.fixture(params=list(CHANGES))
def change(request: pytest.FixtureRequest) -> SingleChange:
    return CHANGES[request.param]


@pytest.fixture
def database(uri: str) -> Iterator[Database]:
    with closing(open_database(uri)) as opened:
        yield opened


@pytest.fixture
def pointers(database: Database) -> SqlPointers:
    made = SqlPointers(database, "lake")
    made.create_schema("public", {})
    return made
