"""The Python client: catalogs, scans and functions of a server, as Arrow."""

from sparkport.catalog.predicates import col, lit
from sparkport.client.catalog import CatalogVersion, FunctionInfo, FunctionKind, SchemaInfo, TableInfo
from sparkport.client.client import Client, connect
from sparkport.client.results import ScanResult

__all__ = [
    "CatalogVersion",
    "Client",
    "FunctionInfo",
    "FunctionKind",
    "ScanResult",
    "SchemaInfo",
    "TableInfo",
    "col",
    "connect",
    "lit",
]
