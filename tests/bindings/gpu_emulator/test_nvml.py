"""libnvidia-ml of the GPU emulator, driven by NVIDIA's own Python package."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from offpath.bindings.mig import gpu_model, gpu_models

from ...support.gpu_emulator import environment, load, machine
from .conftest import Nvml
from .mig import cut, fill, instances, mig_devices, placements, profiles

PREFIX = "OFFPATH_GPU_EMULATOR_"


def gpu() -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(0)


# -- the machine ------------------------------------------------------------------------------------------------------


def test_nothing_answers_before_init_or_after_the_last_shutdown(nvml: Nvml) -> None:
    device = nvml()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    for call in (
        pynvml.nvmlDeviceGetCount, pynvml.nvmlSystemGetDriverVersion, pynvml.nvmlShutdown,
        lambda: pynvml.nvmlDeviceGetName(device), pynvml.nvmlEventSetCreate,
    ):  # fmt: skip
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            call()
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(device)  # of the former session


def test_the_machine_is_what_the_environment_sets(nvml: Nvml) -> None:
    nvml(models="H100-80GB,A30-24GB", gpus=3, driver=535)
    devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    assert [pynvml.nvmlDeviceGetName(d) for d in devices] == [
        "NVIDIA H100 80GB HBM3 (emulated)", "NVIDIA A30 (emulated)", "NVIDIA H100 80GB HBM3 (emulated)",
    ]  # fmt: skip
    assert pynvml.nvmlSystemGetDriverVersion() == "535.0-emulated"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12020
    uuids = [pynvml.nvmlDeviceGetUUID(d) for d in devices]
    assert len(set(uuids)) == 3
    for index, device in enumerate(devices):
        pci = pynvml.nvmlDeviceGetPciInfo(device)
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuids[index])
        for again in (
            pynvml.nvmlDeviceGetHandleByUUID(uuids[index]),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
        ):
            assert pynvml.nvmlDeviceGetIndex(again) == index
    assert [pynvml.nvmlDeviceGetMinorNumber(d) for d in devices] == [2, 1, 0], "minor numbers are not indices"
    assert pynvml.nvmlDeviceGetCudaComputeCapability(devices[0]) == (9, 0)
    for unknown in ("GPU-00000000-0000-0000-0000-000000000000", "", "MIG-"):
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID(unknown)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(3)


def test_links_are_read_by_nvidias_package(nvml: Nvml) -> None:
    device = nvml(gpus=2, mig="off", nvlinks="0-1:4")
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    active = [link for link in range(18) if pynvml.nvmlDeviceGetNvLinkState(device, link)]
    assert active == [0, 1, 2, 3]
    assert {pynvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link).bus for link in active} == {
        pynvml.nvmlDeviceGetPciInfo(other).bus
    }
    index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    assert pynvml.nvmlDeviceGetP2PStatus(device, other, index) == pynvml.NVML_P2P_STATUS_OK


def test_two_machines_differ_by_their_serial(nvml: Nvml) -> None:
    first = pynvml.nvmlDeviceGetUUID(nvml(serial=1))
    pynvml.nvmlShutdown()
    with machine(serial=2):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetUUID(gpu()) != first


@pytest.mark.parametrize("name", gpu_models())
def test_profiles_and_placements_are_the_tables(nvml: Nvml, name: str) -> None:
    device = nvml(models=name, slice_bytes="real")
    model = gpu_model(name)
    found = profiles(device)
    assert set(found) == {profile.name for profile in model.profiles}
    assert len({info.id for info in found.values()}) == len(found)
    for profile in model.profiles:
        info = found[profile.name]
        assert (info.sliceCount, info.instanceCount) == (profile.compute_slices, profile.max_instances)
        assert placements(device, info.id) == [(start, profile.memory_slices) for start in profile.starts]
        if name not in {"H200-141GB", "B200-180GB"}:  # the table has nominal sizes of these
            assert 0 <= profile.memory_bytes // (1 << 20) - info.memorySizeMB < 2


def test_an_id_is_not_a_number(nvml: Nvml) -> None:
    found = profiles(nvml(models="A100-40GB"))
    assert {name: info.id for name, info in found.items()} == {
        "1g.5gb": 19, "1g.5gb+me": 20, "1g.10gb": 15, "2g.10gb": 14, "3g.20gb": 9, "4g.20gb": 5, "7g.40gb": 0,
    }  # fmt: skip


def test_an_h100s_multiprocessors_are_no_multiples_of_its_slices(nvml: Nvml) -> None:
    found = profiles(nvml(models="H100-80GB"))
    assert {name: info.multiprocessorCount for name, info in found.items()} == {
        "1g.10gb": 16, "1g.10gb+me": 16, "1g.20gb": 26, "2g.20gb": 32, "3g.40gb": 60, "4g.40gb": 64, "7g.80gb": 132,
    }  # fmt: skip


def test_an_h200s_smallest_instance_is_smaller_than_its_name(nvml: Nvml) -> None:
    assert profiles(nvml(models="H200-141GB", slice_bytes="real"))["1g.18gb"].memorySizeMB == 16384


def test_memory_is_scaled_by_slice(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB", slice_bytes=4 << 20)
    assert {name: info.memorySizeMB for name, info in profiles(device).items()} == {
        "1g.5gb": 4, "1g.5gb+me": 4, "1g.10gb": 8, "2g.10gb": 8, "3g.20gb": 16, "4g.20gb": 16, "7g.40gb": 32,
    }  # fmt: skip
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 32 << 20
    assert pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2).free == 32 << 20


def test_both_versions_of_a_profile_are_laid_out_as_nvidias(nvml: Nvml) -> None:
    """Equally large, with other offsets: a wrong version word is refused, not misread."""
    device = nvml(models="A100-40GB", slice_bytes="real")
    call = load("libnvidia-ml.so.1").nvmlDeviceGetGpuInstanceProfileInfoV
    answer = (c_uint * 38)()
    answer[0] = 0x03000098
    assert call(device, 2, byref(answer)) == 0
    assert (answer[1], answer[2], answer[10]) == (9, 3, 19968)
    assert bytes(answer)[48:].startswith(b"MIG 3g.20gb\0")
    answer[0] = 0x02000098
    assert call(device, 2, byref(answer)) == 0
    assert (answer[1], answer[3], answer[12]) == (9, 3, 19968)
    assert bytes(answer)[56:].startswith(b"MIG 3g.20gb\0")
    for wrong in (0, 0x01000098, 0x02000030, 0x03000094):
        answer[0] = wrong
        assert call(device, 2, byref(answer)) == pynvml.NVML_ERROR_INVALID_ARGUMENT


# -- cutting ----------------------------------------------------------------------------------------------------------


def is_legal(model: Any, cuts: list[tuple[str, int]]) -> bool:
    """The rule of the table's own head, apart from the emulator's code; and one instance has the media engines."""
    if sum(name.endswith("+me") for name, _ in cuts) > 1:
        return False
    taken: set[int] = set()
    slices = 0
    for name, start in cuts:
        profile = model.profile(name)
        here = set(range(start, start + profile.memory_slices))
        if start not in profile.starts or taken & here:
            return False
        if sum(name == other for other, _ in cuts) > profile.max_instances:
            return False
        taken |= here
        slices += profile.compute_slices
    return slices <= model.compute_slices


@pytest.mark.parametrize("name", ["A100-40GB", "A30-24GB"])
def test_exactly_the_legal_placements_are_accepted_beside_each_instance(nvml: Nvml, name: str) -> None:
    device, model = nvml(models=name), gpu_model(name)
    every = [(p.name, start) for p in model.profiles for start in range(model.memory_slices + 1)]
    for first in (each for each in every if is_legal(model, [each])):
        held = cut(device, *first)
        for second in every:
            try:
                also = cut(device, *second)
            except pynvml.NVMLError_InsufficientResources:
                assert second[1] in model.profile(second[0]).starts, (first, second)
                assert not is_legal(model, [first, second]), (first, second)
            except pynvml.NVMLError_InvalidArgument:
                assert second[1] not in model.profile(second[0]).starts, (first, second)
            else:
                assert is_legal(model, [first, second]), (first, second)
                pynvml.nvmlGpuInstanceDestroy(also)
        pynvml.nvmlGpuInstanceDestroy(held)
    assert instances(device) == {}


def test_instance_ids_are_a_tree_over_the_memory(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB")
    cuts = [("3g.20gb", 4), ("1g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3)]
    ids = [pynvml.nvmlGpuInstanceGetInfo(cut(device, *each)).id for each in cuts]
    assert ids == [2, 3, 9, 10]
    assert instances(device) == dict(zip(ids, cuts, strict=True))


def test_without_a_placement_the_driver_chooses_and_order_matters(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB")
    found = profiles(device)
    small, large = found["1g.5gb"].id, found["3g.20gb"].id
    for _ in range(5):
        pynvml.nvmlDeviceCreateGpuInstance(device, small)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, large) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(device, large)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, small) == 2


def test_an_instance_is_used_through_its_compute_instances(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB", slice_bytes=2 << 20)
    instance = cut(device, "3g.20gb", 4)
    assert mig_devices(device) == {}, "an instance without a compute instance is no device"
    one, two = fill(device, instance, 1), fill(device, instance, 2)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        fill(device, instance, 1)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        fill(device, instance, 4)
    handles = mig_devices(device)
    assert [pynvml.nvmlDeviceGetName(handles[i]) for i in (0, 1)] == [
        "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb (emulated)", "NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb (emulated)",
    ]  # fmt: skip
    attributes = pynvml.nvmlDeviceGetAttributes(handles[1])
    assert (attributes.multiprocessorCount, attributes.computeInstanceSliceCount) == (28, 2)
    assert (attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (3, 8)
    assert pynvml.nvmlComputeInstanceGetInfo_v2(two).placement.start == 1
    assert pynvml.nvmlDeviceGetGpuInstanceId(handles[0]) == 2
    assert [pynvml.nvmlDeviceGetComputeInstanceId(handles[i]) for i in (0, 1)] == [0, 1]
    assert pynvml.nvmlDeviceIsMigDeviceHandle(handles[0]).value == 1
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[0]).total == 8 << 20
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handles[0])
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(device)
    pynvml.nvmlComputeInstanceDestroy(one)
    assert list(mig_devices(device)) == [1], "a hole, and no renumbering"
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(two)
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_the_same_place_has_the_same_id_and_uuid_again_and_old_handles_are_invalid(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB")
    seen = []
    handles = []
    for _ in range(2):
        instance = cut(device, "2g.10gb", 2)
        compute = fill(device, instance)
        (mig,) = mig_devices(device).values()
        seen.append((pynvml.nvmlGpuInstanceGetInfo(instance).id, pynvml.nvmlDeviceGetUUID(mig)))
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(seen[0][1])) == seen[0][1]
        handles.append((instance, compute, mig))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert seen[0] == seen[1]
    assert re.fullmatch(r"MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", seen[0][1])
    cut(device, "2g.10gb", 2)
    for instance, compute, mig in handles:
        for call in (
            lambda i=instance: pynvml.nvmlGpuInstanceGetInfo(i), lambda i=instance: pynvml.nvmlGpuInstanceDestroy(i),
            lambda c=compute: pynvml.nvmlComputeInstanceGetInfo_v2(c),
            lambda c=compute: pynvml.nvmlComputeInstanceDestroy(c), lambda m=mig: pynvml.nvmlDeviceGetUUID(m),
        ):  # fmt: skip
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                call()
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(seen[0][1])


def test_handles_of_another_kind_are_invalid(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB")
    instance = cut(device, "7g.40gb", 0)
    events = pynvml.nvmlEventSetCreate()
    for call in (
        lambda: pynvml.nvmlDeviceGetName(instance), lambda: pynvml.nvmlGpuInstanceGetInfo(device),
        lambda: pynvml.nvmlComputeInstanceGetInfo_v2(instance), lambda: pynvml.nvmlDeviceGetName(None),
        lambda: pynvml.nvmlDeviceGetName(events), lambda: pynvml.nvmlEventSetFree(device),
    ):  # fmt: skip
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()


# -- mode and permission ----------------------------------------------------------------------------------------------


def test_with_mig_off_nothing_is_cut(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB", mig="off")
    assert pynvml.nvmlDeviceGetMigMode(device) == [0, 0]
    assert profiles(device) == {}, "the versioned call is not supported with MIG off"
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 0, version=1)
    assert placements(device, info.id) == [(start, 1) for start in range(7)], "placements are returned in either mode"
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceCreateGpuInstance(device, info.id)
    assert mig_devices(device) == {}


@pytest.mark.parametrize(("setting", "modes"), [("pending-on", [0, 1]), ("pending-off", [1, 0])])
def test_a_pending_mode_is_not_the_current_one(nvml: Nvml, setting: str, modes: list[int]) -> None:
    device = nvml(mig=setting)
    assert pynvml.nvmlDeviceGetMigMode(device) == modes
    assert bool(profiles(device)) == bool(modes[0])


def test_the_mode_of_a_gpu_in_use_stays_pending(nvml: Nvml) -> None:
    device = nvml(mig="off")
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == 0
    assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
    held = cut(device, "1g.5gb", 0)
    assert pynvml.nvmlDeviceSetMigMode(device, 0) == pynvml.NVML_ERROR_IN_USE, "the call itself succeeds"
    assert pynvml.nvmlDeviceGetMigMode(device) == [1, 0]
    pynvml.nvmlGpuInstanceDestroy(held)
    assert pynvml.nvmlDeviceSetMigMode(device, 0) == 0
    assert pynvml.nvmlDeviceGetMigMode(device) == [0, 0]


def test_who_may_not_cut_may_look(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB", config_uids="4711", uid=4711)
    instance = cut(device, "1g.5gb", 0)
    compute = fill(device, instance)
    with environment(**{PREFIX + "UID": "4712"}):
        (mig,) = mig_devices(device).values()
        assert pynvml.nvmlDeviceGetUUID(mig).startswith("MIG-")
        assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
        assert pynvml.nvmlDeviceGetMemoryInfo(device).total > 0
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
        for call in (
            lambda: cut(device, "1g.5gb", 1), lambda: placements(device, 19), lambda: instances(device),
            lambda: pynvml.nvmlComputeInstanceDestroy(compute), lambda: pynvml.nvmlGpuInstanceDestroy(instance),
            lambda: fill(device, instance, 1), lambda: pynvml.nvmlDeviceSetMigMode(device, 0),
            lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device),
        ):  # fmt: skip
            with pytest.raises(pynvml.NVMLError_NoPermission):
                call()


# -- several processes ------------------------------------------------------------------------------------------------

OTHER = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[2])
from tests.support.gpu_emulator import load
load("libnvidia-ml.so.1")
import pynvml
from tests.bindings.gpu_emulator import mig
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
exec(sys.argv[1])
"""


