"""Filters as DuckDB's client sends them, made by a DuckDB of the test's own from its plan of a query."""

from __future__ import annotations

import json
import re
from typing import Any

import duckdb

__all__ = ["planned_filters"]


def planned_filters(
    client: duckdb.DuckDBPyConnection, where: str, *, optimize: bool, first_form: bool = False
) -> str | None:
    """The filters of a query in the form in which the client sends them, None when its plan has none left."""
    query = f"SELECT rn FROM t WHERE {where}"
    row = client.execute("SELECT json_serialize_plan(?, optimize := ?)", [query, optimize]).fetchone()
    text = re.sub(r'"value":NAN\b', '"value":NaN', row[0] if row else "")
    if not text:
        return None
    document = json.loads(text)
    assert not document["error"], document
    filters, names = _find_filters(document["plans"][0])
    if filters is None:
        return None
    filters = _as_column_refs(filters)
    if first_form:
        filters = _in_first_form(filters)
    return json.dumps({"filters": filters, "column_binding_names_by_index": names})


def _find_filters(plan: dict[str, Any]) -> tuple[list[Any] | None, list[str]]:
    if plan["type"] == "LOGICAL_FILTER" and plan["children"][0]["type"] == "LOGICAL_GET":
        scan = plan["children"][0]
        return plan["expressions"], [scan["names"][column["index"]] for column in scan["column_indexes"]]
    for child in plan.get("children", []):
        found = _find_filters(child)
        if found[0] is not None:
            return found
    return None, []


def _as_column_refs(node: Any) -> Any:
    if isinstance(node, list):
        return [_as_column_refs(part) for part in node]
    if not isinstance(node, dict):
        return node
    if node.get("expression_class") == "BOUND_REF":
        binding = {"table_index": 0, "column_index": node["index"]}
        return {
            **node,
            "expression_class": "BOUND_COLUMN_REF",
            "type": "BOUND_COLUMN_REF",
            "binding": binding,
            "depth": 0,
        }
    return {key: _as_column_refs(part) for key, part in node.items()}


def _in_first_form(node: Any) -> Any:
    """As DuckDB 1.x writes it: comparisons and casts of their own classes, functions with a plain name."""
    if isinstance(node, list):
        return [_in_first_form(part) for part in node]
    if not isinstance(node, dict):
        return node
    node = {key: _in_first_form(part) for key, part in node.items()}
    if node.get("expression_class") != "BOUND_FUNCTION":
        return node
    path, parts = node.pop("qname")["path"], node["children"]
    if node["type"].startswith("COMPARE_"):
        return {**node, "expression_class": "BOUND_COMPARISON", "left": parts[0], "right": parts[1]}
    if node["type"] == "OPERATOR_CAST":
        return {**node, "expression_class": "BOUND_CAST", "child": parts[0], **node["function_data"]}
    return {**node, "name": path[-1], "catalog_name": "", "schema_name": ""}
