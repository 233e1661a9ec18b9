"""The host channel `comch` beside its conformance: what cannot be opened, who is shown out, and how it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from offpath.bindings.doca import poller
from offpath.bindings.doca.channel import ComchConnection, ComchConnector, ComchListener
from offpath.bindings.doca.comch import ComchClient, ComchServer, Received
from offpath.bindings.doca.device import Ability, open_device, open_representor
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.load import Library
from offpath.bindings.errors import ComchUnusable, HostMessageError, OffpathError, PeerGone

from ...support.doca import emulator, environment
from ...support.processes import BOUND_S, until

FAULTS = "DOCA_EMULATOR_FAULTS"
OPEN = b"\0\x01\x01\0\0" + bytes(4) + b"a nonce."


@pytest.fixture
def listener(doca: Library) -> Iterator[ComchListener]:
    made = ComchListener(emulator())
    yield made
    made.close()
    assert [thread.name for thread in threading.enumerate() if "comch" in thread.name] == []


def connected(timeout_s: float = 5.0) -> ComchConnection:
    with environment(DOCA_EMULATOR_SIDE="host"):
        return ComchConnector(emulator()).connect(timeout_s)


def accepted(listener: ComchListener) -> ComchConnection:
    until_s = time.monotonic() + BOUND_S
    while (connection := listener.accept()) is None:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    return connection


def fault_of(connection: ComchConnection) -> OffpathError:
    """What it ends with."""
    until_s = time.monotonic() + BOUND_S
    while True:
        try:
            connection.receive()
        except (PeerGone, HostMessageError) as fault:
            return fault
        assert time.monotonic() < until_s
        time.sleep(0.002)


class Raw:
    """A client that says what it likes."""

    def __init__(self, doca: Library) -> None:
        with environment(DOCA_EMULATOR_SIDE="host"):
            self._device = open_device(doca, Ability.CONNECT)
        self._engine = Engine(doca)
        self.client = ComchClient(self._device, self._engine, "offpath", 4080)
        while not (number := self.client.connection()):
            self.client.poll()
        self.number = number

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            while not self.client.send(self.number, piece):
                self.client.poll()
        while self.client.under_way(self.number):
            self.client.poll()

    def shown_out_s(self) -> float:
        """Seconds until it was."""
        begun_s = time.monotonic()
        while True:
            try:
                self.client.poll()
                self.client.connection()
            except PeerGone:
                return time.monotonic() - begun_s
            assert time.monotonic() - begun_s < BOUND_S
            time.sleep(0.001)

    def close(self) -> None:
        self._device.close()
        self._engine.close()


@pytest.fixture
def raw(doca: Library, listener: ComchListener) -> Iterator[Raw]:
    made = Raw(doca)
    yield made
    made.close()


def test_who_may_come_is_the_function_behind_the_representor(doca: Library) -> None:
    made = ComchListener(emulator(), "mlx5_0", "5c:00.0", "of-mine")
    assert made.address == "comch:of-mine@0000:5c:00.0"
    with pytest.raises(PeerGone, match="no daemon at comch:offpath: no Comch server of this name answers"):
        connected()
    made.close()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("/nowhere", "", "", "offpath"), "not in /nowhere"),
        (("", "mlx5_7", "", "offpath"), "no device to serve, named mlx5_7"),
        (("", "", "99:00.0", "offpath"), "no representor 99:00.0"),
        (("", "", "", "x" * 200), "a name of 1 to 119 bytes"),
    ],
)
def test_what_a_server_needs_and_is_not_there_is_named(
    doca: Library, arguments: tuple[str, str, str, str], why: str
) -> None:
    path, *others = arguments
    with pytest.raises(ComchUnusable, match=why):
        ComchListener(path or emulator(), *others)


def test_a_name_that_is_served_already_is_refused(listener: ComchListener) -> None:
    with pytest.raises(ComchUnusable, match="no Comch server 'offpath': doca_ctx_start: DOCA_ERROR"):
        ComchListener(emulator())


def test_messages_that_the_device_cannot_carry_whole_go_in_pieces(doca: Library) -> None:
    with environment(DOCA_EMULATOR_COMCH_MAX="100"):
        listener = ComchListener(emulator())
        theirs = connected()
        ours = accepted(listener)
        for one, other in ((ours, theirs), (theirs, ours)):
            for n in range(30):
                assert one.send(bytes([n]) * 4080)
            assert [other.wait_message() for _ in range(30)] == [bytes([n]) * 4080 for n in range(30)]
        for each in (theirs, ours, listener):
            each.close()


def test_a_device_whose_messages_are_too_short_is_refused(doca: Library) -> None:
    with environment(DOCA_EMULATOR_COMCH_MAX="63"), pytest.raises(ComchUnusable, match="63 bytes are too short"):
        ComchListener(emulator())


def test_a_server_that_does_not_answer_costs_the_client_its_time_out_and_a_typed_error(doca: Library) -> None:
    """Nobody polls it: the client stays in STARTING."""
    device, engine = open_device(doca, Ability.SERVE), Engine(doca)
    ComchServer(device, open_representor(device), engine, "offpath", 4080)
    begun_s = time.monotonic()
    with pytest.raises(PeerGone, match=r"Comch has not connected in 0.3 s"):
        connected(0.3)
    assert 0.3 <= time.monotonic() - begun_s < BOUND_S
    device.close()
    engine.close()


def test_a_server_that_knows_no_sessions_costs_the_client_its_time_out_too(doca: Library) -> None:
    device, engine = open_device(doca, Ability.SERVE), Engine(doca)
    server = ComchServer(device, open_representor(device), engine, "offpath", 4080)
    is_over = threading.Event()
    told: list[str] = []

    def connect() -> None:
        try:
            ComchConnector(emulator()).connect(0.5)
        except PeerGone as gone:
            told.append(str(gone))
        is_over.set()

    with environment(DOCA_EMULATOR_SIDE="host"):
        thread = threading.Thread(target=connect)
        thread.start()
        while not is_over.is_set():
            server.poll()
            time.sleep(0.001)
        thread.join()
    assert told[0].startswith("no daemon at comch:offpath: no answer in 0.")
    device.close()
    engine.close()


@pytest.mark.parametrize(
    "pieces",
    [(b"garbage",), (b"\0" + bytes(100),), (b"\0" + OPEN[1:2] + b"\x09" + OPEN[3:],), (b"\0\x03" + OPEN[2:] + b"x",)],
    ids=["no piece", "no frame", "another version", "a message before the session"],
)
def test_who_begins_no_session_is_shown_out_and_never_accepted(
    raw: Raw, listener: ComchListener, pieces: tuple[bytes, ...]
) -> None:
    with contextlib.suppress(PeerGone):
        raw.send(*pieces)
    assert raw.shown_out_s() < 3.0
    assert listener.accept() is None


def test_who_says_nothing_is_shown_out_when_its_time_is_over(doca: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "OPEN_NS", 300_000_000)
    listener = ComchListener(emulator())
    raw = Raw(doca)
    assert 0.1 < raw.shown_out_s() < 5.0
    raw.close()
    listener.close()


def test_who_breaks_the_rules_of_a_session_is_shown_out_at_once_and_others_stay(
    raw: Raw, listener: ComchListener
) -> None:
    raw.send(OPEN)
    hostile = accepted(listener)
    theirs = connected()
    ours = accepted(listener)
    raw.send(b"\0\x03\x01\0\0" + bytes(4) + b"another!" + b"message")
    assert isinstance(fault_of(hostile), HostMessageError)
    hostile.close()
    assert raw.shown_out_s() < poller.LINGER_NS / 1e9, "it is given no time to leave by itself"
    assert ours.send(b"still here")
    assert theirs.wait_message() == b"still here"
    for each in (theirs, ours):
        each.close()


def test_who_takes_nothing_holds_up_nobody_and_no_more_than_its_window(raw: Raw, listener: ComchListener) -> None:
    """It does not poll any more: neither its credits nor its heartbeats come."""
    raw.send(OPEN)
    while not any(isinstance(event, Received) for event in raw.client.poll()):
        time.sleep(0.001)
    stuck = accepted(listener)
    theirs = connected()
    ours = accepted(listener)
    sent = 0
    while stuck.send(bytes(4080)):
        sent += 1
    assert sent == 64
    for n in range(200):
        assert ours.send(n.to_bytes(4, "little"))
        assert theirs.wait_message() == n.to_bytes(4, "little")
    assert str(fault_of(stuck)) == "host channel: silent for 3 s"
    for each in (stuck, theirs, ours):
        each.close()


def test_a_link_that_is_cut_is_a_peer_gone_at_both_ends(listener: ComchListener) -> None:
    theirs = connected()
    ours = accepted(listener)
    with environment(DOCA_EMULATOR_FAULTS="lost_peer=1"):
        assert ours.send(b"x")
        assert [type(fault_of(end)) for end in (ours, theirs)] == [PeerGone, PeerGone]
    theirs.close()
    ours.close()
    again = connected()
    accepted(listener).close()
    again.close()


def test_a_poller_that_fails_loses_its_connections_and_is_known_to_each_that_connects(doca: Library) -> None:
    listener = ComchListener(emulator())
    theirs = connected()
    ours = accepted(listener)
    self_probe = listener.self_connect()
    knocked = accepted(listener)
    knocked.close()
    with pytest.raises(PeerGone):
        self_probe.wait_message()
    self_probe.close()
    with (
        environment(**{FAULTS: "doca_comch_connection_set_user_data:1=DRIVER"}),
        pytest.raises((PeerGone, ComchUnusable)),
    ):
        connected(2.0)
    with pytest.raises(PeerGone, match="DOCA_ERROR_DRIVER"):
        ours.wait_message()
    with pytest.raises(ComchUnusable, match=r"the Comch poller has stopped: .*DOCA_ERROR_DRIVER"):
        listener.self_connect()
    for each in (theirs, ours, listener):
        each.close()


def test_a_listener_that_is_closed_serves_on_those_it_accepted(listener: ComchListener) -> None:
    theirs = connected()
    ours = accepted(listener)
    listener.close()
    with pytest.raises(PeerGone):
        connected(1.0)
    assert ours.send(b"still")
    assert theirs.wait_message() == b"still"
    ours.close()
    theirs.close()


def test_what_is_said_before_the_end_is_heard_to_the_end(listener: ComchListener) -> None:
    for _ in range(20):
        theirs = connected()
        ours = accepted(listener)
        for n in range(60):
            assert theirs.send(bytes([n]) * 4080)
        theirs.close()
        assert [ours.wait_message() for _ in range(60)] == [bytes([n]) * 4080 for n in range(60)]
        ours.close()


def test_what_the_peer_said_is_heard_though_a_send_to_it_fails(
    listener: ComchListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOCA may tell of a failed send before what the peer said: it has hung up, and we gave it credit."""
    monkeypatch.setattr(poller, "LINGER_NS", 60_000_000_000)  # the end must be told by DOCA
    theirs = connected()
    ours = accepted(listener)
    link = ours._sink
    assert isinstance(link, poller.Link)
    with environment(**{FAULTS: "doca_comch_server_task_send_alloc_init:1=CONNECTION_RESET"}):
        assert ours.send(b"lost")
        until(lambda: link.fault is not None)
    for n in range(3):
        assert theirs.send(bytes([n]))
    theirs.close()
    assert [ours.wait_message() for _ in range(3)] == [b"\0", b"\1", b"\2"]
    with pytest.raises(PeerGone, match=r"DOCA_ERROR_CONNECTION_RESET|host channel closed"):  # or its BYE came first
        ours.wait_message()
    ours.close()


def test_a_peer_whose_end_doca_never_tells_is_lost_a_bounded_time_after_a_failed_send(listener: ComchListener) -> None:
    theirs = connected()
    ours = accepted(listener)
    with environment(**{FAULTS: "doca_comch_server_task_send_alloc_init:1=CONNECTION_RESET"}):
        assert ours.send(b"lost")
        with pytest.raises(PeerGone, match="DOCA_ERROR_CONNECTION_RESET"):
            ours.wait_message()
    theirs.close()
    ours.close()
