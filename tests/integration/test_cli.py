"""The command: what it says and its exit codes. Its signals, and that no library says more, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.command import ServingProcess, failure, run, run_process, serve, serve_process

import sparkport
from sparkport.app import CustomAction, Server
from sparkport.catalog.context import CallContext
from sparkport.client import connect
from sparkport.errors import Cancelled, InvalidArgument, Unauthenticated, Unavailable
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("fast")

SLOW = """
import os
import sys
import pyarrow as pa
from sparkport import CatalogBuilder

SCHEMA = pa.schema([("n", pa.int64())])

def scan(ctx, request):
    yield pa.record_batch({"n": [1]})
    print("at the gate", file=sys.stderr, flush=True)
    with open(os.environ["GATE"]):  # a pipe: opens when the test opens its other end
        pass
    yield pa.record_batch({"n": [2]})

catalog = CatalogBuilder("slow").schema("public").scan_table("numbers", SCHEMA, scan).build()
several = [catalog, CatalogBuilder("other").schema("public").build()]
nothing = []
number = 7

def make():
    return several

def fail():
    raise RuntimeError("no luck\\ntoday")
"""


def test_a_schema_that_duckdb_cannot_see_is_told_at_the_start_and_renamed() -> None:
    with serve("--schema", "start") as server:
        with connect(server.location) as client:
            client.create_schema("main")
            client.create_table("main.t", pa.schema([("n", pa.int64())]))
        done = run("schema", "rename", "main", "shop", "--location", server.location)
        assert (done.code, done.stdout) == (0, "main is named shop now\n")
        with connect(server.location) as client:
            assert ("shop", "t") in [(table.schema_name, table.name) for table in client.tables()]
        again = run("schema", "rename", "lake.main", "shop", "--location", server.location)
        assert "schema 'main' not found" in failure(again, 1)
    with serve("--schema", "main") as server:
        assert "rename it: sparkport schema rename main NEW" in server.wait_for_log("DuckDB's client cannot see")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


@contextmanager
def slow(folder: Path, *arguments: str) -> Iterator[ServingProcess]:
    with serve_process("slow:catalog", *arguments, cwd=folder, GATE=str(folder / "gate")) as server:
        yield server


# Serving


def test_the_ready_line_and_the_line_to_paste_come_first() -> None:
    with serve() as server:
        assert re.fullmatch(
            rf"sparkport {re.escape(sparkport.__version__)} listening on grpc://127\.0\.0\.1:\d+", server.ready
        )
        assert server.hint == f"ATTACH 'lake' (TYPE airport, LOCATION '{server.location}');"
        assert server.stdout.readline().startswith("SET disabled_optimizers = 'common_subplan';")


def test_without_an_argument_the_built_in_catalog_is_served() -> None:
    with serve("--catalog", "sea", "--schema", "deep") as server, connect(server.location, catalog="sea") as client:
        assert [(schema.name, schema.is_default) for schema in client.schemas()][:1] == [("deep", True)]
        client.create_table("deep.fish", pa.schema([("id", pa.int64())]))
        client.insert("fish", [{"id": 1}])
        assert client.scan("deep.fish").read_all().to_pylist() == [{"id": 1}]


def test_a_module_in_the_working_folder_is_served(folder: Path) -> None:
    with serve("slow:catalog", cwd=folder) as server, connect(server.location) as client:
        assert [(table.schema_name, table.name) for table in client.tables()] == [("public", "numbers")]


@pytest.mark.parametrize("target", ["slow:several", "slow:make", "slow.py:make"])
def test_lists_functions_and_paths_are_served_too(target: str, folder: Path) -> None:
    with serve(target, cwd=folder) as server, connect(server.location, catalog="slow") as client:
        assert [table.name for table in client.tables()] == ["numbers"]


@pytest.mark.parametrize(
    "target", ["examples.functions:catalog", "examples/functions.py", "examples/functions.py:catalog"]
)
def test_the_examples_are_served_by_module_and_by_path(target: str) -> None:
    with serve(target) as server, connect(server.location) as client:
        assert client.call("public.with_tax", [100.0], [0.5]).to_pylist() == [150.0]


def test_settings_come_from_the_file_the_environment_and_flags(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('catalog = "a"\nschema = "a"\nlog_format = "json"\n')
    with serve("--schema", "c", "--config", str(tmp_path / "s.toml"), SPARKPORT_CATALOG="b") as server:
        assert "'b'" in server.hint
        with connect(server.location) as client:
            assert [schema.name for schema in client.schemas() if schema.is_default] == ["c"]
        assert json.loads(server.wait_for_log("listening"))["level"] == "info"


def test_a_token_is_asked_for_when_one_is_set() -> None:
    with serve(SPARKPORT_TOKEN="open-sesame") as server:
        assert server.hint == f"CREATE SECRET (TYPE airport, AUTH_TOKEN '...', SCOPE '{server.location}');"
        with connect(server.location) as stranger, pytest.raises(Unauthenticated):
            stranger.tables()
        with connect(server.location, token="open-sesame") as client:
            assert [table.name for table in client.tables("tx")] == ["transactions"]


# Stopping


def refuses_calls(location: str) -> bool:
    try:
        with connect(location) as client:
            client.tables()
    except (Cancelled, Unavailable):
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_well(number: signal.Signals) -> None:
    with serve_process() as server:
        assert server.stop(number) == 0
        assert "Traceback" not in server.stderr.read()


def test_a_running_stream_finishes_after_the_signal_and_no_new_call_is_taken(folder: Path) -> None:
    with slow(folder) as server, connect(server.location) as client:
        batches = iter(client.scan("public.numbers"))
        assert next(batches).to_pydict() == {"n": [1]}
        server.process.send_signal(signal.SIGTERM)
        while not refuses_calls(server.location):  # the call that comes first may still be taken
            pass
        assert server.process.poll() is None
        (folder / "gate").open("w").close()
        assert [batch.to_pydict() for batch in batches] == [{"n": [2]}]
        assert server.process.wait(60) == 0


def test_a_stream_that_never_ends_does_not_hold_up_the_exit_for_ever(folder: Path) -> None:
    with slow(folder, "--grace-seconds", "0") as server, connect(server.location) as client:
        stuck = iter(client.scan("public.numbers"))
        assert next(stuck).to_pydict() == {"n": [1]}
        server.wait_for_log("at the gate")
        assert server.stop() == 0
        server.wait_for_log("leaving without them")


def test_a_second_signal_exits_at_once(folder: Path) -> None:
    with slow(folder) as server, connect(server.location) as client:
        stuck = iter(client.scan("public.numbers"))
        assert next(stuck).to_pydict() == {"n": [1]}
        server.wait_for_log("at the gate")
        server.process.send_signal(signal.SIGINT)
        server.wait_for_log("stopping")
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM


# Failing


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = failure(run_process("serve", "--port", str(port), "--log-level", "error"), 1)
    assert message == f"sparkport: cannot listen on 127.0.0.1:{port}: is another server running there?"


def test_beyond_loopback_the_server_refuses_to_run_open() -> None:
    message = failure(run("serve", "--host", "0.0.0.0", "--port", "0"), 2)
    assert "refusing to listen on '0.0.0.0' without TLS and authentication" in message
    assert "without TLS:" in failure(run("serve", "--host", "0.0.0.0", SPARKPORT_TOKEN="t"), 2)


def test_insecure_lifts_that_with_a_warning() -> None:
    with serve("--host", "0.0.0.0", "--insecure") as server:
        server.wait_for_log("WARNING")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere:catalog", "module 'nowhere' not found"),
        ("nowhere.py:catalog", "there is no file nowhere.py"),
        ("slow:missing", "module 'slow' has no attribute 'missing'"),
        ("slow:number", "'slow:number' is no catalog: it gave int"),
        ("slow:nothing", "'slow:nothing' gave no catalogs"),
        ("slow:fail", "'slow:fail' failed: RuntimeError: no luck today"),
        ("slow:", "'slow:' is not of the form MODULE:ATTRIBUTE"),
        ("needy:catalog", "'needy' cannot be imported: ModuleNotFoundError: No module named 'absent'"),
        ("broken:catalog", "'broken' cannot be imported: SyntaxError: "),
    ],
)
def test_a_target_that_cannot_be_served_is_one_line(target: str, reason: str, folder: Path) -> None:
    (folder / "needy.py").write_text("import absent\n")
    (folder / "broken.py").write_text("def\n")
    assert reason in failure(run("serve", target, cwd=folder), 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "--port", "x"], "--port: 'x' is not a whole number from 0 to 65535"),
        (["serve", "--nope"], "unrecognized arguments: --nope"),
        (["serve", "--config", "none.toml"], "none.toml cannot be read"),
        (["serve", "--tls-cert", "c.pem"], "tls_cert and tls_key go together"),
        (["dance"], "invalid choice: 'dance'"),
        ([], "the following arguments are required: COMMAND"),
        (["status", "--timeout", "soon"], "invalid float value: 'soon'"),
        (["status", "nonsense"], "'nonsense' is no location such as"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments: Sequence[str], reason: str) -> None:
    assert reason in failure(run(*arguments), 2)


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = run_process("--debug", "serve", "slow:fail", cwd=folder)
    assert done.code == 1
    assert "Traceback" in done.stderr
    with pytest.raises(InvalidArgument, match="no luck"):  # which Python shows in the same way
        run("serve", "slow:fail", "--debug", cwd=folder)


# Asking


def test_status_tells_catalogs_and_versions(folder: Path) -> None:
    with serve("slow:catalog", cwd=folder) as server:
        done = run("status", server.location)
        assert (done.code, done.stderr) == (0, "")
        assert f"{server.location} is serving" in done.stdout
        assert re.search(r"^catalog slow: version \d+, 1 tables, 0 functions$", done.stdout, re.MULTILINE)


def test_list_shows_tables_with_columns_and_functions() -> None:
    with serve("examples.functions:catalog") as server:
        assert run("list", server.location).stdout.splitlines() == [
            "tools.public.with_tax scalar function",
            "tools.public.countdown table function",
            "tools.public.running_total table function",
        ]
    with serve() as server, connect(server.location) as client:
        client.create_table("public.hello", pa.schema([("id", pa.int64()), ("greeting", pa.string())]))
        lines = run("list", server.location).stdout.splitlines()
        assert "lake.public.hello (id int64, greeting string, rowid int64)" in lines


def test_actions_are_listed() -> None:
    with serve() as server:
        done = run("actions", server.location)
    assert done.code == 0
    assert {"catalog_version", "list_schemas"} <= {line.split()[0] for line in done.stdout.splitlines()}


def test_the_token_for_asking_comes_from_the_environment() -> None:
    with serve(SPARKPORT_TOKEN="open-sesame") as server:
        assert run("list", server.location, SPARKPORT_TOKEN="open-sesame").code == 0
        assert "a bearer token is required" in failure(run("list", server.location), 1)
        wrong = failure(run("list", server.location, SPARKPORT_TOKEN="let-me-in"), 1)
        assert "the token is not known" in wrong
        assert "let-me-in" not in wrong


@pytest.mark.parametrize("command", ["status", "list", "actions"])
def test_a_server_that_is_not_there_is_one_line_and_exit_code_1(command: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        location = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        for done in (run(command, location), *([run_process(command, location)] if command == "status" else [])):
            assert failure(done, 1) == f"sparkport: no server can be reached at {location}"


def test_a_server_that_cannot_do_it_now_is_not_taken_for_none() -> None:
    def maintain(ctx: CallContext, body: bytes) -> Iterator[bytes]:
        raise Unavailable("Spark is starting")

    with Server(MemoryCatalog("lake"), port=0, actions=[CustomAction("maintain", maintain)]) as server:
        done = run("maintain", "public.t", "--location", server.location)
    assert "Spark is starting" in failure(done, 1)


def test_the_location_follows_from_the_settings() -> None:
    with serve() as server:
        port = server.location.rpartition(":")[2]
        assert server.location in run("status", SPARKPORT_PORT=port).stdout


def test_the_version_is_told() -> None:
    assert run_process("--version").stdout == f"sparkport {sparkport.__version__}\n"
