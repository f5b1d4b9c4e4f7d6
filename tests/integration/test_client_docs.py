"""The examples of docs/client.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.functions import Parameter
from sparkport.client.errors import ERRORS
from sparkport.errors import Code
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")


def shout(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.set_column(1, "name", pc.utf8_upper(batch.column("name")))]


def test_the_examples_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    users = pa.table({"id": [4, 6, 8], "name": ["ann", "bob", "cid"]})
    number = pa.int64()
    catalog = (
        CatalogBuilder()
        .schema("public")
        .table("users", users)
        .scalar_function(
            "add",
            lambda ctx, args: pc.add(args["x"], args["y"]),
            [Parameter("x", number), Parameter("y", number)],
            number,
        )
        .table_function(
            "repeat",
            lambda ctx, args, request: pa.table({"v": [args["value"]] * args["times"]}),
            [Parameter("times", number), Parameter("value", pa.string(), named=True)],
            pa.schema([("v", pa.string())]),
        )
        .in_out_function(
            "shout", lambda ctx, args, schema: shout, [Parameter("rows", table=True)], lambda args, schema: users.schema
        )
        .build()
    )
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    with serving(catalog) as server:
        for example in examples:
            exec(example.replace("grpc://127.0.0.1:50051", server.location), names)
    assert len(examples) == 5
    assert names["users"].to_pydict() == {"id": [6, 8], "name": ["bob", "cid"]}
    assert names["sums"].to_pylist() == [11, 12, 13]
    assert names["rows"].to_pydict() == {"v": ["x", "x", "x"]}
    assert names["upper"].to_pydict() == {"id": [6, 8], "name": ["BOB", "CID"]}
    assert capsys.readouterr().out.endswith("table 'public.nobody' not found\n")


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.INTERNAL])
def test_the_table_of_errors_has_every_code_with_its_class(code: Code) -> None:
    assert re.search(rf"\| {code.name} \| `{ERRORS[code].__name__}`", PAGE)
