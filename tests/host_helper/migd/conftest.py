"""What the tests of migd share: a machine of emulated GPUs, a service in this process, and migd as a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.nvml.session import Nvml

from ...support.gpu_machine import Machine
from .rig import Migd, Rig, Served

_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses an emulated machine belongs to the tier of GPUs."""
    for item in items:
        if item.path.parent == _FOLDER and "machine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One A100 with MIG on. A test changes its settings by ``machine.set`` before anything uses it."""
    made = Machine(tmp_path / "machine")
    yield made
    made.close()


@pytest.fixture
def nvml(machine: Machine) -> Iterator[Nvml]:
    """NVML in this process, as root of the machine."""
    session = Nvml()
    yield session
    session.close()


@pytest.fixture
def rig(machine: Machine, tmp_path: Path) -> Iterator[Rig]:
    """A service in this process; a test may start it again on the same ledger."""
    made = Rig(machine, tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def served(rig: Rig) -> Iterator[Served]:
    """The rig's service behind a socket."""
    made = Served(rig)
    yield made
    made.close()


@pytest.fixture
def migd(machine: Machine, tmp_path: Path) -> Iterator[Any]:
    """``migd(faults, **settings)``: a process of migd's with its client; killed at the end."""
    started: list[Migd] = []

    def start(faults: str = "", **settings: Any) -> Migd:
        folder = tmp_path / "migd"
        started.append(Migd(machine, folder, faults, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()
