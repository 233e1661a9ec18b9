"""A helper's watch over migd: leases held again after a restart, and Xid events."""

from __future__ import annotations

import os
import select
import signal
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.host_helper.migd import protocol, watch
from offpath.host_helper.migd.client import MigdClient, XidStream
from offpath.host_helper.migd.watch import MigdWatch

from ...support.gpu_machine import Machine
from ...support.processes import until
from .rig import Migd, Served


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "RETRY_S", 0.0)


def is_readable(watching: MigdWatch) -> bool:
    return bool(select.select([watching], [], [], 0)[0])


def is_held(observer: MigdClient, handle: str) -> bool:
    (gpu,) = observer.gpus().gpus
    return [each.unheld_ms for each in observer.describe(gpu.uuid).instances if each.handle == handle] == [-1]


def test_a_restart_of_migd_leaves_no_lease_unheld(migd: Any) -> None:
    """The client makes no call: what holds its lease again is the watch."""
    running: Migd = migd()
    client, observer = running.client(), running.client()
    made = client.create(client.gpus().gpus[0].uuid, "1g.5gb", 0)
    watching = MigdWatch(client)
    for number in (signal.SIGKILL, signal.SIGTERM):
        assert not is_readable(watching)
        assert watching.pause_s is None
        running.end(number)
        until(lambda: is_readable(watching))
        watching.poll()
        assert watching.pause_s == 0, "there is no migd, and it is tried again"
        assert not is_readable(watching)
        running.start()
        assert not is_held(observer, made.handle)
        until(lambda: watching.poll() == [] and watching.pause_s is None)
        assert is_held(observer, made.handle)
    watching.close()


def test_events_arrive_before_and_after_a_restart(migd: Any, machine: Machine) -> None:
    running: Migd = migd()
    client = running.client()
    gpu = client.gpus().gpus[0].uuid
    watching = MigdWatch(client)
    for xid in (94, 79):
        machine.post_xid(xid)
        until(lambda: is_readable(watching))
        assert [(each.gpu, each.xid) for each in watching.poll()] == [(gpu, xid)]
        running.end()
        running.start()
        until(lambda: watching.poll() == [] and watching.pause_s is None)
    watching.close()


def test_a_connection_that_the_client_made_anew_is_watched(served: Served) -> None:
    """A call that found no answer closed the old one. A worker may hold a copy of it: it must not seem readable."""
    client = served.client()
    watching = MigdWatch(client)
    copy = os.dup(client.fileno())
    client.close()
    client.gpus()
    watching.poll()
    assert not is_readable(watching)
    event = protocol.Xid(gpu=served.rig.gpu(), xid=31, gpu_instance=-1, compute_instance=-1)
    served.server.publish(event, None)
    until(lambda: is_readable(watching))
    assert watching.poll() == [event]
    os.close(copy)
    watching.close()


def test_a_forked_child_closes_its_copies_and_not_the_connections(served: Served) -> None:
    client = served.client()
    made = client.create(served.rig.gpu(), "1g.5gb", 0)
    watching = MigdWatch(client)

    def child() -> str:
        watching.close()
        return str(client.fileno())

    assert forked.call(child, "a worker", 20) == "-1"
    assert not is_readable(watching)
    assert is_held(served.client(), made.handle)
    assert client.connection == 1
    watching.close()


def test_many_events_are_read_in_several_polls(served: Served) -> None:
    watching = MigdWatch(served.client())
    event = protocol.Xid(gpu=served.rig.gpu(), xid=13, gpu_instance=-1, compute_instance=-1)
    for _ in range(100):
        served.server.publish(event, None)
    served.client().gpus()
    first = until(watching.poll)
    counts = [len(first)]
    until(lambda: counts.append(len(watching.poll())) or sum(counts) == 100)
    assert max(counts) <= 64
    watching.close()


def test_a_stream_that_a_migd_refuses_is_tried_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = [True]

    def refused(client: MigdClient) -> XidStream:
        if refuse[0]:
            raise watch.OffpathError("not now")
        return XidStream(served.path)

    monkeypatch.setattr(MigdClient, "watch", refused)
    watching = MigdWatch(served.client())
    assert watching.poll() == []
    assert watching.pause_s == 0
    refuse[0] = False
    watching.poll()
    assert watching.pause_s is None
    watching.close()
