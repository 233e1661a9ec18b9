"""The devices of ./scripts/rxe-vm as we see them: chosen by name and interface, asked for their limits, taken down."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ipaddress import IPv4Address

import pytest

from offpath.bindings.errors import GidMissing, NoRdmaDevice, PortDown, VerbsError
from offpath.bindings.verbs import library
from offpath.bindings.verbs.devices import choose, limits, ports
from offpath.dpu_daemon.doctor.findings import Severity
from offpath.dpu_daemon.doctor.rdma import check_rdma

pytestmark = pytest.mark.rdma
BOUND_S = 120.0  # emulated, on a machine that may be busy


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=BOUND_S)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def link_down() -> Iterator[None]:
    """The interface of rxe1 down, and by that the cable of both."""
    ip("link", "set", "rdma1", "down")
    until(lambda: not any(port.is_active for port in ports()))
    yield
    ip("link", "set", "rdma1", "up")
    ip("route", "replace", "10.99.0.1", "dev", "rdma1", "src", "10.99.1.1", "table", "100")
    until(lambda: all(port.is_active for port in ports()))


@contextmanager
def address_gone() -> Iterator[None]:
    """rxe1 without its IPv4 address."""
    ip("addr", "del", "10.99.1.1/24", "dev", "rdma1")
    until(lambda: not ports()[1].usable_gids)
    yield
    ip("addr", "add", "10.99.1.1/24", "dev", "rdma1")
    ip("route", "replace", "10.99.0.1", "dev", "rdma1", "src", "10.99.1.1", "table", "100")
    until(lambda: bool(ports()[1].usable_gids))


@pytest.mark.parametrize("number", [0, 1])
def test_each_device_is_active_and_has_the_gid_of_its_ipv4_address(number: int) -> None:
    choice = choose(device=f"rxe{number}")
    assert choice == choose(netdev=f"rdma{number}")
    assert choice.port.is_active
    assert choice.port.pci == ()
    assert (choice.gid.ipv4, choice.gid.netdev) == (IPv4Address(f"10.99.{number}.1"), f"rdma{number}")


def test_a_process_in_another_namespace_makes_the_same_choice() -> None:
    code = "from offpath.bindings.verbs.devices import choose; print(choose(device='rxe1'))"
    said = subprocess.run(
        ["ip", "netns", "exec", "peer", sys.executable, "-c", code],
        check=True, capture_output=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    assert said.stdout == f"{choose(device='rxe1')}\n"


def test_two_devices_that_fit_alike_are_refused() -> None:
    with pytest.raises(NoRdmaDevice, match="several ports fit"):
        choose()


def test_the_devices_limits_are_its_own() -> None:
    allowed = limits(ports()[0])
    assert allowed.page_sizes & mmap.PAGESIZE
    assert (allowed.message_bytes, allowed.mtu_bytes) == (8 << 20, 4096)
    assert allowed.queue_pairs >= 256
    found = library.version()
    assert found is not None
    assert found[0] >= library.OLDEST


def test_a_call_that_fails_is_an_error_of_ours_with_the_librarys_words() -> None:
    context = library.library().device.Context
    with pytest.raises(VerbsError, match="open nope: Failed to find device nope"):
        library.attempt("open nope", lambda: context(name="nope"))


@pytest.mark.parametrize(
    ("spoilt", "refused", "code"), [(link_down, PortDown, "rdma-port"), (address_gone, GidMissing, "rdma-gid")]
)
def test_a_link_that_goes_down_and_an_address_that_is_taken_away_are_seen_at_once_and_by_the_doctor(
    spoilt: Callable[[], AbstractContextManager[None]], refused: type[VerbsError], code: str
) -> None:
    with spoilt():
        with pytest.raises(refused):
            choose(device="rxe1")
        (finding,) = [each for each in check_rdma(None) if each.code == code and "rxe1" in each.what]
        assert finding.severity is Severity.WARNING
        assert "rdma1" in finding.fix
    assert choose(device="rxe1").port.is_active


def test_the_doctor_finds_nothing_wrong_with_two_devices_that_work() -> None:
    findings = list(check_rdma(None))
    assert {each.severity for each in findings} == {Severity.OK}
    assert [each.what for each in findings if each.code == "rdma"] == ["rxe0/1, rxe1/1"]
    assert {each.code for each in findings} == {
        "rdma", "rdma-port", "rdma-gid", "rdma-limits", "rdma-library", "memlock"
    }  # fmt: skip
