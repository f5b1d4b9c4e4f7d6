"""Runs every conformance test against every engine, and turns an engine's gaps into strict expected failures."""

from __future__ import annotations

import pytest
from tests.conformance.engines import ENGINES, Ability, EngineUnderTest
from tests.support.tiers import FAST, THOROUGH

from sparkport.errors import SparkportError


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): what an engine must be able to do for this test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    needed: set[Ability] = set()
    for mark in metafunc.definition.iter_markers("needs"):
        needed.update(mark.args)
    metafunc.parametrize("engine", [_parameter(engine, needed) for engine in ENGINES])


def _parameter(engine: EngineUnderTest, needed: set[Ability]) -> object:
    gaps = [engine.gaps[ability] for ability in Ability if ability in needed and ability in engine.gaps]
    raises = (AssertionError, SparkportError)
    marks = [THOROUGH if engine.name in ("lakehouse", "journal") else FAST]
    marks += [pytest.mark.xfail(strict=True, raises=raises, reason=str(gaps[0]))] if gaps else []
    return pytest.param(engine, id=engine.name, marks=marks)
