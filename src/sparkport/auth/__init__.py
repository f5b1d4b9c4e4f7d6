"""Who is calling and what they may do. Knows nothing of gRPC: the wire hands in a token and a peer."""

from sparkport.auth.combine import AnyOf, MutualTls
from sparkport.auth.hosts import is_loopback
from sparkport.auth.identity import ANONYMOUS, Identity
from sparkport.auth.jwt import JwtAuthenticator
from sparkport.auth.model import AllowAll, Authenticator, Authorizer, Operation, Peer, Resource
from sparkport.auth.rules import Rule, RuleAuthorizer
from sparkport.auth.secret import Secret
from sparkport.auth.tokens import StaticTokens

__all__ = [
    "ANONYMOUS",
    "AllowAll",
    "AnyOf",
    "Authenticator",
    "Authorizer",
    "Identity",
    "JwtAuthenticator",
    "MutualTls",
    "Operation",
    "Peer",
    "Resource",
    "Rule",
    "RuleAuthorizer",
    "Secret",
    "StaticTokens",
    "is_loopback",
]
