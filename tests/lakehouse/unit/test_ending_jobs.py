"""Jobs that are ended: by how many, how often, and with what answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparkport.errors import Unavailable
from sparkport.lakehouse.spark.connect import Operations, end_leftovers
from sparkport.lakehouse.spark.sessions import Sessions, Work

pytestmark = pytest.mark.tier("fast")


class _Client:
    def __init__(self) -> None:
        self.released = threading.Event()

    def _execute_plan_request_with_metadata(self, operation_id: str | None = None) -> str:
        assert operation_id is not None
        return operation_id

    def release_session(self) -> None:
        self.released.set()

    def close(self) -> None:
        """Of the connection, which may have been cut off before."""


class _Session:
    """One of Spark's. It fails so often before it takes note that it is to stop."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = 0
        self.stopped = threading.Event()
        self.client = _Client()
        self.operations = Operations(self.client)
        self.statements: list[tuple[str, str]] = []
        self.conf: dict[str, str] = {}

    def sql(self, statement: str) -> None:
        self.statements.append((self.client._execute_plan_request_with_metadata(), statement))

    def interruptAll(self) -> None:  # noqa: N802
        self.asked += 1
        if self.fails:
            self.fails -= 1
            raise ConnectionError("away for a moment")
        self.stopped.set()


class _Server:
    generation = 1

    def __init__(self, session: _Session) -> None:
        self.session = session

    def wait_ready(self, timeout: float | None = None) -> None:
        return None

    def open_session(self, same_as: Any = None) -> Any:
        return self.session

    def lost(self, generation: int) -> bool:
        return False

    def stuck(self, generation: int) -> None:
        return None


def end(session: _Session, *, times: int, then: Callable[[], Any], leftovers: Sequence[float] = (0.0,)) -> list[Any]:
    """Have a job ended so often, and do something before it is over: what that gave."""
    sessions = Sessions(_Server(session), {}, 1, leftovers=leftovers)
    given: list[Any] = []

    def work() -> None:
        with sessions.session(work=Work("query", (), "ann")):
            given.extend(sessions.end(sessions.jobs()[0].id, "ended by 'ann'") for _ in range(times))
            given.append(then())
            raise InterruptedError

    with pytest.raises(Unavailable, match="ended by 'ann'"):
        work()
    return given


def test_a_job_is_ended_by_one_thread_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session, silent = _Session(), threading.Event()
    monkeypatch.setattr(session, "interruptAll", silent.wait)
    before = threading.active_count()
    *answers, threads = end(session, times=500, then=threading.active_count)
    silent.set()
    assert answers == [True] * 500
    assert threads <= before + 2


def test_a_job_is_asked_again_to_stop_when_the_first_try_fails() -> None:
    session = _Session()
    session.fails = 1
    assert end(session, times=1, then=lambda: session.stopped.wait(5)) == [True, True]
    assert session.asked == 2


def test_what_an_interrupted_statement_leaves_behind_is_ended_by_its_id() -> None:
    """More than once, because Spark may start it when the statement has long ended."""
    session = _Session()
    end(session, times=1, then=lambda: session.sql("SELECT 1"), leftovers=(0.0, 0.01, 0.01))
    assert session.client.released.wait(10)
    (asked, _), *rest = session.statements
    assert rest == [(asked, "")] * 3


def test_statements_have_ids_of_their_own_until_one_is_failed_again() -> None:
    session = _Session()
    session.sql("a")
    session.sql("b")
    end_leftovers(session)
    session.sql("c")
    ids = [operation_id for operation_id, _ in session.statements]
    assert [statement for _, statement in session.statements] == ["a", "b", "", "", "c"]
    assert ids[:2] == ids[2:4]
    assert len({*ids}) == 3


def test_a_session_that_is_interrupted_as_it_ends_is_lent_to_nobody_else() -> None:
    """What asks Spark to stop may come late, and would stop the next."""
    server = _Server(_Session())
    sessions = Sessions(server, {}, 1)
    with sessions.session(work=Work("query", (), "ann")) as first:
        assert sessions.end(sessions.jobs()[0].id, "ended by 'ann'")
    server.session = _Session()
    with sessions.session(work=Work("query", (), "bob")) as second:
        assert second is not first


def test_what_cleans_up_is_cut_off_with_all_else_when_spark_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    session, cut = _Session(), threading.Event()
    asked = threading.Event()

    def hang(_: object) -> None:
        asked.set()
        cut.wait(10)

    monkeypatch.setattr("sparkport.lakehouse.spark.sessions.end_leftovers", hang)
    sessions = Sessions(_Server(session), {}, 1)

    def work() -> None:
        with sessions.session(work=Work("query", ())):
            sessions.end(sessions.jobs()[0].id, "ended")
            raise InterruptedError

    with pytest.raises(Unavailable):
        work()
    assert asked.wait(10)
    monkeypatch.setattr(session.client, "close", cut.set)
    sessions.cut_off("Spark gives no answer")
    assert cut.is_set()
