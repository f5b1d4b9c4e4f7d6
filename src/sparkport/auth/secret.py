"""Secrets travel in this wrapper, so that a log line, an error or a repr shows ``***`` and never the value."""

from __future__ import annotations

import hmac
from typing import Any, NoReturn, final

__all__ = ["Secret"]

_MASK = "***"


@final
class Secret:
    """A text that is shown to nobody by accident; ``reveal()`` is the only way to it.

    Not a ``str``, so it can be neither joined into another text nor written as JSON. Equality takes the same time
    whatever the values are.
    """

    __slots__ = ("_value",)
    _value: str

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"a secret is made from a str, not from {type(value).__name__}")
        object.__setattr__(self, "_value", value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return _MASK

    def __str__(self) -> str:
        return _MASK

    def __format__(self, format_spec: str) -> str:
        return _MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash(self._value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a secret cannot be changed")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        # dataclasses.asdict and copy.deepcopy would otherwise go through pickling, which is refused below.
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")
