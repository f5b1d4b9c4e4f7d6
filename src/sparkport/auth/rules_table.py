"""Reading rules from TOML. Whatever is wrong with them is said when they are read, not when they are first needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from sparkport.auth.operations import ALL_OPERATIONS, ROW_OPERATIONS, Operation
from sparkport.errors import InvalidArgument
from sparkport.filters.rule_expressions import RuleExpression, RuleRefused, parse_rule

__all__ = ["HIDDEN", "Rule", "RuleSet", "read_rules", "refuse"]

HIDDEN = "hidden"
"""In place of a mask: the column is not there."""

_WHO = ("subjects", "roles")
_REQUIRED = ("operations", "resources")
_LIMITS = ("rows", "columns", "new_rows")
# An action, a function or a change of the table's columns knows nothing of filters and masks.
_WITH_LIMITS = ROW_OPERATIONS | {Operation.LIST, Operation.TRANSACTION}
_NEW_ROWS = {"seen": False, "any": True}


@dataclass(frozen=True, slots=True)
class Rule:
    """Subjects and roles that may do operations on resources; ``*`` in a pattern stands for any text.

    A resource is ``catalog``, ``catalog.schema`` or ``catalog.schema.name``. It covers what lies in it: ``lake.public``
    is the schema and all that is in it, ``lake.public.*`` only what is in it. ``rows`` is a condition for the rows that
    the rule is about, ``columns`` what is shown in place of columns; None hides one.
    """

    subjects: tuple[str, ...]
    operations: frozenset[Operation]
    resources: tuple[str, ...]
    roles: tuple[str, ...] = ()
    rows: RuleExpression | None = None
    columns: Mapping[str, RuleExpression | None] = field(default_factory=dict)
    any_new_rows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        wrong = self.operations - _WITH_LIMITS if self.rows is not None or self.columns else ()
        if wrong:
            names = ", ".join(sorted(operation.value for operation in wrong))
            refuse(f"a rule with rows or columns gives no right but those to rows: not {names}")
        if (self.rows is not None or self.columns) and not self.operations & ROW_OPERATIONS:
            # It would show the table's columns, and hide none of them.
            refuse("a rule with rows or columns gives rights to rows: read, insert, update or delete")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules, and the subjects that have a role by name."""

    rules: tuple[Rule, ...] = ()
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_rules(table: Mapping[str, object]) -> RuleSet:
    """``[[rules]]`` entries with ``subjects`` or ``roles``, ``operations`` and ``resources``: texts, or lists of such.

    ``operations = "*"`` means all but ``spark_sql``, which has to be named. ``rows`` and ``columns.NAME`` are SQL
    expressions, or ``hidden`` for a column. The table ``[roles]`` says by name which subjects have a role.
    """
    _only_keys(table, ("rules", "roles"), where="authorization")
    entries, roles = table.get("rules", []), table.get("roles", {})
    if not isinstance(entries, list):
        refuse("'rules' must be an array of tables")
    if not isinstance(roles, Mapping):
        refuse("'roles' must be a table: role = [subjects]")
    rules = tuple(_rule(entry, f"rule {number}") for number, entry in enumerate(entries, start=1))
    return RuleSet(rules, {role: _texts(roles, role, "roles") for role in roles})


def _rule(entry: object, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        refuse(f"{where} must be a table")
    _only_keys(entry, _WHO + _REQUIRED + _LIMITS, where=where)
    if not any(key in entry for key in _WHO):
        refuse(f"{where}: 'subjects' must be a text or a list of texts, or 'roles' be given")
    texts = {key: _texts(entry, key, where) for key in (*(key for key in _WHO if key in entry), *_REQUIRED)}
    names = texts["operations"]
    limited = "rows" in entry or "columns" in entry
    every = _WITH_LIMITS if limited else ALL_OPERATIONS
    operations = frozenset(_operation(name, where) for name in names if name != "*") | (
        every if "*" in names else set()
    )
    new_rows = entry.get("new_rows", "seen")
    if not isinstance(new_rows, str) or new_rows not in _NEW_ROWS:
        refuse(f"{where}: 'new_rows' must be 'seen' or 'any'")
    rows = _expression(entry["rows"], where, "rows") if "rows" in entry else None
    columns = _columns(entry.get("columns", {}), where)
    try:
        return Rule(
            subjects=texts.get("subjects", ()),
            operations=operations,
            resources=texts["resources"],
            roles=texts.get("roles", ()),
            rows=rows,
            columns=columns,
            any_new_rows=_NEW_ROWS[new_rows],
        )
    except InvalidArgument as exc:
        raise InvalidArgument(f"{_PREFIX}{where}: {exc.message.removeprefix(_PREFIX)}") from exc


def _columns(value: object, where: str) -> dict[str, RuleExpression | None]:
    if not isinstance(value, Mapping):
        refuse(f"{where}: 'columns' must be a table: columns.NAME = expression or '{HIDDEN}'")
    columns: dict[str, RuleExpression | None] = {}
    for name, text in value.items():
        if name.lower() in columns:
            refuse(f"{where}: column '{name}' is given twice")
        columns[name.lower()] = None if text == HIDDEN else _expression(text, where, f"columns.{name}")
    return columns


def _expression(value: object, where: str, key: str) -> RuleExpression:
    if not isinstance(value, str) or not value.strip():
        refuse(f"{where}: '{key}' must be an SQL expression")
    try:
        return parse_rule(value)
    except RuleRefused as exc:
        refuse(f"{where}: '{key}' cannot be used: {exc}")


def _operation(name: str, where: str) -> Operation:
    try:
        return Operation(name.lower())
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        refuse(f"{where}: there is no operation '{name}', only {known}")


def _texts(entry: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key)
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(text, str) and text for text in values):
        refuse(f"{where}: '{key}' must be a text or a list of texts")
    return tuple(values)


def _only_keys(table: Mapping[str, object], known: tuple[str, ...], *, where: str) -> None:
    # A misspelt key must not become a rule that means something else.
    unknown = sorted(set(table) - set(known))
    if unknown:
        refuse(f"{where}: unknown key '{unknown[0]}'")


_PREFIX = "authorization rules: "


def refuse(reason: str) -> NoReturn:
    raise InvalidArgument(f"{_PREFIX}{reason}")
