"""Counts answers and keeps records of ended jobs. On the request path: below a microsecond in all.

Sums that can be computed at query time are left to `metrics` and `admin`.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Collection
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.requests.histogram import Histogram
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.states import JobState

if TYPE_CHECKING:
    from offpath.dpu_daemon.requests.inflight import JobRef

ENDED_KEPT: Final = 4096
DETAIL_BYTES: Final = 512
"""Limit of a worker's failure text."""
STAGES: Final = ("queued", "copy", "launch", "kernel", "back")


class EndedRequest(NamedTuple):
    """An ended job. Only plain values: a record must not keep its session's memory alive."""

    job: int
    session: int
    tenant: str
    request_id: int
    kernel: int
    priority: int
    demand: int
    payload_bytes: int
    budget_ms: int
    answer: Answer
    at_ns: int
    operator_uid: int | None
    detail: bytes
    """UTF-8, perhaps cut within a character; `DETAIL_BYTES` at most."""
    answers: int
    """Of its stream, without the last one."""


def ended_request(ref: JobRef, answer: Answer, now_ns: int) -> EndedRequest:
    """The record of a job whose end was decided and is not written yet."""
    header, stream = ref.header, ref.stream
    return EndedRequest(
        ref.job, ref.session.number, ref.session.tenant, header.request_id, header.kernel_id, header.priority,
        header.demand, header.payload_bytes, header.budget_ms, answer, now_ns, ref.operator_uid, ref.detail,
        (stream.written or 0) if stream is not None else 0,
    )  # fmt: skip


class RequestStats:
    """Answers by tenant, status and reason; latency by tenant and by stage; the last `ENDED_KEPT` ended jobs."""

    def __init__(self) -> None:
        self._not_completed: Counter[tuple[str, Status, Reason]] = Counter()
        self.latency: dict[str, Histogram] = {}
        self.stages = tuple(Histogram() for _ in STAGES)
        self._ended: deque[tuple[Any, ...]] = deque(maxlen=ENDED_KEPT)

    def answered(self, ref: JobRef, answer: Answer, status: Status, reason: Reason, now_ns: int) -> None:
        """Record a job's one terminal answer. Latency counts completed jobs only."""
        session, header = ref.session, ref.header
        tenant = session.tenant
        self._ended.append(  # the fields of `EndedRequest`, which takes five times as long to create
            (
                ref.job, session.number, tenant, header.request_id, header.kernel_id, header.priority, header.demand,
                header.payload_bytes, header.budget_ms, answer, now_ns, ref.operator_uid,
                ref.detail, (ref.stream.written or 0) if ref.stream is not None else 0,
            )
        )  # fmt: skip
        if answer.state is not JobState.COMPLETED:
            self._not_completed[tenant, status, reason] += 1
            return
        latency = self.latency.get(tenant)
        if latency is None:
            latency = self.latency[tenant] = Histogram()
        queued_ns, copy_ns, launch_ns, kernel_ns, back_ns, total_ns = answer.stages
        latency.bits[total_ns.bit_length()] += 1
        latency.sum_ns += total_ns
        queued, copy, launch, kernel, back = self.stages  # unrolled: a loop costs twice as much
        queued.bits[queued_ns.bit_length()] += 1
        queued.sum_ns += queued_ns
        copy.bits[copy_ns.bit_length()] += 1
        copy.sum_ns += copy_ns
        launch.bits[launch_ns.bit_length()] += 1
        launch.sum_ns += launch_ns
        kernel.bits[kernel_ns.bit_length()] += 1
        kernel.sum_ns += kernel_ns
        back.bits[back_ns.bit_length()] += 1
        back.sum_ns += back_ns

    def ends(self) -> dict[tuple[str, Status, Reason], int]:
        """Answers by tenant, status and reason."""
        completed = {
            (tenant, Status.COMPLETED, Reason.NONE): sum(latency.bits) for tenant, latency in self.latency.items()
        }
        return {**completed, **self._not_completed}

    def ended(
        self,
        *,
        tenant: str | None = None,
        session: int | None = None,
        states: Collection[JobState],
        after: int = 0,
        limit: int = 128,
    ) -> list[EndedRequest]:
        """The kept ended jobs in one of ``states`` with a number above ``after``, by rising number."""
        fitting = [
            kept
            for kept in self._ended
            if kept[0] > after
            and (tenant is None or kept[2] == tenant)
            and (session is None or kept[1] == session)
            and kept[9].state in states
        ]
        return [EndedRequest(*kept) for kept in heapq.nsmallest(limit, fitting, key=itemgetter(0))]

    def last_ended(self, limit: int) -> list[EndedRequest]:
        """The kept jobs that ended last, the last one first."""
        return [EndedRequest(*kept) for kept in itertools.islice(reversed(self._ended), limit)]

    def find(self, *, job: int = 0, session: int = 0, request_id: int = 0) -> EndedRequest | None:
        """The newest kept ended job with this number, or with this session and request id."""
        for kept in reversed(self._ended):
            if kept[0] == job if job else (kept[1], kept[3]) == (session, request_id):
                return EndedRequest(*kept)
        return None
