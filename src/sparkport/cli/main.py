"""The ``sparkport`` command: what was asked for, and every failure as one line and an exit code.

Exit codes: 0 all went well, 1 it did not, 2 the command line or the settings are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sparkport import __version__
from sparkport.config import BOOLEAN, SETTINGS, Settings, load
from sparkport.errors import FailedPrecondition, InvalidArgument, SparkportError

__all__ = ["main"]

_EPILOG = "Settings come from a file (--config or SPARKPORT_CONFIG), then SPARKPORT_* variables, then flags."


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
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
    return serve(load(flags, environ, file=options.config), options.target)


def _remote(name: str) -> Callable[[argparse.Namespace, Mapping[str, str]], int]:
    def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
        from sparkport.cli import demo, maintain, remote, schema, table, transactions

        settings = load({}, environ, file=options.config)
        target = remote.Remote(
            location=options.location or _own_location(settings),
            token=settings.token,
            ca=options.ca,
            timeout=options.timeout,
        )
        out = sys.stdout
        commands: dict[str, Callable[[], int]] = {
            "status": lambda: remote.status(target, out),
            "list": lambda: remote.list_tables(target, out),
            "actions": lambda: remote.list_actions(target, out),
            "transactions": lambda: transactions.list_transactions(target, out),
            "maintain": lambda: maintain.maintain(target, options.table, steps=options.steps, out=out),
            "upgrade": lambda: table.upgrade(target, options.table, out=out),
            "rename": lambda: schema.rename(target, options.schema, options.new_name, out=out),
            "demo": lambda: demo.demo(target, items=options.items, replace=options.replace, out=out),
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
    _add_lakehouse(commands)
    return parser


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
    upgrade = _add_remote(
        table.add_subparsers(title="commands", metavar="COMMAND", required=True),
        "upgrade",
        "bring a table of format v1 or v2 to v3, which UPDATE and DELETE need",
        timeout=3600,
    )
    upgrade.add_argument("table", metavar="NAME", help="such as public.events")
    demo = _add_remote(commands, "demo", "make tables to try, and say what to try", timeout=3600)
    demo.add_argument("--items", type=int, metavar="NUMBER", help="rows of the largest table (default: 1000000)")
    demo.add_argument("--replace", action="store_true", help="make tables anew that are there already")
    for command in (maintain, upgrade, demo):
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
    _add_common(serve)
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
    _add_common(command)
    return command


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="settings file, TOML")
    # Both `sparkport --debug serve` and `sparkport serve --debug` work.
    command.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
