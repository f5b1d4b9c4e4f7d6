"""gRPC and Arrow Flight. Nothing outside this package, and the client, knows that there is gRPC."""

import os

__all__: list[str] = []

# The older listener of gRPC costs the server a third less CPU per uploaded message; see docs/performance.md. gRPC
# chooses it when it is first imported, so it has to be set before that; another choice in the environment stays.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
