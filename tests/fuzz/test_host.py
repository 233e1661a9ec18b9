"""A host that was taken over: it joins as a helper should, then says anything. The daemon drops it, keeps nothing of
it, answers what its tenants had asked, and serves the next honest host."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.loopback.channel import LoopbackConnection
from offpath.bindings.memory.region import sealed_memfd
from offpath.bindings.wire import control, host
from offpath.host_helper import RequestFailed
from offpath.host_helper.pending import Pending

from ..sizes import sized
from ..support.cluster import MIB, TIMEOUT, Cluster
from ..support.fakehost import FakeHost, decode, result
from ..support.processes import until
from .engine import corpus
from .mutate import RESULT, json_mutation, spoil, struct_mutation
from .targets import words_of

ROUNDS = sized(quick=20, fast=25, slow=100, full=3_000)
SEED = 20_261_121
TENANTS = [f"t{n}" for n in range(7)]
"""A tenant whose lease failed waits a second for its next: with seven there is mostly one whose turn it is."""
ENDS = {"COMPLETED", "FAILED", "OUTCOME_UNKNOWN", "RETRY_SAFE", "CANCELLED"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    leasing = {"landing_bytes": MIB, "result_bytes": MIB, "keep_warm_ms": 20}
    made = Cluster({name: {"max_share": 14, "profile": "1g.5gb"} for name in TENANTS}, leasing=leasing)
    try:
        yield made
        made.close()
    finally:
        made.kill()


class Liar:
    """One host's life: how far it is honest, and what it says then."""

    def __init__(self, cluster: Cluster, noise: Random) -> None:
        self._cluster = cluster
        self._noise = noise
        self._spoil_json = json_mutation(*words_of(control.HOST_TO_DAEMON))
        self._spoil_result = struct_mutation(RESULT, host.RESULT_BYTES, has_crc=False)
        self._messages = [case.data for case in corpus("control_host_to_daemon") if case.data]

    def live(self) -> None:
        """Join, take a job perhaps, lie, and go."""
        noise = self._noise
        with FakeHost(self._cluster) as fake:
            with contextlib.suppress(AssertionError):  # it was told to go for what its hello said
                fake.join()
            said: list[LoopbackConnection] = [fake.channel]
            with contextlib.suppress(AssertionError, PeerGone):
                if noise.random() < 0.8:
                    said += self._lanes(fake)
            launch = self._launch(said)
            for _ in range(noise.randrange(1, 6)):
                self._lie(noise.choice(said), launch)

    def _lanes(self, fake: FakeHost) -> list[LoopbackConnection]:
        """Both lanes, opened honestly or with one field of the offer wrong."""
        noise = self._noise
        order = self._order(fake)
        if order is None:
            return []
        wrong: list[dict[str, Any]] = [
            {}, {}, {}, {"landing_bytes": 0}, {"result_bytes": 1 << 62}, {"export": {}},
            {"export": {"offset": 4096, "nbytes": 1 << 62}}, {"export": {"offset": 1, "nbytes": 4096}},
            {"export": {"offset": -4096, "nbytes": 4096}}, {"lease": 63}, {"generation": 0},
        ]  # fmt: skip
        lanes = []
        for lane in range(order.lanes):
            connection = fake.worker(order, lane)
            lanes.append(connection)
            fake.offer_lane(connection, order, lane, **noise.choice(wrong))
        return lanes

    def _order(self, fake: FakeHost) -> control.OpenInstance | None:
        """The daemon's, unless it waits a moment after the last host's failure."""
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            received = fake.channel.receive()
            if received is None:
                time.sleep(0.001)
            elif isinstance(message := decode(received[0]), control.OpenInstance):
                return message
        return None

    def _launch(self, said: list[LoopbackConnection]) -> host.Launch | None:
        """The job's launch, if a lane was good enough to get it soon."""
        end = time.monotonic() + 0.05
        while len(said) > 1 and time.monotonic() < end:
            for connection in said[1:]:
                with contextlib.suppress(PeerGone, ProtocolError):
                    message = connection.receive()
                    if message is not None and message[0][0] == host.KIND_LAUNCH:
                        return host.parse_launch(message[0])
            time.sleep(0.001)
        return None

    def _lie(self, connection: LoopbackConnection, launch: host.Launch | None) -> None:
        noise = self._noise
        drawn = noise.random()
        fds: tuple[int, ...] = ()
        if drawn < 0.35 and launch is not None:
            changes: dict[str, Any] = noise.choice(
                [
                    {}, {"job": launch.job + 1}, {"generation": 0}, {"status": 4},
                    {"status": 1, "inline": b"\xff" * 90},
                    {"result_bytes": 1 << 62, "is_inline": False}, {"result_bytes": MIB, "is_inline": False},
                    {"started_ns": 1 << 63, "finished_ns": 0}, {"tensors": bytes(64)}, {"inline": bytes(3072)},
                ]
            )  # fmt: skip
            if "inline" in changes:
                changes["result_bytes"] = len(changes["inline"])
            data = result(launch, **changes)
            if noise.random() < 0.4:
                data, _ = self._spoil_result(noise, data, ())
        elif drawn < 0.8:
            data, _ = self._spoil_json(noise, noise.choice(self._messages), ())
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                message = json.loads(data)
                message.update({key: noise.randrange(4) for key in ("lease", "generation") if key in message})
                data = json.dumps(message).encode()
        else:
            data = spoil(noise, noise.choice(self._messages))
        if noise.random() < 0.1:
            fds = (sealed_memfd("liar", 4096),)
        try:
            with contextlib.suppress(PeerGone):
                connection.send(data[: host.MAX_MESSAGE_BYTES] or b"x", fds)
        finally:
            for fd in fds:
                os.close(fd)


def outcome(pending: Pending) -> str:
    try:
        pending.result(TIMEOUT)
    except RequestFailed as failed:
        return failed.status.name
    return "COMPLETED"


def test_a_host_that_lies_is_dropped_and_an_honest_one_served(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    liar = Liar(cluster, Random(SEED))
    ended: Counter[str] = Counter()
    with FakeHost(cluster) as fake:
        fake.join()  # so that the kernel is known from the first
    until(lambda: " lost: " in cluster.daemon.errors)  # its descriptors are closed before they are counted
    with contextlib.ExitStack() as held:
        requesters = [held.enter_context(cluster.connect(name, slots=1)) for name in TENANTS]
        fds = cluster.daemon.fds_at_rest()
        pending = [requester.begin("echo", [np.ones(8)]) for requester in requesters]
        for _ in range(ROUNDS):
            liar.live()
            for n, requester in enumerate(requesters):
                requester.poll(0)
                if pending[n].done:  # else no host has come as far as to launch it
                    ended[outcome(pending[n])] += 1
                    pending[n] = requester.begin("echo", [np.ones(8)])
        until(lambda: cluster.daemon.open_fds() == fds)
        cluster.start_helper()
        last = {outcome(each) for each in pending}
        for requester in requesters:
            assert requester.submit("echo", [np.ones(3)], timeout=TIMEOUT).array.sum() == 3
    with capsys.disabled():
        print(f"\n{ROUNDS} lying hosts; their jobs ended {dict(ended)}")
    assert set(ended) <= ENDS, ended
    assert last <= ENDS
    assert ended["OUTCOME_UNKNOWN"] > 0
