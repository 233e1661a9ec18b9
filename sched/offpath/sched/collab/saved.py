"""A job of the book as plain data for a file, and back. Leases are kept apart: they come and go faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.records import Job, JobSpec, Request
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.collab.tiers import Profile, Sample, Tiers


def properties_data(properties: Properties) -> dict[str, Any]:
    """As plain data."""
    return {
        "numbers": dict(properties.numbers), "versions": {name: list(v) for name, v in properties.versions},
        "labels": sorted(properties.labels),
    }  # fmt: skip


def properties_of(data: Mapping[str, Any]) -> Properties:
    """Raises: KeyError, TypeError, ValueError, RequirementInvalid: not what `properties_data` makes."""
    return Properties.of(
        data["numbers"], {name: tuple(version) for name, version in data["versions"].items()}, data["labels"]
    )


def job_data(job: Job) -> dict[str, Any]:
    """All but its leases and its profile. How many lease a round's devices is counted from the leases."""
    request, spec = job.request, job.spec
    return {
        "name": spec.name, "tenant": spec.tenant, "requirement": properties_data(spec.requirement.least),
        "quorum_percent": spec.quorum_percent, "alone_ns": spec.alone_ns, "speed": spec.speed, "tiers": spec.tiers,
        "rounds_wanted": spec.rounds, "opened_ns": job.opened_ns, "served_ns": job.served_ns,
        "standing_ns": job.standing.served_ns, "last_round": job.last_round, "response_ns": job.response_ns,
        "schedule_ns": job.schedule_ns, "rounds": job.rounds,
        "bounds": asdict(job.bounds) if job.bounds is not None else None,
        "request": asdict(request) if request is not None else None,
    }  # fmt: skip


def profile_data(job: Job) -> list[list[float]]:
    """What the job has learnt about its devices: pairs of speed and seconds."""
    return [[sample.speed, sample.response_s] for sample in job.profile.samples]


def job_of(data: Mapping[str, Any], profile: list[list[float]]) -> Job:
    """Raises: KeyError, TypeError, ValueError, RequirementInvalid: not what `job_data` and `profile_data` make."""
    spec = JobSpec(
        data["name"], data["tenant"], Requirement(properties_of(data["requirement"])), data["quorum_percent"],
        data["alone_ns"], data["speed"], data["tiers"], data["rounds_wanted"],
    )  # fmt: skip
    learnt = Profile(max(2, spec.tiers))
    for speed, response_s in profile:
        learnt.learn(Sample(int(speed), float(response_s)))
    bounds = data["bounds"]
    return Job(
        spec, -1, data["opened_ns"], learnt, Standing(spec.alone_ns, data["standing_ns"]),
        Request(**data["request"]) if data["request"] is not None else None,
        data["last_round"], data["served_ns"], data["response_ns"], data["schedule_ns"], data["rounds"],
        Tiers(tuple(bounds["bounds"]), tuple(bounds["speedups"])) if bounds is not None else None,
    )  # fmt: skip
