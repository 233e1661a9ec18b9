"""MPS for a helper's leases: one control daemon per lease, so that lanes share their instance instead of taking turns.

Each helper has a directory under its runtime directory, and holds a lock in it while it lives. Each lease has a
directory in there, named by lease and generation, which is its daemon's pipe directory's parent. Directories without a
living helper are removed by the next one, with the daemons that belong to them.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import secrets
import shutil
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.share import MpsShare, count_multiprocessors
from offpath.bindings.errors import DeviceError, MpsMissing, MpsNotInForce, OffpathError, OptionRefused
from offpath.bindings.gpu_folder import gpu_folder
from offpath.bindings.mig import MIB
from offpath.bindings.ports import Gpu, InstanceMemory
from offpath.bindings.runtime import make_runtime_directory, runtime_directory
from offpath.bindings.wire import control
from offpath.host_helper.mps_daemon import MpsDaemon

logger = logging.getLogger(__name__)
MODES: Final = ("auto", "on", "off")
"""Whether leases on NVIDIA GPUs run under MPS. "auto": where the control program is found."""
PROGRAM: Final = "nvidia-cuda-mps-control"
_FOLDER: Final = "mps"
_LOCK: Final = "lock"


@runtime_checkable
class CudaGpu(Protocol):
    """A GPU whose instances CUDA names: one that MPS can share."""

    def visible_device(self, instance: int) -> str:
        """What CUDA_VISIBLE_DEVICES names the instance. Raises: DeviceError: there is none."""


class LeaseMps:
    """One lease under MPS: its daemon, and the share that each of its lanes has."""

    def __init__(self, daemon: MpsDaemon, share: MpsShare) -> None:
        self.daemon = daemon
        self.share = share


class Mps:
    """The control daemons of one helper. ``root``: the directory of all helpers of this user."""

    def __init__(self, program: str, root: str) -> None:
        """Raises: RegionError: others may write to ``root``. OSError."""
        self._program = program
        make_runtime_directory(root)
        with _Lock(os.path.join(root, _LOCK), wait=True):
            _sweep(root, program)
            self._folder = os.path.join(root, secrets.token_hex(4))
            os.mkdir(self._folder, 0o700)
            self._alive = _Lock(os.path.join(self._folder, _LOCK), wait=True)
        self._counts: dict[tuple[str, str], int] = {}

    def start(self, order: control.OpenInstance, gpu: Gpu, instance: int, demands: Sequence[int]) -> LeaseMps | None:
        """The lease's daemon, which runs and has its settings. ``demands``: R of the helper's kernels. None: MPS cannot
        share this GPU. Blocks for seconds. Raises: MpsError, DeviceError."""
        if not isinstance(gpu, CudaGpu):
            return None
        visible = gpu.visible_device(instance)
        profile = gpu.model.profile(order.profile)
        offered = 100 * profile.compute_slices // gpu.model.compute_slices
        kind = gpu.uuid, order.profile
        if kind not in self._counts:
            self._counts[kind] = count_multiprocessors(visible)
        percentage = percentage_of(demands, offered)
        limit = max(1, gpu.profile_bytes(order.profile) // order.lanes // MIB)
        folder = os.path.join(self._folder, f"{order.lease}-{order.generation}")
        daemon = MpsDaemon.start(self._program, folder, visible, percentage, limit)
        logger.info("lease %d: under MPS, %d %% and %d MiB for each lane", order.lease, percentage, limit)
        return LeaseMps(daemon, MpsShare(daemon.pipes, daemon.logs, percentage, limit, self._counts[kind]))

    def close(self) -> None:
        """Remove the helper's directory. Its leases' daemons must have been stopped; what they left stays for the next
        helper. Idempotent."""
        self._alive.close()
        try:
            os.unlink(os.path.join(self._folder, _LOCK))
            os.rmdir(self._folder)
        except OSError as fault:
            logger.warning("%s stays: %s", self._folder, fault)


def percentage_of(demands: Sequence[int], offered: int) -> int:
    """The percentage of an instance's multiprocessors that each of its lanes may use, 1 to 100.

    R is a percentage of the GPU, of which the instance offers ``offered``. A process's percentage cannot change, and a
    lane serves every kernel that fits the instance. So it is that of the largest R among them: no kernel gets less than
    its R, and the scheduler places no more than ``offered`` at once.
    """
    largest = max((demand for demand in demands if demand <= offered), default=offered)
    return min(100, math.ceil(100 * largest / offered)) if offered else 100


def require(memory: InstanceMemory, share: MpsShare) -> None:
    """Check, in a worker, that it has its share under MPS. Raises: MpsNotInForce."""
    if not isinstance(memory, CudaInstance):
        raise MpsNotInForce("the instance's memory is not CUDA's")
    memory.require(share)


def find_program() -> str:
    """The path of NVIDIA's control program; empty: this machine has none."""
    folder = gpu_folder()
    return shutil.which(PROGRAM, path=folder or None) or ""


def open_mps(mode: str, *, is_cuda: bool, root: str = "") -> Mps | None:
    """MPS as `MODES` says; None: leases run without it. ``is_cuda``: the GPUs are NVIDIA's. Before GPUs are looked for:
    daemons that a killed helper left keep their instances in use, and end here in every mode.

    ``root``: see `Mps`; empty: in the runtime directory. Raises: OptionRefused: an unknown mode, or "on" without
    NVIDIA's GPUs. MpsMissing: "on" without the control program. DeviceError: the directory cannot be used.
    """
    if mode not in MODES:
        raise OptionRefused(f"mps={mode!r}; use {', '.join(MODES)}")
    if mode == "on" and not is_cuda:
        raise OptionRefused("mps='on' needs an NVIDIA GPU; emulated GPUs without a driver have no MPS")
    program = find_program()
    if mode == "on" and not program:
        raise MpsMissing(
            f"this machine has no {PROGRAM}: install the driver's compute utilities, or use mps='auto' or mps='off'"
        )
    try:
        root = root or os.path.join(runtime_directory(), _FOLDER)
        if mode != "off" and is_cuda and program:
            return Mps(program, root)
        if os.path.isdir(root):
            make_runtime_directory(root)
            with _Lock(os.path.join(root, _LOCK), wait=True):
                _sweep(root, program)
    except (OffpathError, OSError) as fault:
        if mode != "off":
            raise DeviceError(f"no directory for MPS control daemons: {fault}") from fault
        logger.warning("MPS control daemons of earlier helpers were not looked for: %s", fault)
    return None


class _Lock:
    """A lock on a file, which the kernel releases when this process ends. Forked children do not have it."""

    def __init__(self, path: str, *, wait: bool = False) -> None:
        """Raises: BlockingIOError, PermissionError: another process has it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Release it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sweep(root: str, program: str) -> None:
    """End the daemons, and remove the directories, of helpers that do not live any more."""
    for entry in os.scandir(root):
        if not entry.is_dir(follow_symlinks=False):
            continue
        try:
            own = _Lock(os.path.join(entry.path, _LOCK))
        except OSError:  # its helper lives
            continue
        with own:
            leases = [each.path for each in os.scandir(entry.path) if each.is_dir(follow_symlinks=False)]
            stopped = [MpsDaemon.left_over(program, path).stop() for path in leases]
            if all(stopped):
                shutil.rmtree(entry.path, ignore_errors=True)
                logger.info("removed %d MPS control daemons that a helper had left", len(leases))
