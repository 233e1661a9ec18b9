"""`offpath doctor` on RDMA, from a sysfs of the test's own: what is missing is named once, with what to do about it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from offpath.bindings.verbs import library
from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.doctor import rdma
from offpath.dpu_daemon.doctor.findings import CODES, Severity
from offpath.dpu_daemon.doctor.rdma import check_rdma

from ..support.sysfs import FAR_GPU, NEAR_GPU, ROOT_A, ROOT_B, Sysfs, gid_table, two_cards_and_their_gpus

OK, NOTE, WARNING = Severity.OK, Severity.NOTE, Severity.WARNING


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture(autouse=True)
def without_pyverbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices of a folder cannot be opened: all that needs pyverbs is tested where there are some."""
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    yield
    library.library.cache_clear()


def judged(sysfs: Sysfs) -> dict[str, list[tuple[Severity, str]]]:
    """(severity, what) by code; every finding must be fit to be shown."""
    found: dict[str, list[tuple[Severity, str]]] = {}
    for finding in check_rdma(None, sysfs.root):
        assert finding.code in CODES
        assert (finding.fix == "") == (finding.severity is OK), finding
        found.setdefault(finding.code, []).append((finding.severity, finding.what))
    return found


def test_a_machine_without_rdma_hears_of_it_once_and_as_a_note(sysfs: Sysfs) -> None:
    assert judged(sysfs) == {"rdma": [(NOTE, "this kernel shows no RDMA device: requests can use loopback only")]}


def test_ports_and_the_gids_to_connect_by_are_listed(sysfs: Sysfs) -> None:
    two_cards_and_their_gpus(sysfs)
    found = judged(sysfs)
    assert found["rdma"] == [(OK, "mlx5_0/1, mlx5_1/1")]
    assert found["rdma-port"] == [(OK, "mlx5_0/1 is ACTIVE"), (OK, "mlx5_1/1 is ACTIVE")]
    assert found["rdma-gid"] == [
        (OK, "mlx5_0/1: index 5 is 10.99.0.1 on eth0"), (OK, "mlx5_1/1: index 5 is 10.99.1.1 on eth1")
    ]  # fmt: skip


def test_a_port_that_is_down_or_has_no_address_is_a_warning_that_names_its_interface(sysfs: Sysfs) -> None:
    table = gid_table("0a63:0001")
    sysfs.card("mlx5_0", f"{ROOT_A}/0000:00:01.0", "eth0", {0: table[0], 2: table[2]}, state="1: DOWN")
    found = judged(sysfs)
    assert found["rdma-port"] == [(WARNING, "mlx5_0/1 is DOWN: it carries no traffic")]
    ((severity, what),) = found["rdma-gid"]
    assert severity is WARNING
    assert f"2: {IPv6Address('::ffff:10.99.0.1')} IB/RoCE v1" in what
    fixes = {finding.code: finding.fix for finding in check_rdma(None, sysfs.root)}
    assert fixes["rdma-port"].startswith("ip link set eth0 up")
    assert fixes["rdma-gid"] == "ip addr add ADDRESS dev eth0"


def test_devices_without_pyverbs_are_a_warning(sysfs: Sysfs) -> None:
    two_cards_and_their_gpus(sysfs)
    ((severity, what),) = judged(sysfs)["rdma-library"]
    assert severity is WARNING
    assert what.startswith("pyverbs cannot be imported")


def test_each_gpu_is_told_its_nearest_port(sysfs: Sysfs) -> None:
    """One below the same switch, one that shares the root, one whose root has no port at all."""
    two_cards_and_their_gpus(sysfs)
    sysfs.gpu("devices/pci0000:c0/0000:c1:00.0")
    near, far, alone = judged(sysfs)["rdma-gpu"]
    assert near == (OK, f"GPU {NEAR_GPU}: mlx5_0/1 is below the same bridge")
    assert far == (NOTE, f"GPU {FAR_GPU}: mlx5_1/1, the nearest port, shares only the PCI root with it")
    assert alone == (WARNING, "GPU 0000:c1:00.0: no RDMA port shares a PCI root with it")


def test_a_gpu_beside_software_devices_only_is_a_note(sysfs: Sysfs) -> None:
    sysfs.card("rxe0", "", "eth0", gid_table("0a63:0001"))
    sysfs.gpu(f"{ROOT_B}/{FAR_GPU}")
    assert judged(sysfs)["rdma-gpu"] == [(NOTE, f"GPU {FAR_GPU}: no RDMA port of this machine is on PCI")]


@pytest.mark.parametrize(
    ("limit", "may_pin", "severity"),
    [(65536, False, WARNING), (65536, True, OK), (1 << 30, False, OK), (resource.RLIM_INFINITY, False, OK)],
)
def test_a_small_memlock_is_a_warning_unless_this_process_may_pin_all_the_same(
    sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch, limit: int, may_pin: bool, severity: Severity
) -> None:
    sysfs.card("rxe0", "", "eth0", gid_table("0a63:0001"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    monkeypatch.setattr(rdma, "_may_pin", lambda: may_pin)
    assert [each for each, _ in judged(sysfs)["memlock"]] == [severity]


def test_with_a_configuration_its_own_sum_is_compared_instead(sysfs: Sysfs) -> None:
    sysfs.card("rxe0", "", "eth0", gid_table("0a63:0001"))
    config = parse_config({"tenant": [{"name": "alpha"}]}, "test")
    assert "memlock" not in {finding.code for finding in check_rdma(config, sysfs.root)}
