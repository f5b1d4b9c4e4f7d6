"""A mapping whose values are in a catalog that is asked for one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sparkport.errors import PermissionDenied

__all__ = ["LookedUp"]

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Value = TypeVar("Value")


class LookedUp(Mapping[Key, Value]):
    """Known keys, and values that are looked up when first asked for and then stay.

    What vanished since the keys were listed, or may not be seen, is left out of ``items`` and ``values``.
    """

    def __init__(self, keys: Iterable[Key], look_up: Callable[[Key], Value | None]) -> None:
        self._values: dict[Key, Value | None] = {}
        self._keys = dict.fromkeys(keys)
        self._look_up = look_up
        self._lock = threading.Lock()

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        with self._lock:
            known = key in self._values
        if not known:
            value = self._look_up(key)
            with self._lock:
                # The first look-up decides, so that all see the same.
                self._values.setdefault(key, value)
        value = self._values[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def known(self) -> dict[Key, Value]:
        """What has been looked up so far."""
        with self._lock:
            return {key: value for key, value in self._values.items() if value is not None}

    def items(self) -> Any:
        return {key: value for key in self._keys if (value := self._seen(key)) is not None}.items()

    def _seen(self, key: Key) -> Value | None:
        try:
            return self.get(key)
        except PermissionDenied as exc:
            logger.info("%s is not seen: %s", key, exc.message)
            return None

    def values(self) -> Any:
        return dict(self.items()).values()
