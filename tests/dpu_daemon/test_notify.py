"""The service manager's protocol against real datagram sockets, and the daemon that speaks it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import HandoverError
from offpath.bindings.sockets import inherited_listener
from offpath.dpu_daemon.durability.fdstore import Notification, open_notify_socket, read_notification
from offpath.dpu_daemon.durability.notify import Notifier, take_listen_fds, watchdog_interval_s

from ..support.cluster import Cluster
from ..support.peers import Peer, hello
from ..support.processes import BOUND_S, until


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with open_notify_socket(str(tmp_path / "notify")) as sock:
        yield sock


@pytest.fixture
def notifier(manager: socket.socket) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": manager.getsockname()})


def heard(manager: socket.socket) -> Notification:
    said = read_notification(manager)
    assert said is not None
    assert said.pid == os.getpid()
    return said


# -- what is said -------------------------------------------------------------------------------------------------
def test_each_word_is_what_the_manual_says(manager: socket.socket, notifier: Notifier) -> None:
    """sd_notify(3): assignments separated by newlines, nothing else."""
    assert notifier.ready("two\nlines")
    assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"
    assert notifier.ready()
    assert manager.recv(4096) == b"READY=1"
    assert notifier.stopping()
    assert manager.recv(4096) == b"STOPPING=1"
    assert notifier.watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1"
    assert notifier.status("draining")
    assert manager.recv(4096) == b"STATUS=draining"
    assert notifier.forget("session-7-slots")
    assert manager.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=session-7-slots"


def test_reloading_says_when_on_the_monotonic_clock(manager: socket.socket, notifier: Notifier) -> None:
    assert notifier.reloading()
    fields = heard(manager).fields
    assert (fields["RELOADING"], fields["MONOTONIC_USEC"].isdigit()) == ("1", True)


def test_an_abstract_socket_is_one_too() -> None:
    name = f"offpath-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        assert Notifier(f"@{name}").ready()
        assert manager.recv(4096) == b"READY=1"


def test_stored_descriptors_arrive_as_the_same_files(manager: socket.socket, notifier: Notifier) -> None:
    ours = [os.memfd_create("slots"), os.memfd_create("answers")]
    assert notifier.store("session-7", ours)
    said = heard(manager)
    assert said.fields == {"FDSTORE": "1", "FDPOLL": "0", "FDNAME": "session-7"}
    theirs = said.take_fds()
    assert [os.fstat(fd).st_ino for fd in theirs] == [os.fstat(fd).st_ino for fd in ours]
    assert not set(theirs) & set(ours)
    for fd in (*ours, *theirs):
        os.close(fd)


@pytest.mark.parametrize("name", ["", "a:b", "new\nline", "with space", "x" * 256, "ä"])
def test_a_name_that_could_not_come_back_is_refused(notifier: Notifier, name: str) -> None:
    with pytest.raises(ValueError, match="not a valid descriptor name"):
        notifier.store(name, [0])
    with pytest.raises(ValueError, match="not a valid descriptor name"):
        notifier.forget(name)


def test_a_barrier_holds_until_the_manager_has_read_so_far(manager: socket.socket, notifier: Notifier) -> None:
    """The manager answers by closing the descriptor that came with it; one that does not read answers nothing."""
    assert not notifier.barrier(0.01)
    said = heard(manager)
    assert (said.fields, len(said.fds)) == ({"BARRIER": "1"}, 1)
    said.close()
    answered: list[bytes] = []

    def answer() -> None:
        manager.settimeout(BOUND_S)
        manager.recv(1, socket.MSG_PEEK)  # wait for it
        said = read_notification(manager)
        assert said is not None
        answered.append(b"BARRIER")
        said.close()

    reader = threading.Thread(target=answer)
    reader.start()
    assert notifier.barrier(BOUND_S)
    reader.join(BOUND_S)
    assert answered == [b"BARRIER"]


def test_a_manager_that_does_not_read_stops_nobody(manager: socket.socket, notifier: Notifier) -> None:
    """Its queue fills; from then on each word is given up, and said to be."""
    for _ in range(4096):
        if not notifier.watchdog():
            break
    else:
        pytest.fail("a queue without end")
    assert not notifier.ready()
    while read_notification(manager) is not None:
        pass
    assert notifier.ready()


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "relative", "vsock:2:1234", "@", "/" + "x" * 200])
def test_without_a_manager_nothing_is_said_and_nothing_fails(address: str) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address} if address else {})
    assert notifier.has_manager == (address[:1] in ("/", "@"))
    said = [notifier.ready(), notifier.stopping(), notifier.watchdog(), notifier.status("x"), notifier.reloading()]
    said += [notifier.store("name", [0]), notifier.forget("name"), notifier.barrier(0.01)]
    assert said == [False] * 8


# -- what is handed down ------------------------------------------------------------------------------------------
def handed(**variables: str | int) -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), **{key: str(value) for key, value in variables.items()}}


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_FDS": "3"}, {"LISTEN_PID": "1", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c"}, handed()],
)
def test_what_is_meant_for_nobody_or_another_is_not_taken_and_not_passed_on(environment: dict[str, str]) -> None:
    assert take_listen_fds(environment) == {}
    assert environment == {}


@pytest.mark.parametrize(
    "environment",
    [
        {"LISTEN_PID": "x", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "-1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "9" * 30, "LISTEN_FDS": "1"},
        {"LISTEN_PID": "٣", "LISTEN_FDS": "1"},
        handed(LISTEN_FDS="many"),
        handed(LISTEN_FDS="-3"),
        handed(LISTEN_FDS=" 1"),
        handed(LISTEN_FDS="1\n"),
        handed(LISTEN_FDS=65537),
        handed(LISTEN_FDS=60000),  # more than are open
        handed(LISTEN_FDS=2, LISTEN_FDNAMES="one"),
        handed(LISTEN_FDS=1, LISTEN_FDNAMES="one:two"),
        handed(LISTEN_FDS=0, LISTEN_FDNAMES="one"),
        handed(LISTEN_FDS=1, LISTEN_FDNAMES="bad name"),
        handed(LISTEN_FDS=1, LISTEN_FDNAMES=""),
    ],
)
def test_nonsense_is_refused_with_a_reason(environment: dict[str, str]) -> None:
    with pytest.raises(HandoverError, match="LISTEN_"):
        take_listen_fds(environment)
    assert environment == {}


@given(st.dictionaries(st.sampled_from(["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]), st.text(max_size=8)))
def test_no_environment_does_more_harm_than_a_refusal(environment: dict[str, str]) -> None:
    """No other error, and the variables are gone in any case."""
    environment["LISTEN_PID"] = environment.get("LISTEN_PID", str(os.getpid()))
    try:
        taken = take_listen_fds(environment)
    except HandoverError:
        pass
    else:
        assert all(isinstance(fds, list) for fds in taken.values())
    assert environment == {}


@pytest.mark.parametrize("microseconds", ["", "0", "-1", "1e6", "1" * 20, "٣", "18446744073709551616"])
def test_a_watchdog_interval_that_is_none_is_refused(microseconds: str) -> None:
    with pytest.raises(HandoverError, match="WATCHDOG_USEC"):
        watchdog_interval_s({"WATCHDOG_USEC": microseconds})


def test_the_watchdog_interval_is_for_the_process_it_names() -> None:
    assert watchdog_interval_s({}) is None
    assert watchdog_interval_s({"WATCHDOG_USEC": "1500000"}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}) is None


def test_only_a_listening_socket_of_the_right_kind_is_taken_for_one(tmp_path: Path) -> None:
    """And what is refused stays open: it may be somebody else's descriptor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(tmp_path / "sock"))
        with pytest.raises(HandoverError, match=r"negotiate: want a listening.*AF_UNIX socket of SOCK_STREAM"):
            inherited_listener("negotiate", sock.fileno(), socket.SOCK_STREAM)
        sock.listen()
        with pytest.raises(HandoverError, match="SOCK_SEQPACKET"):
            inherited_listener("fabric", sock.fileno(), socket.SOCK_SEQPACKET)
        with inherited_listener("negotiate", os.dup(sock.fileno()), socket.SOCK_STREAM) as taken:
            assert taken.getsockname() == sock.getsockname()
            assert not taken.getblocking()
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(HandoverError, match="AF_INET"):
            inherited_listener("host", other.fileno(), socket.SOCK_STREAM)
        with open(tmp_path / "file", "w") as file, pytest.raises(HandoverError, match="is not a socket"):
            inherited_listener("host", file.fileno(), socket.SOCK_STREAM)


