"""A transaction's net change against a dictionary: whatever statements do, base and change come to the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkport.errors import Conflict, InternalError, RowNotFound
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write import few_rows, net_change
from sparkport.lakehouse.write.change_set import changed_rows_schema
from sparkport.lakehouse.write.net_change import NetChange, TableChange
from sparkport.lakehouse.write.sent import Sent
from sparkport.lakehouse.write.spark_writes import SparkWrites
from sparkport.lakehouse.write.workspace import Workspace

pytestmark = pytest.mark.tier("fast")

BASE = {row_id: (row_id * 10, f"n{row_id}") for row_id in range(8)}
FIELDS = [
    {"id": 1, "name": "Number", "type": "long", "required": False},
    {"id": 2, "name": "number", "type": "string", "required": False},
]
Row = tuple[int | None, str | None]


class _Stream:
    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)

    def close(self) -> None:
        self._batches = []


class _Version:
    """As much of a table's version as a net change needs."""

    table = TableName("public", "t")
    location = "here"
    columns = SimpleNamespace(fields=tuple(FIELDS))
    metadata = TableMetadata(new_table("here", FIELDS, last_column_id=2, properties={}))

    @property
    def rows(self) -> _Version:
        return self

    def stored(self, names: Sequence[str], *, row_ids: Any) -> _Stream:
        places = [["Number", "number"].index(name) for name in names]
        found = [row_id for row_id in row_ids.tolist() if row_id in BASE]
        kinds = [pa.int64(), pa.string()]
        columns = [pa.array([BASE[row_id][place] for row_id in found], kinds[place]) for place in places]
        batch = pa.RecordBatch.from_arrays([*columns, pa.array(found, pa.int64())], names=[*names, "rowid"])
        return _Stream([batch])


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with tempfile.TemporaryDirectory() as folder, closing(Workspace(Path(folder))) as made:
        yield made


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staging]:
    with closing(Staging(str(tmp_path_factory.mktemp("staging")))) as made:
        yield made


_counter = iter(range(1_000_000))


def opened(workspace: Workspace) -> tuple[NetChange, TableChange]:
    net = NetChange(workspace, f"t{next(_counter)}")
    return net, net.table(_Version())  # type: ignore[arg-type]


def sent(rows: Sequence[tuple[int, Sequence[Any]]], columns: Sequence[int]) -> Sent:
    kinds = [pa.int64(), pa.string()]
    arrays = [pa.array([row_id for row_id, _ in rows], pa.int64()), pa.array(range(len(rows)), pa.int64())]
    for place, column in enumerate(columns):
        arrays.append(pa.array([values[place] for _, values in rows], kinds[column]))
    names = ["id", "number", *(f"x{place}" for place in range(len(columns)))]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return Sent([batch], columns, rows=batch.num_rows, nbytes=batch.nbytes)


def insert(change: TableChange, *rows: Row) -> list[int]:
    ids: list[int] = change.new_ids(len(rows)).to_pylist()
    assert change.insert(sent(list(zip(ids, rows, strict=True)), [0, 1])) == len(rows)
    return ids


def seen(change: TableChange) -> dict[int, Row]:
    """What a reader would see: the base without what is hidden, and the transaction's own rows."""
    own = change.own_rows([0, 1])
    try:
        found: dict[int, Row] = {row_id: row for row_id, row in BASE.items() if row_id not in set(own.hidden.tolist())}
        for batch in own:
            for number, name, row_id in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                assert row_id not in found
                found[row_id] = (number, name)
    finally:
        own.close()
    return found


def rows_of(staged: StagedRows | None) -> list[dict[str, Any]]:
    return [] if staged is None else [row for batch in staged.batches() for row in batch.to_pylist()]


def committed(net: NetChange, staging: Staging) -> tuple[list[Row], dict[int, Row | None]]:
    """What the commit would write: new rows in their order, and changed ones, None for those deleted."""
    with net.change_sets(staging, returned=[]) as changes:
        if not changes:
            return [], {}
        (change,) = changes.values()
        new = [(row["Number"], row["number"]) for row in rows_of(change.inserts)]
        changed: dict[int, Row | None] = {
            row["row_id"]: None if row["is_deleted"] else (row["c0"], row["c1"]) for row in rows_of(change.changes)
        }
    assert change.updated.tolist() == sorted(row_id for row_id, row in changed.items() if row is not None)
    assert change.deleted.tolist() == sorted(row_id for row_id, row in changed.items() if row is None)
    return new, changed


