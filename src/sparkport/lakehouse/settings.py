"""Where a lakehouse is and how Spark reaches it: one section of settings yields both sides' properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkport.errors import InvalidArgument

__all__ = ["ICEBERG_RUNTIME", "LakehouseSettings"]

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
_SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"
_POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.7"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakehouseSettings:
    """``spark`` is a master that a Connect server is started for, or ``sc://…``, one that runs already."""

    warehouse: str = "warehouse"
    catalog_uri: str | None = None
    catalog_name: str = "lake"
    spark: str = "local[*]"
    jars: Path | None = None
    driver_memory: str = "2g"
    staging: str | None = None
    sessions: int = 4
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def warehouse_path(self) -> str:
        """Absolute, so that Spark, which may have another working folder, means the same place."""
        return self.warehouse if "://" in self.warehouse else str(Path(self.warehouse).resolve())

    @property
    def staging_path(self) -> str:
        return self.staging or f"{self.warehouse_path}/.staging"

    @property
    def database_uri(self) -> str:
        return self.catalog_uri or f"sqlite:///{self.warehouse_path}/catalog.db"

    @property
    def kind(self) -> str:
        scheme = urlsplit(self.database_uri).scheme
        kinds = {
            "sqlite": "sqlite",
            "postgresql": "postgresql",
            "postgres": "postgresql",
            "http": "rest",
            "https": "rest",
        }
        if scheme not in kinds:
            raise InvalidArgument(f"catalog uri must begin with sqlite:, postgresql:, http: or https:, not '{scheme}:'")
        return kinds[scheme]

    def packages(self) -> tuple[str, ...]:
        """What Spark has to load beyond itself."""
        drivers = {"sqlite": (_SQLITE_DRIVER,), "postgresql": (_POSTGRES_DRIVER,), "rest": ()}
        return (ICEBERG_RUNTIME, *drivers[self.kind])

    def spark_conf(self) -> dict[str, str]:
        """What a Connect server of our own is started with."""
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.ui.enabled": "false",
            **self.session_conf(),
            **self.properties,
        }

    def session_conf(self) -> dict[str, str]:
        """What makes any Spark with Iceberg in it see this catalog."""
        catalog = f"spark.sql.catalog.{self.catalog_name}"
        conf = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "8",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            # A cached table would hide what others, and our own publishing, have committed since.
            f"{catalog}.cache-enabled": "false",
            f"{catalog}.unique-table-location": "true",
        }
        conf.update({f"{catalog}.{key}": value for key, value in self._catalog_properties().items()})
        own = f"{catalog}."
        return {**conf, **{key: value for key, value in self.properties.items() if key.startswith(own)}}

    def _catalog_properties(self) -> dict[str, str]:
        if self.kind == "rest":  # its warehouse is a name that the server knows, and so a property of the user's
            return {"type": "rest", "uri": self.database_uri}
        jdbc = {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": self.warehouse_path}
        if self.kind == "sqlite":
            return {**jdbc, "uri": f"jdbc:sqlite:{self.database_uri.removeprefix('sqlite:///')}"}
        parts = urlsplit(self.database_uri)
        port = f":{parts.port}" if parts.port else ""
        found = {**jdbc, "uri": f"jdbc:postgresql://{parts.hostname or 'localhost'}{port}{parts.path}"}
        if parts.username:
            found["jdbc.user"] = unquote(parts.username)
        if parts.password:
            found["jdbc.password"] = unquote(parts.password)
        return found
