"""Forecasts and `retry_after_ms` count the requests that wait for their sequence."""

from __future__ import annotations

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.forecast import ends_in_ns, work_ns
from offpath.sched.jobs.settings import MS, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason

from .book_harness import ADA
from .test_sequences import PLAIN, SUM, Rig

PACE_MS = 20
ONE_LEASE = (TenantSpec("ada", max_jobs=8, max_share=14),)


def rig(sequences: int = 1) -> Rig:
    """From 100 on: each kernel takes 20 ms, and two lanes run one after the other. Of each sequence one request runs or
    waits on a lane."""
    made = Rig(tenants=ONE_LEASE)
    for number in (1, 2):
        made.submit(20 * number, 900 + number, ADA, PLAIN)
        made.copied(20 * number, 900 + number)
        made.result(20 * number + PACE_MS, 900 + number, 1)
    for seq in range(1, sequences + 1):
        made.ask(40 + 20 * seq, seq, seq=seq, start=True)
        made.copied(40 + 20 * seq, seq)
        made.result(60 + 20 * seq, seq, 1)
    for seq in range(1, sequences + 1):
        made.ask(100, 10 + seq, seq=seq)
        made.copied(100, 10 + seq)
    return made


def answer(out: tuple[object, ...]) -> Answer:
    (one,) = [each for each in out if isinstance(each, Answer)]
    return one


def test_the_requests_of_one_long_sequence_count_one_after_the_other() -> None:
    made = rig()
    for job in range(20, 27):
        assert made.ask(100, job, seq=1) == ()
    full = answer(made.ask(100, 30, seq=1))
    assert full.reason is EndReason.TENANT_QUEUE_FULL
    assert full.retry_after_ms == 8 * PACE_MS // 2


def test_a_plain_request_of_the_tenant_is_refused_for_as_long() -> None:
    made = rig(2)
    for job in range(20, 26):
        made.ask(100, job, seq=1 + job % 2)
    full = answer(made.submit(100, 30, ADA, PLAIN))
    assert (full.reason, full.retry_after_ms) == (EndReason.TENANT_QUEUE_FULL, 8 * PACE_MS // 2)


def test_what_ended_or_got_its_lane_counts_no_longer() -> None:
    made = rig()
    for job in range(20, 24):
        made.ask(100, job, seq=1, priority=job % 2)
    tenant, kernels = made.book.ledger.tenants["ada"], made.book.ledger.kernels
    assert work_ns(tenant, kernels, 100 * MS) == 5 * PACE_MS * MS
    made.send(100, events.CancelRequested(22))
    assert work_ns(tenant, kernels, 100 * MS) == 4 * PACE_MS * MS
    again = restore(snapshot(made.book)).ledger
    assert work_ns(again.tenants["ada"], again.kernels, 100 * MS) == 4 * PACE_MS * MS
    made.result(120, 11, 1)
    assert work_ns(tenant, kernels, 120 * MS) == 3 * PACE_MS * MS
    made.copied(120, 20)
    made.send(121, events.WorkerLost(1, made.lane_of(20), 1))
    assert (tenant.awaiting, tenant.awaited) == ({}, {})


def test_a_reloaded_kernel_s_demand_is_counted_anew() -> None:
    made = Rig()
    made.ask(100, 1, start=True)
    made.ask(100, 2)
    tenant = made.book.ledger.tenants["ada"]
    assert tenant.awaited == {(0, SUM, 14): 1}
    other = events.Kernel(SUM, 20, "sum", (("A100-40GB", 20),), sequences=True)
    made.ask(100, 3, seq=8, start=True)
    made.ask(100, 4, seq=8, start=True, priority=2)
    made.send(101, events.KernelsReloaded(1, (events.Kernel(PLAIN, 14), other), 1))
    counted = {(job.priority, job.kernel, job.demand.share) for job in tenant.awaiting.values()}
    assert set(tenant.awaited) == counted
    made.send(102, events.SessionClosed(ADA))
    assert (tenant.awaiting, tenant.awaited) == ({}, {})


def test_a_queued_request_is_estimated_to_end_after_the_requests_of_the_sequence_before_it() -> None:
    made = rig(2)  # both lanes are in use
    made.ask(100, 20, seq=1)
    made.ask(100, 21, seq=1)
    made.submit(101, 30, ADA, PLAIN)
    ledger = made.book.ledger
    tenant, job = ledger.tenants["ada"], ledger.jobs[30]
    assert ends_in_ns(job, tenant, ledger.kernels, 100 * MS) == 5 * PACE_MS * MS
    assert explain(job, ledger, tuple(made.book.leasing.gpus), 100 * MS).ahead == 2
    made.submit(101, 31, ADA, PLAIN, priority=1)
    assert ends_in_ns(ledger.jobs[31], tenant, ledger.kernels, 100 * MS) == 3 * PACE_MS * MS
