"""Statements of several clients on one table of a REST catalog, over a network that does all it can: each lands once.

The plan of the network is drawn by lot, by seed. What was kept by the network comes when it pleases, at the latest at
the end. ``SPARKPORT_CONSISTENCY_SCALE`` makes more seeds of it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.lakehouse.rest_between import between
from tests.lakehouse.test_rest_pointers import Lake

from sparkport.errors import AlreadyExists, Unavailable
from sparkport.lakehouse.catalogs.pointers import Moved, OutcomeUnknown
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

pytest_plugins = ["tests.support.services"]

_SEEDS = 3 * int(os.environ.get("SPARKPORT_CONSISTENCY_SCALE", "1"))
_STATEMENTS = 8
_WORDS = ["pass", "pass", "lost", "late", "twice", "clash", "proxy"]


class Client:
    """Runs a statement until it is told how it ended, under one id, by a server of its own."""

    def __init__(self, key: str, pointers: RestPointers, lake: Lake, table: TableName) -> None:
        self.key, self.pointers, self.lake, self.table = key, pointers, lake, table
        self.staged: set[int] = set()
        self.unknown: list[OutcomeUnknown] = []

    def step(self) -> bool:
        """One try; whether the statement is done."""
        snapshot = self.lake.stage(self.table)
        self.staged.add(snapshot)
        try:
            self.pointers.commit([self.lake.publication(self.table, snapshot)], {self.key: 1})
        except AlreadyExists:
            return True
        except OutcomeUnknown as exc:
            self.unknown.append(exc)
            return False
        except (Moved, Unavailable):
            return False
        return True


@pytest.mark.timeout(200)
@pytest.mark.parametrize("seed", range(_SEEDS))
def test_each_statement_lands_once_whatever_the_network_does(rest_uri: str, tmp_path: Path, seed: int) -> None:
    pauses = (0.0,) * 2  # so few that some outcomes stay unknown, too
    lot = random.Random(seed)
    lake = Lake(rest_uri, tmp_path)
    table = lake.table("t")
    with between(rest_uri) as (net, uri):
        clients = [
            Client(f"s{number}", RestPointers(RestClient(uri, {}), pauses=pauses), lake, table)
            for number in range(_STATEMENTS)
        ]
        waiting = list(clients)
        for _ in range(400):
            if not waiting:
                break
            client = lot.choice(waiting)
            away = lot.random() < 0.3  # nobody can be asked either, what became of it
            net.plan = ["late", "cut"] if away else [lot.choice(_WORDS) for _ in range(lot.randrange(6))]
            if client.step():
                waiting.remove(client)
            net.is_cut = False
            if lot.random() < 0.5:
                net.deliver()
        assert not waiting
        net.plan = []
        net.deliver()
        settled = {client.key: [unknown.settle() for unknown in client.unknown] for client in clients}
        net.deliver()
    published = [entry["snapshot-id"] for entry in lake.load(table)[1]["snapshot-log"]]
    landed = {client.key: sum(snapshot in client.staged for snapshot in published) for client in clients}
    assert landed == {client.key: 1 for client in clients}
    assert all(sum(outcomes) <= 1 for outcomes in settled.values())
    assert [lake.pointers.statement(client.key, table) for client in clients] == [1] * _STATEMENTS