ids = st.integers(-6, 9)
texts = st.one_of(st.none(), st.text(max_size=3))
numbers = st.one_of(st.none(), st.integers(-5, 5))
statements = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.tuples(numbers, texts), min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.lists(ids, min_size=1, max_size=4)),
    st.tuples(st.just("name"), st.lists(st.tuples(ids, texts), min_size=1, max_size=4)),
    st.tuples(st.just("both"), st.lists(st.tuples(ids, st.tuples(texts, numbers)), min_size=1, max_size=4)),
)


@pytest.mark.parametrize("most", [0, 5, 1_000])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=st.lists(statements, max_size=8))
def test_any_statements_come_to_the_rows_that_a_dictionary_has(
    workspace: Workspace,
    staging: Staging,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    work: list[tuple[str, list[Any]]],
) -> None:
    """In a database from the start, at some time, or never."""
    monkeypatch.setattr(few_rows, "_MOST_ROWS", most)
    net, change = opened(workspace)
    model: dict[int, Row] = dict(BASE)
    try:
        for kind, rows in work:
            if kind == "insert":
                model.update(zip(insert(change, *rows), rows, strict=True))
            elif kind == "delete":
                expected = len(set(rows) & set(model))
                assert change.delete(sent([(row, ()) for row in rows], []), since=change.step, refuse=False) == expected
                model = {row_id: row for row_id, row in model.items() if row_id not in rows}
            else:
                columns = [1] if kind == "name" else [1, 0]
                named: list[Any] = [(row_id, values if kind == "both" else (values,)) for row_id, values in rows]
                expected = len({row_id for row_id, _ in named} & set(model))
                assert change.update(sent(named, columns), since=change.step, refuse=False) == expected
                for row_id, values in named:
                    if row_id in model:
                        model[row_id] = (values[1] if kind == "both" else model[row_id][0], values[0])
            assert seen(change) == model
        new, changed = committed(net, staging)
        assert new == [model[row_id] for row_id in sorted(model, reverse=True) if row_id < 0]
        after = {row_id: row for row_id, row in {**BASE, **changed}.items() if row is not None}
        assert after == {row_id: row for row_id, row in model.items() if row_id >= 0}
        assert change.rows == len(new) + len(changed)
    finally:
        net.close()


def test_rows_of_a_transaction_that_only_deletes_go_together_with_any_update(
    workspace: Workspace, staging: Staging
) -> None:
    net, change = opened(workspace)
    change.delete(sent([(1, ()), (2, ())], []), since=0, refuse=False)
    update = staging.new(changed_rows_schema([pa.string()]))  # of the second column, which is its first
    update.append(pa.RecordBatch.from_arrays([[3], [False], ["c"]], schema=update.schema))
    update.finish()
    writes = SparkWrites(ANY, staging)
    with net.change_sets(staging, returned=[]) as changes:
        (deletes,) = (found.changes for found in changes.values() if found.changes is not None)
        with writes.joined([deletes, update]) as (path,):
            rows = pq.read_table(path).to_pylist()
    found = {row["row_id"]: (row["is_deleted"], row["c0"]) for row in rows}
    assert found == {1: (True, None), 2: (True, None), 3: (False, "c")}
    update.discard()
    net.close()


def test_staged_rows_are_not_put_together_where_that_would_change_values(staging: Staging) -> None:
    """Arrow would make a float of a double, and say nothing."""
    parts = [staging.new(changed_rows_schema(types)) for types in ([pa.float32(), pa.string()], [pa.float64()])]
    parts[0].append(pa.RecordBatch.from_arrays([[1], [True], [None], [None]], schema=parts[0].schema))
    parts[1].append(pa.RecordBatch.from_arrays([[2], [False], [0.1]], schema=parts[1].schema))
    writes = SparkWrites(ANY, staging)
    with pytest.raises(InternalError, match="other types"), writes.joined(parts):
        pass
    for part in parts:
        part.discard()
    assert not list(staging.folder.glob("*.parquet"))


def test_of_several_changes_to_one_row_in_a_statement_the_last_counts(workspace: Workspace) -> None:
    _, change = opened(workspace)
    assert change.update(sent([(1, ("a",)), (2, ("b",)), (1, ("c",))], [1]), since=0, refuse=False) == 2
    assert seen(change)[1] == (10, "c")


