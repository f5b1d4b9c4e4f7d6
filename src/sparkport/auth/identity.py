"""Who is calling: the value that authentication makes and every later layer passes on. A leaf: all may import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["ANONYMOUS", "Identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller's name and what its token says about it. Claims can be personal or secret, so no repr shows them."""

    subject: str
    claims: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        # A copy behind a read-only view: identities are shared between threads.
        object.__setattr__(self, "claims", MappingProxyType(dict(self.claims)))


ANONYMOUS = Identity("anonymous")
"""The caller of a server without authentication."""
