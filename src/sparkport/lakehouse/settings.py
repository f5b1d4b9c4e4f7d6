"""Where a lakehouse is and how Spark reaches it: one section of settings yields both sides' properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.file_modes import FileMode
from sparkport.lakehouse.files import local_path, protocol_of
from sparkport.lakehouse.jars import cache_home
from sparkport.lakehouse.names import is_shadow_catalog, shadow_catalog

__all__ = ["ALL_PACKAGES", "ICEBERG_RUNTIME", "LakehouseSettings", "QUERY_GUARD", "STUCK_WORK"]

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_ICEBERG_AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
_SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"
_POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.7"
ALL_PACKAGES = (ICEBERG_RUNTIME, _ICEBERG_AWS, _SQLITE_DRIVER, _POSTGRES_DRIVER)
"""What Spark has to load beyond itself, for any catalog and warehouse."""

_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
QUERY_GUARD = "org.apache.spark.sql.sparkport.QueryGuard"
"""The class that looks at the plans of queries; it is in spark/query_guard.scala."""
STUCK_WORK = "org.apache.spark.sql.sparkport.StuckWork"
"""The class that ends a Spark with work that was cancelled and goes on; it is in spark/stuck_work.scala."""

_S3 = frozenset({"s3", "s3a"})
_S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
_S3FS = {
    "s3.endpoint": "endpoint_url",
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.session-token": "token",
}
"""Iceberg's names of what s3fs has other names for."""


