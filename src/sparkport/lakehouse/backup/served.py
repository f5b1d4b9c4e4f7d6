"""A backup that a client asks a server for: it goes where the server's own settings allow, and tells how far it is.

Whoever may ask could otherwise have the server write to any folder of its machine. So the place is one that who runs
the server has chosen, or one below it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from sparkport.catalog.context import CallContext
from sparkport.errors import FailedPrecondition, PermissionDenied
from sparkport.lakehouse.backup.backup import BackupReport, back_up
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.warehouse import true_path

__all__ = ["serve_backup"]

_EVERY_SECONDS = 0.5


def serve_backup(
    ctx: CallContext, settings: LakehouseSettings, target: str | None, keep: int | None
) -> Iterator[dict[str, Any]]:
    """What is done, again and again, and the report at the end. Ends early when the caller is gone."""
    place = _allowed(settings, target)
    told: queue.SimpleQueue[dict[str, Any] | BackupReport | BaseException] = queue.SimpleQueue()
    last = 0.0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        ctx.check()
        if time.monotonic() - last > _EVERY_SECONDS:
            last = time.monotonic()
            told.put({"progress": what, "done": done, "total": total})

    def work() -> None:
        try:
            with hold(settings, place) as catalog:
                told.put(back_up(catalog, place, keep=keep, tell=tell))
        except BaseException as exc:
            told.put(exc)

    threading.Thread(target=work, name="backup", daemon=True).start()
    while isinstance(item := told.get(), dict):
        yield item
    if isinstance(item, BaseException):
        raise item
    yield item.as_dict()


def _allowed(settings: LakehouseSettings, target: str | None) -> str:
    if settings.backups is None:
        raise FailedPrecondition(
            "this server makes no backups for its clients: set 'backups' to where it may put them, or run sparkport "
            "backup beside it"
        )
    chosen, here = settings.backups if target is None else target, true_path(settings.backups)
    there = true_path(chosen)
    if here is None or there is None or not f"{there}/".startswith(f"{here}/"):
        raise PermissionDenied("this server makes backups at the place that is set as 'backups', or below it, only")
    return there
