"""What an error of a disk means to a client, whoever met it."""

from __future__ import annotations

import errno

from sparkport.errors import PermissionDenied, ResourceExhausted, SparkportError, Unavailable

__all__ = ["disk_error"]

_NO_SPACE = "No space left"
"""In the texts of libraries that keep no number of the error."""


def disk_error(exc: OSError, what: str) -> SparkportError:
    """The caller raises it ``from exc``. ``what`` is what cannot be read or written."""
    why = exc.strerror or exc
    if exc.errno in (errno.ENOSPC, errno.EDQUOT) or (exc.errno is None and _NO_SPACE in str(exc)):
        return ResourceExhausted(f"the disk is full: {what} cannot be written")
    if isinstance(exc, PermissionError) or exc.errno == errno.EROFS:
        return PermissionDenied(f"no access to {what}: {why}")
    return Unavailable(f"{what}: {why}")
