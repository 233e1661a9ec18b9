"""A gang's GPUs as one: the lease's instance is all of each of them, and every lane's worker uses them all."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence

from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.errors import DeviceError, OffpathError
from offpath.bindings.ports import Gpu, InstanceMemory
from offpath.bindings.wire import control
from offpath.host_helper.mps import CudaGpu

logger = logging.getLogger(__name__)
Part = tuple[Gpu, int]
"""A GPU, and the instance on it."""


class Gang:
    """Implements `offpath.bindings.ports.Gpu` for several of a helper's GPUs. Lanes are on the first one.

    It is not a `CudaGpu`: MPS shares one GPU among lanes, and of a gang's lanes one runs at a time.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        self.uuid = gpus[0].uuid
        self.model = gpus[0].model
        self.is_emulated = gpus[0].is_emulated
        self.links = gpus[0].links
        self.left: list[Part] = []
        """Instances of creations that failed, which belong to no lease and could not be destroyed."""
        self._parts: dict[int, list[Part]] = {}
        self._numbers = itertools.count(1)

    def profile_bytes(self, profile: str) -> int:
        """See `Gpu.profile_bytes`: of the first GPU, which has the lanes."""
        return self.gpus[0].profile_bytes(profile)

    def create_instance(self, profile: str, start: int) -> int:
        """See `Gpu.create_instance`: on each GPU, or on none. What then cannot be destroyed is in `left`."""
        parts: list[Part] = []
        try:
            for gpu in self.gpus:
                parts.append((gpu, gpu.create_instance(profile, start)))
        except OffpathError:
            _destroy(parts)
            self.left += parts
            raise
        self._parts[number := next(self._numbers)] = parts
        return number

    def parts(self, instance: int) -> list[Part]:
        """The instance on each GPU. Raises: DeviceError: there is none."""
        try:
            return self._parts[instance]
        except KeyError:
            raise DeviceError(f"the gang of {self.uuid} has no instance {instance}") from None

    def open_instance(self, instance: int) -> InstanceMemory:
        """See `Gpu.open_instance`. CUDA then shows this process all GPUs of the gang, in their order."""
        visible = [gpu.visible_device(one) for gpu, one in self.parts(instance) if isinstance(gpu, CudaGpu)]
        if visible:
            return CudaInstance(visible[0], others=visible[1:])
        first, one = self.parts(instance)[0]
        return first.open_instance(one)

    def scrub_instance(self, instance: int) -> int:
        """See `Gpu.scrub_instance`, for GPUs that one process may scrub one after the other; see `scrubbing.scrub`."""
        return sum(gpu.scrub_instance(one) for gpu, one in self.parts(instance))

    def destroy_instance(self, instance: int) -> None:
        """See `Gpu.destroy_instance`. What cannot be destroyed stays listed."""
        failed = _destroy(self._parts.get(instance, []))
        if failed is not None:
            raise failed
        self._parts.pop(instance, None)

    def instances(self) -> list[tuple[int, str, int]]:
        """See `Gpu.instances`: the ones that this object created."""
        made = []
        for number, parts in self._parts.items():
            gpu, one = parts[0]
            made += [(number, profile, start) for each, profile, start in gpu.instances() if each == one]
        return made

    def close(self) -> None:
        """See `Gpu.close`. The GPUs are the helper's, and stay open."""


def _destroy(parts: list[Part]) -> OffpathError | None:
    """Destroy all of them, and take those that are gone from the list. Returns the last failure."""
    failed: OffpathError | None = None
    for gpu, instance in list(parts):
        try:
            gpu.destroy_instance(instance)
        except OffpathError as fault:
            logger.error("instance %d of %s stays: %s", instance, gpu.uuid, fault)
            failed = fault
            continue
        parts.remove((gpu, instance))
    return failed


def parts_of(gpu: Gpu, instance: int) -> list[Part]:
    """The instance on each of the GPUs that it is on. Raises: DeviceError: there is none."""
    return gpu.parts(instance) if isinstance(gpu, Gang) else [(gpu, instance)]


def gpus_of(gpu: Gpu) -> tuple[Gpu, ...]:
    """The GPU, or all of a gang."""
    return gpu.gpus if isinstance(gpu, Gang) else (gpu,)


def ordered(order: control.OpenInstance, gpus: Mapping[str, Gpu]) -> Gpu:
    """What the order asks for: a GPU, or a gang. Raises: DeviceError: one of them is not this helper's, or is named
    twice."""
    names = [order.gpu, *order.others]
    if len(set(names)) < len(names) or not set(names) <= gpus.keys():
        raise DeviceError(f"{', '.join(names)}: these are not GPUs of this helper, each named once")
    return Gang([gpus[name] for name in names]) if order.others else gpus[order.gpu]