def in_another_process(code: str) -> Any:
    """Runs code with ``mig`` and ``device``; returns what it leaves in ``result``."""
    from ...support.gpu_emulator import ROOT

    done = subprocess.run(
        [sys.executable, "-c", OTHER, code + "\nprint(json.dumps(result))", ROOT], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_processes_share_one_machine(nvml: Nvml) -> None:
    device = nvml(models="A100-40GB")
    cut(device, "4g.20gb", 0)
    found = in_another_process(
        "mig.cut(device, '3g.20gb', 4)\nresult = [mig.instances(device), pynvml.nvmlDeviceGetUUID(device)]"
    )
    assert found == [{"1": ["4g.20gb", 0], "2": ["3g.20gb", 4]}, pynvml.nvmlDeviceGetUUID(device)]
    assert instances(device) == {1: ("4g.20gb", 0), 2: ("3g.20gb", 4)}, "a creator's death destroys nothing"


@pytest.mark.parametrize("stale", [0, 1])
def test_an_old_session_may_see_mig_devices_that_others_destroyed(nvml: Nvml, stale: int) -> None:
    device = nvml(models="A100-40GB")
    fill(device, cut(device, "7g.40gb", 0))
    (mig,) = mig_devices(device).values()
    with environment(**{PREFIX + "STALE": str(stale)}):
        in_another_process(
            "import ctypes\n"
            "instance, compute = pynvml.c_nvmlGpuInstance_t(), pynvml.c_nvmlComputeInstance_t()\n"
            "library = load('libnvidia-ml.so.1')\n"
            "assert library.nvmlDeviceGetGpuInstanceById(device, 0, ctypes.byref(instance)) == 0\n"
            "assert library.nvmlGpuInstanceGetComputeInstanceById(instance, 0, ctypes.byref(compute)) == 0\n"
            "pynvml.nvmlComputeInstanceDestroy(compute)\npynvml.nvmlGpuInstanceDestroy(instance)\nresult = None"
        )
        if stale:
            assert pynvml.nvmlDeviceGetUUID(mig).startswith("MIG-")
            assert list(mig_devices(device)) == [0]
        else:
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                pynvml.nvmlDeviceGetUUID(mig)
            assert mig_devices(device) == {}
        assert instances(device) == {}, "the driver lists no instance"


def test_a_machine_is_made_once(nvml: Nvml) -> None:
    """A process with other settings for the same folder would emulate something else: it is ended."""
    nvml(models="A100-40GB")
    code = "from tests.support.gpu_emulator import load; load('libnvidia-ml.so.1').nvmlInit_v2()"
    for changed, ends in (({}, 0), ({PREFIX + "MODELS": "H100-80GB"}, -signal.SIGABRT)):
        with environment(**changed):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == ends, done.stderr
        assert ("other settings" in done.stderr) == bool(ends)


# -- events and faults ------------------------------------------------------------------------------------------------


def test_an_xid_reaches_every_set_that_registered_the_gpu(nvml: Nvml) -> None:
    device = nvml(gpus=2)
    assert pynvml.nvmlDeviceGetSupportedEventTypes(device) == pynvml.nvmlEventTypeXidCriticalError
    sets = [pynvml.nvmlEventSetCreate() for _ in range(2)]
    for each in sets:
        pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, each)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(each, 0)
    xid = load("libnvidia-ml.so.1").gpu_emulator_xid
    xid(1, 0xFFFFFFFF, 0xFFFFFFFF, 31)  # not registered
    xid(0, 9, 0, 94)
    for each in sets:
        event = pynvml.nvmlEventSetWait_v2(each, 1000)
        assert (event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId) == (8, 94, 9, 0)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(each, 0)
        pynvml.nvmlEventSetFree(each)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlEventSetWait_v2(each, 0)


