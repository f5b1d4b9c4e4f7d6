"""Work that takes longer than a browser waits: begun by a button, done in the background, looked at meanwhile."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparkport.errors import ResourceExhausted, SparkportError, without_places

__all__ = ["Background", "Task"]

logger = logging.getLogger(__name__)

_AT_ONCE = 2
_WAITING = 20
_KEPT = 50


@dataclass(slots=True, eq=False)
class Task:
    """One piece of work. Its own thread changes it; pages look at it at any time. ``table`` is (schema, name)."""

    what: str
    catalog: str
    table: tuple[str, str] | None
    subject: str
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None
    state: str = "waiting"
    progress: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def is_open(self) -> bool:
        return self.ended is None

    @property
    def seconds(self) -> float:
        return ((self.ended or datetime.now(UTC)) - self.begun).total_seconds()


class Background:
    """Called from several threads at once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sparkport-console")
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()

    def begin(self, task: Task, results: Iterable[bytes]) -> None:
        """Do what an action does: every result is a JSON object, the last is the report, others have ``progress``.

        The same work on the same table is done once at a time.
        """
        with self._lock:
            under_way = [other for other in self._tasks if other.is_open]
            if any((one.what, one.catalog, one.table) == (task.what, task.catalog, task.table) for one in under_way):
                return
            if len(under_way) >= _WAITING:
                raise ResourceExhausted(f"{len(under_way)} tasks wait already: try again later")
            self._tasks.appendleft(task)
            while len(self._tasks) > _KEPT and not self._tasks[-1].is_open:
                self._tasks.pop()
        self._pool.submit(self._run, task, iter(results))

    def tasks(self) -> list[Task]:
        """Newest first."""
        with self._lock:
            return list(self._tasks)

    def close(self) -> None:
        """What waits is not begun any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, task: Task, results: Iterator[bytes]) -> None:
        task.state, state = "running", "failed"
        try:
            for result in results:
                told = json.loads(result)
                if "progress" in told:
                    task.progress = str(told["progress"])
                else:
                    task.report = told
            state = "done"
        except SparkportError as exc:
            task.failure = without_places(exc.message)
        except Exception:
            logger.exception("%s failed", task.what)
            task.failure = "internal error; the log has more"
        finally:
            task.ended = datetime.now(UTC)
            task.state = state
