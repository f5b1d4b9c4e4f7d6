"""``sparkport rules``: its flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkport.cli.arguments import add_common
from sparkport.config import load

__all__ = ["add_rules_commands"]

_EPILOG = (
    "Reads the rules itself (--rules, or as the settings say), so that they can be tried before a server has them. The "
    "server is asked with the token of SPARKPORT_TOKEN, which must be that of somebody who sees all of its tables."
)


def add_rules_commands(commands: Any) -> None:
    rules = commands.add_parser("rules", help="try the rules about who may do what")
    test = rules.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "test", help="show what somebody may do, and sees of tables", epilog=_EPILOG
    )
    test.set_defaults(run=_test)
    test.add_argument("table", nargs="?", metavar="TABLE", help="only this one, such as hr.people")
    test.add_argument("--as", dest="subject", required=True, metavar="USER", help="whose rights are shown")
    test.add_argument(
        "--claim",
        dest="claims",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a claim of the user's token, as text or as JSON; may be repeated",
    )
    test.add_argument(
        "--role", dest="roles", action="append", default=[], metavar="ROLE", help="a role that the user's token names"
    )
    test.add_argument("--rules", type=Path, metavar="FILE", help="rules to try; else those of the settings")
    test.add_argument("--location", metavar="LOCATION", help="of a server: shows its tables and some of their rows")
    test.add_argument("--rows", type=int, default=3, metavar="NUMBER", help="how many of them (default: 3)")
    test.add_argument("--ca", type=Path, metavar="FILE", help="CA of the server's certificate, PEM")
    test.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="default: %(default)g")
    add_common(test)


def _test(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from sparkport.cli import rules
    from sparkport.cli.remote import Remote

    settings = load({} if options.rules is None else {"rules": str(options.rules)}, environ, file=options.config)
    remote = None
    if options.location is not None:
        remote = Remote(location=options.location, token=settings.token, ca=options.ca, timeout=options.timeout)
    identity = rules.identity(options.subject, claims=options.claims, roles=options.roles)
    return rules.test(
        settings.authorizer(), identity, remote=remote, table=options.table, rows=options.rows, out=sys.stdout
    )
