"""`MigGpu` implements the GPU port over migd: it creates and destroys instances, workers open them."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import DeviceError, DeviceGone, InstanceInUse, MigModeUnusable, PlacementTaken
from offpath.bindings.mig import MIB, GpuModel, MigProfile
from offpath.bindings.ports import InstanceMemory
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient, new_handle
from offpath.host_helper.migd.errors import MigdRefused, MigdUnreachable

logger = logging.getLogger(__name__)
_EMULATED: Final = "(emulated)"
"""Ends the names of the GPU emulator's devices."""
UNHELD_MS: Final = 10_000
"""A living helper holds its leases again sooner than this after a restart of migd."""
_MOST_PROFILES: Final = 16
_NOT_SCHEDULED: Final = ("+gfx", "-me", ".all")
"""Parts of the names of profiles for graphics and for other divisions of the media engines."""


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """What a worker needs to open an instance: plain data, which survives a fork.

    ``visible``: the value of CUDA_VISIBLE_DEVICES, a MIG UUID or the UUID of a whole GPU. ``generation``: unique while
    the machine runs, unlike ``visible``. ``nbytes``: the instance's memory as NVML reports it.
    """

    gpu: str
    visible: str
    generation: int
    profile: str
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class InstanceOpener:
    """How an instance's memory is reached: the CUDA adapter."""

    open: Callable[[InstanceIdentity], InstanceMemory]
    """Open it in the calling process."""
    scrub: Callable[[InstanceIdentity], int]
    """Overwrite it all; returns the bytes verified as zero."""


@dataclass(frozen=True, slots=True)
class _Held:
    handle: str
    identity: InstanceIdentity


