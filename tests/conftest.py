"""What holds for the whole test run: where time is saved, the order of the files, and the versions that it says first,
because most surprises come from those."""

from __future__ import annotations

import atexit
import gc
import os
import platform
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import hypothesis
import pytest
from tests.support.tiers import TIERS, WITHOUT_TIER, tier_of

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


_SLOWEST_FILES = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="only tests of this tier: 'fast' is make test, both are test-all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers = {item: tier_of(item) for item in items}
    config.stash[WITHOUT_TIER] = [item.nodeid for item, tier in tiers.items() if tier is None]
    wanted = config.getoption("--tier")
    if wanted is not None:
        others = [item for item in items if tiers[item] not in (wanted, None)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if tiers[item] in (wanted, None)]
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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Where the time went, file by file."""
    taken: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                taken[report.nodeid.partition("::")[0]] += report.duration
    if not taken:
        return
    terminalreporter.section(f"slowest {_SLOWEST_FILES} files, of {sum(taken.values()):.0f} s")
    for path, seconds in sorted(taken.items(), key=lambda entry: -entry[1])[:_SLOWEST_FILES]:
        terminalreporter.write_line(f"{seconds:7.1f} s  {path}")


def pytest_report_header() -> str:
    found = [f"Python {platform.python_version()}"]
    for name, package in _PACKAGES.items():
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:  # Spark and PyIceberg are optional
            continue
    return "sparkport: " + ", ".join(found)
