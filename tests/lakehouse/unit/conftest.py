"""What tests of reads share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.scan.limits import Room
from sparkport.lakehouse.scan.read import Reader


@pytest.fixture
def no_room(reader: Reader) -> None:
    """All room for reads that hold much while their readers do something else is taken."""
    reader.share.room = Room(large_bytes=0, small_shares=0)


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader(FileSystem(), threads=2)
    yield found
    found.close()
