"""A catalog of each engine, for attacks that concern both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.lakehouse import lakehouse
from tests.support.tiers import on_engines

from sparkport.catalog.ddl import MutableCatalog
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.memory import MemoryCatalog


@pytest.fixture(scope="session")
def attacked_lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield opened


@pytest.fixture(params=on_engines(["memory", "lakehouse"]))
def catalog(request: pytest.FixtureRequest) -> MutableCatalog:
    """Named ``lake``. The lakehouse is one for all tests, so that they need tables of their own."""
    if request.param == "memory":
        return MemoryCatalog("lake")
    opened: Lakehouse = request.getfixturevalue("attacked_lakehouse")
    return opened.catalog
