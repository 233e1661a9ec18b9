"""The steady state against Algorithm 1 in fractions, linear programs, the checker, and its own computation from
scratch."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import numpy as np
import pytest

from offpath.sched.ina.engine import can_compile
from offpath.sched.ina.statistical import steady as module
from offpath.sched.ina.statistical.checker import violations
from offpath.sched.ina.statistical.model import Spread
from offpath.sched.ina.statistical.network import Network, regular
from offpath.sched.ina.statistical.steady import SpreadInvalid, SteadyState

from ....sizes import sized
from .oracle import by_programs, network, spread, water_filling

WORLDS = sized(quick=20, fast=37, slow=150, full=5_000)
STEPS = 24
PROGRAMS = sized(quick=10, fast=15, slow=60, full=1_000)
COMPILED = [False, pytest.param(True, marks=pytest.mark.skipif(not can_compile(), reason="numba is not installed"))]


def story(seed: int, *, compiled: bool | None = None) -> str | None:
    """Jobs come and go; returns the first contradiction."""
    random = Random(seed)
    of = network(random)
    state = SteadyState(of, compiled=compiled)
    jobs: dict[int, Spread] = {}
    for step in range(STEPS):
        before = {job: state.rate_gbps(job) for job in jobs}
        if jobs and random.random() < 0.35:
            job = random.choice(list(jobs))
            del jobs[job]
            state.remove(job)
        else:
            jobs[step] = spread(random, of)
            wanted = state.added_cost(jobs[step], 3.0)
            if before != {job: state.rate_gbps(job) for job in before}:
                return f"step {step}: a question changed rates"
            state.add(step, jobs[step], 3.0)
            grown = state.total_cost() - sum(3.0 / rate for rate in before.values())
            if abs(grown - wanted) > 1e-6 * max(1.0, grown):
                return f"step {step}: added cost {wanted}, then {grown}"
        rates = {job: state.rate_gbps(job) for job in jobs}
        exact = water_filling(of, jobs) if step % 4 == 0 else None
        if exact is not None and any(abs(float(exact[job]) - rates[job]) > 1e-6 for job in jobs):
            return f"step {step}: not the rates of Algorithm 1"
        found = violations(of, state.jobs, rates)
        if found:
            return f"step {step}: {found[0]}"
        if (fault := differs(state)) is not None:
            return f"step {step}: {fault}"
    return None


def differs(state: SteadyState) -> str | None:
    """Where the state is not that computed from scratch."""
    fresh = state.copied()
    fresh.refresh()
    if not np.array_equal(fresh.flows, state.flows) or not np.array_equal(fresh.uplink_flows, state.uplink_flows):
        return "flows"
    for name in ("residual_gbps", "uplink_residual_gbps", "pat_left_gbps"):
        if not np.allclose(getattr(fresh, name), getattr(state, name), atol=1e-5):
            return name
    return None


def test_rates_are_those_of_algorithm_1_and_fair_whatever_comes_and_goes() -> None:
    assert [found for seed in range(WORLDS) if (found := story(seed))] == []


@pytest.mark.parametrize("compiled", COMPILED)
def test_the_plain_and_the_compiled_form_agree(compiled: bool) -> None:
    assert [story(seed, compiled=compiled) for seed in range(12)] == [None] * 12


def test_rates_are_the_lexicographic_optimum_where_flows_are_fixed() -> None:
    for seed in range(PROGRAMS):
        random = Random(seed)
        of = network(random, pats=(0.0, float("inf")))
        jobs = {n: spread(random, of) for n in range(random.randint(1, 7))}
        state = SteadyState(of)
        for job, each in jobs.items():
            state.add(job, each)
        assert {job: state.rate_gbps(job) for job in jobs} == pytest.approx(by_programs(of, jobs), rel=1e-5), seed


def test_each_jobs_bottleneck_is_used_up_and_none_is_faster_there() -> None:
    random = Random(3)
    of = regular(3, 4, oversubscription=4.0, pat=60.0)
    state = SteadyState(of)
    for job in range(12):
        state.add(job, spread(random, of))
    for job in range(12):
        kind, at = state.bottleneck(job)
        left = state.residual_gbps if kind == "server" else state.uplink_residual_gbps
        assert left[at] == pytest.approx(0.0, abs=1e-5)


def test_a_job_elsewhere_is_not_computed_again() -> None:
    state = SteadyState(regular(4, 4))
    for job in range(4):
        state.add(job, Spread((4 * job, 4 * job + 1), 4 * job + 2))
        assert state.filled == 1
    state.add("beside", Spread((0, 3), 2))
    assert state.filled == 2
    state.remove("beside")
    assert state.filled == 1


def test_jobs_that_share_used_up_pat_are_computed_together() -> None:
    state = SteadyState(regular(1, 8, pat=60.0))
    state.add(0, Spread((0, 1), 2))
    assert state.rate_gbps(0) == pytest.approx(80.0), (
        "60 aggregated, then both flows share what is left of the PS's link"
    )
    state.add(1, Spread((3, 4), 5))
    assert state.filled == 2
    assert state.rate_gbps(0) == state.rate_gbps(1) == pytest.approx(65.0)
    assert state.aggregated_up_to_gbps[0] == pytest.approx(30.0)


def test_without_pat_a_ps_gets_all_flows() -> None:
    state = SteadyState(regular(1, 5, pat=0.0))
    state.add(0, Spread((0, 1, 2, 3), 4))
    assert state.rate_gbps(0) == pytest.approx(25.0)
    assert state.flows.tolist() == [1, 1, 1, 1, 4]


def test_a_job_behind_a_dead_link_has_rate_0_and_harms_nobody() -> None:
    of = Network((2, 2), (100.0,) * 4, (0.0, 200.0), (1_000.0,) * 2)
    state = SteadyState(of)
    state.add("cut", Spread((0, 2), 3))
    state.add("whole", Spread((2, 3), 3))
    assert state.rate_gbps("cut") == 0.0
    assert state.rate_gbps("whole") == pytest.approx(50.0)
    assert state.total_cost() == float("inf")
    state.remove("cut")
    assert state.total_cost() < 1


def test_a_lost_link_takes_the_rate_and_gives_it_back() -> None:
    state = SteadyState(regular(1, 3))
    state.add(0, Spread((0, 1), 2))
    state.set_link(2, 0.0)
    assert state.rate_gbps(0) == 0.0
    state.set_link(2, 100.0)
    assert state.rate_gbps(0) == pytest.approx(100.0)


def test_jobs_that_change_get_the_rates_of_jobs_that_began_so() -> None:
    for seed in range(WORLDS // 4):
        random = Random(seed)
        of = network(random)
        state, fresh = SteadyState(of), SteadyState(of)
        jobs = {n: spread(random, of) for n in range(random.randint(2, 24))}
        changed = {n: spread(random, of) for n in jobs if random.random() < 0.5}
        for job, each in jobs.items():
            state.add(job, each, gbit=job + 1.0)
            fresh.add(job, changed.get(job, each), gbit=job + 1.0)
        state.change(changed)
        assert state.jobs == fresh.jobs
        assert [state.rate_gbps(job) for job in jobs] == pytest.approx([fresh.rate_gbps(job) for job in jobs])
        assert state.total_cost() == pytest.approx(fresh.total_cost())
        assert differs(state) is None
        for job in jobs:
            state.remove(job)
        assert state.flows.round().tolist() == [0] * of.servers


@pytest.mark.parametrize(
    ("bad", "text"),
    [({0: Spread((1, 2), 3), 1: Spread((0, 1), 2)}, "not in the network"), ({0: Spread((1, 9), 3)}, "network of 4")],
)
def test_a_change_that_is_refused_changes_nothing(bad: dict[Hashable, Spread], text: str) -> None:
    state = SteadyState(regular(1, 4))
    state.add(0, Spread((0, 1), 2))
    with pytest.raises(SpreadInvalid, match=text):
        state.change(bad)
    assert state.jobs == {0: Spread((0, 1), 2)}
    assert state.flows.tolist() == [1, 1, 1, 0]


def test_thousands_of_changes_do_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(1)
    of = regular(4, 8, oversubscription=3.0, pat=150.0)
    state = SteadyState(of)
    jobs: list[int] = []
    for step in range(sized(quick=300, fast=375, slow=1_500, full=30_000)):
        if len(jobs) > 30:
            state.remove(jobs.pop(random.randrange(len(jobs))))
        state.add(step, spread(random, of))
        jobs.append(step)
    assert differs(state) is None
    assert violations(of, state.jobs, {job: state.rate_gbps(job) for job in jobs}) == []


def test_the_same_changes_give_the_same_numbers() -> None:
    def run() -> list[float]:
        random = Random(8)
        state = SteadyState(regular(3, 5, oversubscription=5.0, pat=80.0))
        for job in range(20):
            state.add(job, spread(random, state.network))
        for job in range(0, 20, 3):
            state.remove(job)
        return [state.rate_gbps(job) for job in state.jobs]

    assert run() == run()


@pytest.mark.parametrize(
    "bad", [Spread((), 0), Spread((0, 9), 0), Spread((0, 1), 9), Spread((0, 0), 1), Spread((-1,), 0)]
)
def test_a_job_outside_of_the_network_is_refused(bad: Spread) -> None:
    state = SteadyState(regular(1, 4))
    with pytest.raises(SpreadInvalid):
        state.add(0, bad)
    assert 0 not in state


def test_a_job_is_added_and_removed_once() -> None:
    state = SteadyState(regular(1, 4))
    state.add(0, Spread((0, 1), 2))
    with pytest.raises(SpreadInvalid, match="already"):
        state.add(0, Spread((0, 1), 2))
    state.remove(0)
    with pytest.raises(SpreadInvalid, match="not in"):
        state.remove(0)


def build_with(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Use a kernel whose source has ``changes``, as plain Python."""
    import inspect

    from offpath.sched.ina.statistical import columns, kernel

    source = inspect.getsource(kernel)
    # Where all jobs are filled at once, nothing that a round forgot shows.
    for old, new in (("MANY: Final = 4", "MANY: Final = 0"), *changes):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    names: dict[str, object] = {"__name__": "planted", "c": columns}
    exec(compile(source, "planted", "exec"), names)
    functions = names["build"](lambda function: function)  # type: ignore[operator]
    monkeypatch.setattr(module, "kernels", lambda compiled: functions)