def test_a_missing_row_is_refused_by_name_and_nothing_is_changed(workspace: Workspace) -> None:
    _, change = opened(workspace)
    with pytest.raises(RowNotFound, match="77"):
        change.update(sent([(1, ("a",)), (77, ("b",))], [1]), since=0, refuse=True)
    with pytest.raises(RowNotFound, match="-1"):
        change.delete(sent([(1, ()), (-1, ())], []), since=0, refuse=True)
    assert seen(change) == BASE
    assert change.rows == 0


def test_statements_at_the_same_time_conflict_where_their_rows_meet(workspace: Workspace) -> None:
    _, change = opened(workspace)
    since = change.step
    change.update(sent([(1, ("first",))], [1]), since=since, refuse=False)
    change.update(sent([(2, ("beside",))], [1]), since=since, refuse=False)
    with pytest.raises(Conflict, match="another statement of this transaction"):
        change.delete(sent([(1, ()), (3, ())], []), since=since, refuse=False)
    assert seen(change)[1] == (10, "first")
    assert 3 in seen(change)


def test_a_reader_sees_the_moment_at_which_it_began(workspace: Workspace) -> None:
    net, change = opened(workspace)
    insert(change, (1, "a"), (2, "b"))
    own = change.own_rows([1])
    change.delete(sent([(-1, ()), (3, ())], []), since=change.step, refuse=False)
    insert(change, (3, "c"))
    net.close()
    assert [row["c1"] for batch in own for row in batch.to_pylist()] == ["a", "b"]
    assert own.hidden.tolist() == []
    own.close()


def test_what_it_holds_is_free_when_its_transaction_ends(workspace: Workspace) -> None:
    before = workspace.bytes_held()
    net, change = opened(workspace)
    insert(change, (1, "a" * 1000))
    assert workspace.bytes_held() > before
    net.close()
    net.close()
    assert workspace.bytes_held() <= before
    with pytest.raises(Conflict, match="has ended"):
        insert(change, (2, "b"))


