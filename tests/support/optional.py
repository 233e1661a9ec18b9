"""Packages that a test may need and a machine may lack: why it is skipped then."""

from __future__ import annotations

from typing import Final

TORCH: Final = "torch is not installed: no CPU build was found; OFFPATH_TORCH=cuda ./scripts/test takes CUDA's"
