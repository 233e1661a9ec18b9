"""What NVML reports, as plain records. Slices are MIG's slices, memory is in MiB as NVML counts it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MigMode(Enum):
    """A GPU's MIG mode now and after its next reset."""

    UNSUPPORTED = "unsupported"
    OFF = "off"
    ON = "on"
    PENDING = "pending"
    """The mode changes at the next reset of the GPU, in either direction."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU. ``index``: NVML's, in the order of the bus. ``minor``: the number of its device node.

    ``pci_device_id``: device id in the upper 16 bits, vendor id in the lower ones.
    """

    index: int
    uuid: str
    name: str
    pci: str
    pci_device_id: int
    minor: int
    mode: MigMode
    memory_mib: int


@dataclass(frozen=True, slots=True)
class MigProfileInfo:
    """One profile of GPU instances. ``number``: NVML's enumerator. ``profile_id``: what instances are created with.

    ``starts``: the legal first memory slices. ``memory_mib``: what an instance really offers.
    """

    name: str
    number: int
    profile_id: int
    compute_slices: int
    memory_slices: int
    multiprocessors: int
    memory_mib: int
    starts: tuple[int, ...]
    max_instances: int


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that exists. ``compute_instances``: their ids, empty if it has none."""

    gpu_instance: int
    profile: str
    start: int
    size: int
    compute_instances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error. ``gpu_instance`` and ``compute_instance``: None if the event names none."""

    gpu: str
    xid: int
    gpu_instance: int | None
    compute_instance: int | None
