"""A tenant under the kill sweep: ADDRESS TENANT TOKEN_FILE NAME LOG SEED [forms]. Keeps requests in flight, each with a
tag of its own, and writes down what becomes of it before it goes on. "stop" on its standard input: it waits for all and
ends. With "forms" some requests share launches, and some are steps of a sequence, one sequence at a time.

Lines of the log, each written at once: ``B tag kernel`` begun, ``R tag time`` rung, ``E tag STATUS reason time`` ended.
``i`` before a tag marks an idempotent request, which may run twice; a stream may not, even if it is idempotent.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from random import Random

import numpy as np
from sweep_kernels import ROW  # the script's own folder is first on sys.path

from offpath.bindings.errors import NegotiationRefused, OffpathError, PeerGone, TicketRefused
from offpath.host_helper import Options, Requester, RequestFailed
from offpath.host_helper.pending import Pending
from offpath.host_helper.slots import Result

SLOTS = 6
BOUND_S = 60.0


class Tenant:
    def __init__(
        self, address: str, tenant: str, token_file: str, name: str, log: str, seed: str, forms: str = ""
    ) -> None:
        self._who = (address, tenant, token_file)
        self._name = name
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._noise = Random(int(seed))
        self._count = 0
        self._flying: dict[str, Pending] = {}
        self._streams: dict[str, tuple[bytes, int]] = {}
        """Of streams in flight: the payload, and how many answers were taken; -1: one was wrong."""
        self._has_forms = bool(forms)
        self._sequence = 0
        """The sequence under way; 0: the next step begins one."""
        self._steps = 0
        """How many steps of it were answered."""
        self._step = ""
        """The tag of its step in flight."""
        self._is_last = False
        self._requester = self._open()

    def _open(self) -> Requester:
        address, tenant, token_file = self._who
        end = time.monotonic() + BOUND_S
        while True:
            try:
                return Requester(
                    address, tenant=tenant, token_file=token_file, slots=SLOTS, payload_bytes=4096, result_bytes=8192
                )
            except (NegotiationRefused, PeerGone, TicketRefused):
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def _send(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())

    def begin(self) -> None:
        noise = self._noise
        self._count += 1
        kind = noise.choices(("plain", "stream", "row", "step"), (6, 2, 2, 2) if self._has_forms else (8, 2, 0, 0))[0]
        if kind == "step" and self._step:
            kind = "plain"  # the next step waits until this one is answered
        is_idempotent = kind in ("plain", "row") and noise.random() < 0.15
        tag = f"{'i' if is_idempotent else 'n'}-{self._name}-{self._count}"
        given = {"is_idempotent": is_idempotent, "budget_ms": noise.choice((0, 0, 0, 0, 4000))}
        # Its own bytes and then some, so that some results travel through the lane.
        room = 8 if noise.random() < 0.8 else 3500
        payload = np.frombuffer(tag.encode().ljust(len(tag) + noise.randrange(room), b"."), np.uint8)
        kernel = {"plain": "tally", "stream": "tallies", "row": "tally-rows", "step": "tally-steps"}[kind]
        self._send("B", tag, kernel)
        if kind == "row":
            payload = np.frombuffer(tag.encode().ljust(ROW, b"."), np.uint8).reshape(1, ROW)
        elif kind == "step":
            payload = np.frombuffer(tag.encode(), np.uint8)
            is_start, self._step = not self._sequence, tag
            self._sequence = self._sequence or self._count
            self._is_last = noise.random() < 0.2
            given |= {"sequence_id": self._sequence, "sequence_start": is_start, "sequence_end": self._is_last}
        options = Options(**given)
        try:
            pending = self._requester._begin(kernel, [payload], options, None, is_stream=kind == "stream")
        except OffpathError as gone:
            self._send("E", tag, "NOT_BEGUN", type(gone).__name__, time.monotonic())
            self._requester.close()
            self._sequence, self._steps, self._step = 0, 0, ""
            self._requester = self._open()
            return
        self._send("R", tag, time.monotonic())
        self._flying[tag] = pending
        if kind == "stream":
            self._streams[tag] = payload.tobytes(), 0
        if noise.random() < 0.05:
            pending.cancel()

    def _take_answers(self) -> bool:
        """Take what streams have, mostly. False: they have nothing."""
        waiting = [tag for tag in self._streams if self._flying[tag].has_answer and self._requester.is_connected]
        for tag in waiting:
            if self._noise.random() < 0.1:
                continue
            pending, (payload, taken) = self._flying[tag], self._streams[tag]
            outcome = self._requester.take(pending, pending._slot)
            if pending.outcome is None and isinstance(outcome, Result):
                number = taken + 1
                wanted = ((b"%d" % number + payload) * (80 if number == 2 else 1))[:4000]
                self._streams[tag] = payload, number if taken >= 0 and outcome.array.tobytes() == wanted else -1
        return bool(waiting)

    def _stepped(self, answer: bytes) -> bool:
        """Whether the state has counted every step, and none twice. The next step goes on, or begins anew."""
        self._steps += 1
        is_right = answer == b"%d " % self._steps + self._step.encode()
        self._step = ""
        if self._is_last:
            self._sequence = self._steps = 0
        return is_right

    def turn(self, *, is_stopping: bool) -> None:
        if not is_stopping and len(self._flying) < SLOTS:
            self.begin()
        elif self._flying:
            self._requester.poll(0.0 if self._take_answers() else 0.05)
        for tag in [tag for tag, pending in self._flying.items() if pending.done]:
            outcome = self._flying.pop(tag).outcome
            if isinstance(outcome, Result):
                stream = self._streams.pop(tag, None)
                if tag == self._step:
                    right = self._stepped(outcome.array.tobytes())
                else:
                    right = stream[1] == 3 if stream is not None else outcome.array.tobytes().startswith(tag.encode())
                self._send("E", tag, "COMPLETED" if right else "WRONG", "none", time.monotonic())
            elif isinstance(outcome, RequestFailed):
                is_wrong = self._streams.pop(tag, (b"", 0))[1] < 0
                if tag == self._step:
                    self._sequence, self._steps, self._step = 0, 0, ""
                self._send(
                    "E", tag, "WRONG" if is_wrong else outcome.status.name, outcome.reason.name, time.monotonic()
                )

    def run(self) -> None:
        self._requester.kernel_id("tally")
        print(json.dumps("ready"), flush=True)
        is_stopping, end = False, 0.0
        while not is_stopping or (self._flying and time.monotonic() < end):
            self.turn(is_stopping=is_stopping)
            if not is_stopping and select.select([sys.stdin], [], [], 0)[0]:
                is_stopping, end = True, time.monotonic() + BOUND_S
        print(json.dumps({"left": sorted(self._flying)}), flush=True)
        self._requester.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    Tenant(*sys.argv[1:]).run()
