"""A slice of the journal's lives that ``make test-faults`` goes through."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.journal_life import life
from tests.support.spark import shared_spark

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_journal_keeps_every_row_whatever_befalls_it(tmp_path: Path, seed: int) -> None:
    shared_spark().wait_ready(240)
    with life(shared_spark(), tmp_path, seed) as lived:
        lived.run(25)
    assert lived.counts["flush_beside_changes"]
