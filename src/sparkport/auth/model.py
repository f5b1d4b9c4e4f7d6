"""The two questions asked of every call, who is it and may they, as the interfaces that a deployment can replace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sparkport.auth.identity import Identity
from sparkport.auth.operations import Operation
from sparkport.auth.policy import Policy
from sparkport.auth.secret import Secret
from sparkport.errors import CatalogNotFound, FunctionNotFound, PermissionDenied, SchemaNotFound, TableNotFound

__all__ = ["AllowAll", "Authenticator", "Authorizer", "Operation", "Peer", "Resource"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a call comes from. The certificate's subject is set only when TLS has verified the certificate."""

    address: str
    certificate_subject: str | None = None


class Authenticator(ABC):
    """Tells who is calling.

    Called once per call, from several threads at once. An implementation MUST raise ``Unauthenticated`` for
    credentials that are missing or wrong, MUST raise ``Unavailable`` when it cannot tell at the moment, and MUST NOT
    put any part of the token into a message, a log record or the identity.
    """

    @abstractmethod
    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        """The identity behind the bearer token, which is None when the call carries none, or behind the peer."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A catalog, a schema in it, or a table, function or action by name. None means that it is not named."""

    catalog: str
    schema: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return ".".join(part for part in (self.catalog, self.schema, self.name) if part is not None)

    def enclosing(self) -> tuple[Resource, ...]:
        """What this resource lies in, outermost first."""
        if self.schema is None:
            return (Resource(self.catalog),) if self.name is not None else ()
        around = (Resource(self.catalog), Resource(self.catalog, self.schema))
        return around if self.name is not None else around[:1]


class Authorizer(ABC):
    """Tells what a caller may do.

    Called from several threads at once and once for every name in a listing: it MUST be quick and MUST NOT do I/O.
    LIST decides what is seen, and what may not be seen is answered as NOT_FOUND, so that names cannot be probed for;
    what is seen but not allowed is PERMISSION_DENIED. Names arrive as the caller wrote them or as the catalog has
    them, so an implementation MUST compare them without regard to case.
    """

    @property
    def generation(self) -> int:
        """Another number whenever the answers may have changed: listings are kept by it."""
        return 0

    @property
    def policy_generation(self) -> int:
        """Another number whenever policies may have changed: DuckDB keeps the columns that it has listed."""
        return 0

    @abstractmethod
    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        """Whether the caller may do this. MUST NOT raise for a resource that does not exist."""

    def policy(self, identity: Identity, resource: Resource) -> Policy | None:
        """What the caller may see and change of a table's rows and columns; None means all that it has.

        Asked for each table that a call touches or lists, after ``allows``: the same MUSTs hold.
        """
        return None

    def require(self, identity: Identity, operation: Operation, resource: Resource) -> None:
        """Return when the operation is allowed; else raise NOT_FOUND or PERMISSION_DENIED as said above."""
        if self.allows(identity, operation, resource):
            return
        for around in resource.enclosing():
            if not self.allows(identity, Operation.LIST, around):
                raise _not_found(operation, around)
        # The name of a new thing, or of an action, is no news to the caller: there is nothing to hide.
        hidden = operation not in (Operation.CREATE, Operation.ACTION, Operation.TRANSACTION)
        if hidden and not self.allows(identity, Operation.LIST, resource):
            raise _not_found(operation, resource)
        raise PermissionDenied(f"'{identity.subject}' may not {operation.value} '{resource}'")


class AllowAll(Authorizer):
    """Everybody who is authenticated may do everything but run queries of their own on Spark.

    ``spark_sql``: these too.
    """

    def __init__(self, *, spark_sql: bool = False) -> None:
        self._spark_sql = spark_sql

    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return self._spark_sql or operation is not Operation.SPARK_SQL


def _not_found(operation: Operation, resource: Resource) -> Exception:
    if resource.schema is None:
        return CatalogNotFound(f"catalog '{resource.catalog}' not found")
    if resource.name is None:
        return SchemaNotFound(resource.schema)
    missing = FunctionNotFound if operation is Operation.CALL else TableNotFound
    return missing(resource.schema, resource.name)