def test_events_of_a_mig_device_are_not_supported(nvml: Nvml) -> None:
    device = nvml()
    fill(device, cut(device, "7g.40gb", 0))
    (mig,) = mig_devices(device).values()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(mig, 8, pynvml.nvmlEventSetCreate())


def test_a_call_fails_at_its_turn(nvml: Nvml) -> None:
    device = nvml()
    with environment(**{PREFIX + "FAULTS": "nvmlDeviceGetUUID:2=17,nvmlDeviceGetCount:1=18"}):
        pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_OperatingSystem):
            pynvml.nvmlDeviceGetUUID(device)
        pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
            pynvml.nvmlDeviceGetCount()


def test_destruction_is_refused_as_often_as_the_fault_sets(nvml: Nvml) -> None:
    device = nvml()
    instance = cut(device, "7g.40gb", 0)
    with environment(**{PREFIX + "FAULTS": "in_use=2"}):
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_InUse):
                pynvml.nvmlGpuInstanceDestroy(instance)
        pynvml.nvmlGpuInstanceDestroy(instance)


def test_a_lost_gpu_is_lost_for_all_processes_and_posts_an_xid(nvml: Nvml) -> None:
    device = nvml()
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, 8, events)
    with environment(**{PREFIX + "FAULTS": "lost=2"}):
        pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetUUID(device)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        cut(device, "7g.40gb", 0)


