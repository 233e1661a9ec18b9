"""Which port and GID are chosen, from a sysfs of the test's own: two cards, a GPU beside one of them."""

from __future__ import annotations

import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from offpath.bindings.errors import GidMissing, NoRdmaDevice, PortDown, VerbsMissing
from offpath.bindings.verbs import library
from offpath.bindings.verbs.devices import choose, gpus, pci_path, ports, shared_bridges

from ...support.sysfs import FAR_GPU, NEAR_GPU, ROOT_A, Sysfs, gid_table, two_cards_and_their_gpus


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture
def two_cards(sysfs: Sysfs) -> Sysfs:
    two_cards_and_their_gpus(sysfs)
    return sysfs


def test_the_gid_is_that_of_rocev2_with_the_interfaces_ipv4_address(sysfs: Sysfs) -> None:
    sysfs.card("mlx5_0", f"{ROOT_A}/0000:00:01.0", "eth0", gid_table("0a63:0001"))
    choice = choose(sysfs=sysfs.root)
    assert (str(choice.port), choice.gid.index) == ("mlx5_0/1", 5)
    assert (choice.gid.ipv4, choice.gid.netdev) == (IPv4Address("10.99.0.1"), "eth0")


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ({"device": "mlx5_1"}, "mlx5_1"),
        ({"netdev": "eth0"}, "mlx5_0"),
        ({"near": NEAR_GPU}, "mlx5_0"),
        ({"near": FAR_GPU}, "mlx5_1"),
        ({"device": "mlx5_1", "near": NEAR_GPU}, "mlx5_1"),
    ],
)
def test_a_port_is_found_by_device_by_interface_and_by_the_gpu_it_is_near_to(
    two_cards: Sysfs, asked: dict[str, str], device: str
) -> None:
    assert choose(**asked, sysfs=two_cards.root).port.device == device


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "several ports fit (mlx5_0/1 ACTIVE, mlx5_1/1 ACTIVE)"),
        ({"device": "mlx5_7"}, "no port for device mlx5_7; there are mlx5_0/1 ACTIVE, mlx5_1/1 ACTIVE"),
        ({"device": "mlx5_0", "netdev": "eth1"}, "no port for device mlx5_0, interface eth1"),
        ({"near": "0000:ff:00.0"}, "no PCI device 0000:ff:00.0"),
    ],
)
def test_what_fits_nothing_or_several_is_refused_with_what_there_is(
    two_cards: Sysfs, asked: dict[str, str], said: str
) -> None:
    with pytest.raises(NoRdmaDevice) as refused:
        choose(**asked, sysfs=two_cards.root)
    assert said in str(refused.value)


def test_only_the_named_devices_gid_table_is_read(two_cards: Sysfs) -> None:
    """The other one's has a thousand entries, each of which the kernel would query."""
    first, second = ports(two_cards.root, gids_of="mlx5_1")
    assert (first.gids, first.state) == ((), "ACTIVE")
    assert second == ports(two_cards.root)[1]
    assert second.gids
    assert choose(device="mlx5_1", sysfs=two_cards.root).port == second


def test_a_machine_without_rdma_has_no_ports_to_choose_from(sysfs: Sysfs) -> None:
    assert ports(sysfs.root) == []
    with pytest.raises(NoRdmaDevice, match="lists no RDMA device"):
        choose(sysfs=sysfs.root)


def test_a_port_that_is_down_is_passed_over_and_if_it_is_the_only_one_said_to_be_down(two_cards: Sysfs) -> None:
    two_cards.write(f"{ROOT_A}/0000:00:01.0/0000:01:00.0/0000:02:00.0/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert choose(sysfs=two_cards.root).port.device == "mlx5_1"
    with pytest.raises(PortDown, match="mlx5_0/1 DOWN"):
        choose(device="mlx5_0", sysfs=two_cards.root)


def test_an_interface_without_an_ipv4_address_leaves_a_port_that_cannot_be_connected_to(sysfs: Sysfs) -> None:
    first_two = {index: entry for index, entry in gid_table("0a63:0001").items() if index < 2}
    sysfs.card("rxe0", "", "eth0", first_two)
    with pytest.raises(GidMissing, match="rxe0/1 ACTIVE"):
        choose(netdev="eth0", sysfs=sysfs.root)


def test_an_interface_of_a_port_without_gids_is_known_by_its_driver(sysfs: Sysfs) -> None:
    sysfs.card("rxe0", "", "eth0", {}, state="1: DOWN")
    sysfs.card("mlx5_0", f"{ROOT_A}/0000:00:01.0", "eth1", {}, state="1: DOWN")
    for netdev in ("eth0", "eth1"):
        with pytest.raises(PortDown):
            choose(netdev=netdev, sysfs=sysfs.root)


def test_nearness_is_the_length_of_the_way_that_two_devices_share(two_cards: Sysfs) -> None:
    assert gpus(two_cards.root) == [NEAR_GPU, FAR_GPU]
    first, second = ports(two_cards.root)
    assert shared_bridges(first.pci, pci_path(NEAR_GPU, two_cards.root)) == 3
    assert shared_bridges(second.pci, pci_path(NEAR_GPU, two_cards.root)) == 0
    assert shared_bridges(second.pci, pci_path(FAR_GPU, two_cards.root)) == 1


def test_a_software_device_is_near_to_nothing(sysfs: Sysfs) -> None:
    sysfs.card("rxe0", "", "eth0", gid_table("0a63:0001"))
    (port,) = ports(sysfs.root)
    assert port.pci == ()


def test_a_python_without_pyverbs_is_told_so_when_a_device_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(VerbsMissing, match="pyverbs cannot be imported"):
        library.library.__wrapped__()
