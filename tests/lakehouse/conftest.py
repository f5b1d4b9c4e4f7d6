"""The lakehouse that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.lakehouse import Lake, lakehouse

from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers


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


@pytest.fixture
def database(uri: str) -> Iterator[Database]:
    with closing(open_database(uri)) as opened:
        yield opened


@pytest.fixture
def pointers(database: Database) -> SqlPointers:
    made = SqlPointers(database, "lake")
    made.create_schema("public", {})
    return made
