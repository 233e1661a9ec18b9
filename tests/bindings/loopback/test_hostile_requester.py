"""What a hostile process can do with the three descriptors of a loopback session, and with the ticket socket."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import DoorbellError, PeerGone, TicketRefused
from offpath.bindings.loopback.channel import LoopbackChannelListener, connect_channel
from offpath.bindings.loopback.fabric import (
    LoopbackFabricListener,
    LoopbackFabricSession,
    LoopbackRequesterSession,
    redeem_ticket,
)
from offpath.bindings.sockets import _LOCK, SocketFile, listening_socket
from offpath.bindings.tickets import TicketBook

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
OTHER_UID = 65534
LOCKS_ALL = """
import fcntl, os, sys, time
held = []
for path in (sys.argv[1], *(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]))):
    try:
        held.append(os.open(path, os.O_RDONLY))
    except OSError:
        continue
    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", path, flush=True)
time.sleep(600)
"""
LISTENS = """
import socket, sys
from offpath.bindings.sockets import listening_socket
with listening_socket(sys.argv[1], socket.SOCK_STREAM):
    print("listening", flush=True)
"""


def open_to_all(directory: Path) -> None:
    """Other users may enter and read it."""
    directory.chmod(0o755)
    for parent in directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)


@contextlib.contextmanager
def running_as(uid: int, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of another user, ended at the end. What it imports is loaded before it changes its user."""
    become = f"import os, offpath.bindings.sockets\nos.setgroups([])\nos.setresuid({uid}, {uid}, {uid})\n"
    command = [sys.executable, "-c", become + program, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


class Hostage:
    """A session and the raw descriptors its peer holds."""

    def __init__(self) -> None:
        self.session = LoopbackFabricSession(2, 4096, 4096)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.session.hand_over(ours)
            _, fds, _, _ = socket.recv_fds(theirs, 64, 3)
        self.slots, self.answers = fds[:2]
        self.bell = socket.socket(fileno=fds[2])

    def close(self) -> None:
        self.session.close()
        self.bell.close()
        os.close(self.slots)
        os.close(self.answers)


@pytest.fixture
def hostage() -> Iterator[Hostage]:
    made = Hostage()
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 4096, 1 << 20])
@pytest.mark.parametrize("region", ["slots", "answers"])
def test_a_region_cannot_be_resized(hostage: Hostage, region: str, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(getattr(hostage, region), size)
    hostage.session.read_header(1)
    hostage.session.write_answer(1, b"h", b"r", 1)


@pytest.mark.parametrize("seal", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK, 0x10])
def test_a_region_takes_no_further_seal(hostage: Hostage, seal: int) -> None:
    """0x10 is F_SEAL_FUTURE_WRITE."""
    with pytest.raises(PermissionError):
        fcntl.fcntl(hostage.slots, fcntl.F_ADD_SEALS, seal)


def test_writing_past_the_end_of_a_region_does_not_grow_it(hostage: Hostage) -> None:
    size = os.fstat(hostage.slots).st_size
    with pytest.raises(PermissionError):
        os.pwrite(hostage.slots, b"x", size)
    assert os.fstat(hostage.slots).st_size == size


def test_a_header_that_changes_after_it_was_read_stays_as_it_was_read(hostage: Hostage) -> None:
    with mmap.mmap(hostage.slots, 4096) as slot:
        slot[:4] = b"good"
        copied = hostage.session.read_header(0)
        slot[:4] = b"evil"
    assert copied[:4] == b"good"


@pytest.mark.parametrize("blocking", [True, False])
def test_the_peers_flags_on_its_own_end_never_make_ours_block(hostage: Hostage, blocking: bool) -> None:
    flags = fcntl.fcntl(hostage.bell, fcntl.F_GETFL) & ~os.O_NONBLOCK
    fcntl.fcntl(hostage.bell, fcntl.F_SETFL, flags if blocking else flags | os.O_NONBLOCK)
    assert hostage.session.poll() is None
    while hostage.session.ring(0):
        pass
    assert hostage.session.ring(0) is False
    assert hostage.session.poll() is None


