"""``sparkport backup``, ``restore`` and ``check``: work on a whole lakehouse, beside its servers or without any.

They open the catalog and the files themselves, as the settings say. So whoever runs them needs the same access as the
server has, and no server needs to run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

from sparkport.app import FileMode, TableName, back_up, check, find_backup, hold, restore
from sparkport.cli.lakehouse_settings import lakehouse_settings
from sparkport.cli.progress import Progress, counted, in_words
from sparkport.cli.remote import Remote, connected
from sparkport.client.names import parse_name
from sparkport.config import Settings
from sparkport.errors import CatalogNotFound

__all__ = ["backup", "check_warehouse", "list_backups", "remote_backup", "restore_backup"]


def backup(settings: Settings, target: str, *, keep: int | None, link: bool, out: TextIO) -> int:
    began = time.monotonic()
    os.umask(FileMode(settings.file_mode).umask)
    with hold(lakehouse_settings(settings), target) as catalog, Progress("backup") as progress:
        made = back_up(catalog, target, keep=keep, link=link, tell=progress.tell)
    _tell(made.as_dict(), time.monotonic() - began, out)
    return 0


def remote_backup(remote: Remote, target: str, *, keep: int | None, out: TextIO) -> int:
    """The server writes it, to a place of its own."""
    began = time.monotonic()
    with connected(remote) as session, Progress("backup") as progress:
        report: dict[str, Any] = {}
        for answer in session.act("backup", target=target, keep=keep):
            if "progress" in answer:
                progress.tell(answer["progress"], answer["done"], answer["total"])
            else:
                report = answer
    _tell(report, time.monotonic() - began, out)
    return 0


def _tell(made: Mapping[str, Any], seconds: float, out: TextIO) -> None:
    files = f"{counted(made['files'], 'file')}, {in_words(made['bytes'])}"
    new = f"{made['new_files']:,} new, {in_words(made['new_bytes'])}"
    print(f"backup {made['number']} of {counted(made['tables'], 'table')}: {files} ({new}); {seconds:.1f} s", file=out)
    if made["forgotten"]:
        gone = ", ".join(map(str, made["forgotten"]))
        print(f"removed: {counted(made['removed_files'], 'file')} that only backup {gone} had", file=out)


def list_backups(settings: Settings, source: str, *, out: TextIO) -> int:
    place, _ = find_backup(source, lakehouse_settings(settings))
    for number in place.numbers():
        made = place.read(number)
        tables = sum(not pointer.is_view for pointer in made.contents.pointers)
        files = f"{counted(len(made.files), 'file')}, {in_words(made.size)}"
        print(f"{number}: {made.made}, {counted(tables, 'table')}, {files}", file=out)
    return 0


def restore_backup(settings: Settings, source: str, *, number: int | None, catalog: str | None, out: TextIO) -> int:
    """``settings`` are those of the new lakehouse; its catalog is called as it was, or ``catalog``."""
    began = time.monotonic()
    os.umask(FileMode(settings.file_mode).umask)
    place, found = find_backup(source, lakehouse_settings(settings), number)
    new = lakehouse_settings(replace(settings, catalog=catalog or found.catalog))
    with Progress("restore") as progress:
        made = restore(place, found, new, progress.tell)
    what = f"{counted(made.tables, 'table')}, {counted(made.files, 'file')}, {in_words(made.bytes)}"
    place_now = f"{new.warehouse_path} as catalog '{new.catalog_name}'"
    seconds = time.monotonic() - began
    print(f"backup {made.number} of {made.made} is restored to {place_now}: {what}; {seconds:.1f} s", file=out)
    return 0


def check_warehouse(settings: Settings, table: str | None, *, deep: bool, out: TextIO) -> int:
    began = time.monotonic()
    wanted = None
    if table is not None:
        name = parse_name(table)
        if name.catalog and name.catalog.casefold() != settings.catalog.casefold():
            raise CatalogNotFound(f"catalog '{name.catalog}' is not '{settings.catalog}', which is checked here")
        wanted = TableName(name.schema or settings.schema, name.name)
    with hold(lakehouse_settings(settings)) as catalog, Progress("check") as progress:
        report = check(catalog, wanted, deep=deep, tell=progress.tell)
    for finding in report.found:
        print(finding, file=out)
    looked = f"{counted(report.tables, 'table')}, {report.files:,} files and entries, {time.monotonic() - began:.1f} s"
    wrong = len(report.found)
    print(
        f"{counted(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong ({looked})"
        if wrong
        else f"all is well ({looked})",
        file=out,
    )
    return 1 if report.found else 0
