"""A short run of what ``make test-fuzz`` does for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.__main__ import Run, fuzz

pytestmark = pytest.mark.tier("fast")


def test_mutated_calls_are_a_clients_mistake_and_leave_a_server_that_answers() -> None:
    run = fuzz(Run(seed=7), most=1_500)

    assert not run.defects
    assert run.codes["OK"] > 50
    assert run.codes["INVALID_ARGUMENT"] > 50


def test_a_run_goes_on_where_it_was_and_makes_the_same_calls(tmp_path: Path) -> None:
    state = tmp_path / "run.json"
    fuzz(Run(seed=8), most=100, state=state)
    again = fuzz(Run.load(8, state), most=100, state=state)

    assert again.done == 200
    assert again.codes.total() <= 200