def test_a_peer_that_fills_its_doorbell_is_read_one_by_one(hostage: Hostage) -> None:
    hostage.bell.setblocking(False)
    sent = 0
    try:
        while True:
            hostage.bell.send(sent.to_bytes(4, "little"))
            sent += 1
    except BlockingIOError:
        pass
    taken = []
    while (imm := hostage.session.poll()) is not None:
        taken.append(imm)
    assert taken == list(range(sent))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8, 9, 4096, 100_000])
def test_a_doorbell_of_a_wrong_length_is_a_typed_error(hostage: Hostage, length: int) -> None:
    hostage.bell.send(bytes(length))
    with pytest.raises(DoorbellError, match="immediate_length"):
        hostage.session.poll()


def test_a_doorbell_of_no_bytes_is_a_hang_up(hostage: Hostage) -> None:
    hostage.bell.send(b"")
    with pytest.raises(PeerGone):
        hostage.session.poll()


@pytest.mark.parametrize("way", [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])
def test_a_peer_that_shuts_one_direction_is_gone_in_that_direction(hostage: Hostage, way: int) -> None:
    hostage.bell.shutdown(way)
    if way != socket.SHUT_RD:
        with pytest.raises(PeerGone):
            hostage.session.poll()
    if way != socket.SHUT_WR:
        with pytest.raises(PeerGone):
            hostage.session.ring(0)


def test_descriptors_sent_along_with_a_doorbell_do_not_stay_with_us(hostage: Hostage, count_fds: Any) -> None:
    before = count_fds()
    for _ in range(20):
        socket.send_fds(hostage.bell, [bytes(4)], [0, 0, 0])
    assert [hostage.session.poll() for _ in range(20)] == [0] * 20
    assert count_fds() == before


def test_a_daemon_that_rings_nonsense_is_gone_to_the_requester() -> None:
    session = LoopbackFabricSession(1, 4096, 4096)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        requester = LoopbackRequesterSession(
            [os.dup(session.slots.fd), os.dup(session.answers.fd), ours.detach()], 1, 4096, 4096
        )
        theirs.send(bytes(6))
        with pytest.raises(PeerGone):
            requester.poll()
    requester.close()
    session.close()


def test_descriptors_a_requester_receives_are_closed_on_exec(tmp_path: Path) -> None:
    listener = LoopbackFabricListener(path := str(tmp_path / "fabric.sock"))
    listener.offer("ticket", 1, 4096, 4096, time.monotonic_ns() + 10**10)
    before = set(os.listdir("/proc/self/fd"))
    requester, session = redeem_here(listener, path, "ticket")
    new = {int(fd) for fd in os.listdir("/proc/self/fd") if fd not in before and os.path.exists(f"/proc/self/fd/{fd}")}
    assert {fd for fd in new if os.get_inheritable(fd)} == set()
    requester.close()
    session.close()
    listener.close()


def redeem_here(
    listener: LoopbackFabricListener, path: str, ticket: str
) -> tuple[LoopbackRequesterSession, LoopbackFabricSession]:
    with ThreadPoolExecutor(1) as thread:
        redeemed = thread.submit(redeem_ticket, path, ticket)
        while (peer := listener.accept()) is None:
            time.sleep(0.0005)
        peer.setblocking(True)
        _, offer = listener.take_ticket(peer, time.monotonic_ns())
        session = LoopbackFabricSession(offer.slots, offer.payload_bytes, offer.result_bytes)
        with peer:
            session.hand_over(peer)
        return redeemed.result(), session


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[LoopbackFabricListener]:
    made = LoopbackFabricListener(str(tmp_path / "fabric.sock"))
    yield made
    made.close()


def dial(listener: LoopbackFabricListener) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(listener.path)
    return sock


