"""What a helper must not give to anyone: instances whose scrub failed, and GPUs that need a reset."""

from __future__ import annotations

from offpath.bindings.errors import DeviceGone, OffpathError
from offpath.bindings.ports import Gpu
from offpath.host_helper.gangs import Gang, Part, gpus_of, parts_of
from offpath.host_helper.scrubbing import scrub_parts


class Quarantine:
    """Instances stay here, so that their memory is not reused, until a later scrub succeeds. A GPU stays for good."""

    def __init__(self) -> None:
        self._instances: list[Part] = []
        self.gpus: dict[str, str] = {}
        """Those that need a reset, and why."""

    def add(self, gpu: Gpu, instance: int) -> None:
        """Keep an instance whose scrub or destruction failed; of a gang's, what is left of it, by GPU. A reset removes
        those of lost GPUs."""
        self._instances += [part for part in parts_of(gpu, instance) if part[0].uuid not in self.gpus]

    def add_left(self, gpu: Gpu) -> None:
        """Keep what a failed creation of a gang's instance has left."""
        if isinstance(gpu, Gang):
            self._instances += gpu.left
            gpu.left = []

    def add_gpu(self, uuid: str, why: str) -> None:
        """Use a GPU no more in this process."""
        self.gpus[uuid] = why

    def check(self, gpu: Gpu) -> None:
        """Raises: DeviceGone: this GPU, or one of the gang, is in quarantine."""
        for uuid in self.gpus.keys() & {each.uuid for each in gpus_of(gpu)}:
            raise DeviceGone(f"{uuid} needs a reset after {self.gpus[uuid]}; then restart the helper")

    def retry(self) -> OffpathError | None:
        """Retry the scrub of the instances, of all at the same time. Returns the last failure, if one remains. Those of
        a GPU that needs a reset are left to the reset, which removes them."""
        failed: OffpathError | None = None
        waiting = [each for each in self._instances if each[0].uuid not in self.gpus]
        for (gpu, instance), result in zip(waiting, scrub_parts(waiting), strict=True):
            try:
                if isinstance(result, OffpathError):
                    raise result
                gpu.destroy_instance(instance)
            except OffpathError as fault:
                failed = fault
                continue
            self._instances.remove((gpu, instance))
        return failed