def test_an_error_beneath_a_statement_is_told_as_it_is(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> _Stream:
        raise Conflict("files of the snapshot are gone")

    class _Breaking(_Stream):
        def __iter__(self) -> Iterator[pa.RecordBatch]:
            raise Conflict("files of the snapshot are gone")

    _, change = opened(workspace)
    for stream in (broken, lambda *_, **__: _Breaking([])):
        monkeypatch.setattr(_Version, "stored", stream)
        with pytest.raises(Conflict, match="files of the snapshot are gone"):
            change.update(sent([(1, ("a",))], [1]), since=0, refuse=False)
    assert change.rows == 0


def test_rows_found_by_id_say_which_are_deleted(workspace: Workspace) -> None:
    _, change = opened(workspace)
    (new,) = insert(change, (1, "a"))
    change.delete(sent([(2, ())], []), since=change.step, refuse=False)
    change.update(sent([(3, ("c",))], [1]), since=change.step, refuse=False)
    rows, gone = change.find([new, 2, 3, 4, 99])
    assert sorted(rows.column("rowid").to_pylist()) == [-1, 3]
    assert gone == {2}
    assert np.asarray(rows.column("c0")).tolist() == [1, 30]


# A few new rows


def test_a_few_new_rows_need_no_database(workspace: Workspace, staging: Staging) -> None:
    net, change = opened(workspace)
    before = databases(workspace)
    insert(change, (10, "a"), (11, "b"))
    insert(change, (12, "c"))
    assert (change.rows, databases(workspace)) == (3, before)
    assert committed(net, staging) == ([(10, "a"), (11, "b"), (12, "c")], {})
    net.close()


def test_a_few_changes_need_no_database(workspace: Workspace, staging: Staging) -> None:
    net, change = opened(workspace)
    before = databases(workspace)
    (new,) = insert(change, (10, "a"))
    assert change.update(sent([(new, ["b"]), (1, ["c"])], [1]), since=change.step, refuse=True) == 2
    assert change.delete(sent([(2, []), (99, [])], []), since=change.step, refuse=False) == 1
    assert seen(change)[1] == (10, "c")
    assert committed(net, staging) == ([(10, "b")], {1: (10, "c"), 2: None})
    assert databases(workspace) == before
    net.close()


def test_rows_that_are_large_in_the_table_have_a_database(
    workspace: Workspace, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_change, "_MOST_BASE_BYTES", 10)
    net, change = opened(workspace)
    before = databases(workspace)
    (new,) = insert(change, (10, "a"))
    assert change.update(sent([(new, ["b"]), (1, ["c"]), (2, ["d"]), (1, ["e"])], [1]), since=1, refuse=True) == 3
    assert databases(workspace) == before + 1
    assert committed(net, staging) == ([(10, "b")], {1: (10, "e"), 2: (20, "d")})
    net.close()


@pytest.mark.parametrize("most", [0, 1_000])
def test_a_zero_keeps_its_sign(
    workspace: Workspace, staging: Staging, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However the rows are kept."""
    monkeypatch.setattr(few_rows, "_MOST_ROWS", most)
    fields = ({"id": 1, "name": "ratio", "type": "double", "required": False},)
    monkeypatch.setattr(_Version, "columns", SimpleNamespace(fields=fields))
    net, change = opened(workspace)
    new = change.new_ids(1)

    def ratio(ids: pa.Array) -> Sent:
        batch = pa.RecordBatch.from_arrays([ids, pa.array([0]), pa.array([-0.0])], names=["id", "number", "x0"])
        return Sent([batch], [0], rows=1, nbytes=batch.nbytes)

    change.insert(ratio(new))
    assert change.update(ratio(new), since=change.step, refuse=True) == 1
    with net.change_sets(staging, returned=[]) as changes:
        (made,) = changes.values()
        assert [str(row["ratio"]) for row in rows_of(made.inserts)] == ["-0.0"]
    net.close()


def test_nothing_is_changed_by_a_statement_whose_transaction_ends_meanwhile(
    workspace: Workspace, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workspace.bytes_held()
    net, change = opened(workspace)
    insert(change, (10, "a"))
    step, counts = change.step, dict(change.counts)
    replaced = few_rows.FewRows.replace

    def ending(few: few_rows.FewRows, changed: pa.Table) -> None:
        replaced(few, changed)
        net.close()

    monkeypatch.setattr(few_rows.FewRows, "replace", ending)
    with pytest.raises(Conflict, match="has ended"):
        change.update(sent([(1, ["b"])], [1]), since=change.step, refuse=True)
    assert (change.step, change.counts) == (step, counts)
    assert workspace.bytes_held() <= before
    with pytest.raises(Conflict, match="has ended"), net.change_sets(staging, returned=[]):
        pass


def test_of_several_missing_rows_the_first_that_was_sent_is_named(workspace: Workspace) -> None:
    _, change = opened(workspace)
    with pytest.raises(RowNotFound, match="77"):
        change.update(sent([(1, ("a",)), (77, ("b",)), (66, ("c",))], [1]), since=0, refuse=True)


def test_new_rows_are_seen_and_changed_like_others(workspace: Workspace, staging: Staging) -> None:
    net, change = opened(workspace)
    first, second = insert(change, (10, "a"), (11, "b"))
    assert seen(change) == {**BASE, first: (10, "a"), second: (11, "b")}
    (third,) = insert(change, (12, "c"))
    assert change.update(sent([(first, ["x"]), (third, ["y"])], [1]), since=change.step, refuse=True) == 2
    assert change.delete(sent([(second, [])], []), since=change.step, refuse=True) == 1
    assert committed(net, staging) == ([(10, "x"), (12, "y")], {})
    net.close()


@pytest.mark.parametrize("first", [0, 1, 999])
def test_many_new_rows_have_a_database(workspace: Workspace, staging: Staging, first: int) -> None:
    net, change = opened(workspace)
    before = databases(workspace)
    rows = [(number, str(number)) for number in range(1_001)]
    for part in filter(None, (rows[:first], rows[first:])):
        insert(change, *part)
    assert (change.rows, databases(workspace)) == (1_001, before + 1)
    assert committed(net, staging) == (rows, {})
    net.close()
    assert databases(workspace) == before


def test_what_is_kept_beside_databases_counts_and_is_given_back(workspace: Workspace) -> None:
    before = workspace.bytes_held()
    net, change = opened(workspace)
    insert(change, (10, "a" * 10_000))
    assert workspace.bytes_held() >= before + 10_000
    net.close()
    net.close()
    assert workspace.bytes_held() == before
    net, change = opened(workspace)
    insert(change, (10, "a" * 10_000))
    seen(change)  # in a database by now
    net.close()
    assert workspace.bytes_held() < before + 10_000


def databases(workspace: Workspace) -> int:
    with workspace.cursor(workspace.generation) as cursor:
        (count,) = cursor.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchone() or (0,)
    return int(count)
