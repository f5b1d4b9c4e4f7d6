"""Changing schemas and tables. Each call takes effect at once, for all who look from then on.

The server takes a repetition by the same session as done, so a call is sent again when the connection was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparkport.catalog.defaults import DEFAULT_MARK
from sparkport.catalog.names import split_name
from sparkport.client.catalog import TableInfo, table_info
from sparkport.client.errors import translated
from sparkport.client.names import NameLike, parse_name
from sparkport.client.session import Session
from sparkport.errors import InternalError, InvalidArgument
from sparkport.filters.sql import quote_identifier
from sparkport.protocol.flight import FlightInfo
from sparkport.protocol.maps import pack
from sparkport.protocol.targets import Kind

__all__ = ["Definitions", "PathLike"]

PathLike = str | Sequence[str]
"""The way to a field inside structs, beginning with the column: ``"address.city"`` or ``["address", "city"]``."""


class Definitions(Session):
    """A session that can change what there is. Not part of transactions: the server changes tables at once."""

    # Schemas

    def create_schema(
        self, name: NameLike, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> None:
        """AlreadyExists where there is one. The name may say its catalog: ``lake.shop``."""
        catalog, schema = self._schema(name)
        self._run(
            "create_schema",
            {"catalog_name": catalog, "schema": schema, "comment": comment, "tags": dict(tags or {})},
        )

    def drop_schema(self, name: NameLike, *, if_exists: bool = False) -> None:
        """With all that is in it."""
        catalog, schema = self._schema(name)
        self._run(
            "drop_schema",
            {
                "type": "schema",
                "catalog_name": catalog,
                "schema_name": "",
                "name": schema,
                "ignore_not_found": if_exists,
            },
        )

    def rename_schema(self, name: NameLike, new_name: str) -> None:
        """With all that is in it. A schema of the new name that is empty makes way."""
        catalog, schema = self._schema(name)
        self._run("rename_schema", {"catalog": catalog, "schema": schema, "new_schema_name": new_name})

    # Tables

    def create_table(
        self,
        name: NameLike,
        schema: pa.Schema,
        *,
        on_conflict: str = "error",
        checks: Sequence[str] = (),
        primary_key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TableInfo:
        """A table with these columns. A field that is not nullable is NOT NULL; its metadata may hold a ``default``.

        ``on_conflict`` is ``error``, ``ignore`` (the table that is there is the answer) or ``replace``. ``checks`` are
        SQL conditions that every row keeps. No two rows share the values of ``primary_key``, which are never NULL, nor
        those of any list of columns in ``unique``.
        """
        if isinstance(primary_key, str) or isinstance(unique, str) or any(isinstance(key, str) for key in unique):
            raise InvalidArgument("a key must be a list of columns, not one text")
        if isinstance(checks, str):
            raise InvalidArgument("checks must be a list of conditions, not one text")
        target = self._target(name, Kind.TABLE)
        body = {
            "catalog_name": target.catalog,
            "schema_name": target.schema,
            "table_name": target.name,
            "arrow_schema": schema.serialize().to_pybytes(),
            "on_conflict": on_conflict,
            "not_null_constraints": [],
            "unique_constraints": [],
            "check_constraints": list(checks),
            "primary_key_columns": [],
            "unique_columns": [],
            "multi_key_primary_keys": list(primary_key),
            "extra_constraints": [f"UNIQUE({', '.join(map(quote_identifier, key))})" for key in unique],
            "comment": comment,
            "tags": dict(tags or {}),
        }
        return self._changed("create_table", body)

    def drop_table(self, name: NameLike, *, if_exists: bool = False) -> None:
        target = self._target(name, Kind.TABLE)
        self._run(
            "drop_table",
            {
                "type": "table",
                "catalog_name": target.catalog,
                "schema_name": target.schema,
                "name": target.name,
                "ignore_not_found": if_exists,
            },
        )

    def rename_table(self, name: NameLike, new_name: str) -> TableInfo:
        """``new_name`` is the last part only: a table stays in its schema."""
        return self._alter("rename_table", name, new_table_name=new_name)

    # Columns

    def add_column(
        self, name: NameLike, column: pa.Field, *, default: str | None = None, if_not_exists: bool = False
    ) -> TableInfo:
        """Rows that are there get the default, an SQL expression, or NULL."""
        if default is not None:
            column = column.with_metadata({**(column.metadata or {}), DEFAULT_MARK: default.encode()})
        return self._alter("add_column", name, column_schema=_encoded(column), if_column_not_exists=if_not_exists)

    def drop_column(self, name: NameLike, column: str, *, if_exists: bool = False, cascade: bool = False) -> TableInfo:
        """With ``cascade`` checks that need the column go with it; without, they keep it from being dropped."""
        return self._alter("remove_column", name, removed_column=column, if_column_exists=if_exists, cascade=cascade)

    def rename_column(self, name: NameLike, column: str, new_name: str) -> TableInfo:
        return self._alter("rename_column", name, old_name=column, new_name=new_name)

    def change_type(self, name: NameLike, column: str, type: pa.DataType) -> TableInfo:  # noqa: A002 - the SQL word
        """To a wider type; what else is asked for is Unsupported."""
        return self._alter("change_column_type", name, column_schema=_encoded(pa.field(column, type)), expression="")

    def set_default(self, name: NameLike, column: str, expression: str | None) -> TableInfo:
        """For rows to come. None takes the default away."""
        return self._alter("set_default", name, column_name=column, expression=expression)

    def set_not_null(self, name: NameLike, column: str) -> TableInfo:
        """ConstraintViolation where a row has NULL there."""
        return self._alter("set_not_null", name, column_name=column)

    def drop_not_null(self, name: NameLike, column: str) -> TableInfo:
        return self._alter("drop_not_null", name, column_name=column)

    # Fields of structs

    def add_field(self, name: NameLike, path: PathLike, field: pa.Field, *, if_not_exists: bool = False) -> TableInfo:
        """``path`` leads to the struct that gets the field."""
        return self._alter(
            "add_field",
            name,
            column_path=_path(path),
            column_schema=_encoded(field),
            if_field_not_exists=if_not_exists,
        )

    def rename_field(self, name: NameLike, path: PathLike, new_name: str) -> TableInfo:
        """``path`` leads to the field."""
        return self._alter("rename_field", name, column_path=_path(path), new_name=new_name)

    def drop_field(
        self, name: NameLike, path: PathLike, *, if_exists: bool = False, cascade: bool = False
    ) -> TableInfo:
        """``path`` leads to the field."""
        return self._alter("remove_field", name, column_path=_path(path), if_column_exists=if_exists, cascade=cascade)

    def set_comment(self, name: NameLike, comment: str | None, *, column: str | None = None) -> TableInfo:
        """Of the table, or of one of its columns. None takes it away."""
        return self._alter("set_comment", name, comment=comment, column_name=column)

    def _alter(self, action: str, name: NameLike, **more: object) -> TableInfo:
        target = self._target(name, Kind.TABLE)
        place = {
            "catalog": target.catalog,
            "schema": target.schema,
            "name": target.name,
            "ignore_not_found": False,
        }
        return self._changed(action, {**place, **more})

    def _changed(self, action: str, body: Mapping[str, object]) -> TableInfo:
        results = self._run(action, body)
        if len(results) != 1:
            raise InternalError(f"the server sent {len(results)} results of action '{action}', expected one")
        with translated(self._connection.location, what="description of a table"):
            return table_info(FlightInfo.decode(results[0]))

    def _run(self, action: str, body: Mapping[str, object]) -> list[bytes]:
        return self._connection.action(action, pack(dict(body)), repeatable=True)

    def _schema(self, name: NameLike) -> tuple[str, str]:
        """A schema's name has its catalog where a table's has its schema."""
        parsed = parse_name(name)
        if parsed.catalog:
            raise InvalidArgument(f"name {name!r} must have one or two parts: catalog, schema")
        return parsed.schema or self._connection.catalog, parsed.name


def _encoded(column: pa.Field) -> bytes:
    data: bytes = pa.schema([column]).serialize().to_pybytes()
    return data


def _path(path: PathLike) -> list[str]:
    return split_name(path) if isinstance(path, str) else list(path)
