"""Every action of the server in one table: the registry, ListActions and the reference page are made from it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACTIONS", "ActionSpec"]


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """``body`` and ``result`` are for people; ``msgpack`` and ``json`` say which clients may send it."""

    name: str
    description: str
    body: str
    result: str
    msgpack: bool = True
    json: bool = False


ACTIONS: tuple[ActionSpec, ...] = (
    ActionSpec(
        "catalog_version",
        "The version of a catalog's listing; asked at the start of each DuckDB transaction",
        "catalog_name",
        "catalog_version, is_fixed",
    ),
    ActionSpec(
        "commit_transaction",
        "Make a transaction's changes visible, in all tables at one instant; safe to repeat",
        "transaction_id, catalog_name?",
        "status, transaction_id, transaction_status",
        msgpack=False,
        json=True,
    ),
    ActionSpec(
        "column_statistics",
        "What is known about a column without reading it",
        "flight_descriptor, column_name, type",
        "Arrow stream of one row: has_not_null, has_null, distinct_count, min, max, …",
    ),
    ActionSpec(
        "create_transaction",
        "Begin a transaction; an empty identifier where the catalog keeps none",
        "catalog_name; in JSON also auto_commit?, isolation?",
        "identifier; in JSON status, transaction_id",
        json=True,
    ),
    ActionSpec(
        "delete",
        "Delete rows by their ids",
        "schema_name, table_name, row_ids, returning?, returning_columns?, catalog_name?",
        "status, affected_rows, returning_data? (base64 of an Arrow stream)",
        msgpack=False,
        json=True,
    ),
    ActionSpec(
        "endpoints",
        "Plan a scan: tickets for DoGet, several for parallel readers",
        "descriptor, parameters {json_filters, column_ids, table_function_parameters, table_function_input_schema, "
        "at_unit, at_value}",
        "array of FlightEndpoint",
    ),
    ActionSpec(
        "flight_info",
        "A table's schema, also as of a version or a time",
        "descriptor, at_unit, at_value",
        "FlightInfo",
    ),
    ActionSpec(
        "get_transaction_status",
        "active, committed or aborted",
        "transaction_id, catalog_name?",
        "status, transaction_id, transaction_status",
        msgpack=False,
        json=True,
    ),
    ActionSpec(
        "list_schemas",
        "The whole catalog, compressed, for DuckDB to cache",
        "catalog_name",
        "[length, zstd of {contents, schemas, version_info}]",
    ),
    ActionSpec(
        "rollback_transaction",
        "Undo a transaction; safe to repeat",
        "transaction_id, catalog_name?",
        "status, transaction_id, transaction_status",
        msgpack=False,
        json=True,
    ),
    ActionSpec(
        "table_function_flight_info",
        "The schema of one call of a table function",
        "descriptor, parameters, table_input_schema, at_unit, at_value",
        "FlightInfo",
    ),
)
