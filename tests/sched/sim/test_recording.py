"""What `offpath whatif` takes from a journal."""

from __future__ import annotations

from offpath.sched.gpu.registry import make
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import TenantSpec
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


def test_a_batch_is_one_job_that_runs_as_long_as_its_launch() -> None:
    book = JobBook((TenantSpec("ada"),), make("oldest-gpu-first"), SETTINGS)
    recording = Recording(book)
    recording.add(events.SessionOpened(1, "ada", 64), 0)
    recording.add(events.HelperJoined(1, (a100("gpu-0"),), (events.Kernel(1, 14, "part"),)), 0)
    for job in (1, 2, 3, 4):
        recording.add(events.StackSubmitted(submitted(job, 1), 1, 7), job)
    recording.add(commands.CopyBatch(2, 0, 1, 0, 3, ((2, 0), (1, 1), (3, 2))), 4)
    recording.add(commands.CopyBatch(2, 1, 1, 0, 2, ((2, 0), (1, 1))), 5)  # 3 was cancelled
    recording.add(events.BatchResult(2, 1, EndReason.NONE, 0, RAN_NS, ((1, EndReason.RESULT_TOO_LARGE),)), 6 + RAN_NS)
    source = recording.source("journal")
    assert [(row.submit_ns, row.duration_ns) for row in source.stream.jobs] == [(2, RAN_NS)]
    assert source.left_out == 2


def test_a_request_of_a_sequence_is_a_job_of_its_own() -> None:
    book = JobBook((TenantSpec("ada"),), make("oldest-gpu-first"), SETTINGS)
    recording = Recording(book)
    recording.add(events.SessionOpened(1, "ada", 64), 0)
    kernel = events.Kernel(1, 14, "steps", sequences=True)
    recording.add(events.HelperJoined(1, (a100("gpu-0"),), (kernel,)), 0)
    for job in (1, 2):
        recording.add(events.SequenceSubmitted(submitted(job, 1), 7, job == 1, job == 2), job)
        recording.add(events.ResultArrived(job, 1, EndReason.NONE, 0, RAN_NS), job + RAN_NS)
    source = recording.source("journal")
    assert [(row.submit_ns, row.duration_ns) for row in source.stream.jobs] == [(1, RAN_NS), (2, RAN_NS)]
