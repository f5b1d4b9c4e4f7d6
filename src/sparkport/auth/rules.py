"""Authorization for those who need no more than a list: who, may do what, where."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sparkport.auth.files import Reloaded, read_toml
from sparkport.auth.identity import Identity
from sparkport.auth.model import Authorizer, Operation, Resource
from sparkport.errors import InvalidArgument

__all__ = ["Rule", "RuleAuthorizer"]

# Without them nothing else can be done: DuckDB lists a catalog and asks for a transaction before every query.
_IMPLIED = frozenset({Operation.LIST, Operation.TRANSACTION})
_KEYS = ("subjects", "operations", "resources")


@dataclass(frozen=True, slots=True)
class Rule:
    """Subjects that may do operations on resources; ``*`` in a pattern stands for any text.

    A resource is ``catalog``, ``catalog.schema`` or ``catalog.schema.name``. It covers what lies in it: ``lake.public``
    is the schema and all that is in it, ``lake.public.*`` only what is in it.
    """

    subjects: tuple[str, ...]
    operations: frozenset[Operation]
    resources: tuple[str, ...]


class RuleAuthorizer(Authorizer):
    """What some rule allows is allowed, all else is not.

    LIST and TRANSACTION need no rule of their own: they are allowed for everything that some rule of the subject is
    about, and for what encloses it.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        compiled = _compiled(rules)
        self._current: Callable[[], tuple[_Compiled, ...]] = lambda: compiled
        self._seen = compiled
        self._generation = 0
        self._lock = threading.Lock()

    @classmethod
    def from_file(cls, path: Path, *, clock: Callable[[], float] = time.monotonic) -> RuleAuthorizer:
        """Rules from a TOML file, which is read again when it changes (looked at once a second at most)."""
        made = cls(())
        made._current = Reloaded([path], lambda: _compiled(_rules(read_toml(path))), clock=clock).current
        return made

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> RuleAuthorizer:
        """Rules from a TOML table: ``[[rules]]`` entries with ``subjects``, ``operations`` and ``resources``.

        Each is a text or a list of texts; ``operations = "*"`` means all.
        """
        return cls(_rules(table))

    @property
    def generation(self) -> int:
        current = self._current()
        with self._lock:
            if current is not self._seen:
                self._seen = current
                self._generation += 1
            return self._generation

    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        parts = (_fold(resource.catalog), _fold(resource.schema), _fold(resource.name))
        return any(rule.allows(identity.subject, operation, parts) for rule in self._current())


Parts = tuple[str | None, str | None, str | None]


class _Compiled:
    """A rule with its patterns made ready: it is asked for every name of a listing."""

    def __init__(self, rule: Rule) -> None:
        self._subjects = tuple(_compile(subject) for subject in rule.subjects)
        self._operations = rule.operations
        self._resources = tuple(_compile_resource(resource) for resource in rule.resources)

    def allows(self, subject: str, operation: Operation, parts: Parts) -> bool:
        implied = operation in _IMPLIED
        if not implied and operation not in self._operations:
            return False
        if not any(pattern.fullmatch(subject) for pattern in self._subjects):
            return False
        return any(_covers(resource, parts, enclosing=implied) for resource in self._resources)


def _covers(patterns: tuple[re.Pattern[str], ...], parts: Parts, *, enclosing: bool) -> bool:
    """Whether the resource lies in the pattern or, with ``enclosing``, the pattern in the resource."""
    depth = max(index + 1 for index, part in enumerate(parts) if part is not None)
    if depth < len(patterns) and not enclosing:
        return False
    # An action lies in no schema: only a pattern that takes any schema covers it.
    return all(pattern.fullmatch(part or "") for pattern, part in zip(patterns, parts[:depth], strict=False))


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in pattern.split("*")), re.DOTALL)


def _compile_resource(resource: str) -> tuple[re.Pattern[str], ...]:
    parts = resource.split(".")
    if len(parts) > 3 or not all(parts):
        _refuse(f"the resource '{resource}' is not of the form catalog.schema.name")
    return tuple(_compile(part.lower()) for part in parts)


def _fold(name: str | None) -> str | None:
    return None if name is None else name.lower()


def _rules(table: Mapping[str, object]) -> list[Rule]:
    _only_keys(table, ("rules",), where="authorization")
    entries = table.get("rules", [])
    if not isinstance(entries, list):
        _refuse("'rules' must be an array of tables")
    return [_rule(entry, f"rule {number}") for number, entry in enumerate(entries, start=1)]


def _compiled(rules: Iterable[Rule]) -> tuple[_Compiled, ...]:
    return tuple(_Compiled(rule) for rule in rules)


def _rule(entry: object, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        _refuse(f"{where} must be a table")
    _only_keys(entry, _KEYS, where=where)
    texts = {key: _texts(entry, key, where) for key in _KEYS}
    names = texts["operations"]
    operations = frozenset(Operation) if "*" in names else frozenset(_operation(name, where) for name in names)
    return Rule(subjects=texts["subjects"], operations=operations, resources=texts["resources"])


def _operation(name: str, where: str) -> Operation:
    try:
        return Operation(name.lower())
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        _refuse(f"{where}: there is no operation '{name}', only {known}")


def _texts(entry: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key)
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(text, str) and text for text in values):
        _refuse(f"{where}: '{key}' must be a text or a list of texts")
    return tuple(values)


def _only_keys(table: Mapping[str, object], known: tuple[str, ...], *, where: str) -> None:
    # A misspelt key must not become a rule that means something else.
    unknown = sorted(set(table) - set(known))
    if unknown:
        _refuse(f"{where}: unknown key '{unknown[0]}'")


def _refuse(reason: str) -> NoReturn:
    raise InvalidArgument(f"authorization rules: {reason}")
