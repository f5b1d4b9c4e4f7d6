"""Flags that every command has."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_common"]


def add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="settings file, TOML")
    # Both `sparkport --debug serve` and `sparkport serve --debug` work.
    command.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
