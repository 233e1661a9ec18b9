"""`offpath request show ID`: prints one job, also for a while after its end."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import admin
from offpath.cli import admin_client

STAGES = ("queued", "copy", "launch", "kernel", "back", "total")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    admin_client.add_id(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the job."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        found = client.query(admin.JobRequest(**arguments.id), admin.Job)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print("\n".join([job_text(found.job), *stage_lines(found.stages_ms)]))
    return 0


def stage_lines(stages_ms: list[float]) -> list[str]:
    """An ended job's stages, one a line; empty before the end."""
    return [f"  {name:<7} {spent_ms:10.3f} ms" for name, spent_ms in zip(STAGES, stages_ms, strict=False)]


def job_text(job: admin.JobLine) -> str:
    """A job in two lines."""
    by = f", uid {job.cancelled_by_uid}" if job.cancelled_by_uid is not None else ""
    state = job.state.upper() + (f" ({job.reason}{by})" if job.reason not in ("", "none") else "")
    place = f", lease {job.lease}" if job.lease else ""
    since = "ended" if job.is_ended else "accepted"
    answers = f"{job.answers} answers written, " if job.answers else ""
    return (
        f"job {job.job} ({job.session}/{job.request_id}) of {job.tenant}: {state}{place}\n"
        f"  kernel {job.kernel}, demand {job.demand} %, priority {job.priority}, {job.payload_bytes} bytes, "
        f"{answers}{since} {job.age_ms / 1e3:.3f} s ago"
    )
