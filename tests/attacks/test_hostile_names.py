"""Names from clients: none that could be taken for a line, a path or another name, and none that reaches a path."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from tests.faults.rig import Rig
from tests.support.flight_rpc import AirportError, Connection
from tests.support.listing import pack

from sparkport.app import Server
from sparkport.catalog.ddl import MutableCatalog
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])

REFUSED = {
    "a line's end": "x\n/etc/passwd\ny",
    "a carriage return": "x\ry",
    "NUL": "x\0y",
    "escape": "x\x1b[2Jy",
    "delete": "x\x7fy",
    "the second set of control characters": "x\x85y",
    "a line separator": "x\u2028y",
    "a paragraph separator": "x\u2029y",
    "turned around": "x\u202ey",
    "an isolate": "x\u2066y",
    "too long": "x" * 256,
    "too long in bytes": "ä" * 128,
    "1 MB": "x" * 1_000_000,
    "nothing": "",
    "blanks": " \u2003 ",
    "this folder": ".",
    "the folder above": "..",
}

ODD = [
    *(
        "../../escaped/x",
        "..\\x",
        "/etc/passwd",
        "a/b",
        "%2e%2e%2fx",
        "~",
        "a b",
        " padded ",
        "x.",
        ".hidden",
        "_hidden",
    ),
    *("metadata", "data", "con", "NUL", "-rf", "$(id)", "`", "``x``", "'", '"', "\\", "a\\'b", "*", "?", "[x]", "{x}"),
    *("x;DROP TABLE t", "--", "/* x */", "日本", "é", "e\u0301", "ﬀ", "a:b", "s3://b/k", "file:/x", "👩\u200d🔬"),
    *(
        "snapshots",
        "files",
        "branch_main",
        "a.snapshots",
        "at_timestamp_1",
        "x" * 255,
        "ä" * 127,
        "#",
        "a=b",
        "\u00a0x",
    ),
]

Attack = Callable[[Client, str], object]

NEW_NAMES: dict[str, Attack] = {
    "create_schema": lambda client, name: client.create_schema(("lake", name)),
    "create_table": lambda client, name: client.create_table(("lake", "public", name), COLUMNS),
    "a column": lambda client, name: client.create_table("public.c", pa.schema([(name, pa.int64())])),
    "rename_table": lambda client, name: client.rename_table("public.t", name),
    "add_column": lambda client, name: client.add_column("public.t", pa.field(name, pa.int64())),
    "rename_column": lambda client, name: client.rename_column("public.t", "id", name),
    "add_field": lambda client, name: client.add_field("public.t", "s", pa.field(name, pa.int64())),
    "rename_field": lambda client, name: client.rename_field("public.t", "s.a", name),
}

INSIDE: dict[str, Callable[[str], pa.DataType]] = {
    "a struct": lambda name: pa.struct([("a", pa.struct([(name, pa.int64())]))]),
    "a list": lambda name: pa.list_(pa.struct([(name, pa.int64())])),
    "a map": lambda name: pa.map_(pa.string(), pa.struct([(name, pa.int64())])),
}


@contextmanager
def unstarted(folder: Path) -> Iterator[Lakehouse]:
    """A lakehouse that has no Spark yet: names need none."""
    opened = Lakehouse(LakehouseSettings(warehouse=str(folder / "warehouse")))
    try:
        yield opened
    finally:
        opened.stop()


@pytest.fixture(params=["memory", "lakehouse"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MutableCatalog]:
    if request.param == "memory":
        yield MemoryCatalog("lake")
        return
    with unstarted(tmp_path) as opened:
        yield opened.catalog


@pytest.fixture
def server(named: MutableCatalog) -> Iterator[Server]:
    with serving(named) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as connected:
        connected.create_table("public.t", COLUMNS)
        yield connected


def listing(client: Client) -> tuple[object, ...]:
    return tuple(sorted((table.schema_name, table.name, str(table.schema)) for table in client.tables()))


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED.keys())
def test_a_name_that_is_more_than_a_name_is_refused_wherever_one_is_given(client: Client, name: str) -> None:
    before = listing(client)
    for what, attack in NEW_NAMES.items():
        with pytest.raises(InvalidArgument) as refusal:
            attack(client, name)
        assert "\n" not in str(refusal.value), what
    assert listing(client) == before


@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE.keys())
def test_a_field_deep_inside_a_column_has_a_name_like_any_other(
    client: Client, inside: Callable[[str], pa.DataType]
) -> None:
    for name in ("x\ny", "x\0y", "x" * 256):
        with pytest.raises(InvalidArgument):
            client.create_table("public.c", pa.schema([("c", inside(name))]))
        with pytest.raises(InvalidArgument):
            client.add_column("public.t", pa.field("c", inside(name)))


def test_a_schema_with_a_dot_is_refused_when_it_is_made(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="one level"):
        client.create_schema(("lake", "a.b"))


def test_comments_and_tags_have_limits(client: Client) -> None:
    column = pa.field("c", pa.int64(), metadata={"comment": "x" * 65_537})
    attempts: list[Callable[[], object]] = [
        lambda: client.create_table("public.c", COLUMNS, comment="x" * 65_537),
        lambda: client.create_table("public.c", pa.schema([column])),
        lambda: client.create_table("public.c", pa.schema([column.with_metadata({"comment": b"\xff"})])),
        lambda: client.set_comment("public.t", "x" * 65_537),
        lambda: client.set_comment("public.t", "x\0y"),
        lambda: client.set_comment("public.t", "x" * 65_537, column="id"),
        lambda: client.create_schema("s", comment="x" * 1_001),
        lambda: client.create_schema("s", tags={"key": "x" * 1_001}),
        lambda: client.create_schema("s", tags={"x" * 201: "value"}),
        lambda: client.create_schema("s", tags={f"key{number}": "" for number in range(101)}),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidArgument):
            attempt()
    client.set_comment("public.t", "line\nof " + "x" * 60_000)
    client.create_schema("s", comment="x" * 1_000, tags={"key": "x" * 1_000})


@pytest.mark.parametrize("name", [b"x\xffy", b"\xed\xa0\x80", b"\xc0\xae\xc0\xae"])
def test_a_name_that_is_not_utf8_is_an_invalid_argument(server: Server, name: bytes) -> None:
    with closing(Connection(server.location)) as connection:
        for action, body in (
            ("create_schema", {"catalog_name": "lake", "schema": name}),
            ("drop_table", {"catalog_name": "lake", "schema_name": "public", "name": name}),
            ("rename_table", {"catalog": "lake", "schema": "public", "name": "t", "new_table_name": name}),
        ):
            with pytest.raises(AirportError) as refusal:
                connection.do_action(action, pack(body), [])
            assert refusal.value.code is grpc.StatusCode.INVALID_ARGUMENT
        half = b'{"schema_name": "public", "table_name": "\\ud800", "row_ids": [1]}'
        with pytest.raises(AirportError) as refusal:
            connection.do_action("delete", half, [])
        assert refusal.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_looking_for_what_can_have_no_name_finds_nothing(client: Client) -> None:
    for name in ("x\0y", "x\ny", "..", "x" * 100_000):
        with pytest.raises(NotFound):
            client.describe(("lake", "public", name))
        with pytest.raises(NotFound):
            client.drop_table(("lake", "public", name))


def test_names_that_differ_by_case_alone_are_one_name_and_by_anything_else_are_two(client: Client) -> None:
    client.create_table(("lake", "public", "é"), COLUMNS)
    client.create_table(("lake", "public", "e\u0301"), COLUMNS)
    assert {"é", "e\u0301"} <= {table.name for table in client.tables()}
    with pytest.raises(Exception, match="already exists"):
        client.create_table("public.T", COLUMNS)


def test_names_of_any_other_characters_are_names_and_no_paths(tmp_path: Path) -> None:
    with unstarted(tmp_path) as opened, serving(opened.catalog) as server, connect(server.location) as client:
        schemas = [name for name in ODD if "." not in name]
        for name in ODD:
            client.create_table(("lake", "public", name), pa.schema([(name, pa.int64())]))
        for name in schemas:
            client.create_schema(("lake", name))
            client.create_table(("lake", name, "t"), COLUMNS)
        assert {table.name for table in client.tables() if table.schema_name == "public"} == set(ODD)

        warehouse = tmp_path / "warehouse"
        assert {path.name for path in tmp_path.iterdir()} == {"warehouse"}
        folders = {path.parent.parent for path in warehouse.rglob("*.metadata.json")}
        assert len(folders) == len(ODD) + len(schemas)
        for folder in folders:
            parts = folder.relative_to(warehouse).parts
            assert len(parts) == 2
            assert all(part.isascii() and part[0].isalnum() for part in parts)
            assert not set("".join(parts)) & set("./\\%$`'\"*?[]{} :;#=")

        for name in ODD:
            client.rename_table(("lake", "public", name), "moved")
            client.rename_table("public.moved", name)
            client.drop_table(("lake", "public", name))
        assert [table.name for table in client.tables() if table.schema_name == "public"] == []


def test_a_table_named_like_lines_of_the_notes_removes_no_file_after_a_crash(tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    with Rig(tmp_path / "server", spark="sc://127.0.0.1:9") as rig:  # no Spark: names need none
        rig.client.create_table(("lake", "public", "innocent"), COLUMNS)
        for name in (f"x\n{victim}\ny", f'x"\n"{victim}"\n"y'):
            with pytest.raises(InvalidArgument):
                rig.client.create_table(("lake", "public", name), COLUMNS)
        os.kill(rig.process_id, signal.SIGKILL)
        rig.ended()
        rig.start()
        assert [table.name for table in rig.client.tables("public")] == ["innocent"]
    assert victim.exists()
