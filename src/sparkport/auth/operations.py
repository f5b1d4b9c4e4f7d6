"""What can be asked for, by the names that rules use. A leaf."""

from __future__ import annotations

from enum import Enum

__all__ = ["ALL_OPERATIONS", "Operation", "ROW_OPERATIONS"]


class Operation(Enum):
    LIST = "list"
    READ = "read"
    CALL = "call"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"
    ACTION = "action"
    TRANSACTION = "transaction"
    SPARK_SQL = "spark_sql"


ALL_OPERATIONS = frozenset(Operation) - {Operation.SPARK_SQL}
"""Those that ``*`` stands for. A right to have Spark compute anything at all is given by its name."""

ROW_OPERATIONS = frozenset({Operation.READ, Operation.INSERT, Operation.UPDATE, Operation.DELETE})
"""Those in which a row filter and column masks have a meaning."""
