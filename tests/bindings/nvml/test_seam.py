"""The seam to NVML: what cannot be loaded is named, codes become the errors that say what to do, events arrive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import (
    DeviceError,
    DeviceGone,
    DriverMismatch,
    DriverMissing,
    InstanceInUse,
    NvmlDenied,
    NvmlError,
    NvmlMissing,
    PlacementTaken,
)
from offpath.bindings.gpu_folder import PATH_VARIABLE
from offpath.bindings.nvml import cut
from offpath.bindings.nvml._check import failure
from offpath.bindings.nvml.events import XidEvents
from offpath.bindings.nvml.load import load
from offpath.bindings.nvml.records import MigMode
from offpath.bindings.nvml.session import Nvml

from ...support.gpu_machine import Machine

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _the_emulator_keeps_a_folder_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the last machine, as long as the process lives: opened before descriptors are counted."""
    machine = Machine(tmp_path_factory.mktemp("first") / "machine")
    Nvml().close()
    machine.close()


@pytest.fixture
def machine(tmp_path: Path, _the_emulator_keeps_a_folder_open: None) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    yield made
    made.close()


@pytest.fixture
def nvml(machine: Machine) -> Iterator[Nvml]:
    session = Nvml()
    yield session
    session.close()


def gpu_of(nvml: Nvml) -> str:
    return nvml.gpus()[0].uuid


@pytest.mark.parametrize(
    ("code", "kind"),
    [(4, NvmlDenied), (17, NvmlDenied), (9, DriverMissing), (18, DriverMismatch), (15, DeviceGone), (16, DeviceGone),
     (19, InstanceInUse), (12, NvmlMissing), (3, NvmlError), (999, NvmlError)],
)  # fmt: skip
def test_a_code_becomes_the_error_that_says_who_must_act(code: int, kind: type[DeviceError]) -> None:
    fault = failure("nvmlCall", code, "Its Text")
    assert type(fault) is kind
    assert all(part in str(fault) for part in ("nvmlCall", "Its Text", f"NVML code {code}"))


def test_a_folder_without_the_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(NvmlMissing, match=f"{tmp_path}.*not there.*{PATH_VARIABLE}"):
        load(str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    with pytest.raises(NvmlMissing, match="libnvidia-ml"):
        load(str(tmp_path / "."))


def test_importing_the_seam_loads_neither_nvidias_package_nor_its_library() -> None:
    program = (
        "import sys, offpath.bindings.nvml.cut, offpath.host_helper.migd.gpu\n"
        "assert 'pynvml' not in sys.modules\n"
        "assert 'nvidia-ml' not in open('/proc/self/maps').read()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_function_that_nvidias_package_lacks_is_named(nvml: Nvml) -> None:
    with pytest.raises(NvmlError, match="nvmlOfTomorrow: not in the installed nvidia-ml-py"):
        nvml.call("nvmlOfTomorrow")


@pytest.mark.parametrize(
    ("mig", "mode"), [("on", MigMode.ON), ("off", MigMode.OFF), ("pending-on", MigMode.PENDING),
                      ("pending-off", MigMode.PENDING)],
)  # fmt: skip
def test_the_mig_mode_is_the_current_and_the_pending_one(machine: Machine, mig: str, mode: MigMode) -> None:
    machine.set(mig=mig)
    session = Nvml()
    assert session.gpus()[0].mode is mode
    session.close()


def test_an_instance_without_an_id_is_destroyed_at_once(nvml: Nvml, machine: Machine) -> None:
    gpu = gpu_of(nvml)
    profile = nvml.profiles(gpu)[0]
    machine.set(faults="nvmlGpuInstanceGetInfo:1=999")
    with pytest.raises(NvmlError):
        cut.create_gpu_instance(nvml, gpu, profile, 0)
    machine.set(faults="")
    assert nvml.instances(gpu) == []


def test_an_instance_is_cut_listed_and_destroyed_in_its_order(nvml: Nvml) -> None:
    gpu = gpu_of(nvml)
    profile = next(each for each in nvml.profiles(gpu) if each.name == "3g.20gb")
    number = cut.create_gpu_instance(nvml, gpu, profile, 4)
    with pytest.raises(PlacementTaken):
        cut.create_gpu_instance(nvml, gpu, profile, 4)
    with pytest.raises(PlacementTaken):
        cut.create_gpu_instance(nvml, gpu, profile, 1)
    with pytest.raises(NvmlError):
        cut.mig_uuid(nvml, gpu, number, 0)
    compute = cut.create_compute_instance(nvml, gpu, number)
    (found,) = nvml.instances(gpu)
    assert (found.gpu_instance, found.profile, found.start, found.size) == (number, "3g.20gb", 4, 4)
    assert found.compute_instances == (compute,)
    assert cut.mig_uuid(nvml, gpu, number, compute).startswith("MIG-")
    assert cut.holders(nvml, gpu, number) == ()
    with pytest.raises(InstanceInUse):
        cut.destroy_gpu_instance(nvml, gpu, number)
    cut.destroy_compute_instances(nvml, gpu, number)
    cut.destroy_compute_instances(nvml, gpu, number)
    cut.destroy_gpu_instance(nvml, gpu, number)
    assert nvml.instances(gpu) == []


@pytest.mark.parametrize(("times", "is_listed"), [(1, True), (2, True), (3, False)])
def test_an_instance_that_vanishes_while_it_is_listed_is_no_error(
    nvml: Nvml, machine: Machine, times: int, is_listed: bool
) -> None:
    """The list is made anew: to leave out what did not answer could leave out what is there."""
    gpu = gpu_of(nvml)
    cut.create_gpu_instance(nvml, gpu, nvml.profiles(gpu)[0], 0)
    machine.set(faults=",".join(f"nvmlGpuInstanceGetInfo:{n}=2" for n in range(1, times + 1)))
    if is_listed:
        assert len(nvml.instances(gpu)) == 1
    else:
        with pytest.raises(NvmlError):
            nvml.instances(gpu)


def test_an_unprivileged_process_may_look_and_not_cut(nvml: Nvml, machine: Machine) -> None:
    gpu = gpu_of(nvml)
    profile = nvml.profiles(gpu)[0]
    machine.set(uid="1000")
    assert len(nvml.gpus()) == 1
    with pytest.raises(NvmlDenied, match="mig/config"):
        cut.create_gpu_instance(nvml, gpu, profile, 0)


def test_a_gpu_that_is_not_there_is_gone(nvml: Nvml) -> None:
    with pytest.raises(DeviceGone, match="GPU-none"):
        nvml.device("GPU-none")


def test_events_carry_gpu_number_and_instance_and_time_runs_out_without_one(nvml: Nvml, machine: Machine) -> None:
    gpu = gpu_of(nvml)
    events = XidEvents(nvml, [gpu])
    assert events.watched == (gpu,)
    assert events.wait(0) is None
    machine.set(faults="xid=94@nvmlDeviceGetCount")
    nvml.call("nvmlDeviceGetCount")
    found = events.wait(10_000)
    assert found is not None
    assert (found.gpu, found.xid, found.gpu_instance, found.compute_instance) == (gpu, 94, None, None)
    events.close()
    events.close()


def test_a_session_may_be_closed_twice(machine: Machine) -> None:
    session = Nvml()
    session.close()
    session.close()
    assert os.environ[PATH_VARIABLE]
