"""Which GPUs a helper serves: those of migd, those that CUDA shows this user, or emulated ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from offpath.bindings.cuda.driver import preload
from offpath.bindings.cuda.instance import CudaInstance, scrub
from offpath.bindings.cuda.whole import visible, whole_gpus
from offpath.bindings.errors import DeviceError, NoGpu, OffpathError, OptionRefused
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Gpu
from offpath.host_helper.migd.client import MigdClient
from offpath.host_helper.migd.gpu import InstanceOpener, MigGpu
from offpath.host_helper.migd.serve import SOCKET, runtime_directory

KINDS: Final = ("auto", "migd", "cuda")
"""Where a helper finds NVIDIA GPUs. "migd": those that offpath-migd manages. "cuda": what CUDA shows this user, each
whole GPU or MIG instance for one lease at a time. "auto": migd's if it runs here, else CUDA's."""
NO_GPU_ADVICE: Final = (
    "On a machine with an NVIDIA GPU: install its driver and `pip install 'offpath[gpu]'`; for MIG, start offpath-migd"
    " (docs/gpu.md). To emulate a GPU on this host's CPU, start the helper with --emulate A100-40GB; in Python:"
    ' run(emulate=["A100-40GB"])'
)
_OPENER: Final = InstanceOpener(
    open=lambda identity: CudaInstance(identity.visible), scrub=lambda identity: scrub(identity.visible)
)


def find_gpus(kind: str = "auto", migd: str = "") -> list[Gpu]:
    """The GPUs of this machine; ``migd`` is the path of its socket, by default in its runtime directory. Uses no driver
    in this process, which may therefore fork afterwards.

    Raises: NoGpu: there is none; its text says why, and what to do. OptionRefused: an unknown ``kind``. OffpathError:
    migd refuses.
    """
    if kind not in KINDS:
        raise OptionRefused(f"{kind!r} is no kind of GPU; use {', '.join(KINDS)}")
    preload()
    path = migd or os.path.join(runtime_directory(), SOCKET)
    if kind == "migd" or (kind == "auto" and (migd or os.path.exists(path))):
        return _of_migd(path)
    try:
        found: list[Gpu] = [*whole_gpus(visible())]
    except DeviceError as fault:
        raise NoGpu(f"no GPU to serve kernels on: {fault}. {NO_GPU_ADVICE}") from fault
    if not found:
        raise NoGpu(f"no GPU to serve kernels on: CUDA shows none. {NO_GPU_ADVICE}")
    return found


def emulated_gpus(models: Sequence[str], *, slice_bytes: int, delayed_visibility: bool) -> list[Gpu]:
    """One emulated GPU per model name. Raises: DeviceError: an unknown model. RegionError: no memory for it."""
    return [
        EmulatedGpu(f"GPU-{n}", model, slice_bytes=slice_bytes, delayed_visibility=delayed_visibility)
        for n, model in enumerate(models)
    ]


def _of_migd(path: str) -> list[Gpu]:
    """Those that migd manages and that can be used; one client for all. Raises: NoGpu, MigdUnreachable, MigdRefused."""
    client = MigdClient(path)
    gpus: list[Gpu] = []
    problems = []
    for line in client.gpus().gpus:
        try:
            gpu = MigGpu(client, line.uuid, _OPENER, owns_client=True)
            gpu.reclaim()  # leases of a helper of this user that ended
            gpus.append(gpu)
        except OffpathError as fault:
            problems.append(str(fault))
    if not gpus:
        client.close()
        raise NoGpu(f"offpath-migd at {path} has no GPU to serve kernels on: {'; '.join(problems) or 'none at all'}")
    return gpus
