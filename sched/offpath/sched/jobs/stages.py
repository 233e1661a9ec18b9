"""How long a job was in each stage of its way, for its answer."""

from __future__ import annotations

from offpath.sched.jobs.records import Job


def stages(job: Job, now_ns: int, started_ns: int, finished_ns: int) -> tuple[int, int, int, int, int, int]:
    """Return queued, copy, launch, kernel, back and total in ns. A job with an unfinished kernel has the stages that
    its last attempt reached; time before that attempt counts as queued.

    Args:
        started_ns, finished_ns: by the worker's clock. If they are outside the interval from the end of the copy to
        ``now_ns``, that clock is another one (the host's, not the DPU's). The kernel stage is then their difference,
        bounded by the time since the copy, and the rest of that time counts as launch.
    """
    total = now_ns - job.accepted_ns
    if not finished_ns:
        return (*so_far(job, now_ns), 0, total)
    if job.copied_ns <= started_ns and finished_ns <= now_ns:
        launch, kernel, back = started_ns - job.copied_ns, finished_ns - started_ns, now_ns - finished_ns
    else:
        kernel = min(finished_ns - started_ns, now_ns - job.copied_ns)
        launch, back = now_ns - job.copied_ns - kernel, 0
    return job.placed_ns - job.accepted_ns, job.copied_ns - job.placed_ns, launch, kernel, back, total


def so_far(job: Job, now_ns: int) -> tuple[int, int, int, int]:
    """Return queued, copy, launch and kernel; the last nonzero stage was in progress at ``now_ns``. The start of an
    unfinished kernel is not known: it counts from its launch."""
    if job.placement is None:
        return now_ns - job.accepted_ns, 0, 0, 0
    queued = job.placed_ns - job.accepted_ns
    if job.is_copying or job.copied_ns < job.placed_ns:  # copied_ns may be of an earlier attempt
        return queued, now_ns - job.placed_ns, 0, 0
    copy = job.copied_ns - job.placed_ns
    if job.launched_ns < job.copied_ns:
        return queued, copy, now_ns - job.copied_ns, 0
    return queued, copy, job.launched_ns - job.copied_ns, now_ns - job.launched_ns
