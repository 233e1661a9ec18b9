"""A restless tenant: ADDRESS TENANT TOKEN_FILE SEED. Requests of all kinds, cancels, deadlines, sessions that come and
go. Says one line when ready; answers "count" with what it has counted, "stop" likewise, then ends.

``sent`` is what was rung; every request ends in exactly one of ``right`` (its own bytes came back), ``wrong``, or the
name of a status. ``lost`` are those that nobody answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import select
import sys
from collections import Counter
from random import Random
from typing import Any

import numpy as np

from offpath.bindings.errors import NegotiationRefused, PeerGone
from offpath.host_helper import Options, Requester, RequestFailed, connect
from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.pending import Pending

SLOTS = 6
ROOM = 128 << 10
BOUND_S = 30.0


class Tenant:
    """One session after the other, a few requests in flight on each."""

    def __init__(self, address: str, name: str, token_file: str, seed: int) -> None:
        self.counted: Counter[str] = Counter()
        self._noise = Random(seed)
        self._who = (address, name, token_file)
        self._flying: list[tuple[Any, Pending]] = []
        self.requester = self._open()

    def _open(self) -> Requester:
        address, name, token_file = self._who
        self.counted["sessions"] += 1
        return connect(
            address, tenant=name, token_file=token_file, slots=SLOTS, payload_bytes=ROOM, result_bytes=ROOM
        )  # fmt: skip

    def turn(self) -> None:
        """One request more if there is room, whatever has come, now and then a new session."""
        noise = self._noise
        if len(self._flying) < (SLOTS if noise.random() < 0.02 else SLOTS - 1):  # one more than its tenant may have
            self._begin()
        if self._flying and noise.random() < 0.05:
            noise.choice(self._flying)[1].cancel()
        self.requester.poll(0.02 if len(self._flying) >= SLOTS - 1 else 0)
        done = [entry for entry in self._flying if entry[1].done]
        self._flying = [entry for entry in self._flying if not entry[1].done]
        for entry in done:
            self._judge(*entry)
        if noise.random() < 0.004:
            self._leave(in_order=noise.random() < 0.7)
            self.requester = self._open()

    def _begin(self) -> None:
        noise = self._noise
        options = Options(
            budget_ms=noise.choice((0, 0, 0, 1, 20, 200)), priority=noise.randrange(3),
            is_idempotent=noise.random() < 0.3, with_checksum=noise.random() < 0.2,
        )  # fmt: skip
        if noise.random() < 0.3:
            kernel, payload = "sleep", np.array([noise.choice((0.001, 0.005, 0.03))])
        else:
            size = noise.choice((1, 100, 3000, 3100, 60_000))
            kernel, payload = "echo", np.frombuffer(noise.randbytes(size), np.uint8)
        pending = self.requester.begin(kernel, [payload], options=options)
        self.counted["sent"] += 1
        self._flying.append((payload, pending))

    def _judge(self, payload: Any, pending: Pending) -> None:
        try:
            result = pending.result(BOUND_S)
        except RequestFailed as failed:
            self.counted[failed.status.name] += 1
        except RequestTimeout:
            self.counted["lost"] += 1
        else:
            self.counted["right" if np.array_equal(result.array, payload) else "wrong"] += 1

    def _leave(self, in_order: bool) -> None:
        """With every answer taken, or in the middle of things: what flies then ends with the session."""
        if in_order:
            for entry in self._flying:
                self._judge(*entry)
        else:
            self.counted["left behind"] += len(self._flying)
        self._flying.clear()
        self.requester.close()

    def stop(self) -> None:
        self._leave(in_order=True)


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    address, name, token_file, seed = sys.argv[1:]
    tenant = Tenant(address, name, token_file, int(seed))
    print(json.dumps("ready"), flush=True)
    while True:
        try:
            tenant.turn()
        except (NegotiationRefused, PeerGone):  # its last session is not gone yet
            tenant.counted["refused"] += 1
            with contextlib.suppress(NegotiationRefused, PeerGone):
                tenant.requester = tenant._open()
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        line = sys.stdin.readline().strip()
        if line != "count":
            tenant.stop()
        print(json.dumps(tenant.counted), flush=True)
        if line != "count":
            return


if __name__ == "__main__":
    main()
