"""A network of the three state machines without time: each message is delivered, lost or doubled as a test chooses.

Modules are arguments, so that a planted bug is a module with one line changed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from types import ModuleType
from typing import Any

import numpy as np

from offpath.bindings.ina.packets import Flag, Packet, PacketKind, aggregator_hash
from offpath.dpu_daemon.switch.statistical import aggregators as aggregators_module
from offpath.host_helper.ina.statistical import parameter_server as server_module
from offpath.host_helper.ina.statistical import sender as sender_module

MS = 1_000_000
STALE_NS = 10_000 * MS
SWITCH, SERVER, WORKER = "switch", "server", "worker"


@dataclass(frozen=True)
class Modules:
    """What is under test."""

    aggregators: ModuleType = aggregators_module
    server: ModuleType = server_module
    sender: ModuleType = sender_module


def gradient(job: int, rank: int, psn: int, seed: int = 0) -> bytes:
    """Of one packet: two int32 that no other packet has, and whose sums differ for all sets of packets."""
    noise = Random(f"{seed} {job} {rank} {psn}")
    return np.array([noise.randrange(-(1 << 26), 1 << 26), 1 << (8 * (job - 1) + rank)], "<i4").tobytes()


def right_sum(job: int, workers: int, psn: int, seed: int = 0) -> bytes:
    """What every worker must get."""
    parts = [np.frombuffer(gradient(job, rank, psn, seed), "<i4") for rank in range(workers)]
    return np.sum(parts, axis=0, dtype=np.int32).tobytes()


# -- every order ------------------------------------------------------------------------------------------------------
@dataclass
class Small:
    """Jobs of one packet each, whose messages are delivered in every order. ``lose``, ``double``, ``again``, ``flush``,
    ``stale``: how often each may still happen."""

    switch: Any
    servers: dict[int, Any]
    has: dict[tuple[int, int], bool]
    """Whether (job, rank) has its result."""
    lose: int
    double: int
    again: int
    flush: int
    stale: int
    now_ns: int = 0
    messages: list[tuple[str, Packet]] = field(default_factory=list)

    def packet(self, job: int, rank: int, flags: int = 0) -> tuple[str, Packet]:
        workers = max(r for j, r in self.has if j == job) + 1
        hashed = aggregator_hash(job, 0)
        return SWITCH, Packet(PacketKind.DATA, job, 0, workers, 1 << rank, flags, hashed, gradient(job, rank, 0))

    def deliver(self, at: int) -> None:
        to, packet = self.messages.pop(at)
        self.receive(to, packet)

    def receive(self, to: str, packet: Packet) -> None:
        if to == SERVER:
            self.messages += [(SWITCH, each) for each in self.servers[packet.job].data(packet, self.now_ns)]
        elif to == SWITCH and packet.kind is PacketKind.DATA:
            self.messages += [(SERVER, each) for each in self.switch.data(packet, self.now_ns)]
        elif to == SWITCH and packet.kind is PacketKind.FLUSH:
            self.messages += [(SERVER, each) for each in self.switch.flush(packet)]
        elif to == SWITCH:
            self.switch.result(packet)
            ranks = [rank for rank in range(packet.workers) if packet.bitmap >> rank & 1]
            self.messages += [(WORKER, replace(packet, bitmap=1 << rank)) for rank in ranks]
        else:
            assert packet.payload == right_sum(packet.job, packet.workers, 0), f"a wrong sum of job {packet.job}"
            self.has[packet.job, packet.bitmap.bit_length() - 1] = True

    def drain(self) -> None:
        while self.messages:
            self.deliver(0)

    def recover(self) -> None:
        """No more losses: a worker that lacks its result sends again. Soon all have it, and no aggregator is taken."""
        for _ in range(4):
            self.drain()
            self.messages += [self.packet(*who, Flag.RETRANSMITTED) for who, has in self.has.items() if not has]
        self.drain()
        assert all(self.has.values()), "a worker never gets its result"
        self.now_ns += 2 * STALE_NS
        self.messages += [(SERVER, each) for each in self.switch.flush_stale(self.now_ns)]
        self.drain()
        assert not self.switch.taken, "an aggregator is never free again"


def choices(state: Small) -> Iterator[tuple[str, Any]]:
    """All that can happen next."""
    for at in range(len(state.messages)):
        yield "deliver", at
        if state.lose:
            yield "lose", at
        if state.double:
            yield "double", at
    if state.again:
        for who, has in state.has.items():
            if not has:
                yield "again", who
    if state.flush:
        for job in state.servers:
            yield "flush", job
    if state.stale:
        yield "stale", None


def happen(state: Small, what: str, which: Any) -> None:
    if what == "deliver":
        state.deliver(which)
    elif what == "lose":
        state.messages.pop(which)
        state.lose -= 1
    elif what == "double":
        state.messages.append(state.messages[which])
        state.double -= 1
    elif what == "again":
        state.messages.append(state.packet(*which, Flag.RETRANSMITTED))
        state.again -= 1
    elif what == "flush":
        state.messages.append((SWITCH, Packet(PacketKind.FLUSH, which, 0, 2, hash=aggregator_hash(which, 0))))
        state.flush -= 1
    else:
        state.now_ns += 2 * STALE_NS
        state.stale -= 1


def explore(modules: Modules, workers: dict[int, int], **budgets: int) -> int:
    """Every order of every event; returns the number of states. ``workers``: of each job. One aggregator for all.

    Raises: AssertionError: a wrong sum, a worker without a result, an aggregator that is never free.
    """
    allowed = dict.fromkeys(("lose", "double", "again", "flush", "stale"), 0) | budgets
    first = Small(
        modules.aggregators.Aggregators(1, STALE_NS),
        {job: modules.server.ParameterServer(job, count, 4, MS) for job, count in workers.items()},
        {(job, rank): False for job, count in workers.items() for rank in range(count)},
        **allowed,
    )
    first.messages = [first.packet(*who) for who in first.has]
    start = _frozen(first)
    seen, frontier = {start}, [start]
    while frontier:
        frozen = frontier.pop()
        for choice in list(choices(pickle.loads(frozen))):
            state = pickle.loads(frozen)
            happen(state, *choice)
            after = _frozen(state)
            if after not in seen:
                seen.add(after)
                frontier.append(after)
        ended = pickle.loads(frozen)
        ended.recover()
    return len(seen)


def _frozen(state: Small) -> bytes:
    """The state as bytes: messages sorted, counters left out, so that equal states have equal bytes."""
    state.messages.sort(key=lambda each: (each[0], each[1].job, each[1].kind, each[1].bitmap, each[1].flags))
    state.switch.counters.clear()
    for server in state.servers.values():
        server.counters.__init__()
    return pickle.dumps(state)


# -- random streams ---------------------------------------------------------------------------------------------------
@dataclass
class Stream:
    """Jobs that send many packets with their real senders; a seed chooses what happens."""

    noise: Random
    switch: Any
    servers: dict[int, Any]
    senders: dict[tuple[int, int], Any]
    length: int
    loss: float
    doubling: float
    seed: int
    now_ns: int = 0
    messages: list[tuple[str, Packet]] = field(default_factory=list)
    got: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def step(self) -> None:
        """One event: a message arrives, or time passes."""
        self.now_ns += self.noise.randrange(1, 2 * MS)
        for server in self.servers.values():
            self.post(SWITCH, server.due(self.now_ns))
        for sender in self.senders.values():
            self.post(SWITCH, sender.packets(self.now_ns))
        if not self.messages:
            deadlines = [each.deadline_ns() for each in (*self.servers.values(), *self.senders.values())]
            self.now_ns = max(self.now_ns, min(each for each in deadlines if each is not None))
            return
        # mostly in order, so that windows move; sometimes from anywhere
        at = self.noise.randrange(len(self.messages)) if self.noise.random() < 0.3 else 0
        self.arrive(*self.messages.pop(at))

    def post(self, to: str, packets: list[Packet]) -> None:
        for packet in packets:
            if self.noise.random() < self.loss:
                continue
            self.messages.append((to, packet))
            if self.noise.random() < self.doubling:
                self.messages.insert(self.noise.randrange(len(self.messages)), (to, packet))

    def arrive(self, to: str, packet: Packet) -> None:
        if to == SERVER:
            server = self.servers[packet.job]
            self.post(SWITCH, server.data(packet, self.now_ns))
            assert server.held <= 2 * 8 + 1, "a PS keeps more results than its bound"
        elif to == SWITCH and packet.kind is PacketKind.DATA:
            self.post(SERVER, self.switch.data(packet, self.now_ns))
        elif to == SWITCH and packet.kind is PacketKind.FLUSH:
            self.post(SERVER, self.switch.flush(packet))
        elif to == SWITCH:
            self.switch.result(packet)
            for rank in range(packet.workers):
                if packet.bitmap >> rank & 1:
                    self.post(WORKER, [replace(packet, bitmap=1 << rank)])
        else:
            who = packet.job, packet.bitmap.bit_length() - 1
            if self.senders[who].receive(packet, self.now_ns):
                right = right_sum(packet.job, packet.workers, packet.psn, self.seed)
                assert packet.payload == right, f"a wrong sum of job {packet.job}, PSN {packet.psn}"
                assert packet.psn not in self.got[who], "a result was taken twice"
                self.got[who].add(packet.psn)

    @property
    def is_done(self) -> bool:
        return all(len(each) == self.length for each in self.got.values())


def stream(seed: int, modules: Modules | None = None) -> Stream:
    """Run one to its end and check it. Raises: AssertionError."""
    m, noise = modules or Modules(), Random(seed)
    workers = {job: noise.randrange(1, 5) for job in range(1, noise.randrange(2, 5))}
    length = noise.randrange(1, 40)
    window = m.sender.Window(1, 2, noise.choice((2, 4, 8)))
    rehashes = noise.random() < 0.5
    senders = {
        (job, rank): m.sender.Sender(job, rank, count, window, rehashes=rehashes, uses_ina=noise.random() < 0.95)
        for job, count in workers.items()
        for rank in range(count)
    }
    servers = {job: m.server.ParameterServer(job, count, window.most, 20 * MS) for job, count in workers.items()}
    switch = m.aggregators.Aggregators(noise.choice((0, 1, 2, 3, 16)), noise.choice((30 * MS, STALE_NS)))
    run = Stream(
        noise, switch, servers, senders, length, noise.choice((0, 0.02, 0.2)), noise.choice((0, 0.02, 0.2)), seed,
        got={who: set() for who in senders},
    )  # fmt: skip
    for (job, rank), sender in senders.items():
        for psn in range(length):
            assert sender.offer(gradient(job, rank, psn, seed)) == psn
    for _ in range(30_000):
        if run.is_done:
            break
        run.step()
    assert run.is_done, f"seed {seed}: not all results after 30 000 events"
    run.loss = run.doubling = 0
    while run.messages:
        run.arrive(*run.messages.pop(0))
    run.now_ns += 2 * STALE_NS
    for packet in switch.flush_stale(run.now_ns):
        run.arrive(SERVER, packet)
    assert not switch.taken, f"seed {seed}: an aggregator is never free again"
    for counters in switch.counters.values():
        accounted = counters.aggregated + counters.fallback + counters.duplicates + counters.unaggregated
        assert counters.data == accounted + counters.mismatched, f"seed {seed}: packets are counted twice or not at all"
    return run
