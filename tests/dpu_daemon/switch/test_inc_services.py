"""The key-value services over a network that loses, repeats and reorders: nobody reads what was overwritten."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

import pytest

from offpath.dpu_daemon.switch.inc.cache import Cache
from offpath.dpu_daemon.switch.inc.chain import Chain
from offpath.dpu_daemon.switch.inc.packets import Address, Flag, Kind, Packet, Status, key_of, slot_of
from offpath.dpu_daemon.switch.inc.store import LEASE_NS, Store

KEYS = [key_of(f"k{n}") for n in range(3)]
STEP_NS = LEASE_NS // 40
STORE: Address = ("10.0.0.1", 1)


@dataclass
class Operation:
    """``began``, ``ended``: in steps; None: no answer yet."""

    packet: Packet
    client: Address
    began: int
    ended: int | None = None
    version: int = 0


@dataclass
class World:
    """Services by address; packets on their way."""

    draw: Random
    services: dict[Address, Store | Cache | Chain] = field(default_factory=dict)
    air: list[tuple[Address, Address, Packet]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    step: int = 0
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def send(self, source: Address, sent: list[tuple[Address, Packet]]) -> None:
        for target, packet in sent:
            if self.draw.random() < 0.85:
                self.air.append((source, target, packet))
            if self.draw.random() < 0.1:
                self.air.append((source, target, packet))

    def advance(self) -> None:
        """One packet arrives, of those on their way any."""
        self.step += 1
        now_ns = self.step * STEP_NS
        for address, service in self.services.items():
            self.send(address, service.tick(now_ns))
        if not self.air:
            return
        source, target, packet = self.air.pop(self.draw.randrange(len(self.air)))
        if target in self.services:
            self.send(target, self.services[target].handle(packet, source, now_ns))
            return
        for each in self.operations:
            is_mine = (each.packet.request, each.client, each.ended) == (packet.request, target, None)
            if is_mine and packet.kind is Kind.REPLY and packet.status in (Status.OK, Status.MISSING):
                each.ended, each.version = self.step, packet.version

    def begin(self, kind: Kind, target: Address) -> None:
        key = self.draw.choice(KEYS)
        packet = Packet(kind, next(self.ids), key, b"v" if kind is Kind.WRITE else b"")
        operation = Operation(packet, ("10.0.9.9", len(self.operations) + 1), self.step)
        self.operations.append(operation)
        self.send(operation.client, [(target, packet)])

    def repeat(self, target_of: object) -> None:
        """A client that has no answer sends its request again."""
        waiting = [each for each in self.operations if each.ended is None]
        if waiting:
            each = self.draw.choice(waiting)
            self.send(each.client, [(target_of(each.packet), each.packet)])  # type: ignore[operator]

    def judge(self) -> int:
        """An operation that began after another one had ended never sees less. Returns the number that ended."""
        ended = [each for each in self.operations if each.ended is not None]
        for each in ended:
            for later in ended:
                assert each.ended is not None
                if later.began > each.ended and later.packet.key == each.packet.key:
                    assert later.version >= each.version, f"{later} after {each}"
        return len(ended)


def run_caches(seed: int) -> World:
    draw = Random(seed)
    world = World(draw, {STORE: Store(100)})
    caches: list[Address] = [("10.0.0.2", n) for n in (1, 2)]
    numbers = itertools.count(10)

    def place(slot: int) -> None:
        caches[slot] = ("10.0.0.2", next(numbers))
        world.services[caches[slot]] = made = Cache(2)
        made.stores = [STORE]

    def target(packet: Packet) -> Address:
        """Clients disagree for a while on which cache has a key, or go to the store."""
        right = caches[slot_of(packet.key, len(caches))]
        return draw.choice((right, right, right, caches[0], STORE))

    place(0)
    place(1)
    for _ in range(600):
        dice = draw.random()
        if dice < 0.15:
            kind = draw.choice((Kind.READ, Kind.READ, Kind.WRITE))
            world.begin(kind, target(Packet(kind, 0, draw.choice(KEYS))))
        elif dice < 0.25:
            world.repeat(target)
        elif dice < 0.26:
            slot = draw.randrange(2)
            del world.services[caches[slot]]  # a switch dies; another one takes its place
            place(slot)
        else:
            world.advance()
    return world


def run_chain(seed: int) -> World:
    draw = Random(seed)
    world = World(draw)
    numbers = itertools.count(1)
    members: list[Address] = []

    def change(kept: list[Address], count: int) -> None:
        """As `manager.inc.services` does it."""
        tables: dict[bytes, tuple[int, bytes]] = {}
        for address in kept:
            chain = world.services[address]
            assert isinstance(chain, Chain)
            chain.is_open = False
            for key, entry in chain.table.items():
                tables[key] = max(entry, tables.get(key, (0, b"")))
        added: list[Address] = [("10.0.0.3", next(numbers)) for _ in range(count)]
        for address in added:
            world.services[address] = Chain(100, address)
        members[:] = [*added, *kept] if draw.random() < 0.5 else [*kept, *added]
        for address in members:
            chain = world.services[address]
            assert isinstance(chain, Chain)
            assert chain.load((key, version, value) for key, (version, value) in tables.items())
            chain.members, chain.is_open = list(members), True

    def target(packet: Packet) -> Address:
        right = members[0] if packet.kind is Kind.WRITE else members[-1]
        return draw.choice((right, right, right, draw.choice(members)))

    change([], 3)
    for _ in range(600):
        dice = draw.random()
        if dice < 0.15:
            kind = draw.choice((Kind.READ, Kind.READ, Kind.WRITE))
            world.begin(kind, target(Packet(kind, 0, KEYS[0])))
        elif dice < 0.25:
            world.repeat(target)
        elif dice < 0.27:
            gone = draw.sample(members, draw.randrange(1, 3))
            for address in gone:
                del world.services[address]
            change([each for each in members if each not in gone], len(gone))
        else:
            world.advance()
    return world


@pytest.mark.parametrize("run", [run_caches, run_chain])
def test_no_read_after_an_acknowledged_write_gets_an_older_value(run: object) -> None:
    ended = sum(run(seed).judge() for seed in range(20))  # type: ignore[operator]
    assert ended > 300, "a network that delivers nothing proves nothing"


@pytest.mark.parametrize("bug", ["no leases", "stale answers are kept", "no invalidation", "older versions win",
                                 "reads at any member"])  # fmt: skip
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_caches
    if bug == "no leases":
        monkeypatch.setattr("offpath.dpu_daemon.switch.inc.cache.LEASE_NS", 1 << 60)
    elif bug == "stale answers are kept":
        monkeypatch.setattr(Cache, "_forget", lambda self, key: self._entries.pop(key, None))
    elif bug == "no invalidation":
        monkeypatch.setattr("offpath.dpu_daemon.switch.inc.store.LEASE_NS", 0)
    else:
        run = run_chain
        if bug == "older versions win":

            def take(self: Chain, key: bytes, version: int, value: bytes) -> bool:
                self.table[key] = (version, value)
                return True

            monkeypatch.setattr(Chain, "_take", take)
        else:
            handle = Chain.handle

            def answer(self: Chain, packet: Packet, source: Address, now_ns: int) -> list[tuple[Address, Packet]]:
                if packet.kind is not Kind.READ:
                    return handle(self, packet, source, now_ns)
                version, value = self.table.get(packet.key, (0, b""))
                return [(source, packet.reply(Status.OK, value, version))]

            monkeypatch.setattr(Chain, "handle", answer)
    with pytest.raises(AssertionError):
        judge_many(run, 80)


def judge_many(run: object, count: int) -> None:
    assert sum(run(seed).judge() for seed in range(count)) > 500  # type: ignore[operator]


def test_a_hit_costs_the_store_nothing_and_a_write_goes_through() -> None:
    store, cache = Store(10), Cache(10)
    cache.stores = [STORE]
    client: Address = ("10.0.9.9", 1)
    here: Address = ("10.0.0.2", 1)

    def asked(packet: Packet) -> Packet:
        ((target, sent),) = cache.handle(packet, client, 1)
        if target == client:
            return sent
        assert target == STORE
        ((back, reply),) = store.handle(sent, here, 1)
        assert back == here
        ((_, answer),) = cache.handle(reply, STORE, 1)
        return answer

    assert asked(Packet(Kind.READ, 1, KEYS[0])).status is Status.MISSING
    assert asked(Packet(Kind.WRITE, 2, KEYS[0], b"one")).version == 1
    hit = asked(Packet(Kind.READ, 3, KEYS[0]))
    assert (hit.value, hit.flags) == (b"one", Flag.HIT)
    assert asked(Packet(Kind.WRITE, 2, KEYS[0], b"one")).version == 1, "a repeated write is done once"
    assert asked(Packet(Kind.WRITE, 4, KEYS[0], b"two")).version == 2
    assert asked(Packet(Kind.READ, 5, KEYS[0])).value == b"two"
    assert store.counters["reads"] == 1


def test_a_store_and_a_chain_that_are_full_say_so() -> None:
    store, here = Store(1), ("10.0.0.3", 1)
    chain = Chain(1, here)
    chain.members, chain.is_open = [here], True
    for service in (store, chain):
        for number, wanted in enumerate((Status.OK, Status.FULL)):
            ((_, reply),) = service.handle(Packet(Kind.WRITE, number, KEYS[number], b"v"), ("10.0.9.9", 1), 1)
            assert reply.status is wanted


def test_a_write_along_the_chain_counts_only_from_the_member_before() -> None:
    here: Address = ("10.0.0.3", 2)
    chain = Chain(10, here)
    chain.members, chain.is_open = [("10.0.0.3", 1), here], True
    forged = Packet(Kind.CHAIN, 1, KEYS[0], b"evil", 9, origin=("10.0.9.9", 1))
    assert chain.handle(forged, ("10.0.6.6", 1), 1) == []
    assert chain.table == {}
    assert chain.handle(forged, ("10.0.0.3", 1), 1)[0][0] == ("10.0.9.9", 1)
