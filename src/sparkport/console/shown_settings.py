"""What a server was started with, fit to be looked at: no secret, and no password inside an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkport.config import SETTINGS, Setting, Settings

__all__ = ["ShownSetting", "shown_settings"]

_HIDDEN = "***"
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_PARAMETERS = re.compile(r"(?<=[?;&])([^=;&\s]+)=([^;&\s]*)")


@dataclass(frozen=True, slots=True)
class ShownSetting:
    name: str
    value: str
    is_default: bool
    help: str


def shown_settings(settings: Settings) -> tuple[ShownSetting, ...]:
    return tuple(
        ShownSetting(item.name, _shown(item, value), value == item.default, item.help)
        for item in SETTINGS
        for value in (getattr(settings, item.name),)
    )


def _shown(setting: Setting, value: Any) -> str:
    if value is None:
        return ""
    if setting.secret:
        return ", ".join(f"{key} = {_HIDDEN}" for key in sorted(value)) if isinstance(value, Mapping) else _HIDDEN
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {len(part) if isinstance(part, list) else 1}" for key, part in sorted(value.items()))
    text = setting.kind.show(value)
    if "://" in text:  # an address can have a user's password in it, or a token among its parameters
        text = _PARAMETERS.sub(rf"\1={_HIDDEN}", _USER.sub(f"{_HIDDEN}@", text))
    return text
