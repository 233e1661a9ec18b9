"""GPUs of a machine without migd: what CUDA shows this user, each whole GPU or MIG instance for one lease at a time."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from offpath.bindings import forked
from offpath.bindings.cuda.driver import Driver, load
from offpath.bindings.cuda.instance import CudaInstance, scrub
from offpath.bindings.errors import DeviceError, DeviceGone, PlacementTaken
from offpath.bindings.mig import GpuModel, MigProfile

PROFILE: Final = "whole"
_LOOK_S: Final = 30.0
_MOST_DEVICES: Final = 64
_MIG_NAME: Final = re.compile(r"\bMIG \d")


class Visible(BaseModel):
    """A device that CUDA shows. ``uuid``: as CUDA_VISIBLE_DEVICES takes it. ``nbytes``: its memory."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    uuid: str = Field(max_length=64)
    name: str = Field(max_length=256)
    nbytes: int = Field(ge=0)
    is_emulated: bool


_VISIBLE: Final = TypeAdapter(list[Visible])


def visible(limit_s: float = _LOOK_S) -> list[Visible]:
    """The devices that CUDA shows a process of this user. A child process looks, so that the caller may fork later.
    Blocks for seconds. Raises: DeviceError: no driver, no device, or another failure of CUDA."""
    listed = forked.call(lambda: _look().decode(), "look for NVIDIA GPUs", limit_s)
    try:
        return _VISIBLE.validate_json(listed)
    except ValidationError as fault:
        raise DeviceError(f"look for NVIDIA GPUs: {fault}") from fault


def _look() -> bytes:
    driver = load()
    driver.call("cuInit", 0)
    count = min(driver.call("cuDeviceGetCount"), _MOST_DEVICES)
    return orjson.dumps([_describe(driver, driver.call("cuDeviceGet", n)) for n in range(count)])


def _describe(driver: Driver, device: Any) -> dict[str, object]:
    name = bytes(driver.call("cuDeviceGetName", 256, device)).split(b"\0")[0].decode("utf-8", "replace")
    return {
        "uuid": f"{'MIG' if _MIG_NAME.search(name) else 'GPU'}-{driver.uuid(device)}",
        "name": name,
        "nbytes": int(driver.call("cuDeviceTotalMem", device)),
        "is_emulated": driver.is_emulated,
    }


@dataclass(slots=True)
class _State:
    instance: int = 0
    """The instance that exists; 0: none."""
    is_open: bool = True


class WholeGpu:
    """Implements `offpath.bindings.ports.Gpu` for a device that is never cut: its one instance is all of it."""

    def __init__(self, found: Visible) -> None:
        self.uuid = found.uuid
        self.is_emulated = found.is_emulated
        name = re.sub(r"[^A-Za-z0-9._:/+-]+", "-", found.name).strip("-")[:64] or "unknown"
        self.model = GpuModel(name, 1, 1, (MigProfile(PROFILE, 1, 1, found.nbytes, (0,), 1),))
        self._state = _State()
        self._numbers = itertools.count(1)

    def profile_bytes(self, profile: str) -> int:
        """See `Gpu.profile_bytes`."""
        return self.model.profile(profile).memory_bytes

    def create_instance(self, profile: str, start: int) -> int:
        """See `Gpu.create_instance`: nothing is cut, the device is marked as taken."""
        if not self._state.is_open:
            raise DeviceGone(f"{self.uuid} was closed")
        if start not in self.model.profile(profile).starts:
            raise PlacementTaken(f"{profile} may start at 0, not at {start}")
        if self._state.instance:
            raise PlacementTaken(f"{self.uuid} is leased")
        self._state.instance = next(self._numbers)
        return self._state.instance

    def visible_device(self, instance: int) -> str:
        """What CUDA_VISIBLE_DEVICES names the instance. Raises: DeviceError: there is none."""
        self._check(instance)
        return self.uuid

    def open_instance(self, instance: int) -> CudaInstance:
        """See `Gpu.open_instance`."""
        self._check(instance)
        return CudaInstance(self.uuid)

    def scrub_instance(self, instance: int) -> int:
        """See `Gpu.scrub_instance`."""
        self._check(instance)
        return scrub(self.uuid)

    def destroy_instance(self, instance: int) -> None:
        """See `Gpu.destroy_instance`."""
        if instance == self._state.instance:
            self._state.instance = 0

    def instances(self) -> list[tuple[int, str, int]]:
        """See `Gpu.instances`."""
        return [(self._state.instance, PROFILE, 0)] if self._state.instance else []

    def close(self) -> None:
        """Give out nothing more. Idempotent."""
        self._state.is_open = False

    def _check(self, instance: int) -> None:
        if not self._state.is_open:
            raise DeviceGone(f"{self.uuid} was closed")
        if not instance or instance != self._state.instance:
            raise DeviceError(f"{self.uuid} has no instance {instance}")
