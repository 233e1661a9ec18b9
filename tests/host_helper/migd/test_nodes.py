"""Capability nodes: the numbers that the driver lists, mode 0400, one owner; a failure leaves none behind."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.nvml import cut
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.nodes import CapabilityNodes, NodeUnusable

from .rig import HELPER, OTHER, Rig

DEVICES = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-caps\n\nBlock devices:\n  8 sd\n"


def minors(gpus: int = 2, instances: int = 15, computes: int = 2) -> str:
    """As the driver writes them."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(gpus):
        for gi in range(instances):
            first = 3 + 135 * gpu + 9 * gi
            lines.append(f"gpu{gpu}/gi{gi}/access {first}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {first + 1 + ci}" for ci in range(computes)]
    return "\n".join(lines) + "\n"


@pytest.fixture
def nodes(tmp_path: Path) -> CapabilityNodes:
    (tmp_path / "devices").write_text(DEVICES)
    (tmp_path / "mig-minors").write_text(minors())
    return CapabilityNodes(str(tmp_path / "caps"), str(tmp_path / "mig-minors"), str(tmp_path / "devices"))


def may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o400, os.makedev(511, 1))
    except OSError:
        return False
    os.unlink(folder / "probe")
    return True


@pytest.fixture
def root(tmp_path: Path) -> None:
    if not may_make_nodes(tmp_path):
        pytest.skip("this user may not make device nodes")


@pytest.mark.usefixtures("root")
def test_both_nodes_are_made_for_one_uid_and_made_again_for_another(nodes: CapabilityNodes) -> None:
    for uid in (HELPER, HELPER, OTHER):
        paths = nodes.make(1, 2, 0, uid)
        assert [os.path.basename(path) for path in paths] == ["nvidia-cap156", "nvidia-cap157"]
        for path, minor in zip(paths, (156, 157), strict=True):
            found = os.lstat(path)
            assert stat.S_ISCHR(found.st_mode)
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o400, uid)
            assert found.st_rdev == os.makedev(511, minor)
    assert sorted(os.listdir(nodes.folder)) == ["nvidia-cap156", "nvidia-cap157"]
    nodes.remove(1, 2, 0)
    nodes.remove(1, 2, 0)
    assert os.listdir(nodes.folder) == []


@pytest.mark.usefixtures("root")
def test_a_link_where_a_node_belongs_is_replaced_not_followed(nodes: CapabilityNodes, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    before = (tmp_path / "victim").stat()
    os.mkdir(nodes.folder)
    for name in ("nvidia-cap3", "nvidia-cap3.new"):
        os.symlink(tmp_path / "victim", f"{nodes.folder}/{name}")
    nodes.make(0, 0, 0, HELPER)
    after = (tmp_path / "victim").stat()
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)
    assert stat.S_ISCHR(os.lstat(f"{nodes.folder}/nvidia-cap3").st_mode)


@pytest.mark.parametrize(
    ("devices", "listed", "told"),
    [
        ("Character devices:\n195 nvidia\n", minors(), "no nvidia-caps"),
        (DEVICES, "config 1\n", "gpu0/gi1/access"),
        (DEVICES, "gpu0/gi1/access x\n", "gpu0/gi1/access"),
        (DEVICES, "gpu0/gi1/access 12\n", "gpu0/gi1/ci0/access"),
        (DEVICES, None, "mig-minors"),
    ],
)
def test_a_capability_that_the_driver_does_not_list_is_an_error_and_makes_nothing(
    nodes: CapabilityNodes, devices: str, listed: str | None, told: str
) -> None:
    Path(nodes.devices).write_text(devices)
    os.unlink(nodes.minors)
    if listed is not None:
        Path(nodes.minors).write_text(listed)
    with pytest.raises(NodeUnusable, match=told):
        nodes.make(0, 1, 0, HELPER)
    assert not os.path.exists(nodes.folder)
    nodes.remove(0, 1, 0)


@pytest.mark.usefixtures("root")
def test_the_service_makes_nodes_for_listed_users_and_removes_them_with_the_instance(rig: Rig, nvml: Nvml) -> None:
    Path(rig.nodes.devices).write_text(DEVICES)
    Path(rig.nodes.minors).write_text(minors())
    rig.start(node_uids=[OTHER])
    made = rig.create("1g.5gb", 0)
    for uid in (HELPER, OTHER):
        paths: Any = rig.ask(protocol.Nodes(handle=made.handle, uid=uid)).paths
        assert [os.lstat(path).st_uid for path in paths] == [uid, uid]
    assert rig.ask(protocol.Nodes(handle=made.handle, uid=12345)).code == "denied"
    rig.ask(protocol.Destroy(handle=made.handle))
    assert os.listdir(rig.nodes.folder) == []


@pytest.mark.usefixtures("root")
def test_nodes_of_an_instance_that_somebody_else_destroyed_are_removed(rig: Rig, nvml: Nvml) -> None:
    """Else the next owner of that place would share it with the last one's worker."""
    Path(rig.nodes.devices).write_text(DEVICES)
    Path(rig.nodes.minors).write_text(minors())
    made = rig.create("1g.5gb", 0)
    assert len(rig.ask(protocol.Nodes(handle=made.handle, uid=HELPER)).paths) == 2
    cut.destroy_compute_instances(nvml, rig.gpu(), made.gpu_instance)
    cut.destroy_gpu_instance(nvml, rig.gpu(), made.gpu_instance)
    rig.ask(protocol.Describe(gpu=rig.gpu()))
    assert os.listdir(rig.nodes.folder) == []
    rig.service.holders.leave(1)
    assert not rig.service.has_unheld()
    assert rig.service.holders.unheld_ms(made.handle) == -1


def test_a_node_that_cannot_be_removed_keeps_its_instance(rig: Rig, nvml: Nvml) -> None:
    """A folder in its place stands for a file system that refuses."""
    Path(rig.nodes.devices).write_text(DEVICES)
    Path(rig.nodes.minors).write_text(minors())
    made = rig.create("1g.5gb", 0)
    node = Path(rig.nodes.folder) / f"nvidia-cap{3 + 9 * made.gpu_instance}"
    node.mkdir(parents=True)
    assert rig.ask(protocol.Destroy(handle=made.handle)).code == "node"
    assert len(nvml.instances(rig.gpu())) == 1
    node.rmdir()
    assert isinstance(rig.ask(protocol.Destroy(handle=made.handle)), protocol.Done)


def test_without_the_drivers_lists_the_service_says_which_is_missing(rig: Rig) -> None:
    made = rig.create("1g.5gb", 0)
    reply = rig.ask(protocol.Nodes(handle=made.handle, uid=HELPER))
    assert (reply.code, rig.nodes.devices in reply.detail) == ("node", True)
    assert rig.ask(protocol.Nodes(handle=secrets.token_hex(16), uid=HELPER)).code == "unknown_handle"
