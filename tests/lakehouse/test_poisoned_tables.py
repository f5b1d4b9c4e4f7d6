"""A case of each kind of ``make test-faults ARGS="--kind poisoned"``: a table that cannot be published among others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.poisoned import ARGUMENTS, POISONS, Poisoning, poisonings, run_poisoned
from tests.faults.rig import Rig
from tests.support.spark import shared_spark

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    shared_spark().wait_ready(240)
    with Rig(tmp_path_factory.mktemp("poisoned"), spark=shared_spark().url, arguments=ARGUMENTS) as rig:
        yield rig


@pytest.mark.parametrize("poison", POISONS)
def test_healthy_tables_go_on_beside_one_that_cannot_be_published(rig: Rig, poison: str) -> None:
    commits, _ = run_poisoned(Poisoning(POISONS.index(poison), poison, chance=7, steps=10), rig)
    assert commits


@pytest.mark.tier("fast")
def test_the_whole_run_meets_every_kind_at_both_catalogs() -> None:
    met = {(case.poison, case.catalog) for case in poisonings(1)}
    assert met == {(poison, catalog) for poison in POISONS for catalog in ("sqlite", "postgresql")}
