"""Tables to try things on: customers, their orders, and the items of these, made up by Spark and always the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import OnConflict, TableDefinition
from sparkport.errors import InternalError
from sparkport.lakehouse.spark.server import Work, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.tables.catalog import LakehouseCatalog, LakehouseSchema

__all__ = ["DEMO_SCHEMA", "ITEMS", "fill_demo", "statements_to_try"]

DEMO_SCHEMA = "demo"
ITEMS = 1_000_000

_ITEMS_PER_ORDER = 4
_ORDERS_PER_CUSTOMER = 5
_READY_SECONDS = 300.0

_MONEY = pa.decimal128(12, 2)


@dataclass(frozen=True, slots=True)
class _Demo:
    """A table and the query that fills it; ``{items}`` and so on stand for how many there are of each."""

    name: str
    comment: str
    columns: pa.Schema
    query: str


def _chosen(salt: int, *texts: str) -> str:
    """One of a few texts, by a row's id: any number of runs makes the same table."""
    listed = ", ".join(f"'{text}'" for text in texts)
    return f"element_at(array({listed}), CAST(pmod(xxhash64(id, {salt}), {len(texts)}) + 1 AS INT))"


_CUSTOMERS = _Demo(
    "customers",
    "Who orders",
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("city", pa.string()), ("since", pa.date32())]),
    f"""SELECT id,
        concat({_chosen(1, "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jan")}, ' ',
               {_chosen(2, "Berg", "Costa", "Dahl", "Evans", "Fischer", "Garcia", "Haas", "Ito", "Jensen", "Kim")}),
        {_chosen(3, "Berlin", "Lisbon", "Lyon", "Oslo", "Porto", "Riga", "Turin", "Vienna")},
        date_add(DATE '2018-01-01', CAST(pmod(xxhash64(id, 4), 2000) AS INT))
        FROM range(1, {{customers}} + 1)""",
)

_ITEMS = _Demo(
    "items",
    "What was ordered",
    pa.schema(
        [
            ("order_id", pa.int64()),
            ("line", pa.int32()),
            ("product", pa.string()),
            ("quantity", pa.int32()),
            ("price", _MONEY),
        ]
    ),
    f"""SELECT CAST((id - 1) / {_ITEMS_PER_ORDER} + 1 AS BIGINT),
        CAST(pmod(id - 1, {_ITEMS_PER_ORDER}) + 1 AS INT),
        {_chosen(5, "chair", "desk", "lamp", "shelf", "sofa", "stool", "table")},
        CAST(pmod(xxhash64(id, 6), 5) + 1 AS INT),
        CAST((pmod(xxhash64(id, 7), 49900) + 100) / 100 AS DECIMAL(12, 2))
        FROM range(1, {{items}} + 1)""",
)

_ORDERS = _Demo(
    "orders",
    "One per purchase",
    pa.schema(
        [
            ("id", pa.int64()),
            ("customer_id", pa.int64()),
            ("ordered", pa.timestamp("us")),
            ("status", pa.string()),
            ("total", _MONEY),
        ]
    ),
    f"""SELECT id,
        CAST(pmod(xxhash64(id, 8), {{customers}}) + 1 AS BIGINT),
        CAST(timestamp_seconds(1704067200 + pmod(xxhash64(id, 9), 63072000)) AS TIMESTAMP_NTZ),
        {_chosen(10, "new", "paid", "paid", "shipped", "shipped", "shipped", "returned")},
        total
        FROM range(1, {{orders}} + 1) JOIN (
            SELECT order_id, CAST(sum(quantity * price) AS DECIMAL(12, 2)) AS total
            FROM {{catalog}}.{DEMO_SCHEMA}.items GROUP BY order_id
        ) ON order_id = id""",
)


def fill_demo(catalog: LakehouseCatalog, *, items: int = ITEMS, replace: bool = False) -> Iterator[str]:
    """Make the tables; lines that say how far it is. Tables that are there stay, unless they are to be replaced."""
    ctx = CallContext()
    schema = catalog.schema(ctx, DEMO_SCHEMA) or catalog.create_schema(ctx, DEMO_SCHEMA, comment="Tables to try")
    if not isinstance(schema, LakehouseSchema):
        raise InternalError(f"schema '{DEMO_SCHEMA}' is not of the lakehouse")
    orders = -(-items // _ITEMS_PER_ORDER)
    sizes = {"items": items, "orders": orders, "customers": -(-orders // _ORDERS_PER_CUSTOMER)}
    # In this order: what orders cost is the sum of their items.
    for demo in (_CUSTOMERS, _ITEMS, _ORDERS):
        existing = schema.table(ctx, demo.name)
        rows = None if existing is None else existing.row_count(ctx)
        if rows and not replace:
            yield f"{DEMO_SCHEMA}.{demo.name} is there already, with {rows:,} rows"
            continue
        yield f"{DEMO_SCHEMA}.{demo.name}: {sizes[demo.name]:,} rows ..."
        definition = TableDefinition(name=demo.name, columns=demo.columns, comment=demo.comment)
        schema.create_table(ctx, definition, OnConflict.REPLACE)
        target = quoted(catalog.name, DEMO_SCHEMA, demo.name)
        query = demo.query.format(catalog=quoted(catalog.name), **sizes)
        work = Work("demo", ((DEMO_SCHEMA, demo.name),))
        with (
            catalog.engine.storage.spark.session(timeout=_READY_SECONDS, work=work) as session,
            translated(f"filling '{demo.name}'"),
        ):
            session.sql(f"INSERT INTO {target} {query}").collect()


def statements_to_try(catalog: str) -> tuple[str, ...]:
    at = f"{catalog}.{DEMO_SCHEMA}"
    return (
        f"SELECT city, count(*), sum(total) FROM {at}.orders JOIN {at}.customers c ON customer_id = c.id "
        "GROUP BY city ORDER BY 3 DESC;",
        f"SELECT product, sum(quantity) AS sold FROM {at}.items GROUP BY product ORDER BY sold DESC;",
        f"INSERT INTO {at}.customers VALUES (0, 'You', 'Here', current_date) RETURNING *;",
        f"UPDATE {at}.orders SET status = 'shipped' WHERE id = 42 RETURNING id, status;",
        f"DELETE FROM {at}.items WHERE order_id = 7;",
        f"SELECT count(*) FROM {at}.items AT (VERSION => 1);",
    )
