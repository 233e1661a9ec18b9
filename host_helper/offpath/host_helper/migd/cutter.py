"""Creates and destroys instances so that a kill at any moment loses none and takes no foreign one.

Each step on the GPU is recorded in the ledger before and after it (`offpath.host_helper.migd.ledger` has the states).
`settle` brings an interrupted operation to its end, by what the ledger says and what the GPU holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from offpath.bindings import faults
from offpath.bindings.errors import InstanceInUse, NvmlError, OffpathError, PlacementTaken
from offpath.bindings.nvml import cut
from offpath.bindings.nvml.records import GpuInstance, MigProfileInfo
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd.ledger import Entry, Ledger

logger = logging.getLogger(__name__)
_FIRST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 1.0


class Cutter:
    """The caller runs one operation at a time on a GPU. ``wait_s``: how long destroying an instance in use is repeated
    before it is quarantined."""

    def __init__(self, ledger: Ledger, sleep: Callable[[float], None], wait_s: float) -> None:
        self._ledger = ledger
        self._sleep = sleep
        self._wait_s = wait_s

    def create(self, nvml: Nvml, wanted: Entry, profile: MigProfileInfo) -> Entry:
        """Cut the instance ``wanted``, an entry in state ``intended``. On failure nothing of it is left.

        Raises: PlacementTaken; DeviceError; PlaceUnusable: the ledger cannot be written.
        """
        for other in nvml.instances(wanted.gpu):
            # Checked before the intent is recorded: an instance that is found at this place later is then migd's own.
            if wanted.start < other.start + other.size and other.start < wanted.start + wanted.size:
                raise PlacementTaken(f"{wanted.profile} at {wanted.start}: {other.profile} at {other.start} is there")
        self._ledger.put(wanted)
        if faults.armed:
            faults.hit("migd.intended")
        try:
            return self._cut(nvml, wanted, profile)
        except OffpathError:
            self._undo(nvml, wanted.handle)
            raise

    def _cut(self, nvml: Nvml, wanted: Entry, profile: MigProfileInfo) -> Entry:
        number = cut.create_gpu_instance(nvml, wanted.gpu, profile, wanted.start)
        if faults.armed:
            faults.hit("migd.cut")
        made = wanted.model_copy(update={"state": "cut", "gpu_instance": number})
        self._ledger.put(made)
        compute = cut.create_compute_instance(nvml, wanted.gpu, number)
        if faults.armed:
            faults.hit("migd.computed")
        there = _at(nvml, made)
        if there is None or compute not in there.compute_instances:
            raise NvmlError(
                "nvmlDeviceGetGpuInstances", f"{wanted.profile} at {wanted.start} was created, is not listed"
            )
        uuid = cut.mig_uuid(nvml, wanted.gpu, number, compute)
        ready = made.model_copy(update={"state": "ready", "compute_instance": compute, "uuid": uuid})
        self._ledger.put(ready)
        if faults.armed:
            faults.hit("migd.ready")
        return ready

    def _undo(self, nvml: Nvml, handle: str) -> None:
        """Take back what a failed creation left. If that fails too, the entry stays and `settle` tries again."""
        entry = self._ledger.get(handle)
        if entry is None:
            return
        try:
            self.settle(nvml, entry)
        except OffpathError as fault:
            logger.warning("%s of %s: a failed creation is not yet undone: %s", entry.profile, entry.gpu, fault)

    def destroy(self, nvml: Nvml, entry: Entry) -> None:
        """Destroy an instance of migd's and forget it. One in use is quarantined: its slices stay taken until a later
        call succeeds. Raises: InstanceInUse, DeviceError, PlaceUnusable."""
        there = _at(nvml, entry)
        if there is None:
            self._ledger.remove(entry.handle)
            return
        self._destroy(nvml, entry, self._wait_s)

    def _destroy(self, nvml: Nvml, entry: Entry, wait_s: float) -> None:
        current = entry.model_copy(update={"state": "stripped" if entry.state == "stripped" else "destroying"})
        try:
            self._ledger.put(current)
            if faults.armed:
                faults.hit("migd.destroying")
            self._repeat(wait_s, lambda: cut.destroy_compute_instances(nvml, entry.gpu, entry.gpu_instance))
            if faults.armed:
                faults.hit("migd.stripped")
            current = current.model_copy(update={"state": "stripped", "compute_instance": -1})
            self._ledger.put(current)
            self._repeat(wait_s, lambda: cut.destroy_gpu_instance(nvml, entry.gpu, entry.gpu_instance))
        except InstanceInUse:
            self._ledger.put(current.model_copy(update={"state": "quarantined"}))
            raise
        if faults.armed:
            faults.hit("migd.destroyed")
        if _at(nvml, entry) is not None:
            raise NvmlError(
                "nvmlGpuInstanceDestroy", f"{entry.profile} at {entry.start} was destroyed, is still listed"
            )
        self._ledger.remove(entry.handle)
        if faults.armed:
            faults.hit("migd.freed")

    def _repeat(self, wait_s: float, step: Callable[[], None]) -> None:
        """Repeat a step while the instance is in use: a process that ended a moment ago may still hold it."""
        waited, pause = 0.0, _FIRST_WAIT_S
        while True:
            try:
                return step()
            except InstanceInUse:
                if waited >= wait_s:
                    raise
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_WAIT_S)

    def settle(self, nvml: Nvml, entry: Entry) -> None:
        """Bring an entry in accordance with the GPU: undo a creation and finish a destruction that were interrupted,
        forget an instance that is no longer there. Raises: DeviceError, PlaceUnusable."""
        there = _at(nvml, entry)
        if there is None or not _is_own(entry, there):
            if entry.state == "ready":
                logger.warning("%s at %s of %s: somebody destroyed it", entry.profile, entry.start, entry.gpu)
            self._ledger.remove(entry.handle)
            return
        if entry.state in ("ready", "quarantined"):
            return
        try:
            self._destroy(nvml, entry.model_copy(update={"gpu_instance": there.gpu_instance}), 0.0)
        except InstanceInUse as fault:
            logger.warning("%s at %s of %s: quarantined: %s", entry.profile, entry.start, entry.gpu, fault)

    def settle_all(self, nvml: Nvml, gpu: str) -> None:
        """`settle` for every instance of the GPU that migd cut. Raises: DeviceError, PlaceUnusable."""
        for entry in self._ledger.entries(gpu):
            if not entry.is_borrowed:
                self.settle(nvml, entry)

    def drop_lost_borrowings(self, instances: list[GpuInstance], gpu: str) -> None:
        """Forget leases of instances that somebody else cut and has destroyed since. Raises: PlaceUnusable."""
        there = {(each.gpu_instance, each.profile, each.start) for each in instances}
        for entry in self._ledger.entries(gpu):
            place = (entry.gpu_instance, entry.profile, entry.start)
            if entry.is_borrowed and entry.gpu_instance >= 0 and place not in there:
                logger.warning("%s at %s of %s: a leased instance was destroyed", entry.profile, entry.start, gpu)
                self._ledger.remove(entry.handle)


def _at(nvml: Nvml, entry: Entry) -> GpuInstance | None:
    """The instance at the entry's place, with its profile and, once known, its id."""
    for there in nvml.instances(entry.gpu):
        is_same = (there.profile, there.start) == (entry.profile, entry.start)
        if is_same and entry.gpu_instance in (-1, there.gpu_instance):
            return there
    return None


def _is_own(entry: Entry, there: GpuInstance) -> bool:
    """Whether the instance that is there can be the one of the entry. A complete instance, where migd's own had no
    compute instance, was cut by somebody else."""
    if entry.state in ("intended", "stripped") or (entry.state == "quarantined" and entry.compute_instance < 0):
        return not there.compute_instances
    if entry.state == "ready":
        return entry.compute_instance in there.compute_instances
    return True
