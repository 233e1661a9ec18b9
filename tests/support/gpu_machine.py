"""A machine of emulated GPUs: the folder that holds its state, and the environment of processes that use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from offpath.bindings import forked
from offpath.bindings.nvml.session import Nvml

from .gpu_emulator import PREFIX, emulator, load

_LIBRARIES: Final = "OFFPATH_GPU_PATH"
FAULT: Final = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry offpath_fault()
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 0;
    st.global.u64 [%rd1], %rd1;
    ret;
}
\0"""
"""A kernel "offpath_fault" that writes to address 0."""


class Machine:
    """This process and its children use it, until `close`. The emulator reads its environment at each `nvmlInit`, its
    faults at each call."""

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self._before: dict[str, str | None] = {}
        self._put(_LIBRARIES, str(emulator()))
        self.set(dir=str(folder), **settings)

    def set(self, **settings: str) -> None:
        """Set variables of the emulator by their lower-case names, e.g. ``mig="off"``, ``faults="lost=3"``."""
        for name, value in settings.items():
            self._put(PREFIX + name.upper(), value)

    def post_xid(self, xid: int, gpu: int = 0) -> None:
        """An Xid event of a whole GPU, which the driver would post."""
        nobody = 0xFFFF_FFFF

        def driver() -> str:
            session = Nvml()
            load("libnvidia-ml.so.1").gpu_emulator_xid(gpu, nobody, nobody, xid)
            session.close()
            return "posted"

        forked.call(driver, "the driver", 20)

    def _put(self, name: str, value: str) -> None:
        self._before.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def close(self) -> None:
        """The environment is as it was."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
