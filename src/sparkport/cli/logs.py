"""Log records to standard error, as lines for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from datetime import UTC, datetime

__all__ = ["JsonFormatter", "TextFormatter", "set_up_logging"]


_ODD = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the traceback where there is one.

    Of a call there is ``call`` instead of a message: what is known of it, by name.
    """

    def format(self, record: logging.LogRecord) -> str:
        call = getattr(record, "call", None)
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **({"message": record.getMessage()} if call is None else {"call": call}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Lines for people. What goes on after a line's end is indented, so that no text looks like another line.

    The time of a second is written out once: there is a line for every call.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._second = (0, "")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if text.isprintable():
            return text
        return _ODD.sub(lambda found: "\n    " if found[0] == "\n" else repr(found[0])[1:-1], text)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        second, text = self._second
        if int(record.created) != second:
            second = int(record.created)
            text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = (second, text)
        return f"{text},{int(record.msecs):03d}"


def set_up_logging(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
