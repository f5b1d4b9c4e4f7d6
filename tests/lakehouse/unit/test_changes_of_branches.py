"""Changes are told between versions of the table itself: whatever is not among them is refused for the right reason."""

from __future__ import annotations

from typing import Any

import pytest

from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.errors import InvalidArgument, NotFound, VersionNotFound
from sparkport.lakehouse.iceberg.metadata import ROLLED_BACK, TableMetadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.changes import TableChanges
from sparkport.lakehouse.scan.version import TableVersion

pytestmark = pytest.mark.tier("fast")

Json = dict[str, Any]


class Gone:
    """Older metadata files are not there any more."""

    def load(self, *asked: object) -> None:
        raise NotFound("gone")


def snapshot(number: int, parent: int | None) -> Json:
    known = {
        "snapshot-id": 100 + number,
        "sequence-number": number,
        "timestamp-ms": 1_000 * number,
        "manifest-list": f"/x/{number}.avro",
        "schema-id": 0,
        "summary": {"operation": "append"},
        "first-row-id": 0,
    }
    return known if parent is None else {**known, "parent-snapshot-id": 100 + parent}


def table(snapshots: list[Json], *, main: int, ref: Json, rolled_back: int = 0) -> TableVersion:
    """Its log has only the last snapshot: others have cut it."""
    fields = [{"id": 1, "name": "id", "type": "long", "required": False}]
    last = max(known["sequence-number"] for known in snapshots)
    json: Json = {
        "format-version": 3,
        "table-uuid": "u",
        "location": "/x",
        "schemas": [{"schema-id": 0, "fields": fields}],
        "current-schema-id": 0,
        "last-column-id": 1,
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": 100 + main, "timestamp-ms": 1_000 * main}],
        "refs": {"main": {"snapshot-id": 100 + main, "type": "branch"}, "a": ref},
        "current-snapshot-id": 100 + main,
        "properties": {ROLLED_BACK: str(rolled_back)} if rolled_back else {},
        "last-sequence-number": last,
        "last-updated-ms": 1_000 * last,
        "next-row-id": 10,
    }
    loader: Any = Gone()
    return TableVersion(TableName("public", "t"), TableMetadata(json, "/x/v9.metadata.json"), loader)


def ref(number: int, kind: str) -> Json:
    return {"snapshot-id": 100 + number, "type": kind}


LINE = [snapshot(1, None), snapshot(2, 1), snapshot(4, 2), snapshot(6, 4)]

EXPIRED = {
    "the line to it has expired": table([snapshot(1, None), snapshot(6, 5)], main=6, ref=ref(1, "tag")),
    "the table was rolled back": table(LINE, main=6, ref=ref(2, "tag"), rolled_back=4),
    "Spark set the table back": table(
        [snapshot(1, None), snapshot(2, 1), snapshot(3, 2), snapshot(4, 2)], main=4, ref=ref(3, "tag")
    ),
    "Spark replaced the table": table([snapshot(1, None), snapshot(2, None)], main=2, ref=ref(1, "tag")),
}

OF_BRANCHES = {
    "a branch": table([snapshot(1, None), snapshot(2, 1), snapshot(3, 1)], main=2, ref=ref(3, "branch")),
    "of a table that was rolled back": table(
        [snapshot(1, None), snapshot(2, 1), snapshot(3, 1)], main=2, ref=ref(3, "branch"), rolled_back=2
    ),
    "the line to it has expired": table([snapshot(3, 1), snapshot(4, 2)], main=4, ref=ref(3, "branch")),
}


@pytest.mark.parametrize("name", EXPIRED)
def test_a_version_that_was_the_table_once_is_on_no_branch(name: str) -> None:
    with pytest.raises(VersionNotFound):
        TableChanges(EXPIRED[name], AsOf(AsOfUnit.VERSION, "a"), None)


@pytest.mark.parametrize("name", OF_BRANCHES)
def test_what_was_never_the_table_is_on_a_branch(name: str) -> None:
    with pytest.raises(InvalidArgument, match="on a branch"):
        TableChanges(OF_BRANCHES[name], AsOf(AsOfUnit.VERSION, "a"), None)
