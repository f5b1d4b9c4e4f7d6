"""Changes by key by somebody who sees a part of a table: hidden rows are not there, masked columns are no key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.attacks.limited import PEOPLE, Limited, limited, secrets_in

from sparkport.catalog.ddl import MutableCatalog
from sparkport.errors import PermissionDenied, SparkportError

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def place(catalog: MutableCatalog) -> Iterator[Limited]:
    with limited(catalog) as made:
        yield made


def people(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows])


def test_rows_that_are_seen_are_updated_and_keep_what_is_hidden(place: Limited) -> None:
    done = place.reader.upsert(place.table, people({"id": 1, "name": "anna"}, {"id": 3, "name": "karl"}), key=["id"])
    assert (done.inserted, done.updated) == (0, 2)
    before = PEOPLE.to_pylist()
    assert place.all_rows() == [{**before[0], "name": "anna"}, before[1], {**before[2], "name": "karl"}, before[3]]


def test_a_hidden_row_is_neither_changed_nor_deleted(place: Limited) -> None:
    before = place.all_rows()
    done = place.reader.delete_matching(place.table, people({"id": 2}, {"id": 4}), key=["id"], returning=True)
    assert (done.deleted, done.untouched) == (0, 2)
    assert place.all_rows() == before
    done = place.reader.upsert(place.table, people({"id": 2, "region": "EU", "name": "eve"}), key=["id"])
    assert (done.inserted, done.updated) == (1, 0)
    rows = place.all_rows()
    assert [row for row in rows if row["name"] != "eve"] == before
    assert not secrets_in(done)


def test_rows_that_their_writer_would_not_see_are_refused_whole(place: Limited) -> None:
    before = place.all_rows()
    for rows in (
        people({"id": 1, "region": "EU", "name": "x"}, {"id": 9, "region": "US", "name": "y"}),
        people({"id": 9, "region": "EU", "name": "y"}, {"id": 1, "region": "US", "name": "x"}),
    ):
        with pytest.raises(PermissionDenied):
            place.reader.upsert(place.table, rows, key=["id"])
    assert place.all_rows() == before


@pytest.mark.parametrize("column", ["ssn", "salary"])
def test_what_is_masked_or_hidden_cannot_be_a_key(place: Limited, column: str) -> None:
    with pytest.raises(SparkportError) as refused:
        place.reader.delete_matching(place.table, people({column: PEOPLE[column][1].as_py()}), key=[column])
    assert not [secret for secret in secrets_in(refused.value.message) if secret != column]
    assert len(place.all_rows()) == 4


def test_a_masked_value_that_is_not_shown_cannot_be_set(place: Limited) -> None:
    with pytest.raises(PermissionDenied):
        place.reader.upsert(place.table, people({"id": 1, "ssn": "000-00-0000"}), key=["id"])
    assert place.all_rows() == PEOPLE.to_pylist()
