"""The catalog that one query sees: pointers to the tables that its caller may read, and to no others.

What is not in it does not exist for Spark, whatever words a query finds for it: metadata tables, views, and names of
other catalogs all lead here. It is a file of SQLite's that belongs to one session of Spark's, and is filled anew for
each query of that session.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.words import FUNCTIONS, OPERATORS
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["PrivateCatalog"]

_TABLES = """
    CREATE TABLE iceberg_tables (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
        PRIMARY KEY (catalog_name, table_namespace, table_name));
    CREATE TABLE iceberg_namespace_properties (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255),
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""
_ICEBERG = "org.apache.iceberg.spark.SparkCatalog"
_ANY_STORE = "org.apache.iceberg.io.ResolvingFileIO"


class PrivateCatalog:
    def __init__(self, folder: Path, settings: LakehouseSettings, *, default_schema: str) -> None:
        self._folder = folder
        self._path = folder / f"query-{uuid.uuid4().hex}.db"
        self._settings = settings
        self._default_schema = default_schema
        with closing(sqlite3.connect(self._path)) as database:
            database.executescript(_TABLES)

    def fill(self, tables: Mapping[TableName, str], views: Mapping[TableName, str]) -> None:
        """Where the metadata is of all that the next query may read."""
        rows = [(*name, location, "TABLE") for name, location in tables.items()]
        rows += [(*name, location, "VIEW") for name, location in views.items()]
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("DELETE FROM iceberg_tables")
            database.executemany(
                "INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, NULL, ?)",
                [(self._settings.catalog_name, *row) for row in rows],
            )

    def session_conf(self) -> dict[str, str]:
        """What a session needs to see this catalog in the place of the real one, and no files."""
        settings = self._settings
        name = f"spark.sql.catalog.{settings.catalog_name}"
        conf = {key: value for key, value in settings.session_conf().items() if "jdbc.password" not in key}
        own = {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{self._path}",
            "warehouse": settings.warehouse_path,
            "jdbc.schema-version": "V1",
            "clients": "1",
            "cache-enabled": "false",
        }
        if settings.catalog_type == "rest":  # which would have chosen by itself
            own["io-impl"] = _ANY_STORE
        return {
            **conf,
            **{f"{name}.{key}": value for key, value in own.items()},
            name: _ICEBERG,
            f"{name}.default-namespace": self._default_schema,
            # Spark's own catalog may be a Hive metastore. Nothing in this one is of that name.
            "spark.sql.catalog.spark_catalog": _ICEBERG,
            **{f"spark.sql.catalog.spark_catalog.{key}": value for key, value in own.items()},
            "spark.sql.defaultCatalog": settings.catalog_name,
            "spark.sql.runSQLOnFiles": "false",
            # Settings, the environment and Java's properties would take the places of ${…} in a text.
            "spark.sql.variable.substitute": "false",
            "spark.sql.ansi.doubleQuotedIdentifiers": "false",
            # With these spark/query_guard.scala looks at whatever the session is asked.
            "spark.sparkport.guard.catalogs": f"{settings.catalog_name},spark_catalog",
            "spark.sparkport.guard.folder": str(self._folder),
            "spark.sparkport.guard.functions": ",".join(sorted(FUNCTIONS | OPERATORS)),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
            "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        }