def test_of_more_than_64_silent_peers_the_later_are_turned_away_until_one_is_dropped(
    listener: LoopbackFabricListener,
) -> None:
    silent = []
    for _ in range(64):
        silent.append(dial(listener))
        assert listener.accept() is not None
    with dial(listener) as surplus:
        assert listener.accept() is None
        assert surplus.recv(8) == b""
    assert len(listener.pending) == 64
    dropped = next(iter(listener.pending))
    listener.drop(dropped)
    listener.drop(dropped)
    silent.append(dial(listener))
    assert listener.accept() is not None
    for sock in silent:
        sock.close()


def test_a_silent_peer_is_not_waited_for(listener: LoopbackFabricListener) -> None:
    with dial(listener):
        peer = listener.accept()
        assert peer is not None
        with pytest.raises(PeerGone):
            listener.take_ticket(peer, 0)
        assert (peer.fileno(), listener.pending) == (-1, set())


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda sock: sock.close(), PeerGone),
        (lambda sock: sock.send(b""), PeerGone),
        (lambda sock: sock.send(b"\xff\x00nonsense"), TicketRefused),
        (lambda sock: (sock.send(b"unknown"), sock.close()), TicketRefused),
        (lambda sock: socket.send_fds(sock, [b"unknown"], [0, 1, 2]), TicketRefused),
    ],
    ids=["closes", "says nothing", "says nonsense", "asks and closes", "sends descriptors"],
)
def test_a_peer_without_a_good_ticket_costs_nothing(
    listener: LoopbackFabricListener,
    count_fds: Any,
    spoil: Callable[[socket.socket], object],
    error: type[Exception],
) -> None:
    before = count_fds()
    sock = dial(listener)
    peer = listener.accept()
    assert peer is not None
    spoil(sock)
    with pytest.raises(error):
        listener.take_ticket(peer, 0)
    sock.close()
    assert listener.pending == set()
    assert count_fds() == before


def test_the_ticket_book_keeps_the_newest_offers_only() -> None:
    book = TicketBook(most=2)
    for ticket in ("first", "second", "third"):
        book.offer(ticket, 1, 1, 1, expires_ns=10)
    with pytest.raises(TicketRefused):
        book.redeem(b"first", 0)
    assert book.redeem(b"second", 0).slots == 1
    assert book.redeem(b"third", 10).slots == 1
    book.offer("fourth", 1, 1, 1, expires_ns=10)
    with pytest.raises(TicketRefused, match="expired"):
        book.redeem(b"fourth", 11)


