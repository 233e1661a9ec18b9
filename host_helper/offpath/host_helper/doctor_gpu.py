"""Checks a host's NVIDIA driver, its device nodes, MIG, and how a copy engine reaches GPU memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.findings import Finding, Severity, ok
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient
from offpath.host_helper.migd.serve import SOCKET, runtime_directory

_VERSION: Final = re.compile(r"^NVRM version:.*?\s(\d{3,}\.\d[\d.]*)\b", re.MULTILINE)
_MOST_BYTES: Final = 1 << 16
_MINOR: Final = re.compile(r"^nvidia\d+$")


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's kernel module. ``is_open``: its open flavour."""

    version: str
    is_open: bool


def check_driver(root: str = "/") -> Iterator[Finding]:
    """The kernel module, the device nodes and the ways to GPU memory; nothing on a machine without the module.
    ``root`` is where /proc, /sys and /dev are."""
    found = _driver(Path(root, "proc/driver/nvidia/version"))
    if found is None:
        return
    yield ok("gpu-driver", f"{found.version}, {'open' if found.is_open else 'proprietary'} kernel module")
    yield _nodes(Path(root, "dev"))
    yield _memory_access(found, Path(root, "sys/module/nvidia_peermem"))


def check_mig(path: str = "") -> Iterator[Finding]:
    """What migd, if it runs here, reports of each of its GPUs. ``path``: its socket."""
    path = path or os.path.join(runtime_directory(), SOCKET)
    if not os.path.exists(path):
        yield Finding(
            "mig", Severity.NOTE, f"no migd listens at {path}: helpers create no MIG instances",
            "to share GPUs by MIG: start offpath-migd (docs/gpu.md)",
        )  # fmt: skip
        return
    try:
        with MigdClient(path) as client:
            for line in client.gpus().gpus:
                yield _gpu(line, client)
    except OffpathError as fault:
        yield Finding("mig", Severity.ERROR, str(fault), "see migd's log")


def _driver(path: Path) -> Driver | None:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    match = _VERSION.search(text)
    return Driver(match[1] if match else "unknown version", "Open Kernel Module" in text)


def _nodes(folder: Path) -> Finding:
    """Nodes that a process of this user needs for CUDA."""
    gpus = sorted(each.name for each in folder.glob("nvidia*") if _MINOR.match(each.name))
    names = ["nvidiactl", "nvidia-uvm", *gpus]
    missing = [name for name in names if not (folder / name).exists()]
    closed = [
        name
        for name in names
        if name not in missing and not os.access(folder / name, os.R_OK | os.W_OK, effective_ids=True)
    ]
    if missing or not gpus:
        return Finding(
            "gpu-nodes", Severity.WARNING, f"missing below {folder}: {', '.join(missing) or 'a node for each GPU'}",
            "run `nvidia-modprobe -u -c 0` as root, or start nvidia-persistenced",
        )  # fmt: skip
    if closed:
        return Finding(
            "gpu-nodes", Severity.ERROR, f"this user may not use {', '.join(closed)} below {folder}",
            "permit it by the group of the nodes, or by the driver's option NVreg_DeviceFileMode",
        )  # fmt: skip
    return ok("gpu-nodes", f"{', '.join(names)} below {folder}")


def _memory_access(driver: Driver, peermem: Path) -> Finding:
    """DMA-BUF needs the open flavour of the driver; nvidia-peermem is the older way."""
    ways = [way for way, is_there in (("DMA-BUF", driver.is_open), ("nvidia-peermem", peermem.exists())) if is_there]
    if ways:
        return ok("gpu-memory", f"a copy engine can reach it by {' and '.join(ways)}")
    return Finding(
        "gpu-memory", Severity.NOTE, "neither DMA-BUF nor nvidia-peermem: RDMA and DOCA cannot copy into it",
        "install the driver's open kernel modules, or load nvidia-peermem",
    )  # fmt: skip


def _gpu(line: protocol.GpuLine, client: MigdClient) -> Finding:
    name = f"{line.uuid} ({line.name}, mode {line.mode}, MIG {line.mig})"
    if line.problem:
        cause, fix = protocol.CODES.get(line.problem, ("it cannot be used", "see migd's log"))
        return Finding("mig", Severity.WARNING, f"{name}: {cause}", fix.replace("GPU", str(line.index), 1))
    found = client.describe(line.uuid)
    instances = found.instances
    counts = {owner: sum(each.owner == owner for each in instances) for owner in ("lease", "layout", "foreign")}
    what = f"{name}: " + (", ".join(f"{count} {owner}" for owner, count in counts.items() if count) or "no instance")
    if found.links:
        what += f"; NVLink to {len(found.links)} GPU{'s' if len(found.links) > 1 else ''}"
    if stuck := [f"{each.profile} at {each.start}" for each in instances if each.quarantined]:
        pids = sorted({pid for each in instances if each.quarantined for pid in each.pids})
        return Finding(
            "mig", Severity.WARNING, f"{what}; quarantined: {', '.join(stuck)}",
            f"end what uses them: {', '.join(map(str, pids)) or 'a monitoring agent, perhaps'}",
        )  # fmt: skip
    if counts["foreign"] and line.mode == "mig":
        return Finding("mig", Severity.NOTE, what, "another program creates instances here, whose places are not used")
    return ok("mig", what)
