"""Filters help to read less, and the client applies them again itself: a failure in using one costs speed, no query."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

__all__ = ["best_effort"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


def best_effort(work: Callable[[], _T], *, otherwise: _T) -> _T:
    """What ``work`` gives, or ``otherwise`` where it fails, which MUST be the answer that loses no row."""
    try:
        return work()
    except RecursionError:
        _log.debug("a filter nested too deep is not used to read less")
    except Exception:
        _log.warning("a filter is not used to read less", exc_info=True)
    return otherwise
