"""A round of each workload at two servers, beside kills, lost answers, maintenance and a stranger at the tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.consistency.two_servers import WORKLOADS, Town, run_round, town
from tests.consistency.workloads import Load
from tests.support.postgres import PostgresCluster
from tests.support.spark import shared_spark

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresCluster) -> Iterator[Town]:
    with postgres.database() as uri, town(tmp_path_factory.mktemp("town"), uri, spark=shared_spark()) as found:
        yield found


@pytest.mark.parametrize("workload", WORKLOADS)
def test_nothing_is_lost_doubled_or_back_again_whatever_befalls_two_servers(place: Town, workload: str) -> None:
    load = Load(clients=4, transactions=2, writers=0.8, auto_commit="single" in workload)
    found = run_round(place, workload, load)
    assert not found.anomalies, str(found)
    assert not found.missing, str(found)
    assert found.transactions > load.clients
