"""One rig per port and adapter: how a test makes both ends. A further adapter is one more class and one more param.

A rig says what the adapter can do; the promises themselves are in the test modules and know no adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from .channel_rigs import ChannelRig, ComchChannelRig, LoopbackChannelRig, ZmqChannelRig
from .copy_rigs import CopyRig, CudaCopyRig, DocaCopyRig, LoopbackCopyRig, VerbsCopyRig
from .fabric_rigs import FabricRig, LoopbackFabricRig, VerbsFabricRig, WindowedFabricRig
from .gpu_rigs import LoopbackGpuRig, NvidiaGpuRig, NvidiaMachine, WholeGpuRig, WholeMachine, nvidia_machine
from .matrix import Matrix

_MATRIX = pytest.StashKey[Matrix]()
_OF_ONE_INSTANCE = {
    "test_a_lane_is_read_and_written_inside_its_bounds_only",
    "test_what_is_elsewhere_on_the_device_is_gathered_and_fetched",
    "test_a_lanes_checksum_is_that_of_its_payload",
    "test_a_lane_scrub_proves_every_byte_of_the_lane",
    "test_after_acquire_a_kernel_sees_what_peers_wrote",
    "test_an_identity_is_not_given_twice",
    "test_a_closed_gpu_is_gone",
}
"""The promises that a GPU which is never cut can keep."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A whole GPU has one instance. Every instance of migd's costs a file and three processes' turns: the many
    placements only in the full size."""
    senseless = [
        item for item in items
        if "[nvidia-whole" in item.name and getattr(item, "originalname", "") not in _OF_ONE_INSTANCE
    ]  # fmt: skip
    if senseless:
        config.hook.pytest_deselected(items=senseless)
        items[:] = [item for item in items if item not in senseless]
    for item in items:
        name = getattr(item, "originalname", "")
        if "[nvidia" in item.name and name.startswith(("test_exactly_", "test_a_gpu_has_as_many_")):
            item.add_marker(pytest.mark.full)


def pytest_collection_finish(session: pytest.Session) -> None:
    """With ``-m conformance`` what becomes of each test is kept for the table."""
    if "conformance" in (session.config.option.markexpr or ""):
        session.config.stash[_MATRIX] = Matrix(session.items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """See `Matrix.saw`."""
    Matrix.saw(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table adapter x test, at the very end."""
    if (matrix := config.stash.get(_MATRIX, None)) is not None:
        terminalreporter.section("conformance: adapter x test")
        for line in matrix.lines():
            terminalreporter.write_line(line)


@pytest.fixture(
    params=[
        pytest.param(LoopbackCopyRig, id="loopback"),
        pytest.param(CudaCopyRig, id="cuda"),
        pytest.param(partial(CudaCopyRig, "target"), id="cuda-to-lane"),
        pytest.param(partial(CudaCopyRig, "source"), id="cuda-from-lane"),
        pytest.param(DocaCopyRig, id="doca"),
        pytest.param(partial(DocaCopyRig, "target"), id="doca-to-lane"),
        pytest.param(partial(DocaCopyRig, "source"), id="doca-from-lane"),
        pytest.param(VerbsCopyRig, id="verbs", marks=[pytest.mark.rdma, pytest.mark.full]),
        pytest.param(partial(VerbsCopyRig, "target"), id="verbs-to-lane", marks=pytest.mark.rdma),
        pytest.param(partial(VerbsCopyRig, "source"), id="verbs-from-lane", marks=pytest.mark.rdma),
    ]
)
def copy_rig(request: pytest.FixtureRequest) -> Iterator[CopyRig]:
    rig = request.param()
    yield rig
    rig.close()


@pytest.fixture(
    params=[
        pytest.param(LoopbackFabricRig, id="loopback"),
        pytest.param(VerbsFabricRig, id="verbs", marks=pytest.mark.rdma),
        pytest.param(WindowedFabricRig, id="verbs-window", marks=[pytest.mark.rdma, pytest.mark.full]),
    ]
)
def fabric_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FabricRig]:
    rig = request.param(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(
    params=[
        pytest.param(LoopbackChannelRig, id="loopback"),
        pytest.param(ZmqChannelRig, id="zmq"),
        pytest.param(ComchChannelRig, id="comch"),
    ]
)
def channel_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChannelRig]:
    rig = request.param(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaMachine]:
    with nvidia_machine(tmp_path_factory.mktemp("nvidia")) as made:
        yield made


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WholeMachine:
    return WholeMachine(tmp_path_factory.mktemp("whole"))


@pytest.fixture(
    params=[
        pytest.param("loopback", id="loopback"),
        pytest.param("nvidia", id="nvidia", marks=pytest.mark.gpu),
        pytest.param("whole", id="nvidia-whole", marks=pytest.mark.gpu),
    ]
)
def gpu_rig(request: pytest.FixtureRequest) -> Iterator[LoopbackGpuRig]:
    if request.param == "loopback":
        rig = LoopbackGpuRig()
    else:
        machine = request.getfixturevalue(request.param)
        rig = WholeGpuRig(machine) if request.param == "whole" else NvidiaGpuRig(machine)
    yield rig
    rig.close()
