"""Many tenants at once from one process: ADDRESS FOLDER SLOTS NAME…. Open loop: arrivals come when they come, whatever
became of those before; one that finds no slot, or whose tenant was told to wait, counts as held back and is gone.

Says one line when ready. Then, for each line {"seconds", "rates": {tenant: per second}, "closed": in flight, "rude":
[tenants that do not wait when told to]}, does it and says what came of it, by tenant. Ends with its standard input.
"""

from __future__ import annotations

import ctypes
import heapq
import json
import select
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Requester, RequestFailed, connect
from offpath.host_helper.pending import Pending

KERNEL_S = 0.02
SIZES = {"payload_bytes": 4096, "result_bytes": 4096}


class Tenant:
    """One tenant's session, what flies on it, and what came of it."""

    def __init__(self, requester: Requester) -> None:
        self.requester = requester
        self.flying: dict[Pending, float] = {}
        self.clear()

    def clear(self) -> None:
        self.counted: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.waits_until = 0.0

    def arrive(self, now: float, is_rude: bool) -> None:
        """A request wants to be served now."""
        self.counted["arrived"] += 1
        if now < self.waits_until and not is_rude:
            self.counted["held back: told to wait"] += 1
        elif not self.requester._slots.has_room():
            self.counted["held back: no slot"] += 1
        else:
            self.counted["sent"] += 1
            self.flying[self.requester.begin("sleep", [np.array([KERNEL_S])])] = now

    def take(self) -> None:
        """What has been answered."""
        self.requester.poll(0)
        now = time.monotonic()
        for pending in [pending for pending in self.flying if pending.done]:
            started = self.flying.pop(pending)
            outcome = pending.outcome
            if not isinstance(outcome, RequestFailed):
                self.counted["completed"] += 1
                self.latencies.append(now - started)
            elif outcome.status is Status.REJECTED and outcome.reason is Reason.TENANT_QUEUE_FULL:
                self.counted["refused"] += 1
                self.waits_until = max(self.waits_until, now + outcome.retry_after_ms / 1e3)
            else:
                self.counted[f"{outcome.status.name} {outcome.reason.name}"] += 1


def work(tenants: dict[str, Tenant], wish: dict[str, Any], noise: Random) -> dict[str, Any]:
    """Carry one line out."""
    for tenant in tenants.values():
        tenant.clear()
    poller = select.poll()
    by_fd = {tenant.requester._link.session.fileno(): tenant for tenant in tenants.values()}
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    rates, in_flight, rude = wish.get("rates", {}), wish.get("closed", 0), set(wish.get("rude", ()))
    started = time.monotonic()
    end = started + wish["seconds"]
    spacing = {name: (lambda rate=rate: 1 / rate) if wish.get("even") else (lambda rate=rate: noise.expovariate(rate))
               for name, rate in rates.items()}  # fmt: skip
    due = [(started + noise.random() / rate, name) for name, rate in rates.items()]
    heapq.heapify(due)
    while (now := time.monotonic()) < end:
        while due and due[0][0] <= now:
            when, name = due[0]
            tenants[name].arrive(now, name in rude)
            heapq.heapreplace(due, (when + spacing[name](), name))
        for name in wish.get("who", tenants) if in_flight else ():
            while len(tenants[name].flying) < in_flight:
                tenants[name].arrive(now, True)
        wait_ms = min(end, due[0][0] if due else end) - time.monotonic()
        for fd, _ in poller.poll(max(0.0, wait_ms * 1e3)):
            by_fd[fd].take()
    took = time.monotonic() - started
    counted = {name: dict(tenant.counted) for name, tenant in tenants.items()}
    done = {name: tenant.counted["completed"] / took for name, tenant in tenants.items()}
    latencies = {name: sorted(tenant.latencies) for name, tenant in tenants.items()}
    end = time.monotonic() + 10
    while any(tenant.flying for tenant in tenants.values()) and time.monotonic() < end:
        poller.poll(10)
        for tenant in tenants.values():
            tenant.take()
    left = sum(len(tenant.flying) for tenant in tenants.values())
    return {"counted": counted, "per_s": done, "latencies": latencies, "unanswered": left}


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    address, folder, slots, *names = sys.argv[1:]
    tenants = {}
    for name in names:
        token_file = str(Path(folder) / f"{name}.token")
        tenants[name] = Tenant(connect(address, tenant=name, token_file=token_file, slots=int(slots), **SIZES))
    print(json.dumps("ready"), flush=True)
    noise = Random(1)
    for line in sys.stdin:
        print(json.dumps(work(tenants, json.loads(line), noise)), flush=True)
    for tenant in tenants.values():
        tenant.requester.close()


if __name__ == "__main__":
    main()
