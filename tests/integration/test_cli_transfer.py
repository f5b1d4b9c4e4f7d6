"""``sparkport import`` and ``export`` against a server: rows there and back in each format, in one commit."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkport.auth import Secret, StaticTokens
from sparkport.auth.rules import RuleAuthorizer
from sparkport.cli.main import main
from sparkport.client import Client, connect
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["", None, 'say "so", or\nnot'], pa.string()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
        "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
        "at": pa.array([dt.datetime(2024, 1, 1, 12, 0, 0, 7), None, dt.datetime(1969, 12, 31)], pa.timestamp("us")),
        "good": pa.array([True, None, False]),
        "small": pa.array([1, None, -3], pa.int32()),
        "parts": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
    }
)


class Served:
    def __init__(self, location: str, client: Client) -> None:
        self.location = location
        self.client = client

    def run(self, *arguments: object, token: str = "") -> int:
        environ = {"SPARKPORT_TOKEN": token} if token else {}
        return main([*map(str, arguments), "--location", self.location], environ=environ)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = self.client.scan(table).read_all().to_pylist()
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(MemoryCatalog("lake")) as server, connect(server.location) as client:
        yield Served(server.location, client)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "csv.gz", "jsonl", "ndjson"])
def test_a_table_goes_out_and_comes_back_the_same(
    served: Served, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        served.client.create_table(f"public.{name}", ROWS.schema)
    served.client.insert("public.one", ROWS)
    path = tmp_path / f"it's [1] 50%.{suffix}"
    assert served.run("export", "public.one", path) == 0
    assert served.run("import", path, "public.two") == 0
    told = capsys.readouterr()
    assert f"3 rows of public.one in {path}, 1 file; " in told.out
    assert "3 rows of 1 file in public.two; " in told.out
    assert told.err == ""
    assert served.rows("public.two") == served.rows("public.one") == ROWS.to_pylist()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    if suffix == "csv.gz":
        assert gzip.decompress(path.read_bytes()).startswith(b"id,name,price")


def test_parquet_makes_the_table_and_says_its_types(served: Served, tmp_path: Path) -> None:
    kinds = pa.array(["a", "b"]).dictionary_encode()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", kinds.type)])
    pq.write_table(pa.table([[1, 2], kinds], schema=schema), tmp_path / "x.parquet")
    assert served.run("import", tmp_path / "x.parquet", "public.made") == 0
    made = served.client.describe("public.made").schema
    assert [(field.name, field.type, field.nullable) for field in made] == [
        ("id", pa.int64(), False),
        ("kind", pa.string(), True),
    ]
    assert served.rows("public.made") == [{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}]


@pytest.mark.parametrize(
    ("name", "text"), [("x.csv", "id,day\n1,2024-01-31\n2,\n"), ("x.json", '{"id":1,"day":"2024-01-31"}\n{"id":2}\n')]
)
def test_csv_and_json_make_a_table_only_if_they_are_told_to(
    served: Served, tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert served.run("import", tmp_path / name, "public.made") == 1
    assert "say --create" in capsys.readouterr().err
    assert served.run("import", "--create", tmp_path / name, "public.made") == 0
    assert served.client.describe("public.made").schema.field("day").type == pa.date32()
    assert served.rows("public.made") == [{"id": 1, "day": dt.date(2024, 1, 31)}, {"id": 2, "day": None}]


def test_a_folder_of_files_is_one_commit(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    (folder / "deeper").mkdir(parents=True)
    for number, place in enumerate(("a.parquet", "deeper/b.parquet", "_SUCCESS.parquet", ".c.parquet", "d.txt")):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), folder / place)
    assert served.run("import", folder, "public.many") == 0
    assert [row["id"] for row in served.rows("public.many")] == [0, 1]
    assert served.client.scan("public.many", as_of_version=1).read_all().num_rows == 2
    assert served.client.scan("public.many", as_of_version=0).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x.csv": "id,name\n1,a\nnonsense,b\n"}, "nonsense"),
        ({"x.json": '{"id": 1}\n{"id": '}, "x.json"),
        ({"x.parquet": "no parquet"}, "x.parquet"),
        ({"x.txt": "?"}, "--format"),
        ({"a.csv": "id\n1\n", "b.json": "{}"}, "one format at a time"),
        ({}, "there is no file"),
    ],
)
def test_what_cannot_be_read_changes_nothing_and_is_told_in_one_line(
    served: Served, tmp_path: Path, files: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    served.client.create_table("public.kept", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in files] or [tmp_path / "none.csv"]
    assert served.run("import", *paths, "public.kept") in (1, 2)
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert served.rows("public.kept") == []
    assert served.client.scan("public.kept", as_of_version=0).read_all().num_rows == 0


def test_a_table_that_was_made_for_rows_that_do_not_come_goes_again(served: Served, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array(["no number"])}), tmp_path / "b.parquet")
    assert served.run("import", tmp_path / "a.parquet", tmp_path / "b.parquet", "public.short") == 2
    assert [table.name for table in served.client.tables("public")] == []


def test_columns_that_the_table_has_not_are_not_skipped(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served.client.create_table("public.kept", pa.schema([("id", pa.int64())]))
    for name, text in (("x.csv", "id,more\n1,2\n"), ("x.json", '{"id": 1, "more": 2}\n')):
        (tmp_path / name).write_text(text)
        assert served.run("import", tmp_path / name, "public.kept") == 2
        assert "a column 'more'" in capsys.readouterr().err
    assert served.rows("public.kept") == []


def test_what_is_there_is_not_overwritten(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served.client.create_table("public.one", ROWS.schema)
    served.client.insert("public.one", ROWS)
    path = tmp_path / "x.json"
    path.write_text("mine")
    assert served.run("export", "public.one", path) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert served.run("export", "public.one", path, "--overwrite") == 0
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert served.run("export", "public.one", tmp_path) == 1
    assert "not empty" in capsys.readouterr().err
    assert served.run("export", "public.none", tmp_path / "none.csv") == 1
    assert not (tmp_path / "none.csv").exists()


def test_a_folder_gets_files_of_a_million_rows(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkport.cli.transfer._ROWS_PER_FILE", 100_000)
    served.client.create_table("public.many", pa.schema([("id", pa.int64())]))
    assert served.run("export", "public.many", tmp_path / "empty") == 0
    assert pq.read_table(tmp_path / "empty").num_rows == 0
    served.client.insert("public.many", pa.table({"id": pa.array(range(250_000), pa.int64())}))
    assert served.run("export", "public.many", tmp_path / "out", "--format", "csv") == 0
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) > 1
    assert [file.suffix for file in files] == [".csv"] * len(files)
    assert served.run("import", tmp_path / "out", "public.many") == 0
    assert served.client.scan("public.many").read_all().num_rows == 500_000


def test_the_callers_rights_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = RuleAuthorizer.from_table(
        {
            "rules": [
                {"subjects": ["writer"], "operations": ["*"], "resources": ["*"]},
                {"subjects": ["reader"], "operations": ["read"], "resources": ["lake.*"]},
            ]
        }
    )
    tokens = StaticTokens({Secret("w" * 20): "writer", Secret("r" * 20): "reader"})
    (tmp_path / "x.csv").write_text("id\n1\n")
    with serving(MemoryCatalog("lake"), authenticator=tokens, authorizer=rules) as server:
        served = Served(server.location, connect(server.location, token="w" * 20))
        with served.client:
            served.client.create_table("public.one", pa.schema([("id", pa.int64())]))
            assert served.run("import", tmp_path / "x.csv", "public.one", token="r" * 20) == 1
            assert served.run("import", "--create", tmp_path / "x.csv", "public.two", token="r" * 20) == 1
            assert served.run("export", "public.one", tmp_path / "out.csv") == 1
            assert len(capsys.readouterr().err.splitlines()) == 3
            assert served.run("import", tmp_path / "x.csv", "public.one", token="w" * 20) == 0
            assert served.run("export", "public.one", tmp_path / "out.csv", token="r" * 20) == 0
    assert (tmp_path / "out.csv").read_text() == "id\n1\n"
