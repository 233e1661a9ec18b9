"""NVLinks between the GPUs of a machine, direct ones and those through NVSwitches."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

from offpath.bindings.errors import DeviceError
from offpath.bindings.nvml.session import Nvml

logger = logging.getLogger(__name__)
MOST_LINKS: Final = 64
"""Links of a GPU that are asked for and counted; GPUs have 36 at most (nvml.h, NVML_NVLINK_MAX_LINKS)."""
_Address = tuple[int, int, int]
"""PCI domain, bus and device."""


def linked(nvml: Nvml, gpu: str) -> dict[str, int]:
    """The other GPUs that NVLink reaches from the GPU, by UUID, each with the number of active links that lead there.
    All links to NVSwitches lead to each GPU behind them.

    Empty without NVLink. Empty, with a warning in the log, if NVML fails: nothing but the choice of GPUs depends on it.
    """
    try:
        return _linked(nvml, gpu)
    except DeviceError as fault:
        logger.warning("%s: its NVLinks cannot be read and are not used: %s", gpu, fault)
        return {}


def _linked(nvml: Nvml, gpu: str) -> dict[str, int]:
    handle = nvml.device(gpu)
    ends = _ends(nvml, handle)
    if not ends:
        return {}
    others = _others(nvml, gpu)
    found = Counter(others[end][0] for end in ends if end in others)
    through_switches = sum(end not in others for end in ends)
    for uuid, other in others.values():
        if through_switches and uuid not in found and _is_reached(nvml, handle, other):
            found[uuid] = through_switches
    return dict(found)


def _ends(nvml: Nvml, handle: Any) -> list[_Address | None]:
    """Where each active link of the GPU ends. None: NVML does not tell, as of switches that have no PCI address."""
    count = min(int(nvml.module.NVML_NVLINK_MAX_LINKS), MOST_LINKS)
    active = [link for link in range(count) if nvml.optional("nvmlDeviceGetNvLinkState", handle, link)]
    remote = [nvml.optional("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) for link in active]
    return [None if pci is None else _address(pci) for pci in remote]


def _others(nvml: Nvml, gpu: str) -> dict[_Address | None, tuple[str, Any]]:
    """UUID and handle of each other GPU, by its address."""
    handles = {each.uuid: nvml.device(each.uuid) for each in nvml.gpus() if each.uuid != gpu}
    return {_address(nvml.call("nvmlDeviceGetPciInfo", each)): (uuid, each) for uuid, each in handles.items()}


def _address(pci: Any) -> _Address:
    return int(pci.domain), int(pci.bus), int(pci.device)


def _is_reached(nvml: Nvml, handle: Any, other: Any) -> bool:
    """Whether the two GPUs read and write each other's memory by NVLink."""
    index = nvml.module.NVML_P2P_CAPS_INDEX_NVLINK
    status = nvml.optional("nvmlDeviceGetP2PStatus", handle, other, index)
    return status is not None and int(status) == int(nvml.module.NVML_P2P_STATUS_OK)
