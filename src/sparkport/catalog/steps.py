"""``with step("apply"):`` says what a call is at, to whoever listens; see ``call_record.py``."""

from __future__ import annotations

import time

from sparkport.catalog.context import current_call

__all__ = ["step"]


class step:  # noqa: N801 - reads as a statement
    """A part of the current call, with the time that it takes, also when it fails. Outside of calls it does nothing."""

    __slots__ = ("_name", "_outer", "_record", "_since")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        call = current_call()
        self._record = None if call is None else call.record
        if self._record is not None:
            self._outer, self._record.doing = self._record.doing, self._name
            self._since = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        if self._record is not None:
            self._record.doing = self._outer
            self._record.add_step(self._name, self._since, time.perf_counter())
