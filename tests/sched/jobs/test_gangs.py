"""Gangs: leases on several whole GPUs of one helper, planned and routed by the job book, whatever the policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening
from offpath.sched.gpu.registry import POLICIES, make
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer, CloseLease, Command, Copy, Launch, OpenLease, ScrubLane
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.gangs import chosen
from offpath.sched.jobs.obstacles import Cause
from offpath.sched.jobs.settings import MS, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import MIB, a100
from .book_harness import ADA, BOB, SETTINGS, BookHarness

WHOLE = Profile("whole", 8, 8, 80_000 * MIB, (0,), 1)
PAIR, SINGLE, QUARTET = events.Kernel(1, 200, "pair"), events.Kernel(2, 100, "single"), events.Kernel(3, 400, "quartet")
TENANTS = tuple(TenantSpec(name, max_demand=1600) for name in ("ada", "bob", "cyd"))


def whole(gpu: str, links: tuple[tuple[str, int], ...] = (), model: str = "H100-80GB") -> GpuSpec:
    return GpuSpec(gpu, model, 8, 8, (WHOLE,), links=links)


def joined(gpus: int = 4, *kernels: events.Kernel) -> events.HelperJoined:
    specs = tuple(whole(f"gpu-{number}") for number in range(gpus))
    return events.HelperJoined(1, specs, kernels or (PAIR, SINGLE, QUARTET))


def harness(policy: str = "oldest-gpu-first", gpus: int = 4) -> BookHarness:
    made = BookHarness(TENANTS, is_joined=False)
    made.book = JobBook(TENANTS, make(policy), SETTINGS)
    made.ids.clear()
    for number, spec in enumerate(TENANTS, start=1):
        made.send(0, events.SessionOpened(number, spec.name, 64))
    made.send(0, joined(gpus))
    return made


def opening(commands: tuple[Command, ...]) -> OpenLease:
    (command,) = commands
    assert isinstance(command, OpenLease)
    return command


def test_of_a_gang_one_job_runs_at_a_time_and_a_smaller_gang_is_another_lease() -> None:
    book = harness()
    order = opening(book.submit(1, 1, ADA, QUARTET.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    (copy,) = book.submit(4, 2, ADA, QUARTET.kernel)
    assert isinstance(copy, Copy)
    assert book.send(5, events.CopyDone(2, 0)) == (), "it is launched when the first has ended"
    assert not [each for each in book.submit(6, 3, ADA, PAIR.kernel) if isinstance(each, Copy)]


def test_the_first_model_of_which_the_tenant_may_hold_that_many_is_taken() -> None:
    either = events.Kernel(1, 200, "either", (("A100-80GB", 400), ("H100-80GB", 200)))
    tenants = (replace(TENANTS[0], max_share=200), *TENANTS[1:])
    book = BookHarness(tenants, is_joined=False)
    book.book = JobBook(tenants, make("oldest-gpu-first"), SETTINGS)
    book.send(0, events.SessionOpened(1, "ada", 64))
    gpus = [whole(f"a-{n}", model="A100-80GB") for n in range(4)] + [whole(f"h-{n}") for n in range(2)]
    book.send(0, events.HelperJoined(1, tuple(gpus), (either,)))
    order = opening(book.submit(1, 1, ADA, 1))
    assert (order.gpu, order.others) == ("h-0", ("h-1",))


def test_a_whole_gpu_is_all_of_it() -> None:
    assert whole("gpu").whole == WHOLE
    for wrong in ({"starts": ()}, {"starts": (0, 1)}, {"compute_slices": 7}, {"memory_slices": 4}, {"name": "7g.80gb"}):
        assert replace(whole("gpu"), profiles=(replace(WHOLE, **wrong),)).whole is None


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_idle_gangs_are_taken_back_although_a_slice_of_their_first_gpu_is_reserved(policy: str) -> None:
    book = harness(policy, gpus=2)
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    book.result(4, 1, order.generation)
    gone = Opening(book.book.leasing.lease_bytes, None, frozenset({order.lease}), frozenset({("gpu-0", 0)}))
    plan = book.book.ledger.policy.plan(Demand(9, "bob", 100, 0), 5, gone)
    assert isinstance(plan, LeasePlan)
    assert plan.gpu == "gpu-1"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_gang_takes_whole_gpus_runs_its_job_and_gives_them_back(policy: str) -> None:
    book = harness(policy)
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    assert (order.gpu, order.others, order.profile, order.start) == ("gpu-0", ("gpu-1",), "whole", 0)
    (copy,) = book.warm(2, order.lease, lanes=order.lanes)
    assert copy == Copy(1, 0, order.lease, 0)
    (launch,) = book.send(3, events.CopyDone(1, 0))
    assert isinstance(launch, Launch)
    assert launch.share == 200
    (answer,) = book.result(4, 1, order.generation)
    assert isinstance(answer, Answer)
    assert answer.state is JobState.COMPLETED
    scrubs = book.tick(2_000)
    assert [each.lane for each in scrubs if isinstance(each, ScrubLane)] == list(range(order.lanes))
    for lane in range(order.lanes):
        closing = book.send(2_001, events.LaneScrubbed(order.lease, lane, order.generation))
    assert isinstance(closing[0], CloseLease)
    assert closing[0].scrub, "its workers have scrubbed the first GPU's lanes only"
    book.send(2_002, events.InstanceClosed(order.lease, order.generation))
    assert book.book.ledger.tenants["ada"].held_share == 0
    assert opening(book.submit(2_003, 2, ADA, QUARTET.kernel)).others == ("gpu-1", "gpu-2", "gpu-3")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_gangs_and_single_gpus_never_share_a_gpu(policy: str) -> None:
    book = harness(policy)
    first = opening(book.submit(1, 1, ADA, PAIR.kernel))
    second = opening(book.submit(1, 2, BOB, SINGLE.kernel))
    assert second.gpu not in (first.gpu, *first.others)
    assert book.submit(1, 3, 3, QUARTET.kernel) == (), "two of the four are held"
    ledger, gpus = book.book.ledger, tuple(book.book.leasing.gpus)
    (hold,) = [hold for hold in explain(ledger.jobs[3], ledger, gpus, 2 * MS).holds if hold.cause is Cause.GEOMETRY]
    assert {holder.lease for holder in hold.holders} == {first.lease, second.lease}


def test_a_job_for_one_gpu_never_runs_on_an_idle_gang() -> None:
    book = harness()
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    book.result(4, 1, order.generation)
    assert book.submit(5, 2, ADA, SINGLE.kernel) == ()
    assert opening(book.tick(40)).others == ()


def test_the_next_job_of_a_gang_is_copied_while_the_first_runs_and_starts_after_it() -> None:
    book = harness()
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    assert book.submit(4, 2, ADA, PAIR.kernel) == (Copy(2, 0, order.lease, 1),)
    assert book.send(5, events.CopyDone(2, 0)) == ()
    _, launch = book.result(6, 1, order.generation)
    assert isinstance(launch, Launch)
    assert launch.job == 2


def test_a_gang_makes_room_of_idle_leases_of_others() -> None:
    book = harness()
    held = [opening(book.submit(1, number, number, SINGLE.kernel)) for number in (1, 2, 3)]
    for number, order in enumerate(held, start=1):
        book.warm(2, order.lease, lanes=order.lanes)
        book.send(3, events.CopyDone(number, 0))
        book.result(4, number, order.generation)
    assert book.submit(5, 4, ADA, PAIR.kernel) == ()
    drained = [each.lease for each in book.tick(200) if isinstance(each, ScrubLane)]
    assert len(set(drained)) == 1, "one GPU is free already"


def test_the_loss_of_one_gpu_ends_its_gang_and_frees_the_others() -> None:
    book = harness()
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    (answer,) = book.send(4, events.GpuLost(1, order.others[0]))
    assert isinstance(answer, Answer)
    assert (answer.state, answer.reason) == (JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST)
    again = opening(book.submit(5, 2, BOB, PAIR.kernel))
    assert {again.gpu, *again.others} == {"gpu-0", "gpu-2"}
    assert again.scrub_first, "nobody confirmed what the lost gang left"


def test_refusals_say_what_is_lacking() -> None:
    book = harness(gpus=3)

    def reason(job: int, session: int, kernel: int, share: int = 0) -> EndReason:
        (answer,) = book.submit(1, job, session, kernel, share)
        assert isinstance(answer, Answer)
        return answer.reason

    assert reason(1, ADA, QUARTET.kernel) is EndReason.GANG_UNSUPPORTED
    assert reason(2, ADA, SINGLE.kernel, 150) is EndReason.BAD_DEMAND
    assert reason(3, ADA, SINGLE.kernel, 1700) is EndReason.BAD_DEMAND
    wide = BookHarness((TenantSpec("ada"),), is_joined=False)
    wide.send(0, joined(4))
    (answer,) = wide.submit(1, 1, ADA, PAIR.kernel)
    assert isinstance(answer, Answer)
    assert answer.reason is EndReason.TENANT_SHARE_LIMIT, "max_demand is 100 where nobody raised it"


def test_gpus_in_mig_mode_form_no_gang() -> None:
    book = BookHarness(TENANTS, is_joined=False)
    book.send(0, events.HelperJoined(1, (a100("gpu-0"), a100("gpu-1")), (PAIR,)))
    (answer,) = book.submit(1, 1, ADA, PAIR.kernel)
    assert isinstance(answer, Answer)
    assert answer.reason is EndReason.GANG_UNSUPPORTED


def test_a_gang_stays_on_one_helper_and_one_model() -> None:
    book = BookHarness(TENANTS, is_joined=False)
    book.send(0, replace(joined(1, PAIR), name="a"))
    gpus = (whole("b/0", model="A100-80GB"), whole("b/1"), whole("b/2"))
    book.send(0, events.HelperJoined(2, gpus, (PAIR,), name="b"))
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    assert (order.helper, order.gpu, order.others) == (2, "b/1", ("b/2",))


def test_a_restored_book_goes_on_with_its_gangs() -> None:
    book = harness()
    order = opening(book.submit(1, 1, ADA, PAIR.kernel))
    book.warm(2, order.lease, lanes=order.lanes)
    book.send(3, events.CopyDone(1, 0))
    again = restore(snapshot(book.book))
    event = events.ResultArrived(1, order.generation, EndReason.NONE, 4 * MS, 4 * MS)
    assert again.handle(event, 4 * MS) == book.send(4, event)
    submitted = events.JobSubmitted(2, ADA, 9, PAIR.kernel, 0, 0, 0, 1, False)
    assert again.handle(submitted, 5 * MS) == book.send(5, submitted)
    assert snapshot(again) == snapshot(book.book)


def linked(*pairs: tuple[int, int, int], gpus: int) -> list[GpuSpec]:
    links: dict[int, list[tuple[str, int]]] = {number: [] for number in range(gpus)}
    for one, other, count in pairs:
        links[one].append((f"gpu-{other}", count))
        links[other].append((f"gpu-{one}", count))
    return [whole(f"gpu-{number}", tuple(found)) for number, found in links.items()]


def test_the_gpus_with_the_most_nvlinks_between_them_are_taken() -> None:
    gpus = linked((0, 2, 4), (1, 3, 12), (2, 3, 4), gpus=4)
    assert [gpu.gpu for gpu in chosen(gpus, 2)] == ["gpu-1", "gpu-3"]
    assert [gpu.gpu for gpu in chosen(gpus, 3)] == ["gpu-1", "gpu-2", "gpu-3"]
    assert [gpu.gpu for gpu in chosen(gpus[:1] + gpus[2:], 2)] == ["gpu-0", "gpu-2"]
    assert [gpu.gpu for gpu in chosen(linked(gpus=3), 2)] == ["gpu-0", "gpu-1"], "without links, in their order"


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(2, 4))
def test_no_pair_has_more_links_than_the_chosen_one_and_larger_gangs_come_near(
    seed: int, gpus: int, count: int
) -> None:
    """Pairs are the best there are; larger sets grow greedily, and have at least half of the best one's links."""
    random = Random(seed)
    pairs = [(one, other, random.choice((0, 0, 2, 4, 12))) for one, other in combinations(range(gpus), 2)]
    specs = linked(*pairs, gpus=gpus)
    count = min(count, gpus)
    table = {frozenset((f"gpu-{one}", f"gpu-{other}")): links for one, other, links in pairs}

    def total(gang: tuple[str, ...]) -> int:
        return sum(table[frozenset(pair)] for pair in combinations(gang, 2))

    found = total(tuple(gpu.gpu for gpu in chosen(specs, count)))
    best = max(total(gang) for gang in combinations([gpu.gpu for gpu in specs], count))
    assert found == best if count == 2 else 2 * found >= best


