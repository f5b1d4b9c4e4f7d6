"""Settings of the journal that make no sense are refused where they are made, by the names that users know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkport.errors import FailedPrecondition, InvalidArgument
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")


def test_tables_are_not_journalled_unless_somebody_says_so() -> None:
    assert not JournalSettings().new_tables


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (lambda: JournalSettings(rows=0), "journal_rows must be above 0"),
        (lambda: JournalSettings(bytes=-1), "journal_bytes must be above 0"),
        (lambda: JournalSettings(seconds=0.0), "journal_seconds must be above 0"),
        (lambda: JournalSettings(seconds=float("nan")), "journal_seconds must be above 0"),
        (lambda: JournalSettings(limit=0), "journal_limit must be above 0"),
        (lambda: JournalSettings(bytes=2048, limit=2047), "journal_limit is below journal_bytes"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(settings: Callable[[], JournalSettings], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        settings()


def test_new_tables_of_a_rest_catalog_cannot_be_journalled(tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path), catalog_uri="https://catalog.example.com")
    with pytest.raises(FailedPrecondition, match="a REST catalog has no database"):
        Lakehouse(settings, journal=JournalSettings(new_tables=True))


def test_the_journal_may_be_as_small_as_its_largest_change() -> None:
    assert JournalSettings(bytes=2048, limit=2048).limit == 2048
