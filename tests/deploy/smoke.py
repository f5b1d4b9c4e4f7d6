"""What anybody does first with a new site: a table, rows, changes, a transaction, and a look at the metrics."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.deploy.compose_site import Site

from sparkport.client import connect
from sparkport.errors import Code, SparkportError

__all__ = ["smoke"]

ITEMS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


def smoke(site: Site) -> None:
    with connect(site.location, token=site.token, timeout=120) as client:
        client.create_table("public.items", ITEMS.schema)
        assert client.insert("public.items", ITEMS).count == 3
        found = client.scan("public.items", columns=["id"], row_id=True).read_all().to_pylist()
        ids = {row["id"]: row["rowid"] for row in found}
        assert client.update("public.items", pa.table({"name": ["B"]}), row_ids=[ids[2]]).count == 1
        assert client.delete("public.items", [ids[3]]).count == 1
        with client.transaction() as transaction:
            transaction.insert("public.items", pa.table({"id": pa.array([4], pa.int64()), "name": ["d"]}))
        rows = client.scan("public.items", columns=["id", "name"]).read_all().to_pylist()
        assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "B"), (4, "d")]
        client.drop_table("public.items")
    with pytest.raises(SparkportError, match="token") as refused, connect(site.location, timeout=30) as stranger:
        stranger.tables()
    assert refused.value.code is Code.UNAUTHENTICATED
    assert site.get("/healthz")[0] == 200
    status, metrics = site.get("/metrics", site.metrics_token)
    assert status == 200
    assert "sparkport_" in metrics