class TestListeningSocket:
    """`listening_socket`, under fabric and host channel alike."""

    def test_only_its_owner_may_connect(self, tmp_path: Path) -> None:
        with listening_socket(path := str(tmp_path / "s"), socket.SOCK_SEQPACKET):
            assert os.stat(path).st_mode & 0o777 == 0o600

    def test_a_dead_listeners_file_is_replaced(self, tmp_path: Path) -> None:
        listening_socket(path := str(tmp_path / "s"), socket.SOCK_SEQPACKET).close()
        with listening_socket(path, socket.SOCK_SEQPACKET):
            pass

    @pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
    def test_a_live_listener_is_left_alone_whatever_its_kind(self, tmp_path: Path, kind: socket.SocketKind) -> None:
        with listening_socket(path := str(tmp_path / "s"), kind):
            with pytest.raises(OSError, match="another process listens"):
                listening_socket(path, socket.SOCK_SEQPACKET)
            assert os.path.exists(path)

    def test_of_two_that_start_at_once_one_gets_the_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first is held between finding the stale file and removing it, until the second has finished, or waits."""
        listening_socket(path := str(tmp_path / "s"), socket.SOCK_STREAM).close()
        first_is_there, second_is_done_or_waits = threading.Event(), threading.Event()
        unlink, sleep = os.unlink, time.sleep

        def held(where: str) -> None:
            if not first_is_there.is_set():
                first_is_there.set()
                assert second_is_done_or_waits.wait(30)
            unlink(where)

        def waits(seconds: float) -> None:
            second_is_done_or_waits.set()
            sleep(seconds)

        monkeypatch.setattr(os, "unlink", held)
        monkeypatch.setattr(time, "sleep", waits)

        def start() -> socket.socket | str:
            try:
                return listening_socket(path, socket.SOCK_STREAM)
            except OSError as fault:
                return str(fault.strerror)

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(start)
            assert first_is_there.wait(30)
            second = threads.submit(start)
            second.add_done_callback(lambda done: second_is_done_or_waits.set())
            ends = [first.result(30), second.result(30)]
        winners = [end for end in ends if isinstance(end, socket.socket)]
        for winner in winners:
            winner.close()
        assert len(winners) == 1, "two listen at one path, and one of them can be reached by nobody"
        assert ends[1] == "another process listens there"

    def test_a_listener_that_closes_does_not_remove_its_successors_socket(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A successor starts at the worst moment: between the two steps of closing, in whatever order they are."""
        path = str(tmp_path / "s")
        before, successors = LoopbackChannelListener(path, frozenset()), []
        unlink = os.unlink

        def start_before(where: str) -> None:
            monkeypatch.setattr(os, "unlink", unlink)
            with contextlib.suppress(OSError):  # refused while the former still listens
                successors.append(listening_socket(path, socket.SOCK_SEQPACKET))
            unlink(where)

        monkeypatch.setattr(os, "unlink", start_before)
        before.close()
        assert not successors or os.path.exists(path)
        for each in successors:
            each.close()

    def test_who_connects_waits_for_a_full_backlog_but_not_for_ever(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy, contextlib.ExitStack() as waiting:
            busy.bind(path)
            busy.listen(0)
            while True:
                sock = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.setblocking(False)
                if sock.connect_ex(path) != 0:
                    break
            with pytest.raises(PeerGone, match="temporarily unavailable"):
                connect_channel(path, timeout_s=0.05)
            with ThreadPoolExecutor(1) as other:
                connected = other.submit(connect_channel, path)
                with pytest.raises(TimeoutError):
                    connected.result(timeout=0.2)
                busy.accept()[0].close()
                connected.result(timeout=10).close()

    def test_a_live_listener_with_a_full_backlog_is_left_alone_at_once(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy:
            busy.bind(path)
            busy.listen(0)
            waiting = []
            while True:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                waiting.append(sock)
                if sock.connect_ex(path) != 0:
                    break
            with pytest.raises(OSError, match="another process listens"):
                listening_socket(path, socket.SOCK_SEQPACKET)
            for sock in waiting:
                sock.close()


@needs_root
def test_no_other_user_can_hold_up_a_process_that_makes_a_socket(tmp_path: Path) -> None:
    """A runtime directory of mode 0755, as the shipped unit has it, and a lock file left behind. Another user
    locks all that it can open there."""
    listening_socket(path := str(tmp_path / "s"), socket.SOCK_STREAM).close()
    assert os.listdir(tmp_path) == ["s"]
    (tmp_path / _LOCK).touch(0o600)
    open_to_all(tmp_path)
    with running_as(OTHER_UID, LOCKS_ALL, str(tmp_path)) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"locked {tmp_path}\n"
        with listening_socket(path, socket.SOCK_STREAM):
            os.unlink(path)
            with SocketFile(path, is_own=True).remake(socket.SOCK_STREAM):
                assert os.listdir(tmp_path) == ["s"]


@needs_root
def test_a_lock_that_a_killed_process_of_root_left_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / _LOCK).touch(0o600)
    open_to_all(tmp_path)
    os.chown(tmp_path, OTHER_UID, OTHER_UID)
    with running_as(OTHER_UID, LISTENS, str(tmp_path / "s")) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "listening\n"
    assert os.listdir(tmp_path) == ["s"]
