"""Whose address is near: from a table of the test's own, and this machine's addresses."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from offpath.bindings.verbs.neighbours import answers

OURS = IPv4Address("127.0.0.1")
NOBODY = IPv4Address("203.0.113.9")  # RFC 5737: for documentation
HEADER = "IP address       HW type     Flags       HW address            Mask     Device\n"


def table(folder: Path, address: str = "", flags: str = "0x2", *, routes: Sequence[tuple[str, str, int]] = ()) -> Path:
    """``routes``: network, gateway, bits of the mask. Returns the folder that stands for /proc/self/net."""
    line = f"{address:<16} 0x1         {flags}         02:00:00:00:00:01     *        rdma0\n" if address else ""
    (folder / "arp").write_text(HEADER + line)
    rows = ["Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"]
    for network, gateway, bits in routes:
        mask, flags = str(IPv4Address((1 << 32) - (1 << 32 - bits))), "0001" if gateway == "0.0.0.0" else "0003"
        rows.append(f"rdma0 {hexadecimal(network)} {hexadecimal(gateway)} {flags} 0 0 0 {hexadecimal(mask)} 0 0 0")
    (folder / "route").write_text("\n".join(rows) + "\n")
    return folder


def hexadecimal(address: str) -> str:
    return f"{socket.htonl(int(IPv4Address(address))):08X}"


@pytest.mark.parametrize(("network", "gateway", "is_known"), [
    ("203.0.113.0", "0.0.0.0", False),  # on our link: its gateway's is not its own
    ("203.0.113.0", "192.0.2.2", False),  # behind a gateway that is not known
    ("203.0.113.0", "192.0.2.1", True),
    ("198.51.100.0", "0.0.0.0", True),  # by the default route
])  # fmt: skip
def test_a_gateway_stands_for_what_lies_behind_it_and_for_nothing_else(
    tmp_path: Path, network: str, gateway: str, is_known: bool
) -> None:
    routes = [("0.0.0.0", "192.0.2.1", 0), (network, gateway, 24), ("203.0.0.0", "192.0.2.1", 8)]
    assert answers(NOBODY, OURS, 0, table(tmp_path, "192.0.2.1", routes=routes)) is is_known


def test_an_address_of_this_machine_answers(tmp_path: Path) -> None:
    assert answers(OURS, OURS, 0, table(tmp_path))


@pytest.mark.parametrize(("flags", "is_known"), [("0x2", True), ("0x6", True), ("0x0", False)])
def test_a_neighbour_whose_hardware_address_is_known_answers(tmp_path: Path, flags: str, is_known: bool) -> None:
    assert answers(NOBODY, OURS, 0, table(tmp_path, str(NOBODY), flags)) is is_known
    assert not answers(NOBODY, OURS, 0, table(tmp_path, "203.0.113.99", flags))


@pytest.mark.parametrize("address", [str(NOBODY), "224.0.0.1", "0.0.0.0", "255.255.255.255"])
def test_who_does_not_answer_is_waited_for_no_longer_than_said(tmp_path: Path, address: str) -> None:
    started = time.monotonic()
    assert not answers(IPv4Address(address), OURS, 0.05, table(tmp_path))
    assert 0.05 <= time.monotonic() - started < 5
