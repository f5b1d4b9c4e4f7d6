"""``sparkport changes``: the changes of a table as lines of JSON, those there are or all that come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

import pyarrow as pa

from sparkport.catalog.plain_values import plain_rows
from sparkport.cli.remote import Remote
from sparkport.client import connect
from sparkport.errors import InvalidArgument

__all__ = ["print_changes"]


def print_changes(remote: Remote, table: str, first: str, *, last: str | None, follow: bool, out: TextIO) -> int:
    """``first`` and ``last`` are numbers of versions, names of tags or times; ``follow`` goes on from a number."""
    with connect(remote.location, token=remote.token, tls_root=remote.ca, timeout=remote.timeout) as client:
        if not follow:
            _print(client.changes(table, _point(first), None if last is None else _point(last)), out)
            return 0
        start = _point(first)
        if last is not None or not isinstance(start, int):
            raise InvalidArgument("--follow takes the number of one version, after which it begins")
        with client.follow(table, start) as follower:
            for version in follower:
                _print(version, out)
    return 0


def _print(batches: Iterable[pa.RecordBatch], out: TextIO) -> None:
    for batch in batches:
        for row in plain_rows(batch):
            print(json.dumps(row, default=str, ensure_ascii=False), file=out)
        out.flush()


def _point(text: str) -> int | str | datetime:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
