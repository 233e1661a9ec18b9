"""`offpath bench request-path --profile`: every function that it wraps exists, and a stage's own time is its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from offpath.bindings.build import compiled
from offpath.bindings.errors import OffpathError
from offpath.cli.bench.request_path.profile import own_us
from offpath.cli.bench.request_path.profiled_daemon import Cost, StageSum, Sums, Tracer, located
from offpath.cli.bench.request_path.stages import STAGES

from ..support.command import offpath

NAMES = [name for names in STAGES.values() for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_every_wrapped_function_exists(name: str) -> None:
    owner, attribute = located(name)
    assert callable(getattr(owner, attribute))


def test_no_function_is_in_two_stages() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    "name", ["offpath.sched.jobs.book.JobBook.nothing", "offpath.nothing.at_all", "offpath.sched.jobs.book.__doc__"]
)
def test_a_function_that_is_gone_is_named(name: str) -> None:
    with pytest.raises(OffpathError, match=rf"there is no function {name}; correct STAGES"):
        located(name)


def test_time_in_a_wrapped_callee_is_not_the_callers(tmp_path: Path) -> None:
    sums = Sums(str(tmp_path / "sums"), is_new=True)
    tracer = Tracer(sums)
    inner = tracer.wrapped(lambda: time.sleep(0.02), 1)

    def calls_it_twice() -> str:
        inner()
        inner()
        return "done"

    assert tracer.wrapped(calls_it_twice, 0)() == "done"
    outer, callee, *others = sums.read().values()
    assert (outer.calls, outer.inner_calls, callee.calls, callee.inner_calls) == (1, 2, 2, 0)
    assert callee.own_ns >= 40_000_000 > outer.own_ns
    assert all(each == StageSum(0, 0, 0) for each in others)


def test_an_exception_passes_through_and_is_timed(tmp_path: Path) -> None:
    sums = Sums(str(tmp_path / "sums"), is_new=True)

    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        Tracer(sums).wrapped(fails, 0)()
    assert next(iter(sums.read().values())).calls == 1


def test_calibration_leaves_only_the_cost(tmp_path: Path) -> None:
    sums = Sums(str(tmp_path / "sums"), is_new=True)
    Tracer(sums).calibrate()
    assert set(sums.read().values()) == {StageSum(0, 0, 0)}
    assert sums.cost.inside_ns > 0
    assert sums.cost.around_ns > 0


def test_the_cost_of_wrapping_is_subtracted() -> None:
    assert own_us(StageSum(own_ns=10_000, calls=2, inner_calls=3), Cost(inside_ns=100, around_ns=200)) == 9.2


@pytest.mark.not_fast("a compiled caller does not see a wrapped function")
def test_a_profile_has_every_stage_and_the_cpu_time_beside_it() -> None:
    done = offpath("bench", "request-path", "--quick", "--json", "--profile", "--only", "4k_1", timeout=120)
    assert done.code == 0, done.err
    found = done.document["profile"]["4k_1"]
    assert set(found["stages_us"]) == set(STAGES)
    assert sum(found["stages_percent"].values()) == pytest.approx(100, abs=1)
    assert 0 < found["sum_us"] < found["profiled_cpu_us"]
    assert found["wrapping_us"] > 0


@pytest.mark.skipif(not compiled(), reason="only compiled modules cannot be profiled")
def test_a_compiled_build_is_not_profiled() -> None:
    done = offpath("bench", "request-path", "--quick", "--profile", "--only", "4k_1")
    assert done.code == 1
    assert "dpu_daemon and sched are compiled" in done.err
