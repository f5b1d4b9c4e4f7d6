"""The audit: who read or changed what, from where, and what was refused; one JSON object a line.

A line is written before anything is read or changed (``begin``) and another before the answer is given (``end``): what
has no line has not happened, and a ``begin`` without an ``end`` is one that the server did not live to see. When the
file cannot be written, nothing is read or changed until it can. An ``end`` that could not be written then is kept, and
goes first: its call has happened, and its answer says so.

Lines are with the system before an answer is given, and on the disk a second later. A file that was moved away, as
tools do to rotate it, is opened anew within a second.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.readiness import Readiness
from sparkport.errors import FailedPrecondition, Unavailable

__all__ = ["Audit"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_MOST_KEPT: Final = 4 << 20
_LONGEST: Final = 1_000
_NO_NEWS: Final = frozenset({"create_transaction", "flight_info", "table_function_flight_info", "endpoints"})
"""Actions that DuckDB asks before a query: what comes of them is another call."""
_SHAPES: Final = frozenset({"GetFlightInfo", "GetSchema"})
"""Calls that tell a table's columns and none of its rows."""
_REFUSED: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class Audit:
    """One for a server, from ``start`` to ``stop``. Called from all threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begun: dict[str, set[tuple[str, str, str]]] = {}
        self._settled: set[str] = set()
        self._kept = bytearray()
        self._lost = 0
        self._failure = ""
        self._unsynced = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._file = -1

    def start(self) -> None:
        try:
            self._file = self._open()
        except OSError as exc:
            raise FailedPrecondition(f"the audit file {self._path} cannot be written: {exc.strerror or exc}") from exc
        self._thread = threading.Thread(target=self._run, name="sparkport-audit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._file >= 0:
                self._look()
                if not self._begun:  # calls that do not end in time may still do so while the process does
                    os.close(self._file)
                    self._file = -1

    def readiness(self) -> Readiness:
        return Readiness() if not self._failure else Readiness(False, False, "the audit file cannot be written")

    # What is told of calls

    def prepare(self, record: CallRecord) -> None:
        record.access = self._access
        record.settled = self._settle

    def ended(self, record: CallRecord) -> None:
        begun = self._begun.pop(record.id, None)
        # Who may not know of a table is told that it is not there, or with IF EXISTS that all is well.
        hidden = record.code in ("NOT_FOUND", "OK") and record.asked != record.granted
        refused = record.code in _REFUSED or hidden
        settled = record.id in self._settled
        self._settled.discard(record.id)
        if refused:
            self._note(self._line("refused", record, record.asked))
        if begun and (not refused or record.code == "OK") and not (settled and record.code == "OK"):
            self._note(self._line("end", record, _first(record)))

    def _access(self, record: CallRecord) -> None:
        """Raises where the access cannot be written down: then it does not happen."""
        asked = record.asked
        is_prelude = record.action in _NO_NEWS or record.rpc in _SHAPES
        if asked[0] == "list" or (is_prelude and asked[0] in ("read", "call", "transaction")):
            return
        begun = self._begun.setdefault(record.id, set())
        if asked in begun:
            return
        line = self._line("begin", record, asked)
        with self._lock:
            if self._flush() and self._put(line):
                begun.add(asked)
            if self._failure:
                raise Unavailable(f"the audit file cannot be written ({self._failure}): nothing is read or changed")

    def _settle(self, record: CallRecord) -> None:
        """A change is committed: whatever becomes of the file, that is so."""
        if record.id in self._begun:
            self._settled.add(record.id)
            self._note(self._line("end", record, _first(record), code="OK"))

    def _line(self, event: str, record: CallRecord, asked: tuple[str, str, str], code: str = "") -> bytes:
        operation, catalog, name = asked
        entry: dict[str, object] = {
            "time": _now(),
            "event": event,
            "call": record.id,
            "user": record.user,
            "peer": record.peer,
            "rpc": record.rpc,
            "action": record.action,
            "operation": operation,
            "object": ".".join(part for part in (catalog, name) if part),
            "statement": record.statement_id,
            "transaction": record.transaction_id,
            "trace": record.trace_id,
        }
        if event != "begin":
            entry["code"] = code or record.code
            entry["ms"] = round(record.elapsed() * 1000, 3)
            entry["error_id"] = record.error_id
            entry["rows_in"], entry["rows_out"] = record.rows_in, record.rows_out
            entry["changed"] = record.changed_rows
        shown = {
            key: value[:_LONGEST] if isinstance(value, str) else value
            for key, value in entry.items()
            if value is not None and value != ""
        }
        return json.dumps(shown).encode() + b"\n"

    # The file; all of it under the lock

    def _note(self, line: bytes) -> None:
        """What has happened already: kept where it cannot be written."""
        with self._lock:
            if self._flush() and self._put(line):
                return
            if len(self._kept) + len(line) > _MOST_KEPT:
                self._lost += 1
            else:
                self._kept += line

    def _flush(self) -> bool:
        """What was kept goes first."""
        if self._kept:
            kept, self._kept = bytes(self._kept), bytearray()
            if not self._put(kept):
                self._kept[:0] = kept
        if self._lost and not self._kept and self._put(_event("lost", lines=self._lost)):
            self._lost = 0
        return not self._kept

    def _put(self, data: bytes) -> bool:
        """False: nothing of it is in the file. Of what is there in part the rest is kept: it cannot be taken back."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as exc:
            self._failed(exc)
            self._kept[:0] = data[written:] if written else b""
        self._unsynced = self._unsynced or written > 0
        if self._failure and written == len(data):
            logger.warning("the audit file %s can be written again", self._path)
            self._failure = ""
        return written > 0

    def _failed(self, exc: OSError) -> None:
        reason = exc.strerror or str(exc)
        if not self._failure:
            logger.error("the audit file %s cannot be written: %s; calls are refused", self._path, reason)
        self._failure = reason

    def _open(self) -> int:
        # A pipe that nobody reads from is full, and does not stop all calls for good.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # of a server that was killed in the middle of a line
                os.write(file, b"\n")
        except OSError:
            os.close(file)
            raise
        return file

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            with self._lock:
                self._look()

    def _look(self) -> None:
        """Open a file that was moved away anew, write what is kept, and have the disk take it."""
        try:
            if self._is_moved():
                fresh = self._open()
                os.close(self._file)
                self._file = fresh
            # Who asks whether the server is ready sends no calls until it is: somebody has to try.
            if self._flush() and self._failure:
                self._put(_event("resumed"))
            if self._unsynced:
                self._unsynced = False
                os.fdatasync(self._file)
        except OSError as exc:
            self._failed(exc)

    def _is_moved(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)


def _event(event: str, **more: int) -> bytes:
    return json.dumps({"time": _now(), "event": event, **more}).encode() + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _first(record: CallRecord) -> tuple[str, str, str]:
    """What the call was about."""
    return record.operation, record.catalog, record.table
