"""Two workers: one runs the tests that start processes, the other the virtual machine with RDMA, the clusters of Slurm
and Ray, and what only computes; tests that measure come last, alone. Two workers keep two cores busy: a third one made
the virtual machine twice as slow and gained nothing.

`./scripts/test` starts pytest-xdist with two workers when no tests are named. Without it all of this does nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

GUEST: Final = "tests/test_rxe_vm.py"
ALONE: Final = ("tests/load/", "tests/dpu_daemon/test_flood.py")
"""They measure under load. They run when the other worker has ended."""
CLUSTERS: Final = (
    "tests/bindings/engines/",
    "tests/cli/test_demo_netpack.py",
    "tests/cli/test_demo_venn.py",
    "tests/dpu_daemon/manager/",
    "tests/host_helper/collab/",
    "tests/kills/test_borrow_kills.py",
    "tests/kills/test_flower_kills.py",
    "tests/kills/test_job_kills.py",
)
"""Each has daemons of its own, mostly waits for them, and shares nothing with an offpathd."""
COMPUTE: Final = (
    "tests/bindings/path/test_planted.py", "tests/bindings/path/test_read_once.py",
    "tests/bindings/path/test_sanitized.py", "tests/bindings/path/test_twins.py", "tests/cli/test_errors.py",
    "tests/cli/test_help.py", "tests/test_architecture_doc.py", "tests/test_design_doc.py",
    "tests/test_failures_doc.py", "tests/test_hardware_doc.py", "tests/test_security_doc.py", "tests/test_sources.py",
    "tests/test_states_doc.py",
    "tests/dpu_daemon/switch/statistical/test_aggregators.py", "tests/dpu_daemon/switch/statistical/test_rack.py",
    "tests/dpu_daemon/switch/statistical/test_steady_state.py",
    "tests/bindings/wire/", "tests/cli/test_simulate_", "tests/fuzz/test_parsers.py", "tests/fuzz/test_planted_bugs.py",
    "tests/ina/simulation/", "tests/models/", "tests/sched/", "tests/simulation/", "tests/test_layout.py",
    "tests/test_node_vm.py", "tests/test_packages.py", "tests/test_pages.py", "tests/test_readme.py",
    "tests/test_tutorials.py", GUEST,
)  # fmt: skip
"""Each file is a unit of its own, for the worker that is free: it only computes, or has a network namespace or a
machine of its own."""
LONG: Final = (
    "tests/ina/simulation/test_simulation.py", "tests/simulation/test_simulation.py", "tests/test_tutorials.py",
)  # fmt: skip
"""Of `COMPUTE`, what takes minutes: begun last, one worker would wait for it."""
_FOLDER: Final = "OFFPATH_TEST_WORKERS_FOLDER"
_WAIT_S: Final = 3600.0
_opened: list[str] = []


def unit_of(nodeid: str) -> str:
    """What a test is scheduled with: nothing of one unit runs beside another test of the same unit."""
    path = nodeid.split("::", 1)[0]
    if path.startswith(ALONE):
        return "alone"
    if path.startswith(CLUSTERS):
        return "clusters"
    return path if path.startswith(COMPUTE) else "processes"


def order(items: list[pytest.Item]) -> None:
    """The longest unit first, so that both workers end together; what measures last. Files stay as they are."""
    units = {"processes": 0, GUEST: 1, "clusters": 2, **dict.fromkeys(LONG, 3), "alone": 5}
    items.sort(key=lambda item: units.get(unit_of(item.nodeid), 4))


def scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hands out whole units, in the order of `order`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        """See `unit_of`."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return ByUnit(config, log)


def hunters() -> int:
    """How many processes a test that computes may keep busy: the cores that no other worker has."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


def open_folder() -> None:
    """In the process that starts the workers: where each says that it has ended."""
    os.environ[_FOLDER] = folder = tempfile.mkdtemp(prefix="offpath-workers-")
    _opened.append(folder)


def close_folder() -> None:
    """After the last worker. A test that starts pytest hands it the folder of this one, which is not its own."""
    while _opened:
        shutil.rmtree(_opened.pop(), ignore_errors=True)


def has_ended(worker: str) -> None:
    """This worker runs no more tests."""
    Path(os.environ[_FOLDER], worker).touch()


def wait_alone(worker: str, count: int) -> None:
    """Wait until the other workers have ended."""
    ends = time.monotonic() + _WAIT_S
    while not _others(worker) >= count - 1:
        if time.monotonic() > ends:
            pytest.fail("the other workers do not end")
        time.sleep(0.2)


def _others(worker: str) -> int:
    names: Sequence[str] = os.listdir(os.environ[_FOLDER])
    return sum(name != worker for name in names)