BUGS: dict[str, tuple[str, str]] = {
    "a used-up ToR leaves its jobs' flows": (
        "pass_on(job, at, level, heap, keys, place, e, ef, r, rf, j)\n                        else:",
        "pass\n                        else:",
    ),
    "PAT does not run out": ("r[res, c.R_USED_UP] = 1\n", "r[res, c.R_USED_UP] = 0\n"),
    "the root aggregates leaves only": ("j[job, c.J_LOCAL] + j[job, c.J_CROSSING]", "j[job, c.J_CROSSING]"),
    "a PS beside a worker has one flow": ("flows += 1", "flows += 0"),
    "held jobs that are too fast stay": ("rate > cap * (1.0 + c.EPSILON) + 1e-12 or", "False or"),
    "held jobs that could be faster stay": ("and is_slow)", "and False)"),
    "jobs on a used-up ToR are not filled together": ("if e[at, c.E_KIND] != c.TOR or", "if True or"),
    "a removed job's neighbours keep their rates": ("affected = j[each, c.J_BOTTLENECK] == res", "affected = False"),
    "a leaf's flows do not cross the core": ("j[job, c.J_CROSSING] += e[leaf, c.E_N] - 1", "pass"),
    "a key that grew is not looked at again": ("if keys[0] < level < c.INFINITE:", "if False:"),
    "a ToR's jobs are found in the first change only": ("r[res, c.R_CLOSED] = 0\n", "pass\n"),
    "more flows do not come earlier": ("if key < keys[at]:", "if False:"),
}  # fmt: skip
"""The text of the kernel, and what replaces it."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build_with(monkeypatch, BUGS[bug])
    assert any(caught(seed) for seed in range(60))


def caught(seed: int) -> bool:
    try:
        return story(seed) is not None
    except (AssertionError, IndexError, ZeroDivisionError):
        return True
