"""The tables of a SQL catalog: those that Spark's JdbcCatalog and PyIceberg share with us, and our own beside them."""

from __future__ import annotations

from sparkport.errors import FailedPrecondition
from sparkport.lakehouse.catalogs.database import Work

__all__ = ["create_tables"]

_TABLES = (
    """CREATE TABLE IF NOT EXISTS iceberg_tables (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
        PRIMARY KEY (catalog_name, table_namespace, table_name))""",
    """CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255),
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))""",
    """CREATE TABLE IF NOT EXISTS sparkport_meta (
        catalog_name VARCHAR(255) NOT NULL PRIMARY KEY, schema_version INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS sparkport_fences (
        catalog_name VARCHAR(255) NOT NULL, server VARCHAR(255) NOT NULL, PRIMARY KEY (catalog_name, server))""",
)

SCHEMA_VERSION = 1


def create_tables(work: Work, catalog: str) -> None:
    """Those that are missing. FailedPrecondition where a newer sparkport has left notes that this one cannot read."""
    for table in _TABLES:
        work.change(table)
    if "iceberg_type" not in work.columns("iceberg_tables"):
        # A catalog that Spark made by its older schema; Spark itself upgrades it in the same way.
        work.change("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")
    known = work.query("SELECT schema_version FROM sparkport_meta WHERE catalog_name = ?", [catalog])
    if not known:
        work.change("INSERT INTO sparkport_meta VALUES (?, ?)", [catalog, SCHEMA_VERSION])
    elif known[0][0] > SCHEMA_VERSION:
        raise FailedPrecondition(
            f"catalog '{catalog}' was used by a newer sparkport, whose notes this one cannot read: "
            f"version {known[0][0]}, not {SCHEMA_VERSION}"
        )
