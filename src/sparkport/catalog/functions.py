"""Functions that a catalog offers next to its tables: scalar, table, and table in-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.plain_values import value_text
from sparkport.catalog.scan import Scannable, ScanRequest
from sparkport.errors import InvalidArgument

__all__ = [
    "ANY",
    "Arguments",
    "Function",
    "InOutCall",
    "Parameter",
    "ScalarFunction",
    "Stability",
    "TableFunction",
    "TableInOutFunction",
]


class Stability(Enum):
    """Whether DuckDB may call a scalar function once for equal arguments, or must call it for each row."""

    CONSISTENT = "consistent"
    VOLATILE = "volatile"
    CONSISTENT_WITHIN_QUERY = "consistent_within_query"


class _Any:
    def __repr__(self) -> str:
        return "ANY"


ANY = _Any()
"""The type of a parameter that takes whatever it is given."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """``named`` ones are written ``name := value``; at most one parameter is the input ``table``."""

    name: str
    type: pa.DataType | _Any = ANY
    named: bool = False
    table: bool = False

    def field(self) -> pa.Field:
        marks: dict[str, str] = {}
        if isinstance(self.type, _Any) and not self.table:
            marks["is_any_type"] = "1"
        if self.named:
            marks["is_named_parameter"] = "1"
        if self.table:
            marks["is_table_type"] = "1"
        data_type = pa.string() if isinstance(self.type, _Any) else self.type
        return pa.field(self.name, data_type, metadata=marks or None)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The values of one call, each an Arrow scalar, by parameter name. Absent named ones are not in it."""

    values: Mapping[str, pa.Scalar]

    def __getitem__(self, name: str) -> Any:
        """The value as a Python object."""
        return self._value(name)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None or not value.is_valid else self._value(name)

    def _value(self, name: str) -> Any:
        try:
            return self.values[name].as_py()
        except (ArithmeticError, ValueError) as exc:  # a date beyond the years of Python's
            raise InvalidArgument(f"the argument '{name}' is {value_text(self.values[name])}, out of range") from exc


class Function(ABC):
    """What all kinds share. Called from several threads at once."""

    name: str
    comment: str | None = None
    parameters: Sequence[Parameter] = ()

    def input_schema(self) -> pa.Schema:
        # DuckDB's client counts arguments as if the table were the last of them.
        ordered = sorted(self.parameters, key=lambda parameter: parameter.table)
        return pa.schema([parameter.field() for parameter in ordered])

    def bind(self, row: pa.RecordBatch | None) -> Arguments:
        """Arguments of a call from the one-row batch that the client sends, by position and by name."""
        declared = [parameter for parameter in self.parameters if not parameter.table]
        row = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([]))) if row is None else row
        if row.num_rows != 1:
            raise InvalidArgument(f"function '{self.name}' takes one row of arguments, got {row.num_rows}")
        names = {parameter.name: parameter for parameter in declared}
        positional = iter([parameter for parameter in declared if not parameter.named])
        values: dict[str, pa.Scalar] = {}
        for index, column in enumerate(row.schema):
            parameter = names.get(column.name) or next(positional, None)
            if parameter is None:
                raise InvalidArgument(f"function '{self.name}' has no parameter for argument '{column.name}'")
            if parameter.name in values:
                raise InvalidArgument(f"function '{self.name}': argument '{parameter.name}' is given twice")
            values[parameter.name] = self._argument(parameter, row.column(index))
        missing = [parameter.name for parameter in declared if not parameter.named and parameter.name not in values]
        if missing:
            raise InvalidArgument(f"function '{self.name}' lacks argument '{missing[0]}'")
        return Arguments(values)

    def _argument(self, parameter: Parameter, column: pa.Array) -> pa.Scalar:
        if isinstance(parameter.type, _Any) or column.type == parameter.type:
            return column[0]
        try:
            return column.cast(parameter.type)[0]
        except pa.ArrowException as exc:
            raise InvalidArgument(
                f"function '{self.name}': argument '{parameter.name}' is {column.type}, "
                f"which does not go into {parameter.type}"
            ) from exc


class ScalarFunction(Function):
    returns: pa.DataType
    stability: Stability = Stability.CONSISTENT

    @abstractmethod
    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        """One value for each row. A function without parameters gets a batch of rows without columns."""


class TableFunction(Function):
    @abstractmethod
    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        """The columns of a call; ``arguments`` is None when the catalog is listed: any schema then will do."""

    @abstractmethod
    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scannable:
        """The rows of a call, under the same rules as ``Table.scan``."""


class InOutCall(ABC):
    """One running call of a table in-out function. One thread drives it; ``close`` is always called."""

    @abstractmethod
    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Rows for this batch of input; none, one or several batches."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Rows that come after all input."""
        return ()

    def close(self) -> None:  # noqa: B027 - most calls hold nothing
        """Give back what the call holds."""


class TableInOutFunction(Function):
    @abstractmethod
    def schema(self, ctx: CallContext, arguments: Arguments | None, input_schema: pa.Schema | None) -> pa.Schema:
        """The columns of a call; both are None when the catalog is listed."""

    @abstractmethod
    def open(self, ctx: CallContext, arguments: Arguments, input_schema: pa.Schema) -> InOutCall: ...
