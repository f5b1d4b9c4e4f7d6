"""``sparkport jars``: what Spark needs beyond itself, for ``--jars`` on a machine without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from sparkport.app import fill_jar_folder

__all__ = ["jars"]


def jars(folder: Path, *, out: TextIO) -> int:
    count = fill_jar_folder(folder)
    print(f"{count} jars in {folder}: serve with --jars {folder}", file=out)
    return 0
