"""What the service manager holds: everything that it acknowledged, nothing that was dropped, however slow it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.ports import IMM_SUBMIT
from offpath.bindings.wire import negotiating
from offpath.dpu_daemon.durability import storing
from offpath.dpu_daemon.durability.fdstore import DescriptorStore, open_notify_socket, read_notification
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.durability.storing import Store
from offpath.host_helper import Requester

from ..support.cluster import pids_of
from ..support.clusters import Make
from ..support.peers import Peer, hello, redeem
from ..support.processes import until


class Manager:
    """The manager's end at ``path``: `hear` takes in what is queued, as the service manager does."""

    def __init__(self, path: Path) -> None:
        self.sock = open_notify_socket(str(path))
        self.store = DescriptorStore(4096)
        self.said: list[dict[str, str]] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.store.entries()]

    def hear(self) -> None:
        while (said := read_notification(self.sock)) is not None:
            self.said.append(said.fields)
            if said.fields.get("FDSTORE") == "1":
                self.store.add(said.fields["FDNAME"], said.take_fds())
            if said.fields.get("FDSTOREREMOVE") == "1":
                self.store.remove(said.fields["FDNAME"])
            said.close()

    def close(self) -> None:
        self.sock.close()
        self.store.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with contextlib.closing(Manager(tmp_path / "notify")) as made:
        yield made


def fill(path: Path) -> None:
    """Fill the manager's queue, whose length is the machine's (10 messages, or systemd's 512), so that nothing more
    is taken before it reads."""
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.connect(str(path))
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sender.send(b"STATUS=busy"):
                    sent += 1
            if not sent:
                return


async def settled(manager: Manager, store: Store) -> None:
    async with asyncio.timeout(20):
        while store.pending:
            manager.hear()
            await asyncio.sleep(0.002)


async def test_a_manager_that_stands_still_gets_everything_once_it_moves(tmp_path: Path, manager: Manager) -> None:
    """Many more stores and removals than its queue holds; each is acknowledged, and nothing is told before."""
    store = Store(Notifier(str(tmp_path / "notify")))
    fill(tmp_path / "notify")
    held: list[int] = []
    fds = [os.memfd_create("m") for _ in range(120)]
    for number, fd in enumerate(fds):
        store.keep(f"s-{number}", [fd], when_held=lambda number=number: held.append(number))  # type: ignore[misc]
    for number in range(0, 120, 2):
        store.forget(f"s-{number}")
    await asyncio.sleep(0.05)
    assert held == []
    await settled(manager, store)
    odd = [f"s-{number}" for number in range(1, 120, 2)]
    assert sorted(manager.names()) == sorted(odd)
    assert sorted(held) == list(range(1, 120, 2))
    for name in odd:
        store.forget(name)
    await settled(manager, store)
    assert manager.names() == []
    store.close()
    for fd in fds:
        os.close(fd)


async def test_what_was_dropped_before_it_was_sent_is_never_sent(tmp_path: Path, manager: Manager) -> None:
    """Its descriptor's number may be another file's by then."""
    store = Store(Notifier(str(tmp_path / "notify")))
    fill(tmp_path / "notify")
    fds = [os.memfd_create("m") for _ in range(60)]
    for number, fd in enumerate(fds):
        store.keep(f"s-{number}", [fd])
    store.forget("s-59")
    os.close(fds.pop())
    await settled(manager, store)
    assert "s-59" not in {fields.get("FDNAME") for fields in manager.said}
    assert len(manager.names()) == 59
    store.close()
    for fd in fds:
        os.close(fd)


async def test_the_end_waits_for_a_slow_manager_no_longer_than_it_says(tmp_path: Path, manager: Manager) -> None:
    """It takes one message per 20 ms: each single send stays below the bound, their sum does not."""
    store = Store(Notifier(str(tmp_path / "notify")))
    fill(tmp_path / "notify")
    for number in range(200):
        store.adopt(f"s-{number}")
        store.forget(f"s-{number}")
    is_over = threading.Event()

    def take() -> None:
        while not is_over.wait(0.02):
            said = read_notification(manager.sock)
            if said is not None:
                said.close()

    slow = threading.Thread(target=take)
    slow.start()
    try:
        assert not store.flush(0.2)
    finally:
        is_over.set()
        slow.join()
    await settled(manager, store)
    store.close()


