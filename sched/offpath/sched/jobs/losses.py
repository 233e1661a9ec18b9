"""The events that report lanes as lost, and which jobs they concern."""

from __future__ import annotations

from typing import Final

from offpath.sched.jobs import events
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job

Loss = events.WorkerLost | events.HelperLost | events.GpuLost
LOSSES: Final = (events.WorkerLost, events.HelperLost, events.GpuLost)


def is_losing(event: Loss, job: Job, ledger: Ledger) -> bool:
    """True if the event is the loss of the job's lane. Timers due at that event's time fire first."""
    assert job.placement is not None
    if isinstance(event, events.WorkerLost):
        return (job.placement.lease, job.placement.lane) == (event.lease, event.lane)
    view = ledger.leases[job.placement.lease].view
    if isinstance(event, events.GpuLost):
        return event.gpu in view.gpus
    lost = ledger.helpers.connection(event.helper)
    return lost is not None and any(spec.gpu == view.gpu for spec in lost.gpus)
