"""What tests of reads share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.scan.read import Reader


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader(FileSystem(), threads=2)
    yield found
    found.close()
