"""Settings from where they are written down.

A later source wins: file (TOML) < environment (``SPARKPORT_*``) < flags. What no source knows by that name, or gives a
value of another kind, is an error that names the setting and the source; nothing is guessed and nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkport.auth.files import read_toml
from sparkport.config.kinds import BOOLEAN, LOCATION, PATH, TEXTS
from sparkport.config.settings import PREFIX, SETTINGS, Settings
from sparkport.errors import InvalidArgument

__all__ = ["CONFIG_VARIABLE", "load"]

CONFIG_VARIABLE = "SPARKPORT_CONFIG"
"""Names the settings file where ``--config`` does not."""

_NO_SETTINGS = frozenset({CONFIG_VARIABLE, "SPARKPORT_CACHE", "SPARKPORT_FAULT"})
"""Variables that others read: where jars are kept, and where a test wants the server to die."""

# What Kubernetes puts into the environment of every pod near a service that is named "sparkport".
_SERVICE_LINK = re.compile(r"SPARKPORT_(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP|SCTP).*)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def load(flags: Mapping[str, object], environ: Mapping[str, str], *, file: Path | None = None) -> Settings:
    """Settings from all sources. ``flags`` has texts (or bools) by setting name; without ``file`` the variable
    ``SPARKPORT_CONFIG`` may name one."""
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {} if file is None else _from_file(file)
    values |= _from_environment(environ)
    values |= _from_flags(flags)
    return Settings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    known = {setting.name: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        setting = known.get(key)
        if setting is None:
            raise InvalidArgument(f"{path}: unknown setting '{key}'")
        source = f"{path}: {key}"
        # bool is an int to Python, not to whoever wrote the file.
        if not isinstance(value, setting.kind.native) or (isinstance(value, bool) and setting.kind is not BOOLEAN):
            kind = "an array" if setting.kind is TEXTS else setting.kind.label.replace("\\", "")
            raise InvalidArgument(f"{source}: a TOML {_toml_type(value)} is not of kind: {kind}")
        parsed = setting.parse(value, source)
        # Paths in a file mean the same wherever the server is started.
        if setting.kind is PATH:
            parsed = path.parent / parsed
        elif setting.kind is LOCATION and "://" not in parsed:
            parsed = str(path.parent / parsed)
        values[key] = parsed
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {setting.env: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in _NO_SETTINGS or _SERVICE_LINK.fullmatch(name):
            continue
        setting = known.get(name)
        if setting is None:
            raise InvalidArgument(f"environment: unknown setting {name}")
        # An empty variable is how most tools say that there is none.
        if text and not (name == "SPARKPORT_PORT" and _SERVICE_ADDRESS.match(text)):
            values[setting.name] = setting.parse(text, f"environment: {name}")
    return values


def _from_flags(flags: Mapping[str, object]) -> dict[str, Any]:
    known = {setting.name: setting for setting in SETTINGS if setting.flag is not None}
    unknown = sorted(flags.keys() - known.keys())
    if unknown:
        raise InvalidArgument(f"flags: unknown setting '{unknown[0]}'")
    return {name: known[name].parse(value, str(known[name].flag)) for name, value in flags.items()}


def _toml_type(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "float", str: "string", list: "array", dict: "table"}
    return names.get(type(value), "date or time")