def test_gpus_of_nearly_one_size_form_a_gang_that_counts_as_the_smallest_of_them() -> None:
    """Firmware keeps some bytes, not the same on each GPU."""
    book = BookHarness(TENANTS, is_joined=False)
    book.book = JobBook(TENANTS, make("oldest-gpu-first"), SETTINGS)
    book.send(0, events.SessionOpened(1, "ada", 64))
    nbytes = WHOLE.memory_bytes
    gpus = [replace(whole(f"gpu-{n}"), profiles=(replace(WHOLE, memory_bytes=nbytes - n),)) for n in range(3)]
    # each lane's buffers are added to what a kernel states
    room = 2 * (SETTINGS.landing_bytes + SETTINGS.result_bytes)
    fits = events.Kernel(1, 200, "fits", memory_bytes=2 * nbytes - 2 - room)
    three = events.Kernel(2, 300, "three", memory_bytes=3 * nbytes - 6 - room)
    large = events.Kernel(3, 300, "large", memory_bytes=3 * nbytes)
    book.send(0, events.HelperJoined(1, tuple(gpus), (fits, three, large)))
    order = opening(book.submit(1, 1, ADA, 1))
    assert len(order.others) == 1
    view = book.book.ledger.leases[order.lease].view
    assert view.lane_bytes * view.lanes <= 2 * (nbytes - 1)
    assert book.book.ledger.helpers.instances[()].wholes == tuple(
        sorted(("H100-80GB", n + 1, nbytes - n) for n in range(3))
    )
    (refused,) = book.submit(2, 2, ADA, 3)
    assert isinstance(refused, Answer)
    assert refused.reason is EndReason.NO_INSTANCE_MEMORY
    assert not [each for each in book.submit(3, 3, ADA, 2) if isinstance(each, Answer)]


