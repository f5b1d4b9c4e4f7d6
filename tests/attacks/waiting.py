"""How long a small call takes, in seconds, a line for each: ``python -m tests.attacks.waiting PORT CALLS``."""

from __future__ import annotations

import sys
import time

import grpc
from tests.robustness.rig import Raw, action


def main(port: int, calls: int) -> None:
    with Raw(port, token="bob") as bob:
        for _ in range(calls):
            begun = time.monotonic()
            answer = bob.call("DoAction", action("list_schemas", {"catalog_name": "lake"}))
            assert answer.code is grpc.StatusCode.OK, answer.details
            print(time.monotonic() - begun)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