def test_an_xid_comes_with_the_call_of_the_fault(nvml: Nvml) -> None:
    device = nvml()
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, 8, events)
    with environment(**{PREFIX + "FAULTS": "xid=63@nvmlDeviceGetUUID:2"}):
        pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 0)
        pynvml.nvmlDeviceGetUUID(device)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 63


WRONG = [
    ("FAULTS", "nothing"), ("FAULTS", "lost=0"), ("FAULTS", "nvmlNoSuchCall:1=2"), ("FAULTS", "nvmlInit:1=1000"),
    ("FAULTS", "nvmlInit:0=2"), ("FAULTS", "xid=31"), ("FAULTS", "slow=nvmlInit"), ("FAULTS", "sticky=700"),
    ("FAULTS", "x" * 2000), ("MODELS", "V100"), ("GPUS", "17"), ("DRIVER", "450"), ("MIG", "maybe"),
    ("ORDERING", "50"), ("SLICE_BYTES", "1000000"), ("SLICE_BYTES", "3145728"), ("CONFIG_UIDS", "root"),
    ("SCRUB", "yes"), ("NVLINKS", "0-1:1"), ("NVLINKS", "0-1:1," * 200), ("DIR", "/" + "x" * 5000),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_setting_ends_the_process_with_a_line(name: str, value: str) -> None:
    library = load("libnvidia-ml.so.1")._name
    with machine(), environment(**{PREFIX + name: value}):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 2)
            os.execv(
                sys.executable, [sys.executable, "-IS", "-c", f"import ctypes; ctypes.CDLL({library!r}).nvmlInit_v2()"]
            )
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGABRT
    assert text.startswith(f"gpu-emulator: {PREFIX}{name}: ")
    assert len(text.splitlines()) == 1


def test_a_folder_that_others_can_write_to_is_refused(nvml: Nvml, capfd: pytest.CaptureFixture[str]) -> None:
    load("libnvidia-ml.so.1")
    with machine() as folder:
        os.chmod(folder, 0o777)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()
        assert "must not be writable by others" in capfd.readouterr().err


def test_texts_of_codes_are_nvidias(nvml: Nvml) -> None:
    nvml()
    texts = {code: pynvml.nvmlErrorString(code) for code in itertools.chain(range(28), [28, 999])}
    assert texts[0] == "Success"
    assert texts[19] == "In use by another client"
    assert texts[23] == "Insufficient Resources"
    assert texts[28] == texts[999] == "Unknown Error"
