"""An emulated NVIDIA machine for the tests of the CUDA adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...support.gpu_emulator import emulator
from ...support.gpu_machine import Machine


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """``boot(**settings)``: an emulated machine with one whole H100, or what the settings say."""
    emulator()  # a skip that a forked process raised would not be one here
    made: list[Machine] = []

    def start(**settings: str) -> Machine:
        values = {"mig": "off", "models": "H100-80GB", "slice_bytes": str(4 << 20), **settings}
        made.append(Machine(tmp_path / "machine", **values))
        return made[-1]

    yield start
    for each in made:
        each.close()
