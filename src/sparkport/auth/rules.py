"""Authorization for those who need no more than a list: who, may do what, where, and with which rows and columns."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkport.auth.files import Reloaded, read_toml
from sparkport.auth.identity import Identity
from sparkport.auth.model import Authorizer, Operation, Resource
from sparkport.auth.operations import ROW_OPERATIONS
from sparkport.auth.policy import Policy, Share
from sparkport.auth.rules_table import Rule, RuleSet, read_rules, refuse
from sparkport.filters.rule_expressions import BoundExpression, RuleExpression

__all__ = ["Rule", "RuleAuthorizer"]

logger = logging.getLogger(__name__)

# Without them nothing else can be done: DuckDB lists a catalog and asks for a transaction before every query.
_IMPLIED = frozenset({Operation.LIST, Operation.TRANSACTION})
_WARNINGS_KEPT = 1_000


class RuleAuthorizer(Authorizer):
    """What some rule allows is allowed, all else is not.

    LIST and TRANSACTION need no rule of their own: they are allowed for everything that some rule of the subject is
    about, and for what encloses it.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        compiled = _compiled(RuleSet(tuple(rules)))
        self._current: Callable[[], tuple[_Compiled, ...]] = lambda: compiled
        self._seen = compiled
        self._generation = 0
        self._policies = 0
        self._lock = threading.Lock()
        self._warned: set[tuple[object, ...]] = set()

    @classmethod
    def from_file(cls, path: Path, *, clock: Callable[[], float] = time.monotonic) -> RuleAuthorizer:
        """Rules from a TOML file, which is read again when it changes (looked at once a second at most)."""
        authorizer = cls(())
        authorizer._current = Reloaded([path], lambda: _compiled(read_rules(read_toml(path))), clock=clock).current
        return authorizer

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> RuleAuthorizer:
        """Rules from a TOML table: see :func:`sparkport.auth.rules_table.read_rules`."""
        authorizer = cls(())
        compiled = _compiled(read_rules(table))
        authorizer._current, authorizer._seen = lambda: compiled, compiled
        return authorizer

    @property
    def generation(self) -> int:
        return self._generations()[0]

    @property
    def policy_generation(self) -> int:
        return self._generations()[1]

    def _generations(self) -> tuple[int, int]:
        current = self._current()
        with self._lock:
            if current is not self._seen:
                # Where no rule limits anything, before or now, everybody sees whole tables.
                self._policies += not all(rule.is_whole for rule in (*self._seen, *current))
                self._seen = current
                self._generation += 1
            return self._generation, self._policies

    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        parts = _parts(resource)
        return any(rule.allows(identity, operation, parts) for rule in self._current())

    def policy(self, identity: Identity, resource: Resource) -> Policy | None:
        parts = _parts(resource)
        rules = [rule for rule in self._current() if rule.gives_rows(identity, parts)]
        whole = frozenset(operation for rule in rules if rule.is_whole for operation in rule.operations)
        if all(rule.operations & ROW_OPERATIONS <= whole for rule in rules):
            return None
        shares = [(rule, rule.share(identity)) for rule in rules]
        for rule, share in shares:
            if share is None:
                self._warn_of_claims(rule, identity)
        return tuple(share for _, share in shares if share is not None)

    def rules_about(self, identity: Identity, resource: Resource | None = None) -> list[tuple[str, Rule, Share | None]]:
        """The rules that are about a caller, or give it something of one table: for people.

        Each with its name, and what it gives of rows; None where a claim is missing that it needs.
        """
        rules = [rule for rule in self._current() if rule.is_about(identity)]
        if resource is not None:
            rules = [rule for rule in rules if rule.covers(_parts(resource))]
        return [(rule.name, rule.rule, rule.share(identity)) for rule in rules]

    def _warn_of_claims(self, rule: _Compiled, identity: Identity) -> None:
        """Once per caller, not per call: a caller asks often."""
        known = (rule.name, identity.subject)
        with self._lock:
            if known in self._warned or len(self._warned) >= _WARNINGS_KEPT:
                return
            self._warned.add(known)
        logger.warning(
            "authorization rules: %s gives '%s' nothing: its claims %s are missing or of no use there",
            rule.name,
            identity.subject,
            ", ".join(sorted(rule.claims)),
        )


