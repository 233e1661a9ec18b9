"""Ends of Comch: a server here, on the DPU's side, and clients in processes of the host's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from offpath.bindings.doca.comch import ComchServer, Connected, Disconnected, Event, Received
from offpath.bindings.doca.device import Ability, Device, open_device, open_representor
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.load import Library
from offpath.bindings.errors import DocaError, PeerGone

from ...support.doca import HostProcess, environment
from ...support.processes import BOUND_S

FAULTS = "DOCA_EMULATOR_FAULTS"


class Served:
    """A server that sends back what it is sent."""

    def __init__(self, doca: Library) -> None:
        self.device: Device = open_device(doca, Ability.SERVE)
        self.engine = Engine(doca)
        self.server = ComchServer(self.device, open_representor(self.device), self.engine, "offpath", 4080)
        self.events: list[Event] = []
        self.echo = True
        self._waiting: list[Received] = []

    def until(self, host: HostProcess, more: int = 0) -> None:
        """Serve until the host has answered, and so many clients have left."""
        until = time.monotonic() + BOUND_S
        while not host.has_answered() or sum(isinstance(event, Disconnected) for event in self.events) < more:
            self.turn()
            assert time.monotonic() < until

    def turn(self) -> None:
        events = self.server.poll()
        self.events += events
        self._waiting += [event for event in events if isinstance(event, Received) and self.echo]
        while self._waiting and self.server.send(self._waiting[0].connection, self._waiting[0].message):
            self._waiting.pop(0)

    def close(self) -> None:
        self.device.close()
        self.engine.close()


@pytest.fixture
def served(doca: Library) -> Iterator[Served]:
    made = Served(doca)
    yield made
    made.close()


def test_messages_of_any_size_go_both_ways_whole_and_in_order(served: Served, host: HostProcess) -> None:
    sizes = [1, 4080, 100, 7, *[50] * 300]  # more than may be under way
    host.start_talking("offpath", sizes)
    served.until(host, more=1)
    said = host.answer()
    assert [bytes.fromhex(text) for text in said["got"]] == [
        (number % 256).to_bytes(1, "little") * size for number, size in enumerate(sizes)
    ]
    assert said["message_bytes"] == 4080
    assert isinstance(served.events[0], Connected)
    assert isinstance(served.events[-1], Disconnected)
    assert {event.connection for event in served.events} == {1}


def test_connections_are_numbered_and_no_number_comes_again(served: Served, host: HostProcess) -> None:
    for round_ in range(1, 4):
        host.start_talking("offpath", [10])
        served.until(host, more=round_)
        host.answer()
    assert [event for event in served.events if not isinstance(event, Received)] == [
        kind(number) for number in (1, 2, 3) for kind in (Connected, Disconnected)
    ]
    with pytest.raises(PeerGone):
        served.server.send(3, b"anybody?")


def test_a_client_that_is_shown_out_knows_it(served: Served, host: HostProcess) -> None:
    served.echo = False
    host.start_talking("offpath", [10])
    until = time.monotonic() + BOUND_S
    while not any(isinstance(event, Received) for event in served.events):
        served.turn()
        assert time.monotonic() < until
    assert served.server.disconnect(1)
    assert served.server.disconnect(1)
    served.until(host, more=1)
    assert "PeerGone: the Comch server is gone" in host.answer()["error"]
    assert served.server.disconnect(1), "also of one that is gone"


def test_a_client_without_a_server_is_told_so_and_does_not_wait_for_ever(doca: Library, host: HostProcess) -> None:
    host.start_talking("offpath", [10])
    assert "PeerGone: no Comch server of this name answers" in host.answer()["error"]


def test_a_client_killed_is_a_client_that_left(served: Served, host: HostProcess) -> None:
    served.echo = False
    host.start_talking("offpath", [10])
    until = time.monotonic() + BOUND_S
    while Disconnected(1) not in served.events:
        served.turn()
        if any(isinstance(event, Received) for event in served.events):
            host.kill()
        assert time.monotonic() < until


def test_an_engine_of_comch_has_no_notifications(served: Served) -> None:
    with pytest.raises(DocaError, match="doca_pe_get_notification_handle: DOCA_ERROR_NOT_SUPPORTED"):
        served.engine.fileno()


def test_a_name_that_is_taken_or_too_long_is_refused(served: Served) -> None:
    representor = open_representor(served.device)
    for name in ("", "x" * 5000):
        with pytest.raises(DocaError, match="a name of 1 to"):
            ComchServer(served.device, representor, served.engine, name, 4080)
    with pytest.raises(DocaError, match="doca_c"):
        ComchServer(served.device, representor, served.engine, "offpath", 4080)


@pytest.mark.parametrize(
    "name",
    [
        "doca_comch_server_create", "doca_comch_server_set_max_msg_size", "doca_comch_server_set_recv_queue_size",
        "doca_comch_server_task_send_set_conf", "doca_comch_server_event_msg_recv_register",
        "doca_comch_server_event_connection_status_changed_register", "doca_comch_cap_get_max_name_len",
        "doca_comch_cap_get_max_msg_size", "doca_comch_cap_get_max_send_tasks", "doca_pe_connect_ctx",
        "doca_comch_cap_get_max_recv_queue_size", "doca_ctx_start", "doca_ctx_set_state_changed_cb",
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_made_says_why_and_leaves_nothing(doca: Library, name: str) -> None:
    device, engine = open_device(doca, Ability.SERVE), Engine(doca)
    representor = open_representor(device)
    with (
        environment(**{FAULTS: f"{name}:1=AUTHENTICATION"}),
        pytest.raises(DocaError, match=f"{name}: DOCA_ERROR_AUTHENTICATION"),
    ):
        ComchServer(device, representor, engine, "offpath", 4080)
    ComchServer(device, representor, engine, "offpath", 4080)
    device.close()
    engine.close()
