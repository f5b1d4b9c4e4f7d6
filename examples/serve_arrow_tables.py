"""Arrow tables as a database: the shortest way from data in Python to a table in DuckDB.

python examples/serve_arrow_tables.py
"""

from __future__ import annotations

import pyarrow as pa

from sparkport import CatalogBuilder, Server

users = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", "Edsger"], "country": ["GB", "US", "NL"]})
orders = pa.table({"id": [10, 11, 12], "user_id": [1, 1, 3], "amount": [9.5, 20.0, 3.25]})

catalog = (
    CatalogBuilder("shop")
    .schema("public", comment="What the shop knows")
    .table("users", users, comment="One row per customer")
    .table("orders", orders)
    .build()
)


def main() -> None:
    server = Server(catalog).start()
    print(f"ATTACH 'shop' (TYPE airport, LOCATION '{server.location}');", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()
