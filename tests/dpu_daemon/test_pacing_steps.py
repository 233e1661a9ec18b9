"""The daemon's own sessions and doorbells under a flood, counted in doorbells: no verdict of time.

A real `Daemon` with real shared slots and doorbells; only its clock is the test's, and moves by `COST_NS` for each
doorbell that it takes. So it is the same on a machine at load 6 as on a quiet one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, IMM_SUBMIT, immediate
from offpath.bindings.sockets import receive_with_fds
from offpath.bindings.wire.header import DTYPE_CODES, Tensor, pack_request, pack_tensors
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.daemon import Daemon
from offpath.sched.loop_share import SLICE_NS

COST_NS = 5_000
SESSIONS = 64
WARM, COUNTED = 25_000, 25_000
"""Doorbells: of 5 µs, an eighth of a second of the loop; who is active is looked up each 0.1 s."""
TURNS = 25
"""Of the loop, which takes one doorbell of a session in each, between two fillings: a doorbell holds more."""
ROUNDS = {"credits": (immediate(IMM_CREDIT, 1),), "cancels": (immediate(IMM_SUBMIT, 0), immediate(IMM_CANCEL, 0))}


class Clock:
    """Moves by what is worked, and by a little for each turn of the loop in which nobody rang."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.taken: list[str] = []


class Fabric(LoopbackFabricSession):
    """Counts the doorbells that the daemon takes, and lets each cost the clock `COST_NS`."""

    def __init__(self, clock: Clock, tenant: str) -> None:
        super().__init__(2, 4096, 4096)
        self._clock, self._tenant = clock, tenant

    def poll(self) -> int | None:
        imm = super().poll()
        if imm is not None:
            self._clock.now_ns += COST_NS
            self._clock.taken.append(self._tenant)
        return imm


class Ringer:
    """The requester's end: its doorbell is never empty."""

    def __init__(self, daemon: Daemon, clock: Clock, tenant: str, number: int, imms: tuple[int, ...]) -> None:
        self._imms, self._at = imms, 0
        fabric = Fabric(clock, tenant)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            fabric.hand_over(theirs)
            _, (slots, answers, bell), _ = receive_with_fds(ours, 64, 3)
        one = pack_tensors([Tensor(DTYPE_CODES["float64"], (1,), 0, 8)])
        os.pwrite(slots, pack_request(request_id=1, kernel_id=9, payload_bytes=8, tensors=one), 0)
        os.close(slots)
        os.close(answers)
        self._bell = socket.socket(fileno=bell)
        self._bell.setblocking(False)
        self.session = daemon.requests.sessions.opened(number, tenant, fabric)
        self.ring()

    def ring(self) -> None:
        """As often as the doorbell takes it; the daemon's answers are dropped."""
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(8):
                pass
        with contextlib.suppress(BlockingIOError):
            while True:
                self._bell.send(self._imms[self._at].to_bytes(4, "little"))
                self._at = (self._at + 1) % len(self._imms)

    def close(self) -> None:
        self._bell.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Callable[[Clock], Daemon]]:
    made: list[Daemon] = []

    def make(clock: Clock) -> Daemon:
        config = DaemonConfig.model_validate({"tenant": [{"name": "ada"}, {"name": "bob"}]})
        channel = LoopbackChannelListener(str(tmp_path / "host"), frozenset({os.getuid()}))
        made.append(Daemon(config, channel, now_ns=lambda: clock.now_ns))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def take(clock: Clock, ringers: list[Ringer], doorbells: int) -> str:
    """Let the loop take so many; who rang, a letter each."""
    before, turn = len(clock.taken), 0
    while len(clock.taken) < before + doorbells:
        had = len(clock.taken)
        await asyncio.sleep(0)
        if len(clock.taken) == had:
            clock.now_ns += COST_NS
            await asyncio.sleep(0.0005)  # pauses are timers of the real loop
        if turn % TURNS == 0:
            for ringer in ringers:
                ringer.ring()
        turn += 1
    return "".join(name[0] for name in clock.taken[before:])


@pytest.mark.parametrize("kind", ["credits", "cancels"])
async def test_between_two_doorbells_of_a_neighbour_the_daemon_takes_a_slice_of_a_floods_at_most(
    daemon: Callable[[Clock], Daemon], kind: str
) -> None:
    """Ada has one session, bob 64: unpaced she would have one doorbell in 65."""
    clock = Clock()
    served = daemon(clock)
    ada = Ringer(served, clock, "ada", 1, ROUNDS["credits"])
    ringers = [ada, *(Ringer(served, clock, "bob", number, ROUNDS[kind]) for number in range(2, SESSIONS + 2))]
    await take(clock, ringers, WARM)
    taken = await take(clock, ringers, COUNTED)
    assert served.counters["violations"] == 0
    assert len(served.requests.sessions.by_number) == SESSIONS + 1
    waits = [len(run) for run in taken.strip("b").split("a")]
    assert sorted(waits)[len(waits) * 9 // 10] <= SLICE_NS // COST_NS + 1
    assert max(waits) <= SESSIONS + SLICE_NS // COST_NS + 1, "each session once, before its tenant's pause parks it"
    assert taken.count("a") >= 0.4 * len(taken)
    for ringer in ringers:
        ringer.close()
