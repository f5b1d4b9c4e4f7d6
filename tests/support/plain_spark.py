"""Somebody who changes the tables of a lakehouse past its server: a Spark session without any of our settings."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException

from sparkport.lakehouse.lakehouse import Lakehouse

__all__ = ["LostRace", "PlainSpark"]

_LOST = ("ValidationException", "CommitFailedException")


class LostRace(Exception):
    """Somebody else has committed meanwhile, and Spark has changed nothing."""


class PlainSpark:
    """``{t}`` in a statement is the table. The session is its own: it takes none from the server's."""

    def __init__(self, opened: Lakehouse) -> None:
        self._catalog = opened.settings.catalog_name
        self._sessions = opened.spark.sessions(opened.settings.session_conf())

    def run(self, statement: str, table: str) -> None:
        self.query(statement, table)

    def call(self, procedure: str, table: str, *arguments: str) -> None:
        """One of Iceberg's own procedures."""
        given = ", ".join([f"table => 'public.{table}'", *arguments])
        self.query(f"CALL `{self._catalog}`.system.{procedure}({given})", table)

    def query(self, statement: str, table: str) -> list[dict[str, Any]]:
        try:
            return [row.asDict() for row in self._collect(statement, table)]
        except PySparkException as exc:
            if any(mark in str(exc) for mark in _LOST):
                raise LostRace(str(exc).splitlines()[0]) from exc
            raise

    def rows(self, table: str, columns: str = "*") -> list[dict[str, Any]]:
        return [row.asDict() for row in self._collect(f"SELECT {columns} FROM {{t}}", table)]

    def close(self) -> None:
        self._sessions.close()

    def _collect(self, statement: str, table: str) -> list[Any]:
        name = f"`{self._catalog}`.`public`.`{table}`"
        with self._sessions.session() as session:
            rows: list[Any] = session.sql(statement.format(t=name)).collect()
        return rows
