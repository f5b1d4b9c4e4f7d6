"""A session is its caller's: who sends another's session id gets nothing of what is kept for it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sparkport.auth.identity import Identity
from sparkport.catalog.context import CallContext
from sparkport.errors import NotFound
from sparkport.handlers.ddl import Ddl
from sparkport.handlers.directory import Directory
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables.session_ddl import SessionDdl
from sparkport.memory import MemoryCatalog
from sparkport.memory.data import Author
from sparkport.protocol.maps import MapReader, pack

pytestmark = pytest.mark.tier("fast")

ADA = CallContext(identity=Identity("ada"), session_id="one")
BOB = CallContext(identity=Identity("bob"), session_id="one")
TABLE = TableName("public", "t")


def test_the_same_id_is_another_session_for_another_caller() -> None:
    assert ADA.session is not None
    assert ADA.session != BOB.session
    assert ADA.session == replace(ADA).session
    assert CallContext(identity=Identity("ada")).session is None
    # What is kept of a session does not grow with the id that a client has chosen.
    assert len(replace(ADA, session_id="x" * 100_000).session or "") == 64


def test_ddl_of_one_caller_is_not_followed_for_another() -> None:
    ddl = SessionDdl()
    ddl.note(ADA, TABLE, None, "here")
    ddl.note_schema(ADA, "made", {})
    assert ddl.follow(ADA, TABLE, None, since=0) == "here"
    assert ddl.follow(BOB, TABLE, None, since=0) is None
    assert ddl.tables(BOB, since=0) == set()
    assert ddl.schemas(BOB, {}, since=0) == {}
    assert Author.from_context(ADA).is_caller(ADA)
    assert not Author.from_context(ADA).is_caller(BOB)


def test_made_up_sessions_push_out_none_of_other_callers() -> None:
    ddl = SessionDdl()
    ddl.note(ADA, TABLE, None, "here")
    for number in range(20_000):
        ddl.note(replace(BOB, session_id=str(number)), TABLE, None, "there")
    assert ddl.follow(ADA, TABLE, None, since=0) == "here"
    assert ddl.follow(replace(BOB, session_id="19999"), TABLE, None, since=0) == "there"
    assert ddl.follow(replace(BOB, session_id="0"), TABLE, None, since=0) is None


def test_a_change_that_another_caller_repeats_is_no_repeat() -> None:
    catalog = MemoryCatalog("lake")
    catalog.create_table("t", pa.schema([("a", pa.int64())]))
    ddl = Ddl(Directory([catalog]))
    names = {"catalog_name": "lake", "schema_name": "public", "name": "t", "ignore_not_found": False}
    body = MapReader.from_msgpack(pack(names))
    for _ in range(2):
        ddl.drop_table(ADA, body)
    with pytest.raises(NotFound):
        ddl.drop_table(BOB, body)
