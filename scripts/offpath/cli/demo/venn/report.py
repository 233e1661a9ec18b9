"""The result of `offpath demo venn`, as data and as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from offpath.cli import admin_client
from offpath.cli.demo.venn.story import JOBS, PERIOD_S, POLICIES, JobObserved, Observed, nodes, overlaps

SAME: Final = 0.1
"""Accuracies of a job that differ by more have another reason than which nodes took part in so few rounds."""
_ERRORS: Final = 3.0
"""Standard errors by which a job may be less accurate with Venn: of the digits that it is tried on."""
OK: Final = (
    "each job ended with all its rounds on nodes that it can use, no node worked for two jobs, and no job is less"
    " accurate with Venn than chance explains; one run of each policy does not show that Venn is faster"
)
_HEAD: Final = ("policy", "job", "accuracy", "JCT s", "nodes", "answers")


def build(observed: Sequence[Observed]) -> dict[str, Any]:
    """``ok``, ``faults``, and in ``means`` what ``ok`` says; ``jobs``: a row for each policy and job; ``avg_jct_s`` and
    ``speedup`` over random matching. Times are no part of ``ok``: see `OK`."""
    faults = [
        f"{each.policy}: node {one.node} worked for {one.job} and {other.job} at the same time"
        for each in observed for one, other in overlaps(each.work)
    ]  # fmt: skip
    by_name = {each.policy: {job.job: job for job in each.jobs} for each in observed}
    random, venn = (by_name[policy] for policy in POLICIES)
    for name in random:
        less, chance = random[name].accuracy - venn[name].accuracy, noise(random[name], venn[name])
        if abs(less) > SAME:
            faults.append(f"{name}: accuracies differ by {abs(less):.3f}")
        elif less > chance:
            faults.append(f"{name}: accuracies differ by {less:.3f}, for the worse with Venn; chance: {chance:.3f}")
    wanted = {plan.job: plan for plan in JOBS}
    kinds = nodes()
    for each in observed:
        for work in each.work:
            least = wanted[work.job].least
            if any(int(kinds[work.node][name]) < number for name, number in least.items()):
                faults.append(f"{each.policy}: node {work.node} is not what {work.job} needs")
    averages = {each.policy: statistics.fmean(job.jct_s for job in each.jobs) for each in observed}
    return {
        "ok": not faults, "faults": faults, "means": OK,
        "emulated": f"how long a node works, and the day in which it works once ({PERIOD_S} s)",
        "jobs": [
            {"policy": each.policy, "job": job.job, "accuracy": round(job.accuracy, 4), "jct_s": round(job.jct_s, 1),
             "devices": len(job.served), "answers": sum(job.served.values())}
            for each in observed for job in each.jobs
        ],
        "avg_jct_s": {policy: round(value, 1) for policy, value in averages.items()},
        "speedup": round(averages[POLICIES[0]] / averages[POLICIES[1]], 2),
        "assigned": {each.policy: each.assigned for each in observed},
    }  # fmt: skip


def noise(one: JobObserved, other: JobObserved) -> float:
    """`_ERRORS` standard errors of the difference of two accuracies, each of a binomial number of digits."""
    return _ERRORS * math.sqrt(sum(each.accuracy * (1 - each.accuracy) / each.held for each in (one, other)))


def render(made: dict[str, Any]) -> str:
    """For people."""
    rows = [
        (row["policy"], row["job"], f"{row['accuracy']:.1%}", f"{row['jct_s']:.1f}", str(row["devices"]),
         str(row["answers"]))
        for row in made["jobs"]
    ]  # fmt: skip
    averages = ", ".join(f"{policy} {seconds:.1f} s" for policy, seconds in made["avg_jct_s"].items())
    return "\n".join([
        admin_client.table(rows, _HEAD), f"average JCT: {averages}; {made['speedup']:.2f} times as fast",
        f"EMULATED: {made['emulated']}", f"ok means: {made['means']}",
    ])  # fmt: skip