Parts = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Roles:
    """Who has a role: those whom the rules name, and those whose token says so."""

    members: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)

    def has(self, identity: Identity, roles: Iterable[re.Pattern[str]]) -> bool:
        claimed = identity.claims.get("roles")
        said = [claimed] if isinstance(claimed, str) else claimed if isinstance(claimed, list | tuple) else []
        named = [role for role, members in self.members.items() if _any(members, identity.subject)]
        return any(_any(roles, role) for role in (*said, *named) if isinstance(role, str))


class _Compiled:
    """A rule with its patterns made ready: it is asked for every name of a listing."""

    def __init__(self, rule: Rule, *, name: str, roles: _Roles) -> None:
        self.name = name
        self.operations = rule.operations
        self.is_whole = rule.rows is None and not rule.columns
        self.rule = rule
        self._roles = roles
        self._subjects = tuple(_compile(subject) for subject in rule.subjects)
        self._having = tuple(_compile(role) for role in rule.roles)
        self._resources = tuple(_compile_resource(resource) for resource in rule.resources)
        self._expressions = [item for item in (rule.rows, *rule.columns.values()) if item is not None]
        self.claims = frozenset(claim for item in self._expressions for claim in item.claims)

    def allows(self, identity: Identity, operation: Operation, parts: Parts) -> bool:
        implied = operation in _IMPLIED
        if not implied and operation not in self.operations:
            return False
        if not self.is_about(identity):
            return False
        return any(_covers(resource, parts, enclosing=implied) for resource in self._resources)

    def gives_rows(self, identity: Identity, parts: Parts) -> bool:
        """Whether it gives the caller anything of the rows of a table."""
        return self.covers(parts) and bool(self.operations & ROW_OPERATIONS) and self.is_about(identity)

    def covers(self, parts: Parts) -> bool:
        return any(_covers(resource, parts, enclosing=False) for resource in self._resources)

    def share(self, identity: Identity) -> Share | None:
        """What it gives; None where a claim is missing that it needs."""
        claims = {**identity.claims, "sub": identity.subject}
        bound: dict[RuleExpression, BoundExpression] = {}
        for expression in self._expressions:
            value = expression.bound(claims)
            if value is None:
                return None
            bound[expression] = value
        rule = self.rule
        return Share(
            rule=self.name,
            operations=rule.operations & ROW_OPERATIONS,
            rows=None if rule.rows is None else bound[rule.rows],
            columns=tuple((name, None if mask is None else bound[mask]) for name, mask in rule.columns.items()),
            any_new_rows=rule.any_new_rows,
        )

    def is_about(self, identity: Identity) -> bool:
        return _any(self._subjects, identity.subject) or self._roles.has(identity, self._having)


def _any(patterns: Iterable[re.Pattern[str]], text: str) -> bool:
    return any(pattern.fullmatch(text) for pattern in patterns)


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
        refuse(f"the resource '{resource}' is not of the form catalog.schema.name")
    return tuple(_compile(part.lower()) for part in parts)


def _parts(resource: Resource) -> Parts:
    return _fold(resource.catalog), _fold(resource.schema), _fold(resource.name)


def _fold(name: str | None) -> str | None:
    return None if name is None else name.lower()


def _compiled(rules: RuleSet) -> tuple[_Compiled, ...]:
    roles = _Roles({role: tuple(map(_compile, members)) for role, members in rules.roles.items()})
    return tuple(_Compiled(rule, name=f"rule {n}", roles=roles) for n, rule in enumerate(rules.rules, start=1))