async def test_a_manager_that_was_replaced_is_told_again(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one had taken and not acknowledged, the next one gets, removals included."""
    monkeypatch.setattr(storing, "ACKNOWLEDGE_S", 0.2)
    store = Store(Notifier(str(tmp_path / "notify")))
    fd = os.memfd_create("m")
    store.adopt("old")
    store.keep("new", [fd])
    store.forget("old")
    manager.sock.close()
    with contextlib.closing(Manager(tmp_path / "notify")) as second:
        await settled(second, store)
        assert second.names() == ["new"]
        assert {"FDSTOREREMOVE": "1", "FDNAME": "old"} in second.said
    assert store.retries >= 2
    store.close()
    os.close(fd)


# -- real processes -----------------------------------------------------------------------------------------------
SESSIONS, BURSTS = 24, 20
FEW = 7
"""Of a burst into a manager that stands still: each waits a second for it."""


def test_no_session_of_a_burst_is_lost_at_a_kill(make_cluster: Make) -> None:
    """395 sessions: 15 bursts of 24, and 5 of 7 while the service manager is stopped; then kill -9. Each session that
    was reported "durable" comes back."""
    cluster = make_cluster(
        {"alpha": {"max_sessions": SESSIONS * BURSTS, "max_bytes": 1 << 30}}, keep={"watchdog_s": 0},
        durability={"resume_ttl_s": 60},
    )  # fmt: skip
    cluster.start_helper()
    with contextlib.ExitStack() as held:
        requesters: list[Requester] = []
        for burst in range(BURSTS):
            is_stopped = burst % 4 == 0
            with cluster.daemon.stopped() if is_stopped else contextlib.nullcontext():
                for _ in range(FEW if is_stopped else SESSIONS):
                    sizes = {"slots": 1, "payload_bytes": 4096, "result_bytes": 4096}
                    requesters.append(held.enter_context(cluster.connect("alpha", **sizes)))
        until(lambda: all(requester.is_durable() for requester in requesters))
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        until(lambda: f"recovered {len(requesters)} sessions" in cluster.daemon.errors)


def test_a_manager_whose_queue_is_full_at_the_start_is_told_ready_once_it_reads(
    make_cluster: Make, tmp_path: Path, manager: Manager
) -> None:
    """The daemon serves meanwhile."""
    fill_queue(tmp_path)
    cluster = make_cluster({"alpha": {}}, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    until(lambda: "cannot notify the service manager" in cluster.daemon.errors)

    def is_ready() -> bool:
        manager.hear()
        return any(fields.get("READY") == "1" for fields in manager.said)

    until(is_ready)


def test_a_reload_that_its_manager_does_not_hear_of_does_not_hold_up_the_end(
    make_cluster: Make, tmp_path: Path, manager: Manager
) -> None:
    cluster = make_cluster({"alpha": {}}, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    until(lambda: manager.hear() or any("READY" in fields for fields in manager.said))
    fill_queue(tmp_path)
    assert cluster.reload()
    until(lambda: "cannot notify the service manager" in cluster.daemon.errors)
    cluster.daemon.signal(signal.SIGTERM)
    assert cluster.daemon.ended() == 0


def test_who_comes_back_before_the_manager_took_its_memory_keeps_its_doorbell(
    make_cluster: Make, tmp_path: Path, manager: Manager
) -> None:
    """Its first connection to the fabric waits for the manager, and must not be served when another one has been."""
    cluster = make_cluster(
        {"ada": {}}, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}, durability={"resume_ttl_s": 60}
    )
    until(lambda: manager.hear() or any("READY" in fields for fields in manager.said))
    fill_queue(tmp_path)
    with contextlib.ExitStack() as held:
        first = held.enter_context(Peer(cluster.address))
        first.send_message(**hello("ada"))
        welcome = first.hear()
        early = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        early.settimeout(20)
        early.connect(welcome.fabric.address)
        early.send(welcome.ticket.encode())
        resume = {
            "session": welcome.session, "lineage": welcome.lineage, "token": welcome.resume_token, "unanswered": []
        }  # fmt: skip

        def came_back() -> negotiating.Welcome | None:
            peer = held.enter_context(Peer(cluster.address))
            peer.send_message(**hello("ada", resume=resume))
            said = peer.hear()
            return said if isinstance(said, negotiating.Welcome) else None

        again = until(came_back)  # its memory is made, and waits for the manager
        fds = redeem(again.fabric.address, again.ticket.encode())
        assert fds is not None
        for fd in fds[:2]:
            os.close(fd)
        bell = held.enter_context(socket.socket(fileno=fds[2]))
        bell.settimeout(20)
        assert early.recv(64) == b""
        bell.send((IMM_SUBMIT << 24).to_bytes(4, "little"))  # there is no header in the slot: refused at once
        assert bell.recv(8) == (0).to_bytes(4, "little")


def fill_queue(folder: Path) -> None:
    """The manager's, as others do that it serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
        other.connect(str(folder / "notify"))
        with contextlib.suppress(BlockingIOError):
            while other.send(b"X_FULL=1"):
                pass


def test_nothing_of_ended_sessions_stays_with_a_service_manager_that_stood_still(make_cluster: Make) -> None:
    cluster = make_cluster({"alpha": {"max_sessions": 100, "max_bytes": 1 << 30}}, keep={"watchdog_s": 0})
    before = cluster.daemon.fds_at_rest()
    sizes = {"slots": 1, "payload_bytes": 4096, "result_bytes": 4096}
    requesters = [cluster.connect("alpha", **sizes) for _ in range(60)]
    until(lambda: all(requester.is_durable() for requester in requesters))
    assert cluster.daemon.open_fds() == before + 2 * len(requesters)
    with cluster.daemon.stopped():
        for requester in requesters:
            requester.close()
        (daemon,) = pids_of(cluster.daemon)
        until(lambda: _memfds(daemon) == 0)
    until(lambda: cluster.daemon.open_fds() == before)


def test_a_session_without_a_manager_is_not_called_durable(make_cluster: Make) -> None:
    cluster = make_cluster({"alpha": {}})
    with cluster.connect("alpha") as requester:
        time.sleep(0.1)
        assert not requester.is_durable()


def _memfds(pid: int) -> int:
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "offpath-slots" in os.readlink(f"/proc/{pid}/fd/{name}")
    return found
