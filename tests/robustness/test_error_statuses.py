"""Errors as they arrive: each class with its code and message, and of a defect nothing but an id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import grpc
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.robustness.rig import ROWS, Raw, action, ticket

from sparkport import errors
from sparkport.app import CustomAction, Server
from sparkport.catalog import CallContext, CatalogBuilder, ScanRequest
from sparkport.errors import Code, InternalError, SparkportError
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

SECRET = "the text of an exception that nobody foresaw"
_ARGUMENTS: dict[type[SparkportError], tuple[object, ...]] = {
    errors.SchemaNotFound: ("s",),
    errors.TableNotFound: ("s", "t"),
    errors.FunctionNotFound: ("s", "f"),
    errors.RowNotFound: (7,),
    errors.TransactionNotFound: ("id",),
    errors.TransactionNotActive: ("id", "committed"),
}


def tree(kind: type[SparkportError]) -> Iterator[type[SparkportError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from tree(child)


KINDS = sorted(set(tree(SparkportError)), key=lambda kind: kind.__name__)
FORESEEN = [kind for kind in KINDS if kind.code is not Code.INTERNAL]
UNFORESEEN: list[type[BaseException]] = [
    ValueError,
    KeyError,
    RecursionError,
    MemoryError,
    StopIteration,
    pa.ArrowInvalid,
    AssertionError,
    SystemExit,
    KeyboardInterrupt,
]


def made(kind: type[SparkportError]) -> SparkportError:
    return kind(*_ARGUMENTS.get(kind, ("something of this kind: ü \n 100 %",)))


def fail(ctx: CallContext, body: bytes) -> Iterable[bytes]:
    name = body.decode()
    if name.startswith("long"):
        raise errors.InvalidArgument(name[4:] * 10_000)
    if name == "half":
        raise errors.InvalidArgument("odd: \ud800")
    known = {kind.__name__: kind for kind in KINDS}
    if name in known:
        raise made(known[name])
    raise {kind.__name__: kind for kind in UNFORESEEN}[name](SECRET)


def failing_scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    yield ROWS.to_batches()[0]
    raise ValueError(SECRET)


def wrong_scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": ["not a number"], "name": ["x"]})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    tables = (
        CatalogBuilder("lake")
        .schema("public")
        .scan_table("failing", ROWS.schema, failing_scan)
        .scan_table("wrong", ROWS.schema, wrong_scan)
        .build()
    )
    with serving(tables, actions=[CustomAction("fail", fail)]) as running:
        yield running


@pytest.mark.parametrize("kind", FORESEEN, ids=lambda kind: kind.__name__)
def test_every_error_arrives_with_its_code_and_message(raw: Raw, kind: type[SparkportError]) -> None:
    answer = raw.call("DoAction", action("fail", kind.__name__.encode()))

    assert answer.code.value[0] == kind.code
    assert answer.details == made(kind).message


@pytest.mark.parametrize("kind", FORESEEN, ids=lambda kind: kind.__name__)
def test_exactly_what_duckdb_has_an_exception_for_carries_it(raw: Raw, kind: type[SparkportError]) -> None:
    trailers = raw.call("DoAction", action("fail", kind.__name__.encode())).trailers
    extra = trailers.get("grpc-status-details-bin")

    assert ("x-arrow-status" in trailers) == (kind.duckdb_exception is not None)
    if kind.duckdb_exception is None:
        assert extra is None
    else:
        expected = {"exception_type": kind.duckdb_exception, "message": made(kind).message}
        assert msgpack.unpackb(extra) == expected


def test_a_stock_client_reads_the_extra_information(server: Server) -> None:
    with pf.connect(server.location) as client, pytest.raises(pf.FlightError) as caught:
        list(client.do_action(pf.Action("fail", b"ConstraintViolation")))

    assert msgpack.unpackb(caught.value.extra_info)["exception_type"] == "ConstraintException"


@pytest.mark.parametrize("kind", UNFORESEEN, ids=lambda kind: kind.__name__)
def test_of_a_defect_only_an_id_goes_out_and_the_log_has_the_rest(
    raw: Raw, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    answer = raw.call("DoAction", action("fail", kind.__name__.encode()))
    found = re.fullmatch(r"internal error \(error id ([0-9a-f]{12})\)", answer.details)

    assert answer.code is grpc.StatusCode.INTERNAL
    assert found is not None
    assert SECRET not in repr(answer)
    assert [record.getMessage() for record in caplog.records] == [f"internal error {found[1]}"]
    assert SECRET in caplog.text
    assert "Traceback" in caplog.text


def test_a_defect_of_ours_is_told_with_an_id(raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    answer = raw.call("DoAction", action("fail", InternalError.__name__.encode()))
    found = re.search(r"\(error id ([0-9a-f]{12})\)", answer.details)

    assert answer.code is grpc.StatusCode.INTERNAL
    assert found is not None
    assert found[1] in caplog.text


def test_a_table_that_fails_in_the_middle_ends_its_stream_with_an_id(
    raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    answer = raw.call("DoGet", ticket("failing"))

    assert answer.code is grpc.StatusCode.INTERNAL
    assert len(answer.messages) == 2
    assert SECRET not in repr(answer)
    assert SECRET in caplog.text


def test_a_table_that_breaks_its_own_schema_is_a_defect(raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    answer = raw.call("DoGet", ticket("wrong"))

    assert answer.code is grpc.StatusCode.INTERNAL
    assert "declared is int64" in answer.details
    assert len(caplog.records) == 1


def test_a_message_with_half_a_character_arrives(raw: Raw) -> None:
    answer = raw.call("DoAction", action("fail", b"half"))

    assert (answer.code, answer.details) == (grpc.StatusCode.INVALID_ARGUMENT, "odd: ?")


@pytest.mark.parametrize("letter", ["x", "ü", "\n", "\U0001f600", "%"])
def test_a_long_message_is_cut_so_that_it_arrives(server: Server, raw: Raw, letter: str) -> None:
    answer = raw.call("DoAction", action("fail", b"long" + letter.encode()))

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.details.endswith("…")
    assert len(answer.details) > 250
    with pf.connect(server.location) as client, pytest.raises(pf.FlightError) as caught:
        list(client.do_action(pf.Action("fail", b"long" + letter.encode())))
    assert msgpack.unpackb(caught.value.extra_info)["message"] == answer.details
