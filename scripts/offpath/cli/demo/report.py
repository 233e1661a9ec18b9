"""Computes the demo's report from the processes' output: counts, percentiles, and whether the checks passed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from offpath.cli.demo.drive import Answer, Outcome
from offpath.cli.demo.isolation import LaneReport
from offpath.cli.demo.samples import PIXELS, STAGES, Plan

JOBS_WANTED: Final = 200
LANE_CHANGES_WANTED: Final = 20
_JOBS_PER_CHANGE: Final = 25
"""A shortened run must have one lane change per this many jobs."""


def lane_openings(answers: Iterable[Answer]) -> list[LaneReport]:
    """The last report of every lane opening that served a job, in order of opening."""
    last: dict[tuple[int, int, int], LaneReport] = {}
    for answer in answers:
        lane = answer.lane
        key = (lane.pid, lane.lease, lane.lane)
        if key not in last or last[key].stamps < lane.stamps:
            last[key] = lane
    return sorted(last.values(), key=lambda lane: lane.opened_ns)


def lane_changes(openings: Iterable[LaneReport]) -> int:
    """How often a piece of GPU memory that a lane occupies changed from one tenant to another.

    Lanes are equal in size and begin at the instance's start: (GPU, first slice, lane) identifies the bytes. An opening
    that served no job is not visible here, so this is a lower bound.
    """
    by_memory: dict[tuple[int, int, int], list[int]] = {}
    for lane in openings:  # in order of opening
        by_memory.setdefault((lane.gpu, lane.start, lane.lane), []).append(lane.tenant)
    return sum(a != b for owners in by_memory.values() for a, b in itertools.pairwise(owners))


def build(plan: Plan, outcome: Outcome, *, seed: int, break_scrub: bool, is_whole: bool = False) -> dict[str, Any]:
    """The report as one JSON-ready object; ``ok`` and ``faults`` are the result of the checks. ``is_whole``: leases
    have whole GPUs, which are not cut."""
    answers = list(outcome.answers.values())
    openings = lane_openings(answers)
    order = sorted(plan.tenants)
    tenants = []
    for index, name in enumerate(order):
        mine = [a for a in answers if a.tenant == name]
        images = sum(job.images for job in plan.jobs if job.job in outcome.answers and job.tenant == name)
        own = [lane for lane in openings if lane.tenant == index]
        foreign = sum(not a.is_mine for a in mine)
        tenants.append({
            "name": name,
            "trace_key": plan.tenants[name],
            "jobs": sum(job.tenant == name for job in plan.jobs),
            "answered": len(mine),
            "correct": sum(a.is_equal for a in mine),
            "images": images,
            "accuracy": round(sum(a.right for a in mine) / images, 4) if images else None,
            "stages_us": {stage: percentiles(a.stages[stage] for a in mine) for stage in STAGES},
            "leases": len({lane.lease for lane in own}),
            "lanes": len(own),
            "lane_memory": [list(m) for m in sorted({(lane.gpu, lane.start, lane.lane) for lane in own})],
            "checks": sum(lane.scans + lane.stamps for lane in own) + len(mine),
            "violations": sum(lane.leaks + lane.forged for lane in own) + foreign,
        })  # fmt: skip
    images = sum(job.images for job in plan.jobs if job.job in outcome.answers)
    report: dict[str, Any] = {
        "jobs": len(plan.jobs),
        "is_full": len(plan.jobs) >= JOBS_WANTED,
        "answered": len(answers),
        "correct_fraction": round(sum(a.is_equal for a in answers) / len(answers), 6) if answers else 0.0,
        "accuracy": round(sum(a.right for a in answers) / images, 4) if images else None,
        "isolation_checks": sum(t["checks"] for t in tenants),
        "isolation_violations": sum(t["violations"] for t in tenants),
        "isolation": {
            "canary_scans": sum(lane.scans for lane in openings),
            "canaries_found": sum(lane.leaks for lane in openings),
            "launches_checked": sum(lane.stamps for lane in openings),
            "launches_on_another_tenants_lane": sum(lane.forged for lane in openings),
            "answers_checked": len(answers),
            "answers_from_another_tenants_lane": sum(not a.is_mine for a in answers),
        },
        "tenants": tenants,
        "seconds": round(_span_s(answers), 3),
        "lane_changes": lane_changes(openings),
        "lane_openings": len(openings),
        "profiles": _profiles(openings, is_whole=is_whole),
        "stages_us": {stage: percentiles(a.stages[stage] for a in answers) for stage in STAGES},
        "payload_bytes": images * PIXELS * 4,
        "bytes_per_request": _per_request(outcome.statistics),
        "daemon": outcome.statistics,
        "seed": seed,
        "break_scrub": break_scrub,
    }
    report["faults"] = _faults(report, outcome)
    report["ok"] = not report["faults"]
    return report


def percentiles(ns: Iterable[int]) -> dict[str, float] | None:
    """Median and p99 in µs; None if empty."""
    values = np.fromiter(ns, np.float64)
    if not len(values):
        return None
    p50, p99 = np.percentile(values, (50, 99)) / 1e3
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}


def _span_s(answers: list[Answer]) -> float:
    if not answers:
        return 0.0
    return (max(a.came_ns for a in answers) - min(a.sent_ns for a in answers)) / 1e9


def _profiles(openings: list[LaneReport], *, is_whole: bool) -> dict[str, int]:
    """Leases by the size of their instance, in MIG's compute slices."""
    leases = {lane.lease: "whole" if is_whole else f"{lane.compute_slices}g" for lane in openings}
    return {profile: list(leases.values()).count(profile) for profile in sorted(set(leases.values()))}


def _per_request(statistics: dict[str, int]) -> dict[str, float]:
    """Bytes per request: read and written by the daemon's CPU, and moved by the copy engine."""
    requests = max(statistics.get("requests", 0), 1)
    read, written = statistics.get("header_bytes_read", 0), statistics.get("answer_bytes_written", 0)
    return {
        "daemon_cpu": round((read + written) / requests, 1),
        "header_read": round(read / requests, 1),
        "answer_written": round(written / requests, 1),
        "dma": round(statistics.get("dma_bytes", 0) / requests, 1),
    }


def _faults(report: dict[str, Any], outcome: Outcome) -> list[str]:
    """The failed checks; a run of fewer jobs needs fewer lane changes."""
    faults = []
    missing = report["jobs"] - report["answered"]
    if missing:
        why = next(iter(outcome.failed.values()), "no answer arrived")
        faults.append(f"{missing} of {report['jobs']} jobs were not answered; the first: {why}")
    if report["correct_fraction"] != 1.0:
        wrong = report["answered"] - sum(t["correct"] for t in report["tenants"])
        faults.append(f"{wrong} answers differ from the direct computation")
    if report["isolation_violations"]:
        found = report["isolation"]
        faults.append(
            f"{report['isolation_violations']} isolation violations: {found['canaries_found']} canaries of other "
            f"tenants in freshly opened lanes, {found['launches_on_another_tenants_lane']} launches and "
            f"{found['answers_from_another_tenants_lane']} answers on another tenant's lane"
        )
    wanted = LANE_CHANGES_WANTED if report["is_full"] else report["jobs"] // _JOBS_PER_CHANGE
    if report["lane_changes"] < wanted:
        faults.append(f"only {report['lane_changes']} lanes changed tenant; {wanted} are needed to show isolation")
    return faults
