"""Attach a Spark lakehouse to DuckDB. The names that most programs need, each loaded when it is first used."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from sparkport.errors import SparkportError

if TYPE_CHECKING:
    from sparkport.app import Server
    from sparkport.catalog import CallContext, Catalog, CatalogBuilder, Parameter, ScanRequest, Schema, Table
    from sparkport.config import Settings

__all__ = [
    "CallContext",
    "Catalog",
    "CatalogBuilder",
    "Parameter",
    "ScanRequest",
    "Schema",
    "Server",
    "Settings",
    "SparkportError",
    "Table",
    "__version__",
]

try:
    __version__ = metadata.version("sparkport")
except metadata.PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

# Arrow and gRPC take their time to load; `import sparkport.errors` or `sparkport --version` need neither.
_HOMES = {"Server": "sparkport.app", "Settings": "sparkport.config"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sparkport' has no attribute '{name}'")
    return getattr(import_module(_HOMES.get(name, "sparkport.catalog")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
