"""Filters in the JSON that DuckDB sends with a scan; as much of it as tests need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["Node", "compare", "conjunction", "filter_json", "function_call", "is_not_null"]

_OPERATORS = {
    "=": "COMPARE_EQUAL",
    "<>": "COMPARE_NOTEQUAL",
    "<": "COMPARE_LESSTHAN",
    ">": "COMPARE_GREATERTHAN",
    "<=": "COMPARE_LESSTHANOREQUALTO",
    ">=": "COMPARE_GREATERTHANOREQUALTO",
}
_NOWHERE = 2**64 - 1

Node = dict[str, Any]


def _type(kind: str) -> Node:
    return {"id": kind, "type_info": None}


def _column(name: str, kind: str) -> Node:
    # The binding is filled in by ``filter_json``, which knows the order of the columns.
    return {
        "expression_class": "BOUND_COLUMN_REF",
        "type": "BOUND_COLUMN_REF",
        "alias": name,
        "query_location": _NOWHERE,
        "return_type": _type(kind),
        "binding": {"table_index": 0, "column_index": name},
        "depth": 0,
    }


def _constant(value: object, kind: str) -> Node:
    return {
        "expression_class": "BOUND_CONSTANT",
        "type": "VALUE_CONSTANT",
        "alias": "",
        "query_location": _NOWHERE,
        "value": {"type": _type(kind), "is_null": value is None, "value": value},
    }


def compare(column: str, operator: str, value: object, *, kind: str = "BIGINT") -> Node:
    return {
        "expression_class": "BOUND_COMPARISON",
        "type": _OPERATORS[operator],
        "alias": "",
        "query_location": _NOWHERE,
        "left": _column(column, kind),
        "right": _constant(value, kind),
    }


def is_not_null(column: str, *, kind: str = "BIGINT") -> Node:
    return {
        "expression_class": "BOUND_OPERATOR",
        "type": "OPERATOR_IS_NOT_NULL",
        "alias": "",
        "query_location": _NOWHERE,
        "return_type": _type("BOOLEAN"),
        "children": [_column(column, kind)],
    }


def conjunction(*children: Node, any_of: bool = False) -> Node:
    return {
        "expression_class": "BOUND_CONJUNCTION",
        "type": "CONJUNCTION_OR" if any_of else "CONJUNCTION_AND",
        "alias": "",
        "query_location": _NOWHERE,
        "children": list(children),
    }


def function_call(name: str, column: str, *values: object, kind: str = "VARCHAR") -> Node:
    """A function that gives a BOOLEAN; the server may or may not know it."""
    return {
        "expression_class": "BOUND_FUNCTION",
        "type": "BOUND_FUNCTION",
        "alias": "",
        "query_location": _NOWHERE,
        "return_type": _type("BOOLEAN"),
        "children": [_column(column, kind), *(_constant(value, kind) for value in values)],
        "name": name,
        "arguments": [_type(kind)] * (1 + len(values)),
        "original_arguments": [],
        "catalog_name": "",
        "schema_name": "",
        "has_serialize": False,
        "is_operator": False,
    }


def _bound(node: Any, columns: Sequence[str]) -> Any:
    if isinstance(node, dict):
        if node.get("type") == "BOUND_COLUMN_REF":
            index = columns.index(node["binding"]["column_index"])
            return {**node, "binding": {"table_index": 0, "column_index": index}}
        return {key: _bound(value, columns) for key, value in node.items()}
    return [_bound(item, columns) for item in node] if isinstance(node, list) else node


def filter_json(columns: Sequence[str], *filters: Node) -> str:
    """``columns`` are the scan's columns in the order in which they are asked for."""
    bound = [_bound(node, columns) for node in filters]
    return json.dumps({"filters": bound, "column_binding_names_by_index": list(columns)})
