"""GPUs of a machine without migd: what CUDA shows this user, each whole GPU or MIG instance for one lease at a time."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from offpath.bindings import forked
from offpath.bindings.cuda.driver import Driver, load
from offpath.bindings.cuda.instance import CudaInstance, scrub
from offpath.bindings.errors import DeviceError, DeviceGone, PlacementTaken
from offpath.bindings.mig import WHOLE, GpuModel, MigProfile

logger = logging.getLogger(__name__)
_CUT: Final = "instance"
"""The profile of a MIG instance that somebody else created."""
_LOOK_S: Final = 30.0
_MOST_DEVICES: Final = 64
_NATIVE_ATOMICS: Final = 3
"""The attribute of two GPUs that only NVLink gives them (CUDA driver API, CUdevice_P2PAttribute)."""
_MIG_NAME: Final = re.compile(r"\bMIG \d")


class Visible(BaseModel):
    """A device that CUDA shows. ``uuid``: as CUDA_VISIBLE_DEVICES takes it. ``nbytes``: its memory. ``peers``: places
    in the list, of the devices that NVLink reaches from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    uuid: str = Field(max_length=64)
    name: str = Field(max_length=256)
    nbytes: int = Field(ge=0)
    is_emulated: bool
    peers: tuple[Annotated[int, Field(ge=0, lt=_MOST_DEVICES)], ...] = Field(default=(), max_length=_MOST_DEVICES)


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
    devices = [driver.call("cuDeviceGet", n) for n in range(count)]
    found = [_describe(driver, device) for device in devices]
    for each, peers in zip(found, _peers(driver, devices), strict=True):
        each["peers"] = peers
    return orjson.dumps(found)


def _describe(driver: Driver, device: Any) -> dict[str, object]:
    name = bytes(driver.call("cuDeviceGetName", 256, device)).split(b"\0")[0].decode("utf-8", "replace")
    return {
        "uuid": f"{'MIG' if _MIG_NAME.search(name) else 'GPU'}-{driver.uuid(device)}",
        "name": name,
        "nbytes": int(driver.call("cuDeviceTotalMem", device)),
        "is_emulated": driver.is_emulated,
    }


def _peers(driver: Driver, devices: Sequence[Any]) -> list[list[int]]:
    """For each device, the places of those that NVLink reaches from it. None at all if CUDA fails: nothing but the
    choice of GPUs depends on it."""
    places = range(len(devices))
    try:
        native = driver.api.CUdevice_P2PAttribute(_NATIVE_ATOMICS)
        return [
            [b for b in places if a != b and driver.call("cuDeviceGetP2PAttribute", native, devices[a], devices[b])]
            for a in places
        ]
    except (DeviceError, AttributeError, ValueError) as fault:  # the last two: a cuda-bindings without the attribute
        logger.warning("NVLinks between GPUs cannot be read and are not used: %s", fault)
        return [[] for _ in places]


def whole_gpus(found: Sequence[Visible]) -> list[WholeGpu]:
    """A GPU for each device of `visible`, with its NVLinks: CUDA does not give their number, so each counts as 1."""
    return [WholeGpu(each, {found[n].uuid: 1 for n in each.peers if n < len(found)}) for each in found]


@dataclass(slots=True)
class _State:
    instance: int = 0
    """The instance that exists; 0: none."""
    is_open: bool = True


class WholeGpu:
    """Implements `offpath.bindings.ports.Gpu` for a device that is never cut: its one instance is all of it."""

    def __init__(self, found: Visible, links: Mapping[str, int] | None = None) -> None:
        """``links``: see `Gpu.links`."""
        self.uuid = found.uuid
        self.links: Mapping[str, int] = links or {}
        self.is_emulated = found.is_emulated
        name = re.sub(r"[^A-Za-z0-9._:/+-]+", "-", found.name).strip("-")[:64] or "unknown"
        self._profile = WHOLE if found.uuid.startswith("GPU-") else _CUT
        self.model = GpuModel(name, 1, 1, (MigProfile(self._profile, 1, 1, found.nbytes, (0,), 1),))
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
        return [(self._state.instance, self._profile, 0)] if self._state.instance else []

    def close(self) -> None:
        """Give out nothing more. Idempotent."""
        self._state.is_open = False

    def _check(self, instance: int) -> None:
        if not self._state.is_open:
            raise DeviceGone(f"{self.uuid} was closed")
        if not instance or instance != self._state.instance:
            raise DeviceError(f"{self.uuid} has no instance {instance}")
