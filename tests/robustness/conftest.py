"""One open server for all tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.robustness.rig import Raw, catalog

from sparkport.app import Server
from sparkport.testing import serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(catalog()) as running:
        yield running


@pytest.fixture(scope="module")
def raw(server: Server) -> Iterator[Raw]:
    with Raw(server.port) as connection:
        yield connection
