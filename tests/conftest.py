"""What holds for the whole test run: where time is saved, the order of the files, and the versions that it says first,
because most surprises come from those."""

from __future__ import annotations

import atexit
import gc
import os
import platform
from importlib.metadata import PackageNotFoundError, version

import hypothesis
import pytest

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("untimed")

_PACKAGES = {
    "Arrow": "pyarrow",
    "DuckDB": "duckdb",
    "gRPC": "grpcio",
    "Spark": "pyspark",
    "PyIceberg": "pyiceberg",
}

_LAST = ("integration", "sessions", "robustness", "fuzz", "lakehouse/unit", "unit", "test_architecture.py")
"""Of two processes one would end long before the other if the files that take longest came last."""

_WITH_SPARK = tuple(f"tests/{name}" for name in ("attacks", "conformance", "consistency", "contract", "lakehouse/test"))

# A JVM that lives for minutes spends more on its best code than that code ever gives back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Servers of tests have no HTTP port unless a test asks for one: two of them would want the same.
os.environ.setdefault("SPARKPORT_HTTP_PORT", "0")

if "PYTEST_XDIST_WORKER" in os.environ:
    # The last thing of all: DuckDB's module would write a page about what is still referenced in such a process.
    atexit.register(os._exit, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests are in memory to the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
    if any(item.nodeid.startswith(_WITH_SPARK) for item in session.items) and not session.config.option.collectonly:
        from tests.support.spark import download_jars

        download_jars()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def _place(item: pytest.Item) -> int:
    path = item.nodeid.removeprefix("tests/")
    return next((place for place, name in enumerate(_LAST, 1) if path.startswith(name)), 0)


def pytest_report_header() -> str:
    found = [f"Python {platform.python_version()}"]
    for name, package in _PACKAGES.items():
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:  # Spark and PyIceberg are optional
            continue
    return "sparkport: " + ", ".join(found)
