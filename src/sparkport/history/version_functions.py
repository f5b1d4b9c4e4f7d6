"""Functions that act on a table's versions: ``SELECT lake.history.rollback('public.users', 5)``, and names for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.dropped import DroppedTable
from sparkport.catalog.functions import Arguments, Parameter, ScalarFunction, Stability, TableFunction
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.static import scan_arrow
from sparkport.catalog.table import Table
from sparkport.catalog.versions import RevertibleTable, TaggedTable
from sparkport.errors import InvalidArgument, Unsupported
from sparkport.history.points import point

__all__ = ["DroppedTables", "FindTable", "Tags", "restore_function", "version_functions"]

FindTable = Callable[[CallContext, str], Table]
"""A table by the name that a caller has written, if it may do with it what it asks for; raises else."""

Values = Mapping[str, pa.Scalar]

_TABLE = Parameter("table", pa.string())
_NAME = Parameter("name", pa.string())

_TAGS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("snapshot_id", pa.int64()),
    ]
)


_DROPPED = pa.schema(
    [
        pa.field("schema", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("dropped", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("author", pa.string()),
    ]
)


class _VersionFunction(ScalarFunction):
    stability = Stability.VOLATILE

    def __init__(
        self,
        name: str,
        comment: str,
        *,
        parameters: tuple[Parameter, ...],
        returns: pa.DataType,
        act: Callable[[CallContext, Values], object],
    ) -> None:
        self.name = name
        self.comment = comment
        self.parameters = parameters
        self.returns = returns
        self._act = act

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        names = [parameter.name for parameter in self.parameters]
        answers = [
            self._act(ctx, {name: arguments.column(name)[row] for name in names}) for row in range(arguments.num_rows)
        ]
        return pa.array(answers, self.returns)


def version_functions(find: FindTable) -> tuple[ScalarFunction, ...]:
    def rollback(ctx: CallContext, values: Values) -> int | None:
        return _revertible(find, ctx, values).rollback(ctx, point(values["version"], "the version"))

    def tag(ctx: CallContext, values: Values) -> str:
        name = _text(values["name"], "the tag's name")
        _tagged(find, ctx, values).tag(ctx, name, point(values["version"], "the version"))
        return name

    def untag(ctx: CallContext, values: Values) -> str:
        name = _text(values["name"], "the tag's name")
        _tagged(find, ctx, values).untag(ctx, name)
        return name

    def branch(ctx: CallContext, values: Values) -> str:
        name = _text(values["name"], "the branch's name")
        _tagged(find, ctx, values).branch(ctx, name, point(values["version"], "the version"))
        return name

    def drop_branch(ctx: CallContext, values: Values) -> str:
        name = _text(values["name"], "the branch's name")
        _tagged(find, ctx, values).drop_branch(ctx, name)
        return name

    version = Parameter("version")
    return (
        _VersionFunction(
            "rollback",
            "Make a table's rows those of an earlier version again, by a new commit; the new version's number",
            parameters=(_TABLE, version),
            returns=pa.int64(),
            act=rollback,
        ),
        _VersionFunction(
            "tag",
            "Keep a version of a table by a name, which AT (VERSION => …) takes",
            parameters=(_TABLE, _NAME, version),
            returns=pa.string(),
            act=tag,
        ),
        _VersionFunction(
            "untag",
            "Take a version's name away",
            parameters=(_TABLE, _NAME),
            returns=pa.string(),
            act=untag,
        ),
        _VersionFunction(
            "branch",
            "Begin a branch of a table at a version, for Spark to write to; AT (VERSION => …) reads it",
            parameters=(_TABLE, _NAME, version),
            returns=pa.string(),
            act=branch,
        ),
        _VersionFunction(
            "drop_branch",
            "Drop a branch of a table, with what was committed to it alone",
            parameters=(_TABLE, _NAME),
            returns=pa.string(),
            act=drop_branch,
        ),
    )


def restore_function(restore: Callable[[CallContext, str], str]) -> ScalarFunction:
    """``restore`` brings a table back by its name, if the caller may; the name as it is spelled."""
    return _VersionFunction(
        "restore",
        "Bring a dropped table back, with its rows and its versions",
        parameters=(_TABLE,),
        returns=pa.string(),
        act=lambda ctx, values: restore(ctx, _text(values["table"], "the table's name")),
    )


class DroppedTables(Table):
    """What ``restore`` can bring back, of names that the caller may know."""

    name = "dropped"
    comment = "Tables that were dropped and can be restored"

    def __init__(self, listed: Callable[[CallContext], Iterable[DroppedTable]]) -> None:
        self._listed = listed

    @property
    def schema(self) -> pa.Schema:
        return _DROPPED

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        rows = [
            {"schema": table.schema, "name": table.name, "dropped": table.dropped, "author": table.author}
            for table in self._listed(ctx)
        ]
        return scan_arrow(pa.Table.from_pylist(rows, _DROPPED), request)


class Tags(TableFunction):
    name = "tags"
    comment = "The versions of a table that are kept by a name, and its branches"
    parameters = (_TABLE,)

    def __init__(self, find: FindTable) -> None:
        self._find = find

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        return _TAGS

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        rows = [
            {
                "name": tag.name,
                "kind": "branch" if tag.is_branch else "tag",
                "version": tag.version,
                "snapshot_id": tag.snapshot,
            }
            for tag in _tagged(self._find, ctx, arguments.values).version_tags(ctx)
        ]
        return scan_arrow(pa.Table.from_pylist(rows, _TAGS), request)


def _revertible(find: FindTable, ctx: CallContext, values: Values) -> RevertibleTable:
    table = find(ctx, _text(values["table"], "the table's name"))
    if not isinstance(table, RevertibleTable):
        raise Unsupported(f"table '{table.name}' cannot be rolled back")
    return table


def _tagged(find: FindTable, ctx: CallContext, values: Values) -> TaggedTable:
    table = find(ctx, _text(values["table"], "the table's name"))
    if not isinstance(table, TaggedTable):
        raise Unsupported(f"table '{table.name}' keeps no versions that could be named")
    return table


def _text(value: pa.Scalar, what: str) -> str:
    if not value.is_valid:
        raise InvalidArgument(f"{what} is NULL")
    return str(value.as_py())
