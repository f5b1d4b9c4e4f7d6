"""Messages to clients name no place of the server and show no stack; the log has both, by the id in the message."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.connect import SparkException
from tests.robustness.rig import Raw, action
from tests.support.lakehouse import lakehouse

from sparkport.app import CustomAction
from sparkport.catalog import CallContext
from sparkport.client import connect
from sparkport.errors import InternalError, InvalidArgument, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.spark.errors import translated
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving
from sparkport.wire.status import translate

pytestmark = pytest.mark.tier("fast")

STACK = (
    "[CANNOT_READ_FILE] Could not read file:/srv/lake/public/t/data/x.parquet. SQLSTATE: KD001\n\n"
    "JVM stacktrace:\norg.apache.spark.SparkException\n"
    "\tat org.apache.spark.sql.Reader.read(Reader.scala:1)\nCaused by: java.io.IOException: /srv/secret"
)

PLACES = {
    "file '/srv/lake/public/t-1/metadata/00000-x.metadata.json' not found": "file '…' not found",
    "file '/srv/my lake/t/x': Input/output error": "file '…': Input/output error",
    "no access to file:/srv/lake/x": "no access to …",
    "no access to file 's3://bucket/key with blanks'": "no access to file '… with blanks'",
    "cannot open jdbc:sqlite:/srv/lake/catalog.db": "cannot open jdbc:…",
    "no answer from https://catalog.internal:8181/v1/config, try again": "no answer from …, try again",
    "there is no jar in /srv/jars/all; needed are a:b:1": "there is no jar in …; needed are a:b:1",
    "it failed\n\tat org.apache.spark.X.y(Z.scala:1)\n\tat a.b(C.java:2)": "it failed",
}


@pytest.mark.parametrize("text", PLACES)
@pytest.mark.parametrize("kind", [NotFound, InvalidArgument, Unavailable, InternalError])
def test_an_error_is_told_without_places_and_the_log_has_them(
    kind: type[SparkportError], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ctx: CallContext, body: bytes) -> Iterable[bytes]:
        raise kind(text)

    failing = CustomAction("fail", fail, "")
    with caplog.at_level(logging.WARNING), serving(MemoryCatalog("lake"), actions=[failing]) as server:
        with Raw(server.port) as raw:
            answer = raw.call("DoAction", action("fail", b""))
        found = re.fullmatch(rf"{re.escape(PLACES[text])} \(error id ([0-9a-f]{{12}})\)", answer.details)
        assert found, answer.details
        assert answer.code.value[0] == kind.code
        said = "".join(
            value.decode(errors="replace") if isinstance(value, bytes) else value for value in answer.trailers.values()
        )
        assert "/srv" not in said
    assert found[1] in caplog.text
    assert text in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "table 'public.a/b' not found",
        "column 'x' cannot change from int32 to string; possible are 1/2 and and/or",
        "body key 'on_conflict' must be error, ignore or replace",
        "expression 10 / 2 / 1 is wrong",
        "catalog uri must begin with sqlite:, postgresql:, http: or https:",
    ],
)
def test_a_message_without_places_stays_as_it_is(text: str) -> None:
    assert translate(InvalidArgument(text)).message == text


def test_looking_for_places_takes_no_time_however_long_a_message_is() -> None:
    for text in ("/a" * 5_000_000, "a." * 5_000_000, "'/" * 5_000_000, "a:/" * 5_000_000, "\n" * 5_000_000):
        assert len(translate(InvalidArgument(text)).message) <= len(text) + 30


def test_of_what_spark_says_only_the_kind_of_failure_is_told() -> None:
    with pytest.raises(InternalError) as failure, translated("reading 't'"):
        raise SparkException(STACK, errorClass="CANNOT_READ_FILE", messageParameters={})
    assert failure.value.message == "reading 't': Spark failed: CANNOT_READ_FILE"
    with pytest.raises(InternalError) as failure, translated("reading 't'"):
        raise RuntimeError("java.nio.file.NoSuchFileException: /srv/lake/x")
    assert failure.value.message == "reading 't': Spark failed: RuntimeError"


@pytest.mark.timeout(300)
def test_a_table_whose_files_are_gone_does_not_tell_where_they_were(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with lakehouse(warehouse) as opened, serving(opened.catalog) as server, connect(server.location) as client:
        client.create_table("public.t", pa.schema([("id", pa.int64())]))
        client.insert("public.t", pa.table({"id": [1]}))
        client.create_table("public.u", pa.schema([("id", pa.int64())]))
    for file in warehouse.rglob("*.parquet"):
        file.unlink()
    for file in (warehouse / "public").glob("u-*/metadata/*.json"):
        file.write_text("{")
    with lakehouse(warehouse) as opened, serving(opened.catalog) as server, connect(server.location) as client:
        failures: list[str] = []
        for attempt in (
            lambda: client.scan("public.t").read_all(),
            lambda: client.update("public.t", pa.table({"id": [2]}), row_ids=[0]),
            lambda: client.delete("public.t", [0]),
            lambda: client.describe("public.u"),
            lambda: client.insert("public.u", pa.table({"id": [1]})),
        ):
            with pytest.raises(SparkportError) as failure:
                attempt()
            failures.append(failure.value.message)
    assert [text for text in failures if str(tmp_path) in text or "org.apache" in text or "\tat " in text] == []
