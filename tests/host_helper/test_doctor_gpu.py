"""What the host's doctor says of NVIDIA's driver, its nodes, MIG, and ways to GPU memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.findings import Severity
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.doctor_gpu import check_driver, check_mig

from ..support.gpu_machine import Machine
from .migd.rig import Rig, Served, cut_foreign

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)  Thu Jan  2 2025\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12\n"


@pytest.fixture
def root() -> Iterator[Path]:
    """A machine with the open driver and one GPU, whose folders every user may read."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        made.chmod(0o755)
        for folder in ("proc/driver/nvidia", "dev", "sys/module"):
            (made / folder).mkdir(parents=True)
        version(made, OPEN)
        for node in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-modeset"):
            (made / "dev" / node).touch()
            (made / "dev" / node).chmod(0o666)
        yield made


def version(root: Path, text: str) -> None:
    (root / "proc/driver/nvidia/version").write_text(text)


def found(root: Path) -> dict[str, tuple[Severity, str]]:
    return {each.code: (each.severity, each.what) for each in check_driver(str(root))}


def test_a_machine_without_the_driver_has_nothing_to_report(tmp_path: Path) -> None:
    assert found(tmp_path) == {}


def test_both_flavours_of_the_driver_are_told_apart(root: Path) -> None:
    assert found(root)["gpu-driver"] == (Severity.OK, "570.86.15, open kernel module")
    assert found(root)["gpu-memory"] == (Severity.OK, "a copy engine can reach it by DMA-BUF")
    version(root, CLOSED)
    assert found(root)["gpu-driver"] == (Severity.OK, "535.129.03, proprietary kernel module")
    assert found(root)["gpu-memory"][0] is Severity.NOTE
    (root / "sys/module/nvidia_peermem").mkdir()
    assert found(root)["gpu-memory"] == (Severity.OK, "a copy engine can reach it by nvidia-peermem")
    for text in ("", "\x00" * 70_000, "NVRM version: new"):
        version(root, text)
        assert found(root)["gpu-driver"] == (Severity.OK, "unknown version, proprietary kernel module")


def test_nodes_that_are_missing_or_closed_to_this_user_are_named(root: Path) -> None:
    assert found(root)["gpu-nodes"][0] is Severity.OK
    (root / "dev/nvidia0").chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        assert found(root)["gpu-nodes"] == (Severity.ERROR, f"this user may not use nvidia0 below {root}/dev")
    finally:
        os.seteuid(before)
    (root / "dev/nvidia-uvm").unlink()
    severity, what = found(root)["gpu-nodes"]
    assert severity is Severity.WARNING
    assert "nvidia-uvm" in what
    (root / "dev/nvidia0").unlink()
    (root / "dev/nvidia-uvm").touch()
    assert "a node for each GPU" in found(root)["gpu-nodes"][1]


# -- MIG --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    machine = Machine(tmp_path / "machine")
    rig = Rig(machine, tmp_path / "run")
    made = Served(rig)
    yield made
    made.close()
    rig.close()
    machine.close()


@pytest.mark.gpu
def test_each_gpu_of_migd_is_listed_with_its_instances(served: Served) -> None:
    gpu = served.rig.gpu()

    def only() -> tuple[Severity, str]:
        (finding,) = check_mig(served.path)
        assert finding.code == "mig"
        return finding.severity, finding.what

    assert only() == (Severity.OK, f"{gpu} (NVIDIA A100-SXM4-40GB (emulated), mode mig, MIG on): no instance")
    made = served.client().create(gpu, "1g.5gb", 0)
    assert only()[1].endswith(": 1 lease")
    session = Nvml()
    cut_foreign(session, gpu, "1g.5gb", 1)
    assert (only()[0], only()[1][-18:]) == (Severity.NOTE, "1 lease, 1 foreign")
    session.close()
    served.rig.machine.set(faults="in_use=1000")
    with pytest.raises(Exception, match="in use"):
        served.client().destroy(made.handle)
    severity, what = only()
    assert (severity, what.split("; ")[-1]) == (Severity.WARNING, "quarantined: 1g.5gb at 0")
    served.rig.machine.set(faults="")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("gpus", "what"), [("2", "no instance; NVLink to 1 GPU"), ("4", "no instance; NVLink to 3 GPUs")]
)
def test_a_whole_gpu_says_how_many_others_nvlink_reaches(tmp_path: Path, gpus: str, what: str) -> None:
    machine = Machine(tmp_path / "machine", mig="off", gpus=gpus, nvlinks="switch:4")
    rig = Rig(machine, tmp_path / "run")
    rig.start(gpus={"all": "whole"})
    served = Served(rig)
    try:
        assert {each.what.split(": ")[-1] for each in check_mig(served.path)} == {what}
    finally:
        served.close()
        rig.close()
        machine.close()


@pytest.mark.gpu
def test_a_gpu_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", mig="off")
    rig = Rig(machine, tmp_path / "run")
    served = Served(rig)
    try:
        (finding,) = check_mig(served.path)
        assert (finding.severity, "MIG off" in finding.what) == (Severity.WARNING, True)
        assert "nvidia-smi" in finding.fix
    finally:
        served.close()
        rig.close()
        machine.close()


def test_without_migd_or_without_an_answer_the_finding_says_so(tmp_path: Path) -> None:
    (finding,) = check_mig(str(tmp_path / "none.sock"))
    assert (finding.severity, "no migd listens" in finding.what) == (Severity.NOTE, True)
    (tmp_path / "file").touch()
    (finding,) = check_mig(str(tmp_path / "file"))
    assert finding.severity is Severity.ERROR
