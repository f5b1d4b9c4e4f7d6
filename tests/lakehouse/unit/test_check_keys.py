"""``check`` of one table says whether it keeps its keys, which writers past the server know nothing of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.lakehouse.small import backed_up, checked, rows_of, small_lake, to_new

from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def lake(tmp_path: Path) -> LakehouseSettings:
    """Restored from a backup, which writes manifests of the right lengths."""
    backed_up(small_lake(tmp_path / "moved", ("changes",)), tmp_path / "backups")
    to_new(tmp_path / "backups", tmp_path / "warehouse")
    return LakehouseSettings(warehouse=str(tmp_path / "warehouse"))


def edit(lake: LakehouseSettings, change: Callable[[dict[str, Any]], None]) -> None:
    path = next((Path(lake.warehouse_path) / "public" / "changes" / "metadata").glob("*.metadata.json"))
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def field_ids(metadata: dict[str, Any], *names: str) -> list[int]:
    current = next(item for item in metadata["schemas"] if item["schema-id"] == metadata["current-schema-id"])
    by_name = {field["name"]: field["id"] for field in current["fields"]}
    return [by_name[name] for name in names]


def set_primary_key(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(metadata: dict[str, Any]) -> None:
        ids = field_ids(metadata, *names)
        for schema in metadata["schemas"]:
            schema["identifier-field-ids"] = ids

    return change


def set_unique(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(metadata: dict[str, Any]) -> None:
        metadata["properties"]["sparkport.unique"] = json.dumps([field_ids(metadata, *names)])

    return change


def test_a_table_without_keys_has_nothing_to_find(lake: LakehouseSettings) -> None:
    assert checked(lake, "changes").found == ()


def test_a_primary_key_that_rows_share_is_found(lake: LakehouseSettings) -> None:
    edit(lake, set_primary_key("f"))
    (found,) = checked(lake, "changes").found
    assert found.problem == "2 values of PRIMARY KEY (f) are of two rows or more, such as f = false"
    assert checked(lake, deep=True).found == (found,)
    assert checked(lake).found == ()


def test_a_key_of_several_columns_that_holds_is_no_finding_and_null_meets_nothing(lake: LakehouseSettings) -> None:
    rows = rows_of(lake, "changes").to_pylist()
    pairs = [(row["name"], row["d"]) for row in rows]
    assert len(set(pairs)) == len([pair for pair in pairs if None not in pair]) + len(
        {pair for pair in pairs if None in pair}
    )
    assert sum(row["name"] is None for row in rows) > 1
    edit(lake, set_unique("name", "d"))
    assert checked(lake, "changes").found == ()
    edit(lake, set_unique("name"))
    assert [finding.problem.split(" are of")[0] for finding in checked(lake, "changes").found] == [
        "1 values of UNIQUE (name)"
    ]
