"""One line in the log for each call, and for a slow one its steps.

What a client has chosen (names, ids) is quoted where it is not plain, and cut: nobody forges a line. The text of an
error is not in it, since that may quote rows; its id is, as the client has it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Final

from sparkport.catalog.call_record import CallRecord

__all__ = ["CallLog", "LOGGER", "fields"]

LOGGER: Final = "sparkport.calls"
logger = logging.getLogger(LOGGER)

_PLAIN = re.compile(r"[\w.:/@+\[\]%-]{1,200}", re.ASCII).fullmatch
_LONGEST: Final = 200
_CHOSEN: Final = frozenset({"user", "peer", "table", "statement", "transaction", "trace", "steps"})
"""What may hold anything; the rest is of our own making."""


class CallLog:
    """``on_slow`` is told of each slow call."""

    def __init__(self, is_slow: Callable[[CallRecord], bool], on_slow: Callable[[], None] | None = None) -> None:
        self._is_slow = is_slow
        self._on_slow = on_slow

    def ended(self, record: CallRecord) -> None:
        slow = self._is_slow(record)
        if slow and self._on_slow is not None:
            self._on_slow()
        level = logging.WARNING if slow else logging.INFO
        if not logger.isEnabledFor(level):
            return
        found = fields(record)
        if slow:
            found["steps"] = {f"{part.name}@{part.started:.3f}": round(part.seconds, 6) for part in record.steps}
        entry = _Line(LOGGER, level, __file__, 0, "slow call" if slow else "call", (), None)
        entry.call = found
        logger.handle(entry)  # not by log(), which looks for the line of code that it was called from


class _Line(logging.LogRecord):
    """A record whose text is made when somebody wants it as text."""

    call: dict[str, object]

    def getMessage(self) -> str:  # noqa: N802 - logging's name
        parts = [
            f"{name}={_shown(value)}" if name in _CHOSEN else f"{name}={value}" for name, value in self.call.items()
        ]
        return f"{self.msg} {' '.join(parts)}"


def fields(record: CallRecord) -> dict[str, object]:
    """What is known of a call, without what is empty. Texts are cut, whoever chose them."""
    found: dict[str, object] = {"id": record.id, "rpc": record.rpc}
    if record.action:
        found["action"] = record.action
    found["code"] = record.code
    found["ms"] = round(record.elapsed() * 1000, 3)
    if record.user:
        found["user"] = record.user[:_LONGEST]
    found["peer"] = record.peer
    if record.operation:
        found["operation"] = record.operation
    if record.catalog or record.table:
        table = (
            f"{record.catalog}.{record.table}" if record.catalog and record.table else record.catalog or record.table
        )
        found["table"] = table[:_LONGEST]
    for name, number in (
        ("rows_in", record.rows_in),
        ("rows_out", record.rows_out),
        ("changed", record.changed_rows),
        ("bytes_in", record.bytes_in),
        ("bytes_out", record.bytes_out),
    ):
        if number:
            found[name] = number
    for name, text in (
        ("statement", record.statement_id),
        ("transaction", record.transaction_id),
        ("trace", record.trace_id),
        ("error_id", record.error_id),
    ):
        if text:
            found[name] = text[:_LONGEST]
    return found


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value if _PLAIN(value) else json.dumps(value)
    if isinstance(value, dict):
        return "[" + ", ".join(f"{name} {seconds:.3f}s" for name, seconds in value.items()) + "]"
    return str(value)
