"""Requests that take the lane of their sequence, beside plain ones, on two leases: policies count their shares."""

from __future__ import annotations

from random import Random

import pytest

from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.plugin import PluginPolicy, gateway_of
from offpath.sched.gpu.policy import Policy
from offpath.sched.gpu.registry import POLICIES
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Command, OpenLease
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot

from ...support.advisors import Hosted
from ..gpus import a100
from .book_harness import ADA, SETTINGS, BookHarness
from .test_sequences import copies

SUM, PLAIN = 11, 1
KERNELS = (events.Kernel(PLAIN, 14), events.Kernel(SUM, 14, "sum", sequences=True))
MAKES = {**POLICIES, "plugin": lambda: PluginPolicy("p")}


class Rig(BookHarness):
    """Two warm leases of ada's, each with two lanes and room for one of her jobs."""

    def __init__(self, policy: Policy) -> None:
        tenants = (TenantSpec("ada"),)
        super().__init__(tenants, SETTINGS, is_joined=False)
        whole = policy.name in ("mps-only", "exclusive")
        self.share = 100 if whole else 14
        small = PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("ada", 0, "1g.5gb", 1)
        large = PinnedLease("ada", 0, "7g.40gb", 0), PinnedLease("ada", 1, "7g.40gb", 0)
        self.book = JobBook(tenants, policy, SETTINGS, large if whole else small)
        if isinstance(policy, PluginPolicy):
            gateway_of(self.book.ledger.decisions).arriving = Hosted(OldestGpuFirst, Random(0))
            self.send(0, events.PluginStarted())
            assert policy.is_advised
        self.send(0, events.SessionOpened(ADA, "ada", 64))
        opened = self.send(0, events.HelperJoined(1, (a100("gpu-0"), a100("gpu-1")), KERNELS))
        assert [each.lease for each in opened if isinstance(each, OpenLease)] == [1, 2]
        self.warm(0, 1, 2)

    def ask(self, at_ms: float, job: int, *, seq: int = 7, start: bool = False) -> tuple[Command, ...]:
        """A request of a sequence."""
        self.ids[ADA] = self.ids.get(ADA, 0) + 1
        submitted = events.JobSubmitted(job, ADA, self.ids[ADA], SUM, self.share, 0, 0, 100, False)
        return self.send(at_ms, events.SequenceSubmitted(submitted, seq, start, False))

    def plain(self, at_ms: float, job: int) -> list[tuple[int, int, int]]:
        return copies(self.submit(at_ms, job, ADA, PLAIN, self.share))

    def done(self, at_ms: float, job: int, lease: int) -> tuple[Command, ...]:
        self.send(at_ms, events.CopyDone(job, 0))
        return self.result(at_ms, job, lease)

    def counted(self) -> dict[int, int]:
        """The share that the policy counts on each lease."""
        return {held.view.lease: held.placed_share for held in self.book.ledger.policy.state().leases}


@pytest.fixture(params=sorted(MAKES))
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(MAKES[request.param]())


def seated(rig: Rig) -> int:
    """The second request of a sequence runs; its lease."""
    ((_, lease, lane),) = copies(rig.ask(1, 1, start=True))
    rig.done(2, 1, lease)
    assert copies(rig.ask(3, 2)) == [(2, lease, lane)]
    rig.send(3, events.CopyDone(2, 0))
    return lease


def test_a_plain_request_goes_to_the_lease_on_which_no_request_of_a_sequence_runs(rig: Rig) -> None:
    lease = seated(rig)
    ((job, other, _),) = rig.plain(4, 5)
    assert (job, other) == (5, 3 - lease)
    assert rig.counted() == {1: rig.share, 2: rig.share}


def test_the_share_is_free_again_when_the_request_of_the_sequence_has_left(rig: Rig) -> None:
    lease = seated(rig)
    rig.plain(4, 5)
    rig.done(5, 2, lease)
    assert rig.counted() == {lease: 0, 3 - lease: rig.share}
    assert rig.plain(6, 6)[0][:2] == (6, lease)


def test_a_request_of_a_sequence_counts_although_its_lease_is_full(rig: Rig) -> None:
    ((_, lease, lane),) = copies(rig.ask(1, 1, start=True))
    rig.done(2, 1, lease)
    assert copies(rig.ask(3, 3, seq=8, start=True)) == [(3, lease, 1 - lane)]  # the lane with the fewest sequences
    assert rig.counted() == {lease: rig.share, 3 - lease: 0}
    assert copies(rig.ask(5, 2)) == [(2, lease, lane)]
    assert rig.counted() == {lease: 2 * rig.share, 3 - lease: 0}
    rig.done(6, 3, lease)
    assert rig.counted() == {lease: rig.share, 3 - lease: 0}
    rig.done(6, 2, lease)
    assert rig.counted() == {1: 0, 2: 0}
    assert rig.plain(7, 5)[0][1] == 1


def test_a_policy_restored_from_a_snapshot_counts_the_same(rig: Rig) -> None:
    lease = seated(rig)
    rig.book = restore(snapshot(rig.book))
    assert rig.counted() == {lease: rig.share, 3 - lease: 0}
    rig.done(5, 2, lease)
    assert rig.counted() == {1: 0, 2: 0}


def test_a_plug_in_keeps_the_same_state() -> None:
    policy = PluginPolicy("p")
    rig = Rig(policy)
    lease = seated(rig)
    rig.plain(4, 5)
    for job, where in ((2, lease), (5, 3 - lease)):
        advisor = gateway_of(rig.book.ledger.decisions).advisor
        assert isinstance(advisor, Hosted)
        assert policy.is_advised
        assert advisor.plugin.state().leases == policy.state().leases
        rig.done(5, job, where)


def test_the_age_of_a_gpu_is_that_of_the_oldest_job_there_also_of_one_of_a_sequence() -> None:
    rig = Rig(OldestGpuFirst())
    ((_, lease, lane),) = copies(rig.ask(1, 1, start=True))
    rig.done(2, 1, lease)
    rig.ask(3, 3, seq=8, start=True)
    rig.ask(4, 2)
    started = {held.view.lease: held.started for held in rig.book.ledger.policy.state().leases}
    assert dict(started[lease]) == {1 - lane: 3 * MS, lane: 4 * MS}
    rig.done(5, 3, lease)
    rig.done(6, 2, lease)
    assert [held.started for held in rig.book.ledger.policy.state().leases] == [(), ()]
