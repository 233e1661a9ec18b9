"""Jobs whose trees may use some switches only: SHArP's, for which HIRE has booked them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.dpu_daemon.controller import jobs as jobs_module
from offpath.dpu_daemon.controller.jobs import REST_NS, JobRefused
from offpath.sched.ina.sharing import planner as planner_module
from offpath.sched.ina.sharing.layout import TreeUnusable
from offpath.sched.ina.sharing.planner import SwitchUnknown
from offpath.sched.ina.trees import candidates

from .test_memory import H, jobs, opened, state
from .test_policies import ADDRESSES, TOPOLOGY, UP, planner, view

NAMES = TOPOLOGY.names
LEAF_0, LEAF_1 = (NAMES[TOPOLOGY.up[host][0][0]] for host in (0, 2))
SPINES = [name for name in ADDRESSES if TOPOLOGY.level[NAMES.index(name)] == 2]
HOSTS = (NAMES[0], NAMES[2])


def used(plan: Any, job: str) -> set[str]:
    return {part.switch for part in plan[job].tree.parts}


# -- planning ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("spine", SPINES)
def test_a_restricted_job_gets_a_tree_of_its_switches_and_loses_it_with_them(spine: str) -> None:
    plans = planner()
    plans.restrict("a", (LEAF_0, LEAF_1, spine))
    assert used(plans((view("a", 0, 2),), UP, 0), "a") == {LEAF_0, LEAF_1, spine}
    plans.restrict("a", ())
    assert plans((view("a", 0, 2),), UP, 1) == {}
    assert "within no switches, to which its submitter restricts it" in plans.plan.without["a"]
    plans.restrict("a", (LEAF_0, LEAF_1))
    assert plans((view("a", 0, 2),), UP, 2) == {}
    plans.restrict("a", None)
    assert {LEAF_0, LEAF_1} < used(plans((view("a", 0, 2),), UP, 3), "a")


def test_a_restricted_job_keeps_its_tree_while_its_restriction_allows_it() -> None:
    plans = planner()
    plans.restrict("a", (LEAF_0, LEAF_1, SPINES[1]))
    first = plans((view("a", 0, 2),), UP, 0)["a"].tree
    plans.restrict("a", (LEAF_0, LEAF_1, *SPINES))
    assert plans((view("a", 0, 2), view("b", 4, 6)), UP, 1)["a"].tree == first


def test_a_restricted_job_shares_its_root_with_others_and_is_denied_a_tree_that_meets_theirs_elsewhere() -> None:
    plans = planner()
    other = used(plans((view("b", 1, 3),), UP, 0), "b")
    (root,) = other & set(SPINES)
    (away,) = set(SPINES) - {root}
    plans.restrict("a", (LEAF_0, LEAF_1, root))
    both = plans((view("b", 1, 3), view("a", 0, 2)), UP, 1)
    assert used(both, "a") == other
    plans.restrict("a", (LEAF_0, LEAF_1, away))
    assert set(plans((view("b", 1, 3), view("a", 0, 2)), UP, 2)) == {"b"}
    assert "no root arbitrates" in plans.plan.without["a"]


def test_switches_without_a_tree_are_refused_when_they_are_given() -> None:
    plans = planner()
    plans.check_switches(HOSTS, (LEAF_0, LEAF_1, SPINES[0]))
    plans.check_switches(HOSTS, ())
    with pytest.raises(SwitchUnknown, match="nowhere"):
        plans.check_switches(HOSTS, (LEAF_0, "nowhere"))
    for few in ((LEAF_0, LEAF_1), (LEAF_0, SPINES[0]), tuple(SPINES)):
        with pytest.raises(TreeUnusable, match="no tree over"):
            plans.check_switches(HOSTS, few)


def test_a_planted_bug_that_ignores_the_restriction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planner_module, "within", lambda topology, hosts, allowed: candidates(topology, hosts, None, Random(0))
    )
    with pytest.raises(AssertionError):
        test_a_restricted_job_gets_a_tree_of_its_switches_and_loses_it_with_them(SPINES[0])


# -- jobs -------------------------------------------------------------------------------------------------------------
def test_a_restricted_job_is_submitted_again_with_other_switches_and_any_other_is_refused() -> None:
    known = jobs()
    first = known.submit("a", 0, H[:2], 1, 0, ("s1",))
    known.seen(H[0], [state("a", 0, incarnation=5)], H, 1)
    assert known.submit("a", 0, H[1:3], 1, 2, ("s2",)) is first
    assert (first.hosts, first.switches, first.incarnation, first.ranks) == (H[1:3], ("s2",), 5, {0: H[0]})
    with pytest.raises(JobRefused, match="job_exists"):
        known.submit("a", 0, H[1:3], 1, 2)
    known.submit("plain", 0, (H[3],), 1, 0)
    with pytest.raises(JobRefused, match="job_exists"):
        known.submit("plain", 0, (H[3],), 1, 0, ("s1",))
    with pytest.raises(JobRefused, match="hosts"):
        known.submit("b", 1, (), 1, 0, ("s1",))


def test_it_takes_no_room_from_itself_and_keeps_what_it_had_if_it_is_refused() -> None:
    known = jobs(most_ranks=2)
    known.submit("a", 0, H[:2], 2, 0, ())
    known.submit("full", 0, (H[2],), 2, 0)
    assert known.submit("a", 0, H[:2], 2, 1, ("s1",)).switches == ("s1",)
    with pytest.raises(JobRefused, match="no_room"):
        known.submit("a", 0, (H[0], H[2]), 2, 1, ("s2",))
    assert (known.get("a").hosts, known.get("a").switches) == (H[:2], ("s1",))


def test_ranks_that_were_discovered_first_get_the_restriction_if_it_names_their_hosts() -> None:
    """A controller without its state file has learned of the job from its ranks."""
    known = jobs()
    known.seen(H[0], [state("met", 0)], H, 0)
    with pytest.raises(JobRefused, match="job_exists"):
        known.submit("met", 0, H[1:3], 1, 1, ("s1",))
    job = known.submit("met", 0, H[:2], 1, 1, ("s1",))
    assert (job.is_submitted, job.hosts, job.switches) == (True, H[:2], ("s1",))


def test_it_is_not_over_before_it_is_cancelled_and_then_no_incarnation_gets_its_switches() -> None:
    known = jobs()
    known.submit("a", 0, H[:2], 1, 0, ("s1",))
    known.seen(H[0], [state("a", 0)], H, 1)
    known.seen(H[0], [state("a", 0, is_gone=True)], H, 2)
    assert known.over(3 + REST_NS) == ()
    assert known.cancel("a").switches == ()
    assert known.over(3 + REST_NS) == ("a",)


def test_ranks_of_a_job_that_is_submitted_again_after_it_was_cancelled_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs_module, "MOST_RANKS_PER_HOST", 1)
    known = jobs()
    known.submit("a", 0, H[:2], 1, 0, ("s1",))
    for _ in range(3):
        known.seen(H[0], [state("a", 0)], H, 1)
        assert known.get("a").ranks == {0: H[0]}
        known.cancel("a")
        known.submit("a", 0, H[:2], 1, 0, ("s1",))


def test_the_restriction_outlives_the_controller_and_a_row_without_a_readable_one_is_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    before = jobs(store)
    before.submit("a", 0, H[:2], 1, 0, ("s1", "s2"))
    before.submit("b", 0, H[2:4], 1, 0)
    store.job("odd", {"name": "odd", "hosts": [], "ranks_per_host": 1, "is_submitted": True, "reasons": [],
                      "cancelled": None, "incarnation": 0, "switches": "s1"})  # fmt: skip
    store.close()
    after = jobs(opened(tmp_path / "state"))
    after.remember(9)
    assert {job.name: job.switches for job in after.known()} == {"a": ("s1", "s2"), "b": None}
