"""What `offpath whatif` takes from a journal."""

from __future__ import annotations

from offpath.sched.gpu.registry import make
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.records import TenantSpec
from offpath.sched.jobs.states import EndReason
from offpath.sched.sim.whatif import Recording

from ..gpus import a100
from ..jobs.book_harness import SETTINGS

RAN_NS = 5_000


def submitted(job: int, kernel: int) -> events.JobSubmitted:
    return events.JobSubmitted(job, 1, job, kernel, 0, 0, 0, 0, False)


def test_gangs_are_counted_and_not_simulated() -> None:
    book = JobBook((TenantSpec("ada", max_demand=1600),), make("oldest-gpu-first"), SETTINGS)
    recording = Recording(book)
    recording.add(events.SessionOpened(1, "ada", 64), 0)
    kernels = (events.Kernel(1, 14, "part"), events.Kernel(2, 200, "gang"))
    recording.add(events.HelperJoined(1, (a100("gpu-0"),), kernels), 0)
    for job, kernel in enumerate((1, 2, 1, 2, 2), start=1):
        recording.add(submitted(job, kernel), job)
        recording.add(events.ResultArrived(job, 1, EndReason.NONE, 0, RAN_NS), job + RAN_NS)
    source = recording.source("journal")
    assert (len(source.stream.jobs), source.left_out, source.gangs) == (2, 0, 3)
