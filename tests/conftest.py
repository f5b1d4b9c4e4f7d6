"""What every test run says first: the versions it ran with, because most surprises come from those."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = {
    "Arrow": "pyarrow",
    "DuckDB": "duckdb",
    "gRPC": "grpcio",
    "Spark": "pyspark",
    "PyIceberg": "pyiceberg",
}


def pytest_report_header() -> str:
    found = [f"Python {platform.python_version()}"]
    for name, package in _PACKAGES.items():
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:  # Spark and PyIceberg are optional
            continue
    return "sparkport: " + ", ".join(found)
