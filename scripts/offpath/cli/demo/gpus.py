"""The demo's GPUs: emulated in host memory, NVIDIA's stack on the GPU emulator, or what CUDA shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from offpath.bindings.errors import DeviceError, OptionRefused
from offpath.bindings.ports import Gpu
from offpath.cli.demo.isolation import GPU_MODEL
from offpath.host_helper.gpus import emulated_gpus, find_gpus

KINDS: Final = ("emulated", "emulated-nvml", "cuda")
MODES: Final = ("mig", "whole")
_BUILDER: Final = Path(__file__).parents[3] / "gpu-emulator"
_BUILD_S: Final = 300
_SLICE_BYTES: Final = 8 << 20
_NVML_SLICE_BYTES: Final = 32 << 20
_MIGD: Final = "migd"


@dataclass(frozen=True, slots=True)
class Gpus:
    """``kind`` and ``mode``: of `KINDS` and `MODES`. ``libraries``: the folder of the GPU emulator, if used.
    ``has_mps``: the lanes of a lease share its GPU by MPS."""

    kind: str = "emulated"
    mode: str = "mig"
    libraries: str = ""
    has_mps: bool = False

    @classmethod
    def chosen(cls, kind: str, mode: str, *, has_mps: bool = False) -> Gpus:
        """Raises: OptionRefused: a kind without this mode, without MPS, or without torch. NoGpu: CUDA shows none.
        DeviceError: the emulator cannot be built."""
        if kind == "emulated" and mode != "mig":
            raise OptionRefused("--mode whole needs --gpu emulated-nvml or --gpu cuda")
        if kind == "emulated" and has_mps:
            raise OptionRefused("--mps needs --gpu emulated-nvml or --gpu cuda")
        if kind == "cuda":
            find_gpus("cuda")
            if find_spec("torch") is None:
                raise OptionRefused("--gpu cuda computes with torch: pip install 'offpath[train]'")
            return cls(kind, "whole", has_mps=has_mps)
        return cls(kind, mode, _emulator() if kind == "emulated-nvml" else "", has_mps)

    @property
    def slices(self) -> int:
        """Memory slices of each GPU."""
        return 1 if self.mode == "whole" else 8

    @property
    def title(self) -> str:
        """What the GPUs are, in a few words."""
        if self.kind == "cuda":
            return "whole GPU"
        mode = "MIG mode" if self.mode == "mig" else "whole GPU"
        shared = ", shared by MPS" if self.has_mps else ""
        return f"{GPU_MODEL}, {mode}, emulated" + (f" NVML and CUDA{shared}" if self.libraries else "")

    def environment(self, directory: str) -> dict[str, str]:
        """What the processes of the host's side need to use the emulator, and where MPS has its directories."""
        if not self.libraries:
            return {"RUNTIME_DIRECTORY": directory} if self.has_mps else {}
        return {
            "RUNTIME_DIRECTORY": directory,
            "OFFPATH_GPU_PATH": self.libraries,
            "OFFPATH_GPU_EMULATOR_DIR": os.path.join(directory, "gpus"),
            "OFFPATH_GPU_EMULATOR_MODELS": f"{GPU_MODEL},{GPU_MODEL}",
            "OFFPATH_GPU_EMULATOR_SLICE_BYTES": str(_NVML_SLICE_BYTES),
            "OFFPATH_GPU_EMULATOR_MIG": "on" if self.mode == "mig" else "off",
        }

    def prepare(self, directory: str) -> None:
        """Make the folders that the processes use."""
        if self.libraries:
            for name in ("gpus", _MIGD):
                os.mkdir(os.path.join(directory, name), mode=0o700)

    def migd(self, directory: str) -> Sequence[str]:
        """The command line of migd; empty: none runs."""
        if not self.libraries:
            return ()
        return ("migd", "run", "--gpu", f"all={self.mode}", "--runtime-dir", os.path.join(directory, _MIGD))

    def find(self, directory: str) -> list[Gpu]:
        """The GPU ports, in the helper's process. Raises: NoGpu, OffpathError."""
        if self.kind == "cuda":
            return find_gpus("cuda")
        if self.libraries:
            return find_gpus("migd", os.path.join(directory, _MIGD, "migd.sock"))
        return emulated_gpus([GPU_MODEL] * 2, slice_bytes=_SLICE_BYTES, delayed_visibility=False)


def _emulator() -> str:
    if not _BUILDER.exists():
        raise OptionRefused("--gpu emulated-nvml needs the project's source tree, which has the emulator")
    built = subprocess.run([_BUILDER], capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if built.returncode:
        last = built.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DeviceError(f"the GPU emulator was not built: {last[0].removeprefix('offpath: ')}")
    return built.stdout.strip()
