"""Every action of the server in one table: the registry, ListActions and the reference page are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ACTIONS", "ActionSpec", "actions_page"]


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """``body`` and ``result`` are for people, ``…`` at a body's start being catalog, schema, name, ignore_not_found;
    ``msgpack`` and ``json`` say which clients may send it."""

    name: str
    description: str
    body: str
    result: str
    msgpack: bool = True
    json: bool = False


ACTIONS: tuple[ActionSpec, ...] = (
    ActionSpec("add_column", "Add a column to a table", "…, column_schema, if_column_not_exists", "FlightInfo"),
    ActionSpec(
        "add_field", "Add a field to a struct", "…, column_schema, column_path, if_field_not_exists", "FlightInfo"
    ),
    ActionSpec(
        "catalog_version",
        "The version of a catalog's listing; asked at the start of each DuckDB transaction",
        "catalog_name",
        "catalog_version, is_fixed",
    ),
    ActionSpec("change_column_type", "Widen a column's type", "…, column_schema, expression", "FlightInfo"),
    ActionSpec(
        "column_statistics",
        "What is known about a column without reading it",
        "flight_descriptor, column_name, type",
        "Arrow stream of one row: has_not_null, has_null, distinct_count, min, max, …",
    ),
    ActionSpec(
        "commit_transaction",
        "Make a transaction's changes visible, in all tables at one instant; safe to repeat",
        "transaction_id, catalog_name?",
        "status, transaction_id, transaction_status",
        msgpack=False,
        json=True,
    ),
    ActionSpec("create_schema", "Create a schema", "catalog_name, schema, comment?, tags", "sha256, url, serialized"),
    ActionSpec(
        "create_table",
        "Create a table",
        "catalog_name, schema_name, table_name, arrow_schema, on_conflict, not_null_constraints, check_constraints, …",
        "FlightInfo",
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
    ActionSpec("drop_not_null", "Let a column be NULL", "…, column_name", "FlightInfo"),
    ActionSpec(
        "drop_schema",
        "Drop a schema and all that is in it",
        "type, catalog_name, schema_name, name, ignore_not_found",
        "nothing",
    ),
    ActionSpec("drop_table", "Drop a table", "type, catalog_name, schema_name, name, ignore_not_found", "nothing"),
    ActionSpec(
        "end_job",
        "Interrupt a job of Spark's: the statement that waits for it fails, and nothing of it is seen",
        "job_id, catalog_name?",
        "status, job_id",
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
    ActionSpec("remove_column", "Drop a column", "…, removed_column, if_column_exists, cascade", "FlightInfo"),
    ActionSpec("remove_field", "Drop a field of a struct", "…, column_path, if_column_exists, cascade", "FlightInfo"),
    ActionSpec("rename_column", "Rename a column", "…, old_name, new_name", "FlightInfo"),
    ActionSpec("rename_field", "Rename a field of a struct", "…, column_path, new_name", "FlightInfo"),
    ActionSpec(
        "rename_schema",
        "Rename a schema; one of the new name that is empty makes way",
        "catalog, schema, new_schema_name",
        "nothing",
    ),
    ActionSpec("rename_table", "Rename a table", "…, new_table_name", "FlightInfo"),
    ActionSpec(
        "rollback_transaction",
        "Undo a transaction; safe to repeat",
        "transaction_id, catalog_name?",
        "status, transaction_id, transaction_status",
        msgpack=False,
        json=True,
    ),
    ActionSpec("set_comment", "Set the comment of a table or a column", "…, comment, column_name?", "FlightInfo"),
    ActionSpec("set_default", "Set a column's default", "…, column_name, expression", "FlightInfo"),
    ActionSpec("set_not_null", "Forbid NULL in a column that has none", "…, column_name", "FlightInfo"),
    ActionSpec(
        "table_function_flight_info",
        "The schema of one call of a table function",
        "descriptor, parameters, table_input_schema, at_unit, at_value",
        "FlightInfo",
    ),
)


_HEADER = """\
| action | | msgpack | JSON | body | answer |
|---|---|---|---|---|---|
"""

_PAGE = f"""\
# Actions

Everything that `DoAction` answers to, as `ListActions` lists it. DuckDB sends msgpack maps; other clients may send JSON
where it is marked. `…` at a body's start stands for `catalog, schema, name, ignore_not_found`; a `?` marks what may be
left out. Every action is safe to repeat. An action that is not here is UNIMPLEMENTED.

{_HEADER}"""

_LAKEHOUSE = f"""
## Actions of the lakehouse

A server of the lakehouse has these too. [maintenance.md](maintenance.md) and [journal.md](journal.md) say what they are
for, [security.md](security.md) which rights they need.

{_HEADER}"""


def actions_page(lakehouse: Iterable[ActionSpec]) -> str:
    """The reference page, docs/actions.md, with the actions that only a lakehouse has."""
    return _PAGE + "".join(map(_row, ACTIONS)) + _LAKEHOUSE + "".join(map(_row, lakehouse))


def _row(spec: ActionSpec) -> str:
    marks = {True: "yes", False: ""}
    cells = (f"`{spec.name}`", spec.description, marks[spec.msgpack], marks[spec.json], spec.body, spec.result)
    return f"| {' | '.join(cells)} |\n"
