"""New rows that we put into tables ourselves, while others change the same tables by other means."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sparkport.lakehouse.files import FileSystem

pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(300)]


def test_a_file_is_as_new_as_the_place_that_it_is_given(tmp_path: Path) -> None:
    """One that was staged long ago must not be taken for one that nobody wants."""
    staged = tmp_path / "staged"
    staged.write_bytes(b"x")
    os.utime(staged, (1_000_000, 1_000_000))
    began = time.time()
    assert FileSystem().link(staged, str(tmp_path / "table" / "data" / "x"))
    assert (tmp_path / "table" / "data" / "x").stat().st_mtime > began - 10