def test_of_a_kernel_for_a_part_and_for_a_gang_the_part_is_used() -> None:
    """Two helpers state one kernel differently: a job fits one of them, and is not refused."""
    book = BookHarness(TENANTS, is_joined=False)
    book.book = JobBook(TENANTS, make("oldest-gpu-first"), SETTINGS)
    book.send(0, events.SessionOpened(1, "ada", 64))
    offer = (events.Kernel(1, 200, "either"),)
    book.send(0, replace(joined(2), kernels=offer, name="gangs"))
    assert opening(book.submit(1, 1, ADA, 1)).others == ("gpu-1",)
    part = events.HelperJoined(2, (a100("mig-0"),), (events.Kernel(1, 14, "either"),), name="parts")
    commands = book.send(2, part)
    assert book.book.ledger.kernels[1].share == 14
    assert book.book.ledger.helpers.only_on == {1: ("parts",)}
    commands += book.submit(3, 2, ADA, 1) + book.tick(2_000)
    orders = [each for each in commands if isinstance(each, OpenLease)]
    assert all(each.gpu == "mig-0" for each in orders)
    assert not [each for each in commands if isinstance(each, Answer)]
    book.send(2_001, events.HelperLost(2))
    assert book.book.ledger.kernels[1].share == 200, "the connected helper's word counts"


def test_a_scrub_that_the_helper_confirmed_makes_the_slices_clean_and_is_not_asked_for_again() -> None:
    """The first opening overran its limit; the close that follows has scrubbed all that it may have left."""
    book = BookHarness(TENANTS, is_joined=False)
    book.book = JobBook(TENANTS, make("oldest-gpu-first"), replace(SETTINGS, open_ns=50 * MS))
    for number, spec in enumerate(TENANTS, start=1):
        book.send(0, events.SessionOpened(number, spec.name, 64))
    book.send(0, joined(2))
    book.book.leasing.dirty |= {(f"gpu-{n}", slice_) for n in range(2) for slice_ in range(8)}
    first = opening(book.submit(1, 1, ADA, PAIR.kernel))
    assert first.scrub_first
    closing = book.tick(51)
    assert [each.scrub for each in closing if isinstance(each, CloseLease)] == [True]
    commands = book.send(60, events.InstanceClosed(first.lease, first.generation)) + book.tick(5_000)
    (second,) = [each for each in commands if isinstance(each, OpenLease)]
    assert not second.scrub_first
    assert book.book.leasing.dirty == set()
