"""A rank in a process of its own, to be killed: attaches, says so, begins what it is told, and polls for ever."""

from __future__ import annotations

import sys

from offpath.bindings.ina.connection import SwitchFabric
from offpath.bindings.ina.rate_limiter import RateLimiter


def main() -> None:
    address, job, rank, ranks, nbytes = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    session = SwitchFabric(RateLimiter()).attach(
        address, job=job, incarnation=1, stamp=1 << 32 | 1, rank=rank, ranks=ranks, token="token"
    )
    print(session.poll(10), flush=True)
    if nbytes:
        sys.stdin.readline()
        session.start(0, "fp32", memoryview(bytes(nbytes)), memoryview(bytearray(nbytes)))
    while True:
        session.poll(1)


if __name__ == "__main__":
    main()
