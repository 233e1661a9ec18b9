"""What the tests of the DOCA bindings share: the emulated DPU, a process on its host, and what was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from offpath.bindings.doca.copy import DocaCopyEngine
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.load import Library, load
from offpath.bindings.memory.region import Region

from ...support.doca import HostProcess, emulator, on_the_dpu

called: set[str] = set()
"""Functions of DOCA's that tests of this folder used, here or in processes of the host's side."""


@pytest.fixture
def doca() -> Iterator[Library]:
    """The emulator, and this process on the DPU's side of it."""
    with on_the_dpu():
        library = load(emulator())
        yield library
        called.update(library.called)


@pytest.fixture
def host(doca: Library) -> Iterator[HostProcess]:
    """A process on the host's side; it may be killed."""
    process = HostProcess()
    yield process
    if process.process.poll() is None:
        called.update(process.called())
    process.close()


@pytest.fixture
def regions() -> Iterator[Callable[[bytes], Region]]:
    """``regions(content)``: sealed memory of ours, closed at the end."""
    made: list[Region] = []

    def make(content: bytes) -> Region:
        made.append(region := Region.create("test", len(content)))
        region.view[: len(content)] = content
        return region

    yield make
    for region in made:
        region.close()


@pytest.fixture
def engine(doca: Library) -> Iterator[DocaCopyEngine]:
    """A copy engine on the DPU."""
    made = DocaCopyEngine(open_device(doca, Ability.COPY))
    yield made
    made.close()
