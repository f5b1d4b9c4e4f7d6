"""Services that tests talk to, as fixtures: started when first asked for, once per test run, and never left running.

A module that needs them says ``pytest_plugins = ["tests.support.services"]``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.postgres import PostgresCluster, postgres_cluster
from tests.support.rest_catalog import rest_catalog

__all__ = ["postgres", "postgres_uri", "rest_uri"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    with postgres_cluster() as cluster:
        yield cluster


@pytest.fixture
def postgres_uri(postgres: PostgresCluster) -> Iterator[str]:
    """A fresh database."""
    with postgres.database() as uri:
        yield uri


@pytest.fixture(scope="session")
def rest_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Iceberg REST catalog, shared by all tests: each keeps to schemas of its own."""
    with rest_catalog(tmp_path_factory.mktemp("rest")) as uri:
        yield uri