# -- the daemon ---------------------------------------------------------------------------------------------------
def test_the_daemon_says_when_it_is_ready_alive_and_ending(
    make_cluster: Callable[..., Cluster], manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready: everything listens. Alive: several times within the interval. At the end: that it stops, and no more."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "500000")
    cluster = make_cluster({"alpha": {}})
    words: list[dict[str, Any]] = []

    def said(word: str, times: int = 1) -> bool:
        while (message := read_notification(manager)) is not None:
            assert message.pid == cluster.daemon.pid
            words.append(message.fields)
        return sum(word in fields for fields in words) >= times

    until(lambda: said("READY"))
    assert words[0] == {"READY": "1", "STATUS": f"lineage {cluster.lineage}"}
    with Peer(cluster.address) as peer:
        peer.send_message(**hello("alpha"))
        peer.hear()
    until(lambda: said("WATCHDOG", 3))
    assert cluster.statistics().get("violations", 0) == 0
    assert said("STOPPING")
    assert words[-1] == {"STOPPING": "1"}


def test_a_frozen_daemon_feeds_nothing(
    make_cluster: Callable[..., Cluster], manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    cluster = make_cluster({"alpha": {}})
    with cluster.daemon.stopped():
        until(lambda: Path(f"/proc/{cluster.daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        while read_notification(manager) is not None:
            pass
        manager.settimeout(0.5)  # five intervals
        with pytest.raises(TimeoutError):
            manager.recv(4096)
    manager.settimeout(20)
    assert manager.recv(4096) == b"WATCHDOG=1"
