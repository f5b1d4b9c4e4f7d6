"""A table of which one caller sees a part: rows of a region, one column masked, one hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from tests.attacks.callers import RULES, TOKENS, create

from sparkport.app import Server
from sparkport.auth import RuleAuthorizer
from sparkport.catalog.ddl import MutableCatalog
from sparkport.client import Client, connect
from sparkport.testing import serving

__all__ = ["MASK", "PEOPLE", "SEEN", "SECRETS", "Limited", "limited", "secrets_in"]

PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "region": ["EU", "US", "EU", None],
        "name": ["ann", "bob-hidden", "carl", "dora-hidden"],
        "ssn": ["123-45-6789", "987-65-4321", "555-44-3333", "111-22-1111"],
        "salary": pa.array([70_001, 80_002, 90_003, 60_004], pa.int64()),
    }
)
MASK = "'***-' || right(ssn, 4)"
SEEN = [
    {"id": 1, "region": "EU", "name": "ann", "ssn": "***-6789"},
    {"id": 3, "region": "EU", "name": "carl", "ssn": "***-3333"},
]
SECRETS = ("123-45", "987-65", "4321", "555-44", "111-22", "70001", "80002", "90003", "60004", "hidden", "salary")
"""What must not be in anything that the limited caller gets."""


def secrets_in(value: object) -> list[str]:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return [secret for secret in SECRETS if secret in text]


class Limited:
    """A server on which ``reader`` is limited, and ``admin`` is not. ``other`` may do nothing with the table."""

    def __init__(self, server: Server, table: str, admin: Client, reader: Client) -> None:
        self.server = server
        self.table = table
        self.admin = admin
        self.reader = reader

    def all_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.admin.scan(self.table).read_all().sort_by("id").to_pylist()
        return rows

    def ids(self) -> dict[int, int]:
        """The row ids of all rows, by their ids."""
        rows = self.admin.scan(self.table, columns=["id", "rowid"]).read_all().to_pylist()
        return {row["id"]: row["rowid"] for row in rows}


@contextmanager
def limited(
    catalog: MutableCatalog, *more: Mapping[str, object], people: pa.Table = PEOPLE, **rule: object
) -> Iterator[Limited]:
    """``rule`` has what is otherwise in the reader's rule, None for what is not in it; ``more`` are further ones."""
    table = create(catalog, people)
    usual: Mapping[str, object] = {
        "subjects": "reader",
        "operations": "*",
        "rows": "region = 'EU'",
        "columns": {"ssn": MASK, "salary": "hidden"},
        **rule,
    }
    entries = [{**entry, "resources": f"lake.{table}"} for entry in (usual, *more)]
    given = [{key: value for key, value in entry.items() if value is not None} for entry in entries]
    allowed = RuleAuthorizer.from_table({"rules": [RULES[0], *given]})
    with (
        serving(catalog, authenticator=TOKENS, authorizer=allowed) as server,
        connect(server.location, token="admin-token", catalog="lake") as admin,
        connect(server.location, token="reader-token", catalog="lake") as reader,
    ):
        yield Limited(server, table, admin, reader)
