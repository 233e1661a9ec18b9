"""Turns at the loop, on a clock that moves by what is worked: who is read when, counted in doorbells."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from offpath.dpu_daemon.requests.pacing import LOG_EVERY_NS, Pacing
from offpath.sched.loop_share import SLICE_NS

COST_NS = 5_000
SESSIONS = 64


class World:
    """A loop, a clock, and the order in which doorbells were handled."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.handled: list[str] = []
        self.pacing = Pacing(lambda: self.now_ns)

    def work(self, tenant: str) -> None:
        self.now_ns += COST_NS
        self.handled.append(tenant)


class Ringing:
    """A session with doorbells that it never runs out of until `stop`; it uses loop and turns as the daemon's does."""

    def __init__(self, world: World, tenant: str, number: int) -> None:
        self.number = number
        self.is_parked = False
        self.turns = world.pacing.of(tenant)
        self._world, self._tenant = world, tenant
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.send(b"x")
        self._loop = asyncio.get_running_loop()
        self.unpark()

    def unpark(self) -> None:
        self._loop.add_reader(self._ours, self._readable)

    def _readable(self) -> None:
        if self.turns.is_paused:
            self._loop.remove_reader(self._ours)
            self.turns.park(self)
            return
        since_ns = self._world.now_ns
        self.take_doorbell()
        self.turns.charge(since_ns)

    def take_doorbell(self) -> bool:
        try:
            waiting = self._ours.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        self._world.work(self._tenant)
        return bool(waiting)

    def stop(self) -> None:
        """It rings no more."""
        self._ours.recv(1)

    def close(self) -> None:
        if self.is_parked:
            self.turns.forget(self)
        else:
            self._loop.remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()


async def turns_of(world: World, sessions: list[Ringing], seconds: float) -> list[str]:
    """Let the loop run until the clock has moved so far; it stands still while nobody works, and is then moved on."""
    before, until_ns = len(world.handled), world.now_ns + int(seconds * 1e9)
    while world.now_ns < until_ns:
        handled = len(world.handled)
        await asyncio.sleep(0)
        if len(world.handled) == handled:
            world.now_ns += COST_NS
            await asyncio.sleep(0.0005)  # pauses are timers of the real loop
    return world.handled[before:]


async def test_a_tenant_alone_is_read_whenever_it_rings() -> None:
    world = World()
    sessions = [Ringing(world, "bob", number) for number in range(SESSIONS)]
    await turns_of(world, sessions, 0.5)
    assert not any(session.is_parked for session in sessions)
    assert world.pacing.turns["bob"].paused_ns == 0
    for session in sessions:
        session.close()
    world.pacing.close()


async def test_a_neighbour_waits_for_a_slice_at_most_however_many_sessions_ring() -> None:
    """Ada has one session; unpaced she would have one doorbell in 65."""
    world = World()
    ada = Ringing(world, "ada", 0)
    sessions = [ada, *(Ringing(world, "bob", number) for number in range(1, SESSIONS + 1))]
    await turns_of(world, sessions, 0.25)
    handled = await turns_of(world, sessions, 0.25)
    assert any(session.is_parked for session in sessions[1:])
    waits = [len(run) for run in "".join(name[0] for name in handled).strip("b").split("a")]
    assert sorted(waits)[len(waits) * 9 // 10] <= SLICE_NS // COST_NS + 1
    assert 0.4 <= handled.count("ada") / len(handled) <= 0.6
    for session in sessions:
        session.close()
    world.pacing.close()


async def test_whose_doorbells_are_taken_is_watched_by_the_loop_again() -> None:
    world = World()
    ada = Ringing(world, "ada", 0)
    sessions = [Ringing(world, "bob", number) for number in range(1, SESSIONS + 1)]
    await turns_of(world, sessions, 0.25)
    assert any(session.is_parked for session in sessions)
    for session in sessions:
        session.stop()
    while any(session.is_parked for session in sessions) or world.pacing.turns["bob"].is_paused:
        world.now_ns += COST_NS
        await asyncio.sleep(0.0005)
    for session in (ada, *sessions):
        session.close()
    world.pacing.close()


async def test_a_session_that_ends_while_its_tenant_is_paused_is_not_served() -> None:
    world = World()
    sessions = [Ringing(world, name, number) for number, name in enumerate(["ada", *["bob"] * SESSIONS])]
    await turns_of(world, sessions, 0.25)
    for session in sessions[1:]:
        session.close()
    assert "bob" not in await turns_of(world, sessions, 0.05)
    sessions[0].close()
    world.pacing.close()


async def test_a_tenants_weight_is_its_part_of_the_loop_and_changes_with_the_configuration() -> None:
    world = World()
    world.pacing.weigh([("ada", 1), ("bob", 3)])
    sessions = [Ringing(world, "ada", 0), *(Ringing(world, "bob", number) for number in range(1, 9))]
    await turns_of(world, sessions, 0.25)
    handled = await turns_of(world, sessions, 0.25)
    assert 0.65 <= handled.count("bob") / len(handled) <= 0.85
    world.pacing.weigh([("ada", 3), ("bob", 1)])
    await turns_of(world, sessions, 0.25)
    handled = await turns_of(world, sessions, 0.25)
    assert 0.15 <= handled.count("bob") / len(handled) <= 0.35
    for session in sessions:
        session.close()
    world.pacing.tenant_gone("bob")
    assert list(world.pacing.turns) == ["ada"]
    world.pacing.close()


async def test_a_pause_is_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    sessions = [Ringing(world, name, number) for number, name in enumerate(["ada", *["bob"] * 8])]
    with caplog.at_level(logging.WARNING):
        await turns_of(world, sessions, 0.5)
    told = [record.args[0] for record in caplog.records if record.args]
    assert 1 <= told.count("bob") <= 1 + 0.5 * 1e9 / LOG_EVERY_NS
    for session in sessions:
        session.close()
    world.pacing.close()
