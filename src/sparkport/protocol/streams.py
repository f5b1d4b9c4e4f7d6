"""The values that flow through a call: what handlers yield, and what they read. No bytes, no sockets.

``wire`` turns them into gRPC messages; a test drives a handler with a list and looks at what it yields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from sparkport.protocol.flight import FlightDescriptor

__all__ = ["BatchMessage", "MetadataMessage", "Outgoing", "SchemaMessage", "Upload"]


@dataclass(frozen=True, slots=True)
class SchemaMessage:
    """Always the first of a stream."""

    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """Rows. Columns of the stream's schema that the batch lacks go out as nulls, at next to no cost."""

    batch: pa.RecordBatch
    metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class MetadataMessage:
    metadata: bytes


Outgoing: TypeAlias = SchemaMessage | BatchMessage | MetadataMessage


class Upload(Protocol):
    """What a client sends in DoPut and DoExchange, pulled one message at a time and never ahead of need."""

    @property
    def descriptor(self) -> FlightDescriptor: ...

    @property
    def preamble(self) -> list[bytes]:
        """Metadata that came before the schema; complete once ``read_schema`` has returned."""

    @property
    def last_metadata(self) -> bytes | None: ...

    def read_schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
