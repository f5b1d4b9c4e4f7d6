"""The lakehouse that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.lakehouse import Lake, lakehouse


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield Lake(opened)
