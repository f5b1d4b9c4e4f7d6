"""What clients may take of the server: calls, bytes and time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what clients can make the server hold. ``max_batch_bytes`` is what larger batches are sliced to."""

    max_concurrent_calls: int = 256
    max_calls_per_subject: int | None = None
    """Three quarters of all if None. Without authentication everybody is the same, and this does not count."""
    max_message_bytes: int = 32 * 1024 * 1024
    max_batch_bytes: int = 2 * 1024 * 1024
    max_held_bytes: int = 512 * 1024 * 1024
    """What messages of running calls may take at once, decompressed; one subject may have three quarters of it."""
    first_message_seconds: float = 30.0
    idle_seconds: float = 1_800.0
    write_seconds: float = 300.0
    keepalive_seconds: float = 30.0
    keepalive_timeout_seconds: float = 20.0
    reflection: bool = False

    @property
    def calls_per_subject(self) -> int:
        return self.max_calls_per_subject or max(1, self.max_concurrent_calls * 3 // 4)

    @property
    def held_bytes_per_subject(self) -> int:
        return max(self.max_message_bytes, self.max_held_bytes * 3 // 4)
