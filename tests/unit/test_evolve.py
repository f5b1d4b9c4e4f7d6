"""What alterations make of a schema and of rows that were written before them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    Alteration,
    ChangeType,
    DropColumn,
    DropField,
    DropNotNull,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNotNull,
    check_new_names,
)
from sparkport.catalog.evolve import can_promote, evolve_batch, evolve_schema, find_column
from sparkport.catalog.row_ids import row_id_field
from sparkport.errors import AlreadyExists, ConstraintViolation, InvalidArgument, SparkportError, Unsupported

pytestmark = pytest.mark.tier("fast")

INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("s", pa.struct([("a", pa.int32()), ("in", INNER)]))])
BATCH = pa.RecordBatch.from_pylist(
    [
        {"id": 1, "name": "a", "s": {"a": 1, "in": {"x": 5, "y": "q"}}},
        {"id": 2, "name": None, "s": None},
        {"id": 3, "name": "c", "s": {"a": None, "in": None}},
    ],
    COLUMNS,
)


def evolved(change: Alteration, batch: pa.RecordBatch = BATCH) -> pa.RecordBatch:
    result = evolve_batch(batch, change, evolve_schema(batch.schema, change))
    result.validate(full=True)
    return result


def column(change: Alteration, name: str, batch: pa.RecordBatch = BATCH) -> list[object]:
    values: list[object] = evolved(change, batch).column(name).to_pylist()
    return values


def test_columns_are_found_by_exact_name_before_case_is_ignored() -> None:
    columns = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    assert (find_column(columns, "A"), find_column(COLUMNS, "NAME")) == (1, 1)
    with pytest.raises(InvalidArgument, match="column 'Z' does not exist"):
        find_column(columns, "Z")
    with pytest.raises(InvalidArgument, match="column 'NAME' is ambiguous"):
        find_column(pa.schema([("name", pa.int64()), ("Name", pa.int64())]), "NAME")


def test_rows_get_the_default_of_an_added_column() -> None:
    assert column(AddColumn(pa.field("n", pa.int16(), metadata={"default": "40 + 2"})), "n") == [42, 42, 42]
    assert column(AddColumn(pa.field("n", pa.int16())), "n") == [None] * 3


def test_an_added_column_that_must_not_be_null_needs_a_default_only_where_there_are_rows() -> None:
    change = AddColumn(pa.field("n", pa.int16(), nullable=False))
    with pytest.raises(ConstraintViolation, match="column 'n' is NOT NULL and the table has rows"):
        evolved(change)
    assert evolved(change, BATCH.slice(0, 0)).num_rows == 0


def test_columns_are_dropped_and_renamed_without_touching_others() -> None:
    assert evolved(DropColumn("NAME")).to_pydict() == BATCH.drop_columns(["name"]).to_pydict()
    assert column(RenameColumn("name", "title"), "title") == ["a", None, "c"]
    assert column(RenameColumn("name", "Name"), "Name") == ["a", None, "c"]


@pytest.mark.parametrize(
    "change",
    [
        AddColumn(pa.field("NAME", pa.int64()), if_not_exists=True),
        DropColumn("nothing", if_exists=True),
        RenameColumn("name", "name"),
        AddField(("s",), pa.field("A", pa.int64()), if_not_exists=True),
        DropField(("s", "nothing"), if_exists=True),
    ],
    ids=lambda change: type(change).__name__,
)
def test_nothing_to_do_gives_the_very_same_schema(change: Alteration) -> None:
    assert evolve_schema(COLUMNS, change) is COLUMNS


def test_values_are_kept_when_a_type_is_widened() -> None:
    batch = pa.record_batch({"n": pa.array([1, None, -3], pa.int16())})
    wider = evolved(ChangeType("n", pa.int64()), batch)
    assert (wider.schema.types, wider.column("n").to_pylist()) == ([pa.int64()], [1, None, -3])


PROMOTIONS = [
    (pa.int8(), pa.int64(), True),
    (pa.uint8(), pa.int16(), True),
    (pa.int64(), pa.int32(), False),
    (pa.int64(), pa.uint64(), False),
    (pa.float32(), pa.float64(), True),
    (pa.float64(), pa.float32(), False),
    (pa.int32(), pa.float64(), False),
    (pa.decimal128(10, 2), pa.decimal128(12, 2), True),
    (pa.decimal128(10, 2), pa.decimal128(12, 3), False),
    (pa.decimal128(10, 2), pa.decimal128(9, 2), False),
    (pa.int64(), pa.decimal128(38, 0), False),
    (pa.string(), pa.binary(), False),
    (pa.string(), pa.string(), True),
]


@pytest.mark.parametrize(("source", "target", "possible"), PROMOTIONS, ids=str)
def test_a_type_becomes_another_only_where_every_engine_can_do_it(
    source: pa.DataType, target: pa.DataType, possible: bool
) -> None:
    assert can_promote(source, target) is possible
    if not possible:
        with pytest.raises(Unsupported, match="possible are integers to wider integers"):
            evolve_schema(pa.schema([("v", source)]), ChangeType("v", target))


def test_not_null_looks_at_the_rows() -> None:
    assert not evolved(SetNotNull("id")).schema.field("id").nullable
    assert evolved(DropNotNull("id"), evolved(SetNotNull("id"))).schema.field("id").nullable
    with pytest.raises(ConstraintViolation, match="column 'name' has NULL values"):
        evolved(SetNotNull("name"))


def test_defaults_and_comments_are_marks_of_the_column_that_leave_each_other_alone() -> None:
    columns = evolve_schema(COLUMNS, SetDefault("name", "'x'"))
    columns = evolve_schema(columns, SetComment("hello", "NAME"))
    assert columns.field("name").metadata == {b"default": b"'x'", b"comment": b"hello"}
    columns = evolve_schema(columns, SetDefault("name", None))
    assert columns.field("name").metadata == {b"comment": b"hello"}
    assert evolve_schema(columns, SetComment(None, "name")).field("name").metadata is None
    assert evolve_schema(COLUMNS, SetComment("of the table")) is COLUMNS


def test_fields_change_at_any_depth_and_null_structs_stay_null() -> None:
    assert column(AddField(("s", "in"), pa.field("z", pa.int8())), "s") == [
        {"a": 1, "in": {"x": 5, "y": "q", "z": None}},
        None,
        {"a": None, "in": None},
    ]
    assert column(AddField(("s",), pa.field("z", pa.int8(), metadata={"default": "3"})), "s") == [
        {"a": 1, "in": {"x": 5, "y": "q"}, "z": 3},
        None,
        {"a": None, "in": None, "z": 3},
    ]
    assert column(DropField(("S", "IN", "X")), "s")[0] == {"a": 1, "in": {"y": "q"}}
    assert column(RenameField(("s", "in"), "inner"), "s")[0] == {"a": 1, "inner": {"x": 5, "y": "q"}}


def test_fields_of_a_slice_are_those_of_its_own_rows() -> None:
    assert column(RenameField(("s", "a"), "b"), "s", BATCH.slice(1)) == [None, {"b": None, "in": None}]


REFUSED: list[tuple[Alteration, type[SparkportError], str]] = [
    (AddColumn(pa.field("Name", pa.int64())), AlreadyExists, "column 'Name' already exists"),
    (AddColumn(pa.field("rowid", pa.int64())), InvalidArgument, "reserved"),
    (AddColumn(row_id_field("n")), InvalidArgument, "marked as row id"),
    (RenameColumn("name", "_file"), InvalidArgument, "reserved"),
    (RenameColumn("name", "ID"), AlreadyExists, "column 'ID' already exists"),
    (RenameColumn("nothing", "x"), InvalidArgument, "does not exist"),
    (DropColumn("nothing"), InvalidArgument, "does not exist"),
    (SetDefault("nothing", "1"), InvalidArgument, "does not exist"),
    (AddField((), pa.field("z", pa.int8())), InvalidArgument, "column_path is empty"),
    (AddField(("s",), pa.field("A", pa.int8())), AlreadyExists, "field 'A' already exists"),
    (AddField(("s",), pa.field("z", pa.int8(), nullable=False)), Unsupported, "must take NULL"),
    (AddField(("name",), pa.field("z", pa.int8())), Unsupported, "no struct"),
    (AddField(("s", "a"), pa.field("z", pa.int8())), Unsupported, "no struct"),
    (DropField(("s",)), InvalidArgument, "leads to no field"),
    (DropField(("s", "nothing")), InvalidArgument, "field 'nothing' does not exist"),
    (RenameField(("s", "a"), "IN"), AlreadyExists, "field 'IN' already exists"),
]


@pytest.mark.parametrize(("change", "error", "words"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_what_cannot_be_done_is_told(change: Alteration, error: type[SparkportError], words: str) -> None:
    with pytest.raises(error, match=words):
        evolve_schema(COLUMNS, change)


def test_the_last_column_and_the_last_field_stay() -> None:
    with pytest.raises(InvalidArgument, match="a table needs at least one column"):
        evolve_schema(pa.schema([("id", pa.int64())]), DropColumn("id"))
    with pytest.raises(InvalidArgument, match="a struct needs at least one field"):
        evolve_schema(pa.schema([("s", pa.struct([("a", pa.int64())]))]), DropField(("s", "a")))


@pytest.mark.parametrize("columns", [pa.schema([]), pa.schema([("a", pa.int8()), ("A", pa.int8())])], ids=["none", "2"])
def test_a_table_needs_columns_with_names_of_their_own(columns: pa.Schema) -> None:
    with pytest.raises(InvalidArgument):
        check_new_names(columns)