_DATABASES = {"sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakehouseSettings:
    """``spark`` is a master that a Connect server is started for, or ``sc://…``, one that runs already.

    A Spark that has given no answer for ``silence_seconds`` is started again, or if that was not done here, waited for
    by nobody; 0 never does that. ``statement_seconds`` is how long a statement may take on it, 0 for ever;
    maintenance may take longer. Unless ``spark_programs`` is set, a Spark that is started on this machine cannot
    run programs, if the kernel can see to that. ``ledger_uri`` is the database for a REST catalog's transactions
    and statements, which other catalogs keep in their own. ``properties`` whose names begin with ``spark.`` are
    Spark's; all others are the Iceberg catalog's, such as ``s3.endpoint``. Secrets may be among them, so they are
    not shown. ``direct_reads``: DuckDB clients reach the warehouse by the same addresses, and read files
    themselves. ``backups`` is where clients may have the server put backups.
    """

    warehouse: str = "warehouse"
    catalog_uri: str | None = field(default=None, repr=False)  # it may hold a password
    ledger_uri: str | None = field(default=None, repr=False)  # so may this
    catalog_name: str = "lake"
    spark: str = field(default="local[*]", repr=False)  # the address of a Connect server may hold a token
    jars: Path | None = None
    driver_memory: str = "2g"
    staging: str | None = None
    sessions: int = 4
    silence_seconds: float = 120.0
    statement_seconds: float = 3_600.0
    spark_programs: bool = False
    file_mode: FileMode = FileMode.PRIVATE
    direct_reads: bool = False
    backups: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        properties = {
            key if key.startswith("spark.") else f"{self._catalog}.{key}": value
            for key, value in self.properties.items()
        }
        object.__setattr__(self, "properties", properties)
        if is_shadow_catalog(self.catalog_name):
            raise InvalidArgument(f"no catalog can be called '{self.catalog_name}': shadows of tables are kept so")
        remote = local_path(self.warehouse) is None
        if remote and self.catalog_uri is None:
            raise InvalidArgument(
                f"the warehouse {self.warehouse} is no folder, and SQLite needs one: set catalog_uri, for instance to "
                "sqlite:////path/to/catalog.db or postgresql://host/database"
            )
        if self.ledger_uri is not None and urlsplit(self.ledger_uri).scheme not in _DATABASES:
            raise InvalidArgument("ledger uri must begin with sqlite: or postgresql:")
        if self.staging is not None and local_path(self.staging) is None:
            raise InvalidArgument(f"staging must be a folder that Spark can reach by the same path, not {self.staging}")
        if remote and self.staging is None and not self.spark_is_local:
            raise InvalidArgument(
                f"with the warehouse {self.warehouse} and Spark elsewhere, staging must be set: to a folder that is "
                "there, by the same path, for this server and for all of Spark's machines"
            )

    @property
    def spark_is_local(self) -> bool:
        """Whether all of Spark runs in a process of this machine, which we start."""
        return self.spark.partition("[")[0] == "local"

    @property
    def warehouse_path(self) -> str:
        """Absolute, so that Spark, which may have another working folder, means the same place."""
        local = local_path(self.warehouse)
        return self.warehouse.rstrip("/") if local is None else str(local.resolve())

    @property
    def staging_path(self) -> str:
        """Always local: rows are written there by us and read by Spark."""
        if self.staging is not None:
            return str(Path(local_path(self.staging) or self.staging).resolve())
        if local_path(self.warehouse) is None:
            return str(cache_home() / "staging")
        return f"{self.warehouse_path}/.staging"

    @property
    def database_uri(self) -> str:
        return self.catalog_uri or f"sqlite:///{self.warehouse_path}/catalog.db"

    @property
    def catalog_type(self) -> str:
        scheme = urlsplit(self.database_uri).scheme
        types = {**_DATABASES, "http": "rest", "https": "rest"}
        if scheme not in types:
            raise InvalidArgument(f"catalog uri must begin with sqlite:, postgresql:, http: or https:, not '{scheme}:'")
        return types[scheme]

    def packages(self) -> tuple[str, ...]:
        """What Spark has to load beyond itself."""
        # Whatever the catalog is in, what a query in Spark's SQL sees of it is in a file of SQLite's.
        drivers = (_SQLITE_DRIVER, _POSTGRES_DRIVER) if self.catalog_type == "postgresql" else (_SQLITE_DRIVER,)
        return (ICEBERG_RUNTIME, *drivers, *([_ICEBERG_AWS] if self._on_s3 else []))

    def storage_options(self, *others: str) -> dict[str, dict[str, Any]]:
        """The options of fsspec, by protocol. Both sides look for all others in the environment, as AWS has it.

        ``others`` are places beside the warehouse that files are to be in.
        """
        if not self._on_s3 and not any(protocol_of(place) in _S3 for place in others):
            return {}
        given = self._own_properties()
        # Files are written once and never listed to be found, so a cache of listings could only be out of date; and
        # DuckDB says exactly which bytes it needs.
        options: dict[str, Any] = {"use_listings_cache": False, "default_cache_type": "none"}
        options |= {name: given[key] for key, name in _S3FS.items() if key in given}
        if "client.region" in given:
            options["client_kwargs"] = {"region_name": given["client.region"]}
        if given.get("s3.path-style-access", "").lower() == "true":
            options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
        return dict.fromkeys(sorted(_S3), options)

    @property
    def uses_store(self) -> bool:
        """Whether files are in an object store, which wants keys."""
        return self._on_s3 or protocol_of(self.warehouse) != "file"

    @property
    def _catalog(self) -> str:
        return f"spark.sql.catalog.{self.catalog_name}"

    @property
    def _on_s3(self) -> bool:
        given = self._own_properties()
        return protocol_of(self.warehouse) in _S3 or any(key.startswith("s3.") for key in given)

    def _own_properties(self) -> dict[str, str]:
        """Those of the user's that are the catalog's."""
        head = f"{self._catalog}."
        return {key.removeprefix(head): value for key, value in self.properties.items() if key.startswith(head)}

    def spark_conf(self) -> dict[str, str]:
        """What a Connect server of our own is started with."""
        return {
            "spark.sql.extensions": ",".join((_ICEBERG_EXTENSIONS, QUERY_GUARD)),
            "spark.ui.enabled": "false",
            # Executors elsewhere end themselves if a task that was cancelled goes on; one in this process cannot.
            **(
                {}
                if self.spark_is_local
                else {"spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "20s"}
            ),
            # Hadoop sets modes by a mask of its own, whatever the system's is.
            "spark.hadoop.fs.permissions.umask-mode": f"{self.file_mode.umask:03o}",
            **self.session_conf(),
            **self.properties,
        }

    def session_conf(self) -> dict[str, str]:
        """What makes any Spark with Iceberg in it see this catalog."""
        catalog = self._catalog
        conf = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "8",
            # Changed rows are the small side of a MERGE: up to a million of them are not worth shuffling the table.
            "spark.sql.autoBroadcastJoinThreshold": "64m",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            # A cached table would hide what others, and our own publishing, have committed since.
            f"{catalog}.cache-enabled": "false",
            f"{catalog}.unique-table-location": "true",
        }
        conf = {key: self.properties.get(key, value) for key, value in conf.items()}
        catalog_properties = {**self._catalog_properties(), **self._own_properties()}
        return {**conf, **{f"{catalog}.{key}": value for key, value in catalog_properties.items()}}

    @property
    def written_catalog(self) -> str:
        """What Spark knows the catalog by that it writes to."""
        return self.catalog_name if self.catalog_type == "rest" else shadow_catalog(self.catalog_name)

    def writing_conf(self) -> dict[str, str]:
        """The same for the sessions that write, which also know the shadows of a SQL catalog's tables.

        No other session may: not one that runs queries of clients, and so not the whole of a Spark either.
        """
        conf, catalog = self.session_conf(), f"spark.sql.catalog.{self.written_catalog}"
        if catalog == self._catalog:
            return conf
        shadows = {
            catalog + key.removeprefix(self._catalog): value
            for key, value in conf.items()
            if key == self._catalog or key.startswith(f"{self._catalog}.")
        }
        return {**conf, **shadows, f"{catalog}.cache-enabled": "false"}

    def _catalog_properties(self) -> dict[str, str]:
        if self.catalog_type == "rest":  # its warehouse is a name that the server knows: a property
            return {"type": "rest", "uri": self.database_uri}
        jdbc = {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": self.warehouse_path}
        if self._on_s3:  # a REST catalog chooses by itself
            jdbc["io-impl"] = _S3_FILE_IO
        if self.catalog_type == "sqlite":
            return {**jdbc, "uri": f"jdbc:sqlite:{self.database_uri.removeprefix('sqlite:///')}"}
        parts = urlsplit(self.database_uri)
        port = f":{parts.port}" if parts.port else ""
        properties = {**jdbc, "uri": f"jdbc:postgresql://{parts.hostname or 'localhost'}{port}{parts.path}"}
        if parts.username:
            properties["jdbc.user"] = unquote(parts.username)
        if parts.password:
            properties["jdbc.password"] = unquote(parts.password)
        return properties
