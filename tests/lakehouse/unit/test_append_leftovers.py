"""What a server that dies in the middle of an append of its own leaves is found by the shadow and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.appends import append_files, data_folder
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.iceberg.file_metrics import FileMetrics
from sparkport.lakehouse.iceberg.manifest_writer import AddedFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.shadows import remove_shadow, write_seed

pytestmark = pytest.mark.tier("fast")

NOTHING = FileMetrics(
    column_sizes={}, value_counts={}, null_counts={}, nan_counts={}, lower_bounds={}, upper_bounds={}, split_offsets=[]
)


@pytest.mark.parametrize("whole", range(5))
@pytest.mark.parametrize("half", [True, False])
def test_all_that_was_written_goes_however_far_it_came(tmp_path: Path, whole: int, half: bool) -> None:
    """A list of manifests, a manifest and two files of rows, in this order."""
    files = FileSystem()
    metadata = TableMetadata(
        new_table(str(tmp_path), [{"id": 1, "name": "x", "type": "long"}], last_column_id=1, properties={}),
        f"{tmp_path}/metadata/00000-0.metadata.json",
    )
    added = [AddedFile(f"{data_folder(metadata)}/{number}.parquet", 1, 4, NOTHING) for number in range(2)]
    append = append_files(files, metadata, added, notes={})
    assert append is not None
    seed = write_seed(files, metadata, append.after)
    steps = [*append.lists.items(), *((file.path, b"rows") for file in added)]
    for path, data in steps[:whole]:
        files.write_unseen(path, data)
    if half and whole < len(steps):
        path, data = steps[whole]
        files.write_unseen(path, data[: len(data) // 2])
    remove_shadow(files, seed, unpublished=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_published_stays(tmp_path: Path) -> None:
    files = FileSystem()
    metadata = TableMetadata(
        new_table(str(tmp_path), [{"id": 1, "name": "x", "type": "long"}], last_column_id=1, properties={}),
        f"{tmp_path}/metadata/00000-0.metadata.json",
    )
    append = append_files(files, metadata, [AddedFile(f"{data_folder(metadata)}/0.parquet", 1, 4, NOTHING)], notes={})
    assert append is not None
    seed = write_seed(files, metadata, append.after)
    for path, data in append.lists.items():
        files.write_unseen(path, data)
    remove_shadow(files, seed, unpublished=False)
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.is_file()) == sorted(append.lists)
