"""``sparkport transactions``: the deferred transactions of a server that have not ended."""

from __future__ import annotations

from typing import TextIO

from sparkport.cli.remote import Remote
from sparkport.client import connect

__all__ = ["list_transactions"]


def list_transactions(remote: Remote, out: TextIO) -> int:
    with connect(remote.location, token=remote.token, tls_root=remote.ca, timeout=remote.timeout) as client:
        rows = client.scan("tx.transactions").read_all().to_pylist()
    for row in sorted(rows, key=lambda row: row["begun"]):
        tables = ", ".join(row["changed_tables"]) or "nothing"
        print(
            f"{row['id']}  {row['owner']}  {row['isolation']}  begun {row['begun']:%Y-%m-%d %H:%M:%S}Z  "
            f"{row['changed_rows']:,} rows changed in {tables}",
            file=out,
        )
    if not rows:
        print("there are no open transactions", file=out)
    return 0
