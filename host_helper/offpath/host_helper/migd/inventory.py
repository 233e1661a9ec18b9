"""What migd reports of a GPU: its state against its configured mode, the profiles that can be leased, its instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from offpath.bindings.errors import NvmlError
from offpath.bindings.mig import WHOLE
from offpath.bindings.nvml import cut
from offpath.bindings.nvml.links import linked
from offpath.bindings.nvml.records import GpuInfo, GpuInstance, MigMode, MigProfileInfo
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd.errors import MigdRefused
from offpath.host_helper.migd.holders import Caller
from offpath.host_helper.migd.ledger import Entry
from offpath.host_helper.migd.protocol import (
    CODES,
    MAX_GPUS,
    MAX_INSTANCES,
    MAX_PIDS,
    MAX_PROFILES,
    GpuLine,
    InstanceLine,
    LinkLine,
    Mode,
    ProfileLine,
)

WHOLE_PROFILE: Final = 0xFFFF
"""Number and id of the one profile of a whole GPU: NVML has no such profile."""


def problem(gpu: GpuInfo, mode: Mode) -> str:
    """The code of what keeps the GPU from being used in this mode, or ""."""
    if gpu.mode is MigMode.PENDING:
        return "mode_pending"
    if mode == "whole":
        return "mig_on" if gpu.mode is MigMode.ON else ""
    return {MigMode.OFF: "mig_off", MigMode.UNSUPPORTED: "mig_unsupported"}.get(gpu.mode, "")


def require_usable(gpu: GpuInfo, mode: Mode) -> None:
    """Raises: MigdRefused: `problem` has a code."""
    if code := problem(gpu, mode):
        cause, fix = CODES[code]
        raise MigdRefused(code, f"{gpu.uuid}: {cause}; {fix.replace('GPU', str(gpu.index), 1)}")


def gpu_line(gpu: GpuInfo, mode: Mode) -> GpuLine:
    """The GPU as a message."""
    return GpuLine(
        index=gpu.index, uuid=gpu.uuid, name=gpu.name, pci=gpu.pci, pci_device_id=gpu.pci_device_id, minor=gpu.minor,
        mode=mode, mig=gpu.mode.value, memory_mib=gpu.memory_mib, problem=problem(gpu, mode),
    )  # fmt: skip


def profile_line(profile: MigProfileInfo, starts: Iterable[int] | None = None) -> ProfileLine:
    """A profile as a message; ``starts`` restricts its places to instances that exist."""
    places = list(profile.starts if starts is None else sorted(starts))
    return ProfileLine(
        name=profile.name, number=profile.number, profile_id=profile.profile_id,
        compute_slices=profile.compute_slices, memory_slices=profile.memory_slices,
        multiprocessors=profile.multiprocessors, memory_mib=profile.memory_mib, starts=places,
        max_instances=profile.max_instances if starts is None else len(places),
    )  # fmt: skip


def whole_profile(gpu: GpuInfo) -> ProfileLine:
    """The pseudo-profile of a GPU without MIG: one slice, which is all of it."""
    return ProfileLine(
        name=WHOLE, number=WHOLE_PROFILE, profile_id=WHOLE_PROFILE, compute_slices=1, memory_slices=1,
        multiprocessors=0, memory_mib=gpu.memory_mib, starts=[0], max_instances=1,
    )  # fmt: skip


def profile_lines(nvml: Nvml, gpu: GpuInfo, mode: Mode, instances: Sequence[GpuInstance]) -> list[ProfileLine]:
    """The profiles that can be leased in this mode."""
    if mode == "whole":
        return [whole_profile(gpu)]
    known = nvml.profiles(gpu.uuid)[:MAX_PROFILES]
    if mode == "mig":
        return [profile_line(profile) for profile in known]
    starts: dict[str, list[int]] = {}
    for each in instances:
        if each.compute_instances:
            starts.setdefault(each.profile, []).append(each.start)
    return [profile_line(profile, starts[profile.name]) for profile in known if profile.name in starts]


def link_lines(nvml: Nvml, gpu: GpuInfo, mode: Mode) -> list[LinkLine]:
    """The GPUs that NVLink reaches, the most links first. None but in mode ``whole``."""
    found = linked(nvml, gpu.uuid) if mode == "whole" else {}
    lines = [LinkLine(uuid=uuid, links=links) for uuid, links in found.items()]
    return sorted(lines, key=lambda line: (-line.links, line.uuid))[: MAX_GPUS - 1]


def instance_lines(
    nvml: Nvml, gpu: GpuInfo, instances: Sequence[GpuInstance], entries: Sequence[Entry], caller: Caller,
    unheld_ms: dict[str, int],
) -> list[InstanceLine]:  # fmt: skip
    """The instances that exist, then the lease of a whole GPU. ``unheld_ms``: by handle."""
    by_instance: dict[int, dict[str, Entry]] = {}
    for entry in entries:
        by_instance.setdefault(entry.gpu_instance, {})[entry.kind] = entry
    found = []
    for each in instances[:MAX_INSTANCES]:
        kinds = by_instance.get(each.gpu_instance, {})
        owner = kinds.get("lease") or kinds.get("layout")
        line = InstanceLine(
            gpu_instance=each.gpu_instance, compute_instances=list(each.compute_instances)[:16],
            profile=each.profile, start=each.start, size=each.size,
            uuid=_uuid(nvml, gpu.uuid, each), owner=owner.kind if owner else "foreign",
            pids=list(cut.holders(nvml, gpu.uuid, each.gpu_instance)[:MAX_PIDS]),
        )  # fmt: skip
        found.append(_with_lease(line, owner, caller, unheld_ms))
    for entry in entries:
        if entry.is_borrowed and entry.gpu_instance < 0:
            line = InstanceLine(
                gpu_instance=-1, compute_instances=[], profile=WHOLE, start=0, size=1, uuid=gpu.uuid, owner="lease",
                pids=list(cut.holders(nvml, gpu.uuid)[:MAX_PIDS]),
            )  # fmt: skip
            found.append(_with_lease(line, entry, caller, unheld_ms))
    return found


def _with_lease(line: InstanceLine, entry: Entry | None, caller: Caller, unheld_ms: dict[str, int]) -> InstanceLine:
    if entry is None:
        return line
    update: dict[str, object] = {"quarantined": entry.state == "quarantined"}
    if entry.kind == "lease":
        update |= {"lease_uid": entry.uid, "unheld_ms": unheld_ms.get(entry.handle, -1)}
    if caller.is_operator or caller.uid == entry.uid:
        update["handle"] = entry.handle
    return line.model_copy(update=update)


def _uuid(nvml: Nvml, gpu: str, instance: GpuInstance) -> str:
    """Empty for an instance without a compute instance, or one that is destroyed at this moment."""
    if not instance.compute_instances:
        return ""
    try:
        return cut.mig_uuid(nvml, gpu, instance.gpu_instance, instance.compute_instances[0])
    except NvmlError:
        return ""
