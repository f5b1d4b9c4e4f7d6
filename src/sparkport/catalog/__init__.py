"""The catalog's model, to build from or to implement: catalogs, schemas, tables and what they can do, functions."""

from sparkport.catalog.builder import CatalogBuilder, SchemaBuilder, StaticCatalog, StaticSchema
from sparkport.catalog.context import CallContext, Cancellation, transaction_id
from sparkport.catalog.functions import (
    ANY,
    Arguments,
    Function,
    InOutCall,
    Parameter,
    ScalarFunction,
    Stability,
    TableFunction,
    TableInOutFunction,
)
from sparkport.catalog.model import Catalog, CatalogVersion, Schema, find_by_name
from sparkport.catalog.row_ids import ROW_ID, data_schema, find_row_id_column, row_id_field
from sparkport.catalog.scan import AsOf, AsOfUnit, DuckDBCall, Scan, Scannable, ScanRequest, as_scan
from sparkport.catalog.static import ArrowTable, ScanFunction, ScanTable, scan_arrow
from sparkport.catalog.table import (
    ColumnStatistics,
    DeletableBatchTable,
    DeletableTable,
    DirectTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    StatisticsTable,
    Table,
    UpdatableBatchTable,
    UpdatableTable,
    VersionedTable,
)
from sparkport.catalog.transaction import TransactionManager, TransactionState
from sparkport.filters.expressions import Expression

__all__ = [
    "ANY",
    "Arguments",
    "ArrowTable",
    "AsOf",
    "AsOfUnit",
    "CallContext",
    "Cancellation",
    "Catalog",
    "CatalogBuilder",
    "CatalogVersion",
    "ColumnStatistics",
    "DMLOptions",
    "DMLResult",
    "DeletableBatchTable",
    "DeletableTable",
    "DirectTable",
    "DuckDBCall",
    "Expression",
    "Function",
    "InOutCall",
    "InsertableTable",
    "Parameter",
    "ROW_ID",
    "ScalarFunction",
    "Scan",
    "ScanFunction",
    "ScanRequest",
    "ScanTable",
    "Scannable",
    "Schema",
    "SchemaBuilder",
    "Stability",
    "StaticCatalog",
    "StaticSchema",
    "StatisticsTable",
    "Table",
    "TableFunction",
    "TableInOutFunction",
    "TransactionManager",
    "TransactionState",
    "UpdatableBatchTable",
    "UpdatableTable",
    "VersionedTable",
    "as_scan",
    "data_schema",
    "find_by_name",
    "find_row_id_column",
    "row_id_field",
    "scan_arrow",
    "transaction_id",
]
