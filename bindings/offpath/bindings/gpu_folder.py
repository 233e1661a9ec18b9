"""Where NVIDIA's libraries are looked for before the system's places: a folder that the environment names."""

from __future__ import annotations

import os
from typing import Final

PATH_VARIABLE: Final = "OFFPATH_GPU_PATH"
"""Names a folder with libnvidia-ml.so.1, libcuda.so.1 and nvidia-cuda-mps-control, such as the GPU emulator's."""


def gpu_folder() -> str:
    """The folder; empty: the environment names none."""
    return os.environ.get(PATH_VARIABLE, "")
