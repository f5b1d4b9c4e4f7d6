"""The ``sparkport`` command: what was asked for, and every failure as one line and an exit code.

Exit codes: 0 all went well, 1 it did not, 2 the command line or the settings are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sparkport import __version__
from sparkport.cli.arguments import add_common
from sparkport.cli.rules_commands import add_rules_commands
from sparkport.cli.warehouse_commands import add_warehouse_commands
from sparkport.config import BOOLEAN, SETTINGS, Settings, load
from sparkport.errors import FailedPrecondition, InvalidArgument, SparkportError

__all__ = ["main"]

_EPILOG = "Settings come from a file (--config or SPARKPORT_CONFIG), then SPARKPORT_* variables, then flags."


def main(
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    stopping: threading.Event | None = None,
) -> int:
    """Run one command and return its exit code.

    A server is stopped by signals, unless it is a guest in the process of others: then by ``stopping``.
    """
    options = _parser().parse_args(arguments, argparse.Namespace(stopping=stopping))
    # gRPC's core writes lines of its own to standard error; what matters in them is in our errors and logs.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code: int = options.run(options, os.environ if environ is None else environ)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has seen enough. What is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as exc:
        if options.debug:
            raise
        print(f"sparkport: {_one_line(exc)}", file=sys.stderr)
        return 2 if isinstance(exc, InvalidArgument | FailedPrecondition) else 1


def _one_line(exc: Exception) -> str:
    text = exc.message if isinstance(exc, SparkportError) else f"{type(exc).__name__}: {exc}"
    return " ".join(text.split())


def _serve(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from sparkport.cli.serve import serve  # loads gRPC and Arrow, which `sparkport --version` can do without

    flags = {s.name: getattr(options, s.name) for s in SETTINGS if hasattr(options, s.name)}
    return serve(load(flags, environ, file=options.config), options.target, stopping=options.stopping)


def _remote(name: str) -> Callable[[argparse.Namespace, Mapping[str, str]], int]:
    def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
        from sparkport.cli import (
            changes,
            demo,
            journal,
            maintain,
            remote,
            schema,
            status,
            table,
            transactions,
            transfer,
            view,
        )

        settings = load({}, environ, file=options.config)
        target = remote.Remote(
            location=options.location or _own_location(settings),
            token=settings.token,
            ca=options.ca,
            timeout=options.timeout,
        )
        out = sys.stdout
        commands: dict[str, Callable[[], int]] = {
            "status": lambda: status.status(target, out),
            "list": lambda: remote.list_tables(target, out),
            "actions": lambda: remote.list_actions(target, out),
            "transactions": lambda: transactions.list_transactions(target, out),
            "changes": lambda: changes.print_changes(
                target, options.table, options.first, last=options.last, follow=options.follow, out=out
            ),
            "maintain": lambda: maintain.maintain(target, options.table, steps=options.steps, out=out),
            "flush": lambda: journal.flush(target, out=out),
            "set": lambda: table.change(target, options.table, setting=options.setting, out=out),
            "upgrade": lambda: table.upgrade(target, options.table, out=out),
            "rename": lambda: schema.rename(target, options.schema, options.new_name, out=out),
            "create": lambda: view.create(target, options.view, query=options.query, out=out),
            "drop": lambda: view.drop(target, options.view, out=out),
            "demo": lambda: demo.demo(target, items=options.items, replace=options.replace, out=out),
            "import": lambda: transfer.import_files(
                target, options.files, options.table, form=options.format, create=options.create, out=out
            ),
            "export": lambda: transfer.export_table(
                target, options.table, options.target, form=options.format, overwrite=options.overwrite, out=out
            ),
        }
        return commands[name]()

    return run


def _own_location(settings: Settings) -> str:
    """Where a server with these settings listens."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "grpc" if settings.tls_cert is None else "grpc+tls"
    return f"{scheme}://[{host}]:{settings.port}" if ":" in host else f"{scheme}://{host}:{settings.port}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sparkport", description="Serve catalogs to DuckDB over Arrow Flight.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"sparkport {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    for name, text in (
        ("status", "ask a server whether it serves, and which catalogs"),
        ("list", "list a server's tables and functions"),
        ("actions", "list a server's actions"),
        ("transactions", "list a server's deferred transactions that have not ended"),
    ):
        _add_remote(commands, name, text).add_argument(
            "location", nargs="?", metavar="LOCATION", help="such as grpc://127.0.0.1:50051; else as the settings say"
        )
    _add_schema(commands)
    _add_transfer(commands)
    _add_lakehouse(commands)
    add_warehouse_commands(commands)
    add_rules_commands(commands)
    _add_jars(commands)
    return parser


def _add_jars(commands: Any) -> None:
    command = commands.add_parser("jars", help="fetch the jars that Spark needs, for machines without a network")
    command.set_defaults(run=_jars)
    command.add_argument("folder", type=Path, metavar="DIR", help="where to put them; serve with --jars DIR")
    add_common(command)


def _jars(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from sparkport.cli.jars import jars

    return jars(options.folder, out=sys.stdout)


def _add_schema(commands: Any) -> None:
    schema = commands.add_parser("schema", help="change a schema")
    rename = _add_remote(
        schema.add_subparsers(title="commands", metavar="COMMAND", required=True),
        "rename",
        "give a schema another name",
    )
    rename.add_argument("schema", metavar="OLD", help="such as main, or lake.main on a server of several catalogs")
    rename.add_argument("new_name", metavar="NEW", help="a schema of this name that is empty makes way")
    rename.add_argument("--location", metavar="LOCATION", help="of the server; else as the settings say")


def _add_transfer(commands: Any) -> None:
    """Files are read and written here, not by the server."""
    insert = _add_remote(commands, "import", "insert the rows of files into a table, in one commit", timeout=86_400)
    insert.add_argument(
        "files", nargs="+", metavar="FILE", help="Parquet, CSV or JSON, of one kind; or folders of them"
    )
    insert.add_argument(
        "table", metavar="TABLE", help="such as public.events; made of Parquet's types if it is missing"
    )
    insert.add_argument("--create", action="store_true", help="make a missing table of the types found in CSV or JSON")
    export = _add_remote(commands, "export", "write the rows of a table to files", timeout=86_400)
    export.add_argument("table", metavar="TABLE", help="such as public.events")
    export.add_argument(
        "target", metavar="FILE|DIR", help="by its suffix Parquet, CSV or JSON; a folder gets several files"
    )
    export.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    changes = _add_remote(commands, "changes", "print the changes of a table's rows as lines of JSON", timeout=86_400)
    changes.add_argument("table", metavar="TABLE", help="such as public.events")
    changes.add_argument("first", metavar="FROM", help="the version after which to begin: a number, a tag or a time")
    changes.add_argument("last", nargs="?", metavar="TO", help="the last version; else the newest")
    changes.add_argument("--follow", action="store_true", help="go on as commits come, until it is interrupted")
    for command in (insert, export):
        command.add_argument("--format", choices=("parquet", "csv", "json"), help="whatever the suffix")
    for command in (insert, export, changes):
        command.add_argument("--location", metavar="LOCATION", help="of the server; else as the settings say")


def _add_lakehouse(commands: Any) -> None:
    """What only a server of the lakehouse does, and may take its time for."""
    maintain = _add_remote(commands, "maintain", "compact a table and remove what nobody needs", timeout=3600)
    maintain.add_argument("table", metavar="TABLE", help="such as public.events")
    maintain.add_argument(
        "--step",
        dest="steps",
        action="append",
        default=[],
        metavar="STEP",
        help="only this one of: compact, manifests, expire, orphans, metadata; may be repeated",
    )
    table = commands.add_parser("table", help="change how a table is stored")
    of_table = table.add_subparsers(title="commands", metavar="COMMAND", required=True)
    change = _add_remote(of_table, "set", "journal its changes, or do so no more", timeout=3600)
    change.add_argument("table", metavar="NAME", help="such as public.events")
    change.add_argument("setting", metavar="journal=on|off", help="off publishes first what the journal holds")
    upgrade = _add_remote(
        of_table,
        "upgrade",
        "bring a table of format v1 or v2 to v3, which UPDATE and DELETE need",
        timeout=3600,
    )
    upgrade.add_argument("table", metavar="NAME", help="such as public.events")
    view = commands.add_parser("view", help="make or drop a view of a query that Spark runs")
    of_view = view.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = _add_remote(of_view, "create", "make a view", timeout=600)
    create.add_argument("view", metavar="NAME", help="such as public.totals")
    create.add_argument("query", metavar="QUERY", help="in Spark's SQL, such as 'SELECT … FROM public.orders'")
    drop = _add_remote(of_view, "drop", "drop a view")
    drop.add_argument("view", metavar="NAME", help="such as public.totals")
    flush = _add_remote(commands, "flush", "publish now what the journal holds, and wait for it", timeout=3600)
    demo = _add_remote(commands, "demo", "make tables to try, and say what to try", timeout=3600)
    demo.add_argument("--items", type=int, metavar="NUMBER", help="rows of the largest table (default: 1000000)")
    demo.add_argument("--replace", action="store_true", help="make tables anew that are there already")
    for command in (maintain, change, upgrade, create, drop, flush, demo):
        command.add_argument("--location", metavar="LOCATION", help="of the server; else as the settings say")


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run a server until SIGTERM or SIGINT", epilog=_EPILOG)
    serve.set_defaults(run=_serve)
    serve.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="a catalog of yours, a list of them, or a function that returns either; a path to a .py file works too. "
        "Without it: the built-in catalog",
    )
    add_common(serve)
    for setting in SETTINGS:
        if setting.flag is None:
            continue
        # Values stay texts here: they are read like those of the other sources, with the same errors.
        flag: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": setting.help}
        if setting.kind is BOOLEAN:
            flag["action"] = argparse.BooleanOptionalAction
        else:
            flag["metavar"] = setting.kind.metavar
            if setting.default is not None:
                flag["help"] += f" (default: {setting.kind.show(setting.default)})"
        serve.add_argument(setting.flag, **flag)


def _add_remote(commands: Any, name: str, text: str, *, timeout: float = 10.0) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, epilog="The token, where one is needed, is read from SPARKPORT_TOKEN."
    )
    command.set_defaults(run=_remote(name))
    command.add_argument("--ca", type=Path, metavar="FILE", help="CA of the server's certificate, PEM")
    command.add_argument("--timeout", type=float, default=timeout, metavar="SECONDS", help="default: %(default)g")
    add_common(command)
    return command
