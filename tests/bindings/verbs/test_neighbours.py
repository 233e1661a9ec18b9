"""Whose address is near: from a table of the test's own, and this machine's addresses."""

from __future__ import annotations

import time
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from offpath.bindings.verbs.neighbours import answers

OURS = IPv4Address("127.0.0.1")
NOBODY = IPv4Address("203.0.113.9")  # RFC 5737: for documentation
HEADER = "IP address       HW type     Flags       HW address            Mask     Device\n"


def table(folder: Path, address: str = "", flags: str = "0x2") -> Path:
    path = folder / "arp"
    line = f"{address:<16} 0x1         {flags}         02:00:00:00:00:01     *        rdma0\n" if address else ""
    path.write_text(HEADER + line)
    return path


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
