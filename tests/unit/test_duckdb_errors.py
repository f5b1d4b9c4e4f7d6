"""The kind of DuckDB's errors: by their class, and in the middle of a stream by what their text begins with."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from sparkport.catalog.duckdb_errors import is_broken, is_interrupted, is_out_of_room, is_unreadable

pytestmark = pytest.mark.tier("fast")

ALL = (is_broken, is_interrupted, is_out_of_room, is_unreadable)
WORDS = "Out of Memory Error: INTERNAL Error, INTERRUPT Error, No space left, database has been invalidated"


def in_a_stream(words: str) -> Exception:
    """What is left of an error of a query that has begun to answer."""
    connection = duckdb.connect(":memory:")
    query = f"SELECT CASE WHEN i = 90000 THEN error('{words}') ELSE i::VARCHAR END AS a FROM range(100000) t(i)"
    reader = connection.sql(query).to_arrow_reader(1_000)
    with pytest.raises(OSError, match="INTERNAL Error") as caught:
        reader.read_all()
    return caught.value


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (duckdb.InternalException("x"), is_broken),
        (duckdb.FatalException("x"), is_broken),
        (pa.ArrowInvalid("FATAL Error: Failed: database has been invalidated"), is_broken),
        (OSError("INTERNAL Error: Attempted to access index 1"), is_broken),
        (duckdb.InterruptException("x"), is_interrupted),
        (pa.ArrowInvalid("INTERRUPT Error: Interrupted!"), is_interrupted),
        (duckdb.OutOfMemoryException("x"), is_out_of_room),
        (pa.ArrowInvalid("Out of Memory Error: failed to pin block"), is_out_of_room),
        (duckdb.IOException("IO Error: Could not write file: No space left on device"), is_out_of_room),
        (duckdb.IOException("x"), is_unreadable),
        (pa.ArrowInvalid("IO Error: cannot open"), is_unreadable),
        (FileNotFoundError(2, "INTERNAL Error: no file"), is_unreadable),
        (OSError("the other end is gone"), is_unreadable),
    ],
)
def test_an_error_is_known_by_its_kind(exc: Exception, kind: object) -> None:
    assert kind in [test for test in ALL if test(exc)]


def test_words_that_a_caller_has_chosen_decide_nothing() -> None:
    for exc in (
        duckdb.ConversionException(f"Conversion Error: Could not convert string '{WORDS}'"),
        pa.ArrowInvalid(f"Conversion Error: Could not convert string '{WORDS}'"),
        duckdb.InvalidInputException(WORDS),
        in_a_stream(WORDS),
    ):
        assert [test for test in ALL if test(exc)] == []
