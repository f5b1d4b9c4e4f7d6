"""Data files that we write are what Spark would have written: as files, in manifests, and to all who read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import FIVE, Tx, by_key, names, people
from tests.lakehouse.type_samples import SAMPLES, Sample
from tests.support.lakehouse import Lake, lakehouse

from sparkport.errors import Unavailable
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.manifests import DataFile, read_manifest, read_manifest_list
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(300)]

_numbers = count()

GROUPS = {
    "numbers": SAMPLES[:22],
    "texts": SAMPLES[22:40],
    "times": SAMPLES[40:58],
    "nested": [sample for sample in SAMPLES[58:] if sample.label != "struct of a required field"],  # Spark's to write
}


def table_of(samples: list[Sample]) -> pa.Table:
    longest = max(len(sample.column) for sample in samples)
    columns = [
        pa.concat_arrays([sample.column, pa.nulls(longest - len(sample.column), sample.column.type)])
        for sample in samples
    ]
    return pa.Table.from_arrays(
        columns, schema=pa.schema([s.field.with_name(f"v{at}") for at, s in enumerate(samples)])
    )


@contextmanager
def by_spark(lake: Lake) -> Iterator[None]:
    """New rows are left to Spark."""
    staging = lake.opened.engine.storage.staging
    staging.makes_data_files = False
    try:
        yield
    finally:
        staging.makes_data_files = True


def data_files(table: Handle) -> list[DataFile]:
    files, metadata = table.lake.opened.engine.storage.files, table.current.metadata
    assert metadata.main_snapshot_id is not None
    listed = read_manifest_list(files, metadata.snapshot(metadata.main_snapshot_id).manifest_list)
    return [file for entry in listed for file in read_manifest(files, entry) if isinstance(file, DataFile)]


def is_ours(file: DataFile) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}-\d{5}\.parquet", file.path.rpartition("/")[2]) is not None


def columns_of(file: DataFile) -> list[str]:
    """All that a file says of its columns."""
    footer = pq.read_metadata(str(local_path(file.path)))
    schema = footer.schema
    columns = [schema.column(place) for place in range(len(schema.names))]
    return [
        (footer.metadata or {}).get(b"iceberg.schema", b"").decode(),
        *(f"{column.path} {column.physical_type} {column.length} {column.logical_type}" for column in columns),
        *(f"{column.max_definition_level} {column.max_repetition_level}" for column in columns),
        schema.to_arrow_schema().to_string(show_field_metadata=True),
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_files_of_every_type_are_those_that_spark_writes(lake: Lake, group: str) -> None:
    rows = table_of(GROUPS[group])
    ours = create(lake, f"ours{next(_numbers)}", rows)
    with by_spark(lake):
        theirs = create(lake, f"theirs{next(_numbers)}", rows)
    (mine,), (other,) = data_files(ours), data_files(theirs)
    assert is_ours(mine)
    assert not is_ours(other)
    assert columns_of(mine) == columns_of(other)
    for what in ("value_counts", "null_counts", "nan_counts", "lower_bounds", "upper_bounds"):
        assert getattr(mine, what) == getattr(other, what), what


def test_rows_are_inserted_and_read_without_a_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(timeout: float | None = None) -> None:
        raise Unavailable("Spark is not there, for a test")

    table = create(lake, f"alone{next(_numbers)}", FIVE)
    with monkeypatch.context() as patched:
        patched.setattr(lake.opened.engine.storage.spark, "wait_ready", gone)
        assert table.insert(people((10, "ten"))).affected_rows == 1
        tx = Tx(lake)
        table.insert(people((11, "eleven")), tx.ctx)
        tx.commit()
        with pytest.raises(Unavailable):
            table.update([0], names("changed"))
        assert len(table.sparkport()) == 7
    assert by_key(table.agreed())[11] == "eleven"


def test_what_waits_in_the_journal_is_published_without_a_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(timeout: float | None = None) -> None:
        raise Unavailable("Spark is not there, for a test")

    with lakehouse(tmp_path, journal=JournalSettings(new_tables=True, seconds=3_600.0)) as opened:
        table = create(Lake(opened), "t", FIVE)
        with monkeypatch.context() as patched:
            patched.setattr(opened.engine.storage.spark, "wait_ready", gone)
            assert opened.journal.flush(60).rows == 5
        assert len(table.agreed()) == 5


INNER = pa.struct([(f"f{at}", pa.int32()) for at in range(60)])
NESTED = {f"f{at}": at for at in range(60)}
ODD = {
    "wide": pa.table({f"c{at}": [at] for at in range(130)}),
    "wide and nested": pa.table(
        {"a": pa.array([NESTED], INNER), "l": [[1, 2]], "b": pa.array([NESTED], INNER), "c": [1], "d": ["x"]}
    ),
    "long": pa.table({"s": ["a" * 5_000, "b", "z" * 5_000], "b": [b"\xff" * 5_000, b"", b"\xfe" * 17]}),
    "last letters": pa.table({"s": ["\ud7ff" * 20, "\U0010ffff" * 20], "t": ["é" * 17, "\U0010ffff" * 15 + "ab"]}),
}


@pytest.mark.parametrize("kind", ODD)
def test_manifests_say_of_odd_rows_what_spark_says(lake: Lake, kind: str) -> None:
    ours = create(lake, f"ours{next(_numbers)}", ODD[kind])
    with by_spark(lake):
        theirs = create(lake, f"theirs{next(_numbers)}", ODD[kind])
    (mine,), (other,) = data_files(ours), data_files(theirs)
    assert is_ours(mine)
    for what in ("value_counts", "null_counts", "nan_counts", "lower_bounds", "upper_bounds"):
        assert getattr(mine, what) == getattr(other, what), what


def test_files_name_the_columns_as_they_are_by_then(lake: Lake) -> None:
    """Columns that were added, moved and renamed since."""
    inner = pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))
    table = create(lake, f"ours{next(_numbers)}", pa.table({"id": [1], "s": ["x"], "n": inner}))
    table.sql(
        "ALTER TABLE {t} ADD COLUMN d int",
        "ALTER TABLE {t} RENAME COLUMN s TO `odd.name`",
        "ALTER TABLE {t} ALTER COLUMN d FIRST",
        "ALTER TABLE {t} ADD COLUMN n.b string",
    )
    more = pa.table({"id": pa.array([2], pa.int64()), "odd.name": ["y"], "d": pa.array([5], pa.int32())})
    table.insert(more)
    (mine,) = (file for file in data_files(table) if file.first_row_id == 1)
    with by_spark(lake):
        table.insert(more)
    (other,) = (file for file in data_files(table) if file.first_row_id == 2)
    assert (is_ours(mine), is_ours(other)) == (True, False)
    assert columns_of(mine) == columns_of(other)


def test_a_struct_that_is_null_and_has_a_required_field_is_kept(lake: Lake) -> None:
    kind = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    table = create(lake, f"required{next(_numbers)}", pa.table({"s": pa.array([{"a": 1}, None], kind)}))
    assert not any(is_ours(file) for file in data_files(table))
    assert [row["s"] for row in table.sparkport().values()] == [{"a": 1}, None]
