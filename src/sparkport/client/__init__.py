"""The Python client: catalogs, scans, row changes, transactions and functions of a server, as Arrow."""

from sparkport.client.catalog import CatalogVersion, FunctionInfo, FunctionKind, SchemaInfo, TableInfo
from sparkport.client.client import Client, connect
from sparkport.client.errors import OutcomeUnknown
from sparkport.client.follow import Follower, VersionChanges
from sparkport.client.journal import FlushResult
from sparkport.client.results import ScanResult
from sparkport.client.transaction import Transaction
from sparkport.client.writes import KeyedResult, WriteResult
from sparkport.filters.predicates import col, lit

__all__ = [
    "CatalogVersion",
    "Client",
    "FlushResult",
    "Follower",
    "FunctionInfo",
    "FunctionKind",
    "KeyedResult",
    "OutcomeUnknown",
    "ScanResult",
    "SchemaInfo",
    "TableInfo",
    "Transaction",
    "VersionChanges",
    "WriteResult",
    "col",
    "connect",
    "lit",
]
