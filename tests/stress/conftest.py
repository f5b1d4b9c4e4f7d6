"""Registers the mark of the stress tests, so that a quick run can leave them out: ``pytest -m "not stress"``."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stress: many clients at once; SPARKPORT_STRESS_SECONDS says for how long")
