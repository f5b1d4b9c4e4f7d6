"""The lakehouse that the settings mean: for the server, and for commands that work on it without one."""

from __future__ import annotations

from sparkport.app import FileMode, LakehouseSettings
from sparkport.config import Settings

__all__ = ["lakehouse_settings"]


def lakehouse_settings(settings: Settings) -> LakehouseSettings:
    return LakehouseSettings(
        warehouse=settings.warehouse,
        catalog_uri=settings.catalog_uri,
        ledger_uri=settings.ledger_uri,
        catalog_name=settings.catalog,
        spark=settings.spark,
        jars=settings.jars,
        driver_memory=settings.driver_memory,
        silence_seconds=settings.silence_seconds,
        statement_seconds=settings.statement_seconds,
        spark_programs=settings.spark_programs,
        staging=settings.staging,
        file_mode=FileMode(settings.file_mode),
        direct_reads=settings.direct_reads,
        backups=settings.backups,
        properties={key: value.reveal() for key, value in (settings.properties or {}).items()},
    )
