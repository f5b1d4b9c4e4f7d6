"""``functools.cached_property`` without the lock that it has before Python 3.12.

That lock is one for all objects of a class: while the manifests of one table are read, all other tables wait. Here two
threads that ask at the same time may both work the value out, which must be the same for both.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    import functools

    class cached_property(functools.cached_property):  # noqa: N801 - it stands in for that one
        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            # What is found is put where Python looks first: this is not asked again.
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
