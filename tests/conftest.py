"""What all tests share: the event loop, the size of the run (./scripts/test --quick | --full), Hypothesis profiles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from offpath.bindings.build import compiled

from . import durations, workers
from .sizes import SIZE, sized
from .skips import pytest_terminal_summary as pytest_terminal_summary
from .suites import recorder, sources
from .suites.table import in_fast_tier, suite_of

SUITE = os.environ.get("OFFPATH_TEST_SUITE", "")
"""Run the tests of this suite (``tests/suites.toml``) and no others."""
QUICK_S = 26.0
"""Seconds of a worker for the quick tier's tests, by their recorded times in the fast tier."""
IS_TIER = os.environ.get("OFFPATH_TEST_TIER") == "1"
"""No test was named: what only slow suites run is left out."""
PROGRESS = os.environ.get("OFFPATH_TEST_PROGRESS", "")
"""Where `recorder` writes what the tests of a suite come to."""
STALE = os.environ.get("OFFPATH_TEST_STALE", "").split()
"""Slow suites to run after the fast tier, cheapest first (``test_stale_suites.py``)."""
OWN = (
    "OFFPATH_TEST_SUITE",
    "OFFPATH_TEST_TIER",
    "OFFPATH_TEST_PROGRESS",
    "OFFPATH_TEST_DURATIONS",
    "OFFPATH_TEST_STALE",
)
"""Variables of this run alone."""
SAMPLE = os.environ.get("OFFPATH_TEST_SAMPLE", "")
"""``SEED COUNT``: of the selected tests only so many, drawn by the seed."""

_SLOW_MACHINE = [HealthCheck.too_slow]  # two shared cores: time says nothing about the strategy
settings.register_profile(
    SIZE,
    max_examples=sized(quick=20, fast=25, slow=100, full=2_000),
    deadline=None,
    derandomize=SIZE != "full",
    suppress_health_check=_SLOW_MACHINE,
)
settings.load_profile(SIZE)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop the daemon runs on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m rdma`` a file that never says rdma is not imported: in the virtual machine all imports take minutes."""
    if config.option.markexpr == "rdma" and collection_path.suffix == ".py" and collection_path.name != "conftest.py":
        return True if "rdma" not in collection_path.read_text("utf-8") else None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the size leaves out; `-m` and `-k` still apply to the rest."""
    if not list(Path("/sys/class/infiniband").glob("*")):
        why = "no RDMA device: in a virtual machine with two, ./scripts/rxe-vm -- ./scripts/test -m rdma"
        for item in items:
            if item.get_closest_marker("rdma"):
                item.add_marker(pytest.mark.skip(reason=why))
    if compiled():
        for item in items:
            if mark := item.get_closest_marker("not_fast"):
                item.add_marker(pytest.mark.skip(reason=f"not on the fast build: {mark.args[0]}"))
    kept = [item for item in items if _is_chosen(item)]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    if SAMPLE:
        seed, count = SAMPLE.split()
        chosen = set(Random(seed).sample(range(len(items)), min(int(count), len(items))))
        config.hook.pytest_deselected(items=[item for n, item in enumerate(items) if n not in chosen])
        items[:] = [item for n, item in enumerate(items) if n in chosen]
    if hasattr(config, "workerinput"):
        workers.order(items)


def _is_chosen(item: pytest.Item) -> bool:
    """Whether the size and the suite of this run have this test."""
    if SUITE:
        if suite_of(item.nodeid).name != SUITE:
            return False
    elif IS_TIER and not in_fast_tier(item.nodeid):
        return False
    if IS_TIER and SIZE == "quick" and not _is_cheap(item):
        return False
    return SIZE == "full" or item.get_closest_marker("full") is None


def _is_cheap(item: pytest.Item) -> bool:
    """Whether the quick tier has the time for it; a file without a recorded time is cheap."""
    file = workers.unit_of(item.nodeid)
    return file in durations.cheap(QUICK_S) or file not in durations.kept().files


# -- workers (see `workers`) and times (see `durations`) -------------------------------------------------------------
def pytest_configure(config: pytest.Config) -> None:
    """Times are those of whole tiers; a suite's and a single test's are in their own records."""
    if hasattr(config, "workerinput") or not getattr(config.option, "tx", None):
        for name in OWN:  # a test may start pytest, which is another run
            os.environ.pop(name, None)
    if PROGRESS:
        recorder.register(config, Path(PROGRESS))
    if IS_TIER and not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            durations.Clock(is_kept=os.environ.get("OFFPATH_TEST_DURATIONS") == "keep"), "offpath-durations"
        )


def pytest_collection_finish() -> None:
    """What planted bugs are due was asked of the sources; the next collection need not parse them again."""
    sources.keep_cache()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Whole files instead of single tests."""
    return workers.scheduler(config, log)
