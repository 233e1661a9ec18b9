"""A tenant at work: ADDRESS TENANT TOKEN_FILE SESSIONS SLOTS POLITE KERNEL. Says one line when ready, then answers
lines of its standard input: "count" gives what it has done so far, "polite" keeps POLITE requests in flight per
session, "flood" as many as there are slots, "stop" ends it. KERNEL "sleep:0.002" is one that takes 2 ms, "sleep" 8."""

from __future__ import annotations

import contextlib
import ctypes
import json
import select
import sys
from collections import Counter
from typing import Any

import numpy as np

from offpath.bindings.errors import NegotiationRefused
from offpath.host_helper import Requester, RequestFailed, connect
from offpath.host_helper.pending import Pending


class Tenant:
    """Keeps ``in_flight`` requests going on each session, and checks each answer against what was sent."""

    def __init__(self, address: str, tenant: str, token_file: str, sessions: int, slots: int, kernel: str) -> None:
        self.counted: Counter[str] = Counter()
        self._random = np.random.default_rng(1)
        self._kernel, _, seconds = kernel.partition(":")
        self._seconds = float(seconds or 0.008)
        self._who = (address, tenant, token_file)
        self.sessions: list[Requester] = []
        for _ in range(sessions):
            self.sessions.append(self.open(slots))
        self._flying: list[list[tuple[Any, Pending]]] = [[] for _ in self.sessions]
        self.in_flight = slots

    def open(self, slots: int) -> Requester:
        address, tenant, token_file = self._who
        sizes = {"slots": slots, "payload_bytes": 65_536, "result_bytes": 65_536}
        return connect(address, tenant=tenant, token_file=token_file, **sizes)

    def turn(self) -> None:
        """Fill every session up, take what has come, and a short while to wait if nothing has."""
        for requester, flying in zip(self.sessions, self._flying, strict=True):
            while len(flying) < self.in_flight:
                payload: Any = np.array([self._seconds])
                if self._kernel != "sleep":
                    payload = self._random.integers(0, 256, int(self._random.integers(1, 20_000)), np.uint8)
                self.counted["sent"] += 1
                flying.append((payload, requester.begin(self._kernel, [payload])))
        if not any(requester.poll(0) for requester in self.sessions):
            self.sessions[0].poll(0.0005)
        for flying in self._flying:
            done = [entry for entry in flying if entry[1].done]
            flying[:] = [entry for entry in flying if not entry[1].done]
            for entry in done:
                self._judge(*entry)

    def _judge(self, payload: Any, pending: Pending) -> None:
        try:
            self.counted["completed" if np.array_equal(pending.result().array, payload) else "wrong"] += 1
        except RequestFailed as failed:
            self.counted[f"{failed.status.name} {failed.reason.name}"] += 1

    def try_one_more_session(self) -> None:
        try:
            self.open(1).close()
        except NegotiationRefused as refused:
            self.counted[f"refused {refused.code}"] += 1

    def drain(self) -> None:
        for flying in self._flying:
            for payload, pending in flying:
                with contextlib.suppress(RequestFailed):
                    pending.result(30)
                self._judge(payload, pending)
        for requester in self.sessions:
            requester.close()


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    address, name, token_file, sessions, slots, polite, kernel = sys.argv[1:]
    tenant = Tenant(address, name, token_file, int(sessions), int(slots), kernel)
    tenant.in_flight = int(polite)
    is_flooding = False
    turns = 0
    print(json.dumps("ready"), flush=True)
    while True:
        tenant.turn()
        turns += 1
        if is_flooding and turns % 100 == 0:
            tenant.try_one_more_session()
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        line = sys.stdin.readline().strip()
        if line in ("polite", "flood"):
            is_flooding = line == "flood"
            tenant.in_flight = int(slots) if is_flooding else int(polite)
        if line in ("stop", ""):
            tenant.drain()
        print(json.dumps(tenant.counted), flush=True)
        if line in ("stop", ""):
            return


if __name__ == "__main__":
    main()
