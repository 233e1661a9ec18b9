"""What a controller tells a switch holds: permissions, fences, capacity; and what it must not be believed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from offpath.bindings.errors import FabricAddressError, PeerGone
from offpath.bindings.ina.address import parse_address
from offpath.bindings.ina.connection import SwitchFabric, TreeConnection
from offpath.bindings.ina.port import TreeAttached, TreeLost, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.cli.local.switches import Switches
from offpath.dpu_daemon.switch import control as control_module
from offpath.dpu_daemon.switch.control import ControlServer, SwitchControl, SwitchRefused
from offpath.dpu_daemon.switch.switch import Switch
from offpath.sched.ina.protocol.records import Permission

from .ranks import all_reduce, close_all, event_of, expected, inputs_of, job_of, lost_at, settled

HOSTS = (0, 1)


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switches]:
    with Switches(str(tmp_path_factory.mktemp("switches")), leaves=2) as started:
        yield started


def fence(switches: Switches, name: str, *words: Any) -> None:
    asyncio.run(switches.controls[name].fence(*words))


@pytest.mark.parametrize("name", ["s0", "s1"], ids=["root", "leaf"])
def test_a_fence_is_answered_once_nobody_is_left_and_holds_for_good(name: str, switches: Switches) -> None:
    job = f"fenced at {name}"
    ranks = job_of(switches, job, HOSTS, number=5)
    lost = lost_at(ranks, lambda: fence(switches, name, 1, job, 1, 1 << 32 | 5))
    assert {why for why, _ in lost} == {"fenced"}
    assert all(part["job"] != job for part in switches.stats(name)["parts"])
    for number in (4, 5):
        with pytest.raises(SwitchRefused):
            asyncio.run(
                switches.controls[name].allow(switches.permissions(job, HOSTS, number=number)[name])
            )  # fmt: skip
    ranks = job_of(switches, job, HOSTS, number=6)
    close_all(ranks)


def test_a_fence_drops_what_is_in_flight(switches: Switches) -> None:
    ranks = job_of(switches, "in flight", HOSTS)
    ranks[0].start(0, "fp32", memoryview(bytes(4096)), memoryview(bytearray(4096)))
    assert ranks[0].poll(0.2) is None
    assert switches.stats()["in_flight"] == 1
    lost_at(ranks, lambda: fence(switches, "s0", 1, "in flight", 1, 1 << 32 | 1))
    assert switches.stats()["in_flight"] == 0


def test_an_old_controller_is_not_heard(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Switches(str(tmp_path_factory.mktemp("old")), leaves=1) as switches:
        control = switches.controls["s1"]
        asyncio.run(control.allow(switches.permissions("new", (0,), term=3)["s1"]))
        for call in (
            control.allow(switches.permissions("old", (0,), term=2)["s1"]),
            control.fence(2, "new", 1, 1 << 40),
        ):
            with pytest.raises(SwitchRefused):
                asyncio.run(call)
        assert switches.stats("s1")["permissions"] == 1


def test_the_capacity_changes_while_jobs_run(switches: Switches) -> None:
    one, two = job_of(switches, "one", HOSTS), job_of(switches, "two", HOSTS)
    one[0].start(0, "fp32", memoryview(bytes(4)), memoryview(bytearray(4)))
    assert one[0].poll(0.2) is None
    inputs = inputs_of("fp32", 2, 1000)
    assert {type(event) for event, _ in all_reduce(two, 0, "fp32", inputs)} == {TreeRefused}
    asyncio.run(switches.controls["s0"].capacity(2))
    assert {type(event) for event, _ in all_reduce(two, 1, "fp32", inputs)} == {TreeResult}
    asyncio.run(switches.controls["s0"].capacity(1))
    assert {type(event) for event, _ in all_reduce(two, 2, "fp32", inputs)} == {TreeRefused}
    with pytest.raises(SwitchRefused):
        asyncio.run(switches.controls["s0"].capacity(0))
    close_all(one, two)
    settled(switches)


FOUR = (0, 0, 1, 1)
SLOW = 1_000_000
"""Bytes a second: a chunk is some 66 ms."""


def begin(ranks: Sequence[TreeConnection], index: int, nbytes: int, *, is_last: bool) -> None:
    for rank in ranks:
        rank.start(index, "fp32", memoryview(bytes(nbytes)), memoryview(bytearray(nbytes)), is_last=is_last)


def test_the_last_operation_of_a_step_is_waited_for(switches: Switches) -> None:
    one, two = (
        job_of(switches, f"{name} of a step", FOUR, group="g", rates=[rate] * 4)
        for name, rate in (("last", 10 * SLOW), ("first", 0))
    )
    begin(one, 0, 1 << 18, is_last=True)
    inputs = inputs_of("fp32", 4, 1 << 18)
    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(event_of, rank) for rank in one]
        while not switches.stats()["in_flight"]:
            time.sleep(0.001)
        results = all_reduce(two, 0, "fp32", inputs)
        assert {type(each.result(20)) for each in ends} == {TreeResult}
    assert {type(event) for event, _ in results} == {TreeResult}
    assert all(np.array_equal(found, expected("fp32", inputs, FOUR)) for _, found in results)
    close_all(one, two)
    settled(switches)


def test_a_last_operation_that_stands_still_ends_the_wait_and_keeps_its_place(switches: Switches) -> None:
    one, two = (job_of(switches, name, FOUR, group="g") for name in ("stands", "goes on"))
    begin(one[:3], 0, 1 << 12, is_last=True)
    assert one[0].poll(0.2) is None
    inputs = inputs_of("fp32", 4, 1 << 14)
    assert {type(event) for event, _ in all_reduce(two, 0, "fp32", inputs)} == {TreeRefused}
    for index in range(1, 21):
        assert {type(event) for event, _ in all_reduce(two, index, "fp32", inputs)} == {TreeRefused}
    begin(one[3:], 0, 1 << 12, is_last=True)
    with ThreadPoolExecutor(4) as pool:
        assert {type(event) for event in pool.map(event_of, one)} == {TreeResult}
    assert {type(event) for event, _ in all_reduce(two, 21, "fp32", inputs)} == {TreeResult}
    close_all(one, two)
    settled(switches)


def test_until_all_ranks_are_attached_everything_is_refused(switches: Switches) -> None:
    switches.allow(switches.permissions("early", HOSTS))
    at = switches.attach_addresses(HOSTS)
    ranks = [
        SwitchFabric(RateLimiter()).attach(
            at[rank], job="early", incarnation=1, stamp=1 << 32 | 1, rank=rank, ranks=2, token="token"
        )
        for rank in (0,)
    ]
    assert event_of(ranks[0]) == TreeAttached()
    ranks[0].start(0, "fp32", memoryview(bytes(4)), memoryview(bytearray(4)))
    assert event_of(ranks[0]) == TreeRefused(0)
    close_all(ranks)


def test_a_permission_whose_switch_above_is_not_there_costs_the_tree(switches: Switches) -> None:
    permission = switches.permissions("no parent", HOSTS)["s1"]
    switches.allow({"s1": replace(permission, parent=f"unix://{switches.directory}/nobody")})
    rank = SwitchFabric(RateLimiter()).attach(
        switches.addresses["s1"], job="no parent", incarnation=1, stamp=1 << 32 | 1, rank=0, ranks=2, token="token"
    )
    assert event_of(rank) == TreeLost("unreachable")


def test_a_switch_that_is_not_there_is_an_error_and_not_a_wait(switches: Switches) -> None:
    with pytest.raises(PeerGone):
        asyncio.run(SwitchControl(f"unix://{switches.directory}/nobody").stats())
    with pytest.raises(FabricAddressError):
        SwitchControl("nobody")


@pytest.mark.parametrize(
    "said",
    [
        b"[]", b"null", b"{", b'{"kind":"allow"}', b'{"kind":"allow","permission":{}}',
        b'{"kind":"capacity","capacity":"1"}',
        b'{"kind":"fence","term":-1,"job":"a","incarnation":0,"stamp":0}', b'{"kind":"fence","term":true,"job":"a"}',
        b'{"kind":"capacity","capacity":true}', b'{"kind":"stop"}', b"[" * 60_000,
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_the_switch_goes_on(said: bytes, switches: Switches) -> None:
    address = parse_address(switches.controls["s0"].address)
    with contextlib.closing(socket.socket(address.family)) as sock:
        sock.settimeout(10)
        sock.connect(address.target)
        sock.sendall(frame(said))
        answer = sock.recv(65_536)
    if answer:  # what is no JSON is hung up on
        assert orjson.loads(FrameReader().feed(answer)[0])["kind"] == "refused"
    assert switches.stats()["name"] == "s0"


@pytest.fixture
def _few_descriptors() -> Iterator[None]:
    """As a shell gives them: one address then may have no more than 16 connections that have not said anything."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def standing(folder: Path, fences: int) -> tuple[Switch, ControlServer, list[asyncio.Task[None]]]:
    """A switch, and fences of as many jobs that wait because a rank of each is still attached."""
    switch = Switch("s0", 1)
    switch.start(f"unix://{folder}/ranks")
    server = ControlServer(switch)
    control = SwitchControl(await server.start(f"unix://{folder}/control"))
    for job in map(str, range(fences)):
        assert switch.allow(Permission(job, 1, 1, 1 << 32 | 1, "token", 1, local=(0,)))
        assert switch.root.attach(job, 1, 1 << 32 | 1, 0, "token")
    waiting = [asyncio.ensure_future(control.fence(1, str(n), 1, 1 << 32 | 1)) for n in range(fences)]
    async with asyncio.timeout(20):
        while not all(switch.root._is_fenced((job, 1, 1 << 32 | 1)) for job in map(str, range(fences))):
            await asyncio.sleep(0.001)
    return switch, server, waiting


@pytest.mark.usefixtures("_few_descriptors")
async def test_no_order_that_is_waited_for_makes_room_for_others(tmp_path: Path) -> None:
    """A controller fences forty jobs at once: each order stands until the job's last rank is gone."""
    switch, server, waiting = await standing(tmp_path, 40)
    for job in range(40):
        switch.root.gone(str(job), 1, 1 << 32 | 1, 0)
    switch.changed.set()
    assert await asyncio.gather(*waiting, return_exceptions=True) == [None] * 40
    await server.close()
    await switch.close()


async def test_fences_that_wait_are_bounded_and_hold_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "MOST_FENCES", 3)
    switch, server, waiting = await standing(tmp_path, 5)
    done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_EXCEPTION)
    for job in range(5):
        switch.root.gone(str(job), 1, 1 << 32 | 1, 0)
    switch.changed.set()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert done
    assert sum(end is None for end in ends) == 3
    assert all("retry" in str(end) for end in ends if end is not None)
    await server.close()
    await switch.close()
