"""Lakehouses with tables of every kind, backups of them, and what everybody sees in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.lakehouse.handles import NOBODY, Handle, create, version
from tests.lakehouse.transacting import FIVE, names, people
from tests.support.lakehouse import Lake

from sparkport.catalog.ddl import AddColumn
from sparkport.lakehouse.backup.backup import BackupReport, back_up
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.backup.restore import find_backup, restore
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.verify.check import check

__all__ = ["QUIET", "backup_of", "everything", "fill", "old_versions", "problems", "restored"]

QUIET = JournalSettings(seconds=3_600.0)
"""The journal is flushed when a test asks for it."""

FOREIGN = {
    "parts": "CREATE TABLE {t} (id BIGINT, day DATE, price DECIMAL(9, 2), at TIMESTAMP) USING iceberg "
    "PARTITIONED BY (day, bucket(3, id), truncate(10, price)) TBLPROPERTIES ('format-version' = '3')",
    "second": "CREATE TABLE {t} (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('format-version' = '2', "
    "'write.delete.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read', "
    "'write.update.mode' = 'merge-on-read')",
    "squeezed": "CREATE TABLE {t} (id BIGINT, name STRING) USING iceberg "
    "TBLPROPERTIES ('write.metadata.compression-codec' = 'gzip')",
    "nothing": "CREATE TABLE {t} (id BIGINT, name STRING) USING iceberg",
}


def fill(lake: Lake, beside: Path) -> None:
    """Tables of every kind that there is."""
    changed = create(lake, "changed", FIVE)
    ids = changed.ids()
    changed.update([ids[1]], names("new"))
    changed.delete([ids[0], ids[4]])
    changed.alter(AddColumn(pa.field("more", pa.int32())))
    changed.insert(pa.table({"id": pa.array([9], pa.int64()), "name": ["nine"], "more": pa.array([9], pa.int32())}))
    journalled = create(lake, "journalled", FIVE)
    lake.opened.journal.set(NOBODY, journalled.current.table, True)
    ids = journalled.ids()
    journalled.update([ids[1]], names("waits"))
    journalled.delete([ids[2]])
    journalled.insert(people((7, "waits too")))
    for name, statement in FOREIGN.items():
        Handle(lake, name).sql(statement)
    Handle(lake, "outside").sql(
        f"CREATE TABLE {{t}} (id BIGINT, name STRING) USING iceberg LOCATION '{beside}/out side'"
    )
    Handle(lake, "parts").sql(
        "INSERT INTO {t} VALUES (1, DATE'2024-02-29', 1.25, TIMESTAMP'2024-01-01 00:00:00'), "
        "(2, NULL, -7.5, NULL), (3, DATE'0001-01-01', 12.25, TIMESTAMP'1969-12-31 23:59:59.999999')",
        "ALTER TABLE {t} CREATE TAG first",
        "ALTER TABLE {t} CREATE BRANCH theirs",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER TABLE {t} ADD PARTITION FIELD months(at)",
        "INSERT INTO {t} VALUES (4, DATE'2024-03-01', 0.5, TIMESTAMP'2024-03-01 12:00:00')",
        "INSERT INTO {t}.branch_theirs VALUES (5, DATE'2024-03-01', 0.5, NULL)",
    )
    for name in ("second", "squeezed", "outside"):
        Handle(lake, name).sql(
            "INSERT INTO {t} VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four')",
            "DELETE FROM {t} WHERE id = 2",
            "UPDATE {t} SET name = 'drei' WHERE id = 3",
        )
    with lake.spark() as spark:
        spark.sql("CALL lake.system.compute_table_stats('public.second')").collect()
        spark.sql("CREATE VIEW lake.public.seen AS SELECT id FROM lake.public.changed").collect()
        spark.sql("CREATE NAMESPACE lake.empty COMMENT 'nothing here'").collect()


def backup_of(lake: Lake, target: Path, **how: Any) -> BackupReport:
    with hold(lake.opened.settings, str(target)) as catalog:
        return back_up(catalog, str(target), **how)


def restored(source: Path, warehouse: Path, number: int | None = None, **how: Any) -> LakehouseSettings:
    settings = LakehouseSettings(warehouse=str(warehouse), **how)
    restore(*find_backup(str(source), settings, number), settings)
    return settings


def problems(settings: LakehouseSettings) -> list[str]:
    with hold(settings) as catalog:
        return [str(finding) for finding in check(catalog, deep=True).found]


def everything(lake: Lake) -> dict[str, Any]:
    """What plain Spark sees in every table, row ids too."""
    found: dict[str, Any] = {}
    for name in ("changed", "journalled", *FOREIGN, "outside"):
        with lake.spark() as spark:
            ids = ", _row_id, _last_updated_sequence_number" if name in ("changed", "journalled", "parts") else ""
            rows = spark.sql(f"SELECT *{ids} FROM lake.public.`{name}`").collect()
        found[name] = sorted(map(repr, rows))
    with lake.spark() as spark:
        for version_name in ("first", "theirs"):
            rows = spark.sql(f"SELECT *, _row_id FROM lake.public.parts VERSION AS OF '{version_name}'").collect()
            found[version_name] = sorted(map(repr, rows))
        found["view"] = sorted(map(repr, spark.sql("SELECT * FROM lake.public.seen").collect()))
        found["schemas"] = sorted(map(repr, spark.sql("SHOW NAMESPACES IN lake").collect()))
    return found


def old_versions(lake: Lake) -> list[Any]:
    changed = Handle(lake, "changed")
    return [changed.sparkport(at=version(number)) for number in range(changed.number + 1)]
