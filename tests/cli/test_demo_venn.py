"""`offpath demo venn`: three jobs of a real Flower on twelve nodes, twice; what its report finds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from offpath.cli.demo.venn import report
from offpath.cli.demo.venn.story import (
    CLASSES,
    JOBS,
    NODES_OF_A_CLASS,
    POLICIES,
    JobObserved,
    Observed,
    Work,
    nodes,
    overlaps,
)


def observed(policy: str, *work: Work, accuracy: float = 0.9, jct_s: float = 10.0) -> Observed:
    return Observed(
        policy, [JobObserved(plan.job, accuracy, 797, jct_s, {"7": 2, "8": 1}) for plan in JOBS], list(work), 9
    )


def test_a_report_has_both_policies_and_what_venn_gains() -> None:
    made = report.build([observed(POLICIES[0], jct_s=20.0), observed(POLICIES[1])])
    assert made["ok"]
    assert made["speedup"] == 2.0
    assert [row["policy"] for row in made["jobs"]] == [POLICIES[0]] * 3 + [POLICIES[1]] * 3
    assert {(row["devices"], row["answers"]) for row in made["jobs"]} == {(2, 3)}
    assert "EMULATED" in report.render(made)


def test_a_report_finds_two_jobs_on_a_node_and_a_node_that_is_not_what_a_job_needs() -> None:
    twice = observed(POLICIES[0], Work(11, "keyboard", 1.0, 3.0), Work(11, "vision", 2.0, 4.0))
    unfit = observed(POLICIES[1], Work(0, "vision", 1.0, 2.0))
    found = report.build([twice, unfit])["faults"]
    assert len(found) == 2
    assert "at the same time" in found[0]
    assert "not what vision needs" in found[1]
    assert overlaps([Work(1, "a", 1.0, 2.0), Work(1, "b", 2.0, 3.0), Work(2, "c", 1.0, 9.0)]) == []


@pytest.mark.parametrize(
    ("random", "venn", "is_ok"),
    [(0.9, 0.7, False), (0.7, 0.9, False), (0.9, 0.86, True), (0.9, 0.85, False), (0.85, 0.9, True), (1.0, 1.0, True)],
)
def test_a_report_finds_accuracies_that_chance_does_not_explain(random: float, venn: float, is_ok: bool) -> None:
    """Of 797 digits three standard errors at 0.9 are 0.046: 0.04 less may be chance, 0.05 less is not."""
    made = report.build([observed(POLICIES[0], accuracy=random), observed(POLICIES[1], accuracy=venn)])
    assert len(made["faults"]) == (0 if is_ok else len(JOBS))
    assert made["ok"] is is_ok


def test_ok_does_not_ask_for_speed_and_says_so() -> None:
    made = report.build([observed(POLICIES[0], jct_s=10.0), observed(POLICIES[1], jct_s=20.0)])
    assert (made["ok"], made["speedup"]) == (True, 0.5)
    assert "does not show that Venn is faster" in report.render(made)


def test_nodes_are_of_four_classes_and_have_parts_of_their_own() -> None:
    made = nodes()
    assert len(made) == len(CLASSES) * NODES_OF_A_CLASS >= 12
    assert sorted(int(each["part"]) for each in made) == list(range(len(made)))


@pytest.mark.full
@pytest.mark.not_fast("the processes of Flower have no compiled modules")
def test_jobs_of_a_real_flower_share_nodes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offpath.cli.main", "demo", "venn", "--rounds", "1", "--work-ms", "500", "--json"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.stdout, done.stderr
    made = json.loads(done.stdout)
    apart = [fault for fault in made["faults"] if "accuracies" not in fault]  # after one round they may differ
    assert not apart
    answers = {(row["policy"], row["job"]): row["answers"] for row in made["jobs"]}
    assert answers == {(policy, plan.job): plan.demand for policy in POLICIES for plan in JOBS}
    assert made["assigned"] == {policy: sum(plan.demand for plan in JOBS) for policy in POLICIES}
