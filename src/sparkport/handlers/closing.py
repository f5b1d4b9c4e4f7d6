"""Closing what a table or function holds for a call: once, whoever comes first, the end of the call or its caller's.

When a caller goes while the table is still at work, the table learns it at once, from another thread, so that nobody
waits for rows that nobody wants.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkport.catalog.context import CallContext

__all__ = ["closed_with"]

logger = logging.getLogger(__name__)


@contextmanager
def closed_with(ctx: CallContext, close: Callable[[], None], *, early: bool = True) -> Iterator[None]:
    """Call ``close`` once, at the end of the block, or with ``early`` as soon as the caller has gone."""
    first = threading.Lock()

    def once() -> None:
        if not first.acquire(blocking=False):
            return
        try:
            close()
        except Exception:  # the rows are out or nobody wants them: there is no one to tell but the log
            logger.exception("closing failed")

    forget = ctx.cancellation.add_callback(once) if early else None
    try:
        yield
    finally:
        if forget is not None:
            forget()
        once()
