"""The Grafana dashboard: each of its queries, asked of a real Prometheus that scrapes a real server at work."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lakehouse import lakehouse
from tests.support.prometheus import prometheus
from tests.support.spark import shared_spark

from sparkport.app import HttpSettings, ObserveSettings, Server
from sparkport.auth import Secret, StaticTokens
from sparkport.client import Client, connect
from sparkport.errors import Conflict, Unauthenticated
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8")
)
ROWS = pa.table({"n": [1, 2, 3]})


def queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """Reads and changes that go on while Prometheus is asked."""
    ended = threading.Event()

    def work() -> None:
        with connect(server.location, token="t0ken") as client:
            while not ended.wait(0.05):
                client.scan("public.busy").read_all()
                client.insert("public.busy", ROWS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def misbehave(opened: Lakehouse, server: Server, client: Client) -> None:
    """All that is counted and does not happen by itself."""
    ids = client.scan("public.plain", row_id=True).read_all()["rowid"].to_pylist()
    loser = client.transaction()
    loser.__enter__()
    loser.update("public.plain", ROWS, row_ids=ids[:3])
    client.update("public.plain", ROWS, row_ids=ids[:3])
    with pytest.raises(Conflict):
        loser.commit()
    with client.transaction() as winner:
        winner.insert("public.plain", ROWS)
    client.delete("public.plain", ids[:1])
    with pytest.raises(Unauthenticated), connect(server.location, token="wrong") as nobody:
        nobody.scan("public.plain").read_all()
    opened.maintenance.run(TableName("public", "plain"), ["compact"])


def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    shared_spark().wait_ready(300)
    tokens = StaticTokens({Secret("t0ken"): "alice"})
    settings = HttpSettings(port=0)
    observe = ObserveSettings(slow_seconds=0.001)
    with (
        lakehouse(tmp_path) as opened,
        serving(opened.catalog, authenticator=tokens, http=settings, observe=observe) as server,
        connect(server.location, token="t0ken") as client,
    ):
        client.create_table("public.busy", ROWS.schema)
        client.create_table("public.plain", ROWS.schema)
        client.insert("public.plain", ROWS)
        assert server.http_location is not None
        with prometheus(server.http_location, "t0ken") as metrics, traffic(server):
            misbehave(opened, server, client)
            opened.figures.look()
            ticking, until = threading.Event(), time.monotonic() + 60
            left = queries()
            while left and time.monotonic() < until:
                ticking.wait(0.5)
                left = [(title, text) for title, text in left if not answered(metrics.query(filled_in(text)))]
    assert left == []
    assert len(queries()) > 40


def filled_in(expression: str) -> str:
    """As Grafana does it."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def answered(samples: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in samples)


def test_every_panel_has_a_place_of_its_own_and_a_query() -> None:
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in DASHBOARD["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["type"] == "row" or panel["targets"] for panel in DASHBOARD["panels"])
    assert not re.search(r"https?://", json.dumps(DASHBOARD))
