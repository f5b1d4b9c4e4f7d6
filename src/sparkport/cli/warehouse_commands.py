"""The commands that open a lakehouse themselves: their flags, and which settings they take from where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkport.cli.arguments import add_common
from sparkport.config import Settings, load

__all__ = ["add_warehouse_commands"]

_EPILOG = (
    "Opens the catalog and the files itself, as the settings say (--config, SPARKPORT_*, or the flags here), whether a "
    "server runs on them or not."
)


def add_warehouse_commands(commands: Any) -> None:
    _add_backup(commands)
    _add_restore(commands)
    _add_check(commands)


def _add_backup(commands: Any) -> None:
    backup = _add(commands, "backup", "copy the catalog and all tables, of one instant, while writes go on", _backup)
    backup.add_argument(
        "target", metavar="DIR|s3://…", help="where backups are kept; they share files that are the same"
    )
    backup.add_argument("--keep", type=int, metavar="NUMBER", help="remove all but this many of the last backups there")
    backup.add_argument("--copy", action="store_true", help="copy files that could be linked, being on one file system")
    backup.add_argument(
        "--location",
        metavar="LOCATION",
        help="have the server there make it, at or below the place that is set as its 'backups'",
    )
    backup.add_argument("--ca", type=Path, metavar="FILE", help="CA of that server's certificate, PEM")
    backup.add_argument("--timeout", type=float, default=86_400, metavar="SECONDS", help="default: %(default)g")
    backup.add_argument("--list", action="store_true", help="make none: list those that are there")
    _add_place(backup)


def _add_restore(commands: Any) -> None:
    restore = _add(commands, "restore", "make a new warehouse of a backup", _restore)
    restore.add_argument("source", metavar="BACKUP", help="where backups are kept: DIR or s3://…")
    restore.add_argument("target", metavar="WAREHOUSE", help="what is to become the warehouse: not there, or empty")
    restore.add_argument("--number", type=int, metavar="NUMBER", help="which backup; else the newest")
    restore.add_argument("--catalog", metavar="NAME", help="name of the catalog; else as it was")
    restore.add_argument(
        "--catalog-uri",
        metavar="TEXT",
        help="database of the new catalog, such as postgresql://host/name; else SQLite in the new warehouse",
    )


def _add_check(commands: Any) -> None:
    check = _add(commands, "check", "verify every pointer, file, size, row count and row id", _check)
    check.add_argument("table", nargs="?", metavar="TABLE", help="only this one, such as public.events")
    check.add_argument("--deep", action="store_true", help="read all rows, too")
    _add_place(check)


def _add(
    commands: Any, name: str, text: str, run: Callable[[argparse.Namespace, Mapping[str, str]], int]
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, epilog=_EPILOG)
    command.set_defaults(run=run)
    add_common(command)
    return command


def _add_place(command: argparse.ArgumentParser) -> None:
    for flag, text in (
        ("--warehouse", "folder of the lakehouse's tables"),
        ("--catalog-uri", "database of its catalog; SQLite in the warehouse if unset"),
        ("--catalog", "name of the catalog"),
    ):
        command.add_argument(flag, metavar="TEXT", default=argparse.SUPPRESS, help=text)


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    names = ("warehouse", "catalog_uri", "catalog")
    return load(
        {name: getattr(options, name) for name in names if hasattr(options, name)}, environ, file=options.config
    )


def _backup(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from sparkport.cli.backup import backup, list_backups, remote_backup
    from sparkport.cli.remote import Remote

    settings = _settings(options, environ)
    if options.location is not None:
        remote = Remote(location=options.location, token=settings.token, ca=options.ca, timeout=options.timeout)
        return remote_backup(remote, options.target, keep=options.keep, out=sys.stdout)
    if options.list:
        return list_backups(settings, options.target, out=sys.stdout)
    return backup(settings, options.target, keep=options.keep, link=not options.copy, out=sys.stdout)


def _restore(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from dataclasses import replace

    from sparkport.cli.backup import restore_backup

    # The settings' own database is that of the lakehouse that the backup is of, or of another one that is in use.
    settings = replace(
        load({}, environ, file=options.config), warehouse=options.target, catalog_uri=options.catalog_uri, staging=None
    )
    return restore_backup(settings, options.source, number=options.number, catalog=options.catalog, out=sys.stdout)


def _check(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from sparkport.cli.backup import check_warehouse

    return check_warehouse(_settings(options, environ), options.table, deep=options.deep, out=sys.stdout)