class MigGpu:
    """Implements `offpath.bindings.ports.Gpu`. ``model`` is built from what NVML reports of this GPU."""

    def __init__(self, client: MigdClient, uuid: str, opener: InstanceOpener, *, owns_client: bool = False) -> None:
        """Several GPUs share one client. ``owns_client``: `close` closes it, for all of them. Raises:
        MigModeUnusable, DeviceError, MigdRefused, MigdUnreachable."""
        self.uuid = uuid
        self.client = client
        """Shared by all GPUs of this migd."""
        self._owns_client = owns_client
        self._opener = opener
        self._instances: dict[int, _Held] = {}
        self._numbers = itertools.count(1)
        self._doubtful: set[str] = set()
        self._is_open = True
        found = client.describe(uuid)
        if found.gpu.problem:
            cause, fix = protocol.CODES.get(found.gpu.problem, ("it cannot be used", "see migd's log"))
            raise MigModeUnusable(f"{uuid}: {cause}; {fix.replace('GPU', str(found.gpu.index), 1)}")
        self.model = model_of(found)
        self.links = {line.uuid: line.links for line in found.links}
        self.is_emulated = found.gpu.name.endswith(_EMULATED)

    def profile_bytes(self, profile: str) -> int:
        """See `Gpu.profile_bytes`."""
        return self.model.profile(profile).memory_bytes

    def create_instance(self, profile: str, start: int) -> int:
        """See `Gpu.create_instance`. If the place is taken, leases of a helper that ended are reclaimed first.

        Raises: MigModeUnusable, MigdUnreachable, MigdRefused, too.
        """
        self._check()
        if start not in self.model.profile(profile).starts:
            raise PlacementTaken(f"{profile} may start at {self.model.profile(profile).starts}, not at {start}")
        self._give_up_doubtful()
        handle = new_handle()
        try:
            made = self._created(handle, profile, start)
        except PlacementTaken:
            if not self.reclaim():
                raise
            made = self._created(handle, profile, start)
        identity = InstanceIdentity(self.uuid, made.uuid, made.generation, profile, start, made.memory_mib * MIB)
        number = next(self._numbers)
        self._instances[number] = _Held(handle, identity)
        return number

    def _created(self, handle: str, profile: str, start: int) -> protocol.Created:
        try:
            return self.client.create(self.uuid, profile, start, handle)
        except MigdUnreachable:
            self._doubtful.add(handle)
            raise

    def _give_up_doubtful(self) -> None:
        """Destroy what a creation may have left whose reply was lost."""
        for handle in sorted(self._doubtful):
            self.client.destroy(handle)
            self._doubtful.discard(handle)

    def identity(self, instance: int) -> InstanceIdentity:
        """What a worker needs to open the instance. Raises: DeviceError: there is none, or its lease was lost. Then its
        UUID may name an instance of somebody else by now."""
        self._check()
        held = self._instances.get(instance)
        if held is None or held.handle not in self.client.held:
            raise DeviceError(f"{self.uuid} has no instance {instance}")
        return held.identity

    def visible_device(self, instance: int) -> str:
        """What CUDA_VISIBLE_DEVICES names the instance. Raises: DeviceError: there is none."""
        return self.identity(instance).visible

    def make_nodes(self, instance: int, uid: int) -> list[str]:
        """Make the instance's device nodes for the worker's uid. Raises: DeviceError, MigdRefused."""
        self.identity(instance)
        return self.client.nodes(self._instances[instance].handle, uid)

    def open_instance(self, instance: int) -> InstanceMemory:
        """See `Gpu.open_instance`."""
        return self._opener.open(self.identity(instance))

    def scrub_instance(self, instance: int) -> int:
        """See `Gpu.scrub_instance`."""
        return self._opener.scrub(self.identity(instance))

    def destroy_instance(self, instance: int) -> None:
        """See `Gpu.destroy_instance`. Raises: InstanceInUse: it is quarantined, and stays listed."""
        held = self._instances.get(instance)
        if held is not None:
            self.client.destroy(held.handle)
            del self._instances[instance]

    def instances(self) -> list[tuple[int, str, int]]:
        """See `Gpu.instances`: those that this object created and its client holds."""
        return [
            (number, held.identity.profile, held.identity.start)
            for number, held in self._instances.items()
            if held.handle in self.client.held
        ]

    def reclaim(self) -> int:
        """Destroy leases of this user on the GPU that nobody has held for `UNHELD_MS`: those of a helper that ended.
        Returns how many. One in use stays, quarantined. Raises: DeviceError, MigdUnreachable."""
        count = 0
        for line in self.client.describe(self.uuid).instances:
            is_ours = line.lease_uid == os.geteuid() and line.handle not in self.client.held
            if is_ours and line.handle and line.unheld_ms >= UNHELD_MS:
                try:
                    self.client.hold([line.handle])  # refused if its helper came back meanwhile
                    self.client.destroy(line.handle)
                    count += 1
                except (InstanceInUse, MigdRefused) as fault:
                    logger.warning("%s at %s of %s: not reclaimed: %s", line.profile, line.start, self.uuid, fault)
        return count

    def close(self) -> None:
        """Give out nothing more. Instances stay leased as long as the client holds them."""
        self._is_open = False
        if self._owns_client:
            self.client.close()

    def _check(self) -> None:
        if not self._is_open:
            raise DeviceGone(f"{self.uuid} was closed")


def model_of(found: protocol.Gpu) -> GpuModel:
    """The GPU's totals and geometry. Its name has dashes for blanks, as names in messages must."""
    profiles = tuple(
        MigProfile(
            line.name, line.compute_slices, line.memory_slices, line.memory_mib * MIB, tuple(line.starts),
            line.max_instances,
        )
        for line in found.profiles
        if not any(part in line.name for part in _NOT_SCHEDULED)
    )[:_MOST_PROFILES]  # fmt: skip
    if not profiles:
        raise DeviceError(f"{found.gpu.uuid} offers no profile: it has no MIG instance in mode `static`")
    return GpuModel(
        name=re.sub(r"[^A-Za-z0-9._:/+-]+", "-", found.gpu.name).strip("-")[:64] or "unknown",
        compute_slices=max(profile.compute_slices for profile in profiles),
        memory_slices=max(start + profile.memory_slices for profile in profiles for start in profile.starts),
        profiles=profiles,
    )
