"""Every test is in a tier, so that none is left out of what guards a change."""

from __future__ import annotations

import pytest
from tests.support.tiers import WITHOUT_TIER

pytestmark = pytest.mark.tier("fast")


def test_no_test_is_in_no_tier(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[WITHOUT_TIER] == []
