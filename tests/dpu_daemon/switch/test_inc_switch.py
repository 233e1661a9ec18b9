"""The emulated INC switch: admission under any interleaving, its answers, and hostile packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from offpath.bindings.wire import control
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc.links import LinkAway, ServiceLinks, query_switch, token_of
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.switch.inc import messages, packets
from offpath.dpu_daemon.switch.inc.admission import Admission, Demand, TaskRefused
from offpath.dpu_daemon.switch.inc.packets import DatagramInvalid, Kind, Packet, Status, key_of, pack, unpack
from offpath.dpu_daemon.switch.inc.serve import IncSwitch
from offpath.sched.inc.errors import DemandInvalid, Unhostable
from offpath.sched.inc.resources import SwitchSpec

P4 = frozenset({"p4-14"})
SPEC = SwitchSpec(P4)
CACHE = Demand("netcache", (5, 4, 6_000), (0, 8, 0), P4)


def other(service: str, own: tuple[int, int, int] = (0, 1, 10)) -> Demand:
    return Demand(service, own, (0, 2, 0), P4)


def test_what_is_shared_counts_once_and_a_release_restores_the_state() -> None:
    switch = Admission("s", SPEC)
    idle = switch.state()
    switch.start("a", CACHE)
    assert switch.free == (95, 48 - 12, 22 * 1024 - 6_000)
    before = switch.state()
    assert switch.start("b", CACHE)
    assert switch.free == (90, 48 - 16, 22 * 1024 - 12_000), "the 8 shared stages count once"
    assert not switch.start("b", CACHE), "a repeated start is the same task"
    switch.stop("b")
    assert switch.state() == before
    assert switch.stop("a")
    assert not switch.stop("a")
    assert switch.state() == idle


@pytest.mark.parametrize(
    ("demand", "kind", "why"),
    [
        (other("netcache", (0, 0, 30_000)), Unhostable, "capacity"),
        (Demand("netcache", (0, 0, 1), (0, 0, 0), frozenset({"sharp"})), Unhostable, "features"),
        (other("netcache", (0, 0, 12_000)), TaskRefused, "sram_kib"),
        (other("netcache", (96, 0, 1)), TaskRefused, "recirculation"),
        (other("netcache", (0, 40, 1)), TaskRefused, "stages"),
        (other("netcache", (-1, 0, 0)), DemandInvalid, "recirculation"),
        (other("netcache", (0, 0, 1 << 61)), DemandInvalid, "sram_kib"),
    ],
)
def test_a_refusal_names_what_is_scarce_and_changes_nothing(demand: Demand, kind: type[Exception], why: str) -> None:
    switch = Admission("s", SPEC)
    switch.start("a", Demand("netcache", (5, 4, 12_000), (0, 8, 0), P4))
    before = switch.state()
    with pytest.raises(kind, match=why):
        switch.start("b", demand)
    assert switch.state() == before


def test_a_switch_runs_three_services_at_most() -> None:
    switch = Admission("s", SPEC)
    for service in ("netcache", "netchain", "r2p2"):
        switch.start(service, other(service))
    with pytest.raises(TaskRefused, match="services"):
        switch.start("h", other("harmonia"))
    switch.start("second", other("r2p2"))
    switch.stop("netcache")
    switch.start("h", other("harmonia"))
    assert switch.services == ["harmonia", "netchain", "r2p2"]


@pytest.mark.parametrize("seed", range(40))
def test_under_any_interleaving_capacity_holds_and_the_end_is_the_beginning(seed: int) -> None:
    draw = Random(seed)
    switch = Admission("s", SPEC)
    idle = switch.state()
    running: dict[str, Demand] = {}
    for number in range(60):
        if running and draw.random() < 0.45:
            gone = draw.choice(sorted(running))
            switch.stop(gone)
            del running[gone]
        else:
            service = draw.choice(("netcache", "netchain", "r2p2", "harmonia"))
            own = (draw.randrange(30), draw.randrange(8), draw.randrange(9_000))
            demand = Demand(service, own, (0, 8 if service == "netcache" else 0, 0), P4)
            try:
                switch.start(f"t{number}", demand)
                running[f"t{number}"] = demand
            except TaskRefused:
                pass
        shared = 8 * any(each.service == "netcache" for each in running.values())
        used = [sum(each.own[at] for each in running.values()) for at in range(3)]
        used[1] += shared
        assert list(switch.free) == [have - gone for have, gone in zip(SPEC.capacity, used, strict=True)]
        assert min(switch.free) >= 0
        assert len(switch.services) <= 3
        assert switch.identities == sorted(running)
    for identity in running:
        switch.stop(identity)
    assert switch.state() == idle


def test_a_release_that_forgets_what_is_shared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from offpath.sched.inc.resources import Resources

    monkeypatch.setattr(Resources, "_count", lambda self, switch: setattr(switch, "used", switch.own))
    with pytest.raises(AssertionError):
        test_under_any_interleaving_capacity_holds_and_the_end_is_the_beginning(1)


# -- over its socket ---------------------------------------------------------------------------------------------------
SECRET = b"s" * 32


def order(identity: str, plane: str = "chain", service: str = "netchain", sram: int = 64) -> messages.StartTask:
    return messages.StartTask(
        identity=identity, service=service, demand=[0, 1, sram], shared=[0, 8, 0], features=["p4-14"],
        data_plane=plane, token=token_of(SECRET, identity).hex(),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
async def switch(tmp_path: Path) -> AsyncIterator[tuple[str, IncSwitch]]:
    made = IncSwitch("s", SPEC)
    path = str(tmp_path / "s.sock")
    places = Places()
    handlers = AdminHandlers(lambda body: control.decode(messages.TO_SWITCH, body), made.answer, tuple)
    users = AdminSocket(handlers, path, places=places)
    await users.start()
    yield path, made
    await users.close()
    made.close()


async def test_a_task_starts_once_answers_packets_and_is_gone_after_its_stop(switch: tuple[str, IncSwitch]) -> None:
    path, _ = switch
    first = await query_switch(path, order("a"), messages.Started)
    again = await query_switch(path, order("a"), messages.Started)
    assert isinstance(first, messages.Started)
    assert first == again
    links = ServiceLinks(SECRET)
    await links.open()
    try:
        done = await links.query(first.address, "a", messages.Configure(epoch=1, chain=[first.address]), messages.Done)
        assert done.epoch == 1
        asker = Asker()
        await asker.open()
        reply = await asker.ask(first.address, Packet(Kind.WRITE, 7, key_of("k"), b"v"))
        assert (reply.status, reply.version) == (Status.OK, 1)
        reply = await asker.ask(first.address, Packet(Kind.READ, 8, key_of("k")))
        assert (reply.value, reply.version) == (b"v", 1)
        asker.close()
        await query_switch(path, messages.StopTask(identity="a"), messages.Stopped)
        status = await query_switch(path, messages.StatusRequest(), messages.Status)
        assert isinstance(status, messages.Status)
        assert (status.tasks, status.free) == ([], list(SPEC.capacity))
        with pytest.raises(LinkAway):
            await links.query(first.address, "a", messages.Configure(epoch=2), messages.Done)
    finally:
        links.close()


async def test_a_full_switch_answers_with_a_type_and_goes_on(switch: tuple[str, IncSwitch]) -> None:
    path, _ = switch
    await query_switch(path, order("a", sram=20_000), messages.Started)
    full = await query_switch(path, order("b", sram=5_000), messages.Started)
    assert isinstance(full, Fault)
    assert (full.code, "sram_kib" in full.detail) == ("switch_full", True)
    never = await query_switch(path, order("c", sram=50_000), messages.Started)
    assert isinstance(never, Fault)
    assert never.code == "never_fits"
    assert isinstance(await query_switch(path, order("d"), messages.Started), messages.Started)


async def test_hostile_datagrams_change_nothing_and_end_nothing(switch: tuple[str, IncSwitch]) -> None:
    path, _ = switch
    started = await query_switch(path, order("a"), messages.Started)
    assert isinstance(started, messages.Started)
    draw = Random(5)
    asker = Asker()
    await asker.open()
    good = pack(Packet(Kind.WRITE, 1, key_of("k"), b"v"))
    forged = packets.control(b"\0" * packets.TOKEN_BYTES, 1, b'{"kind":"configure","epoch":9}')
    mine = packets.control(token_of(SECRET, "a"), 1, b'{"kind":"configure","epoch":-9}')
    chain = pack(Packet(Kind.CHAIN, 1, key_of("k"), b"evil", 99, origin=("127.0.0.1", 9)))
    for data in [b"", b"x", good[:20], good + b"x" * 200, forged, mine, chain, b"OPKC" + b"\xff" * 60]:
        asker.send(started.address, data)
    for _ in range(300):
        hurt = bytearray(good)
        hurt[draw.randrange(len(hurt))] = draw.randrange(256)
        asker.send(started.address, bytes(hurt))
    reply = await asker.ask(started.address, Packet(Kind.READ, 77, key_of("k")))
    assert reply.status is Status.BUSY, "it is not configured, and nothing could configure it"
    asker.close()
    status = await query_switch(path, messages.StatusRequest(), messages.Status)
    assert isinstance(status, messages.Status)
    assert status.counters["dropped"] >= 6
    assert (status.counters["writes"], status.tasks) == (0, ["a"])


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"kind":"start"}', b'{"kind":"stop","identity":""}', b'{"kind":"status","more":1}',
             b'{"kind":"start","identity":"a","service":"x","demand":[1,2],"shared":[0,0,0],"token":"00"}'],
)  # fmt: skip
async def test_messages_that_are_none_get_a_fault(switch: tuple[str, IncSwitch], body: bytes) -> None:
    path, _ = switch
    with pytest.raises(control.ControlError):
        control.decode(messages.TO_SWITCH, body)
    assert isinstance(await query_switch(path, messages.StatusRequest(), messages.Status), messages.Status)


def test_packets_are_what_was_packed_and_nothing_else_is_one() -> None:
    packet = Packet(Kind.CHAIN, 1 << 63, key_of("key"), b"value" * 25, 5, origin=("127.0.0.1", 80))
    assert unpack(pack(packet)) == packet
    for wrong in (b"", pack(packet)[:-1], pack(packet) + b"x", b"\0" * 80):
        with pytest.raises(DatagramInvalid):
            unpack(wrong)
    for text in ("", "k" * 17):
        with pytest.raises(DatagramInvalid):
            key_of(text)
    for text in ("", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "x:1"):
        with pytest.raises(DatagramInvalid):
            packets.address_of(text)


class Asker(asyncio.DatagramProtocol):
    """A client's socket."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Packet]] = {}

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))

    def close(self) -> None:
        self.transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:
        packet = unpack(data)
        future = self.waiting.get(packet.request)
        if future is not None and not future.done():
            future.set_result(packet)

    def error_received(self, exc: Exception) -> None:
        raise AssertionError(exc)

    def send(self, address: str, data: bytes) -> None:
        self.transport.sendto(data, packets.address_of(address))

    async def ask(self, address: str, packet: Packet) -> Packet:
        future = self.waiting[packet.request] = asyncio.get_running_loop().create_future()
        for _ in range(100):
            self.send(address, pack(packet))
            done, _ = await asyncio.wait([future], timeout=0.2)
            if done:
                return future.result()
        raise AssertionError("no answer")
