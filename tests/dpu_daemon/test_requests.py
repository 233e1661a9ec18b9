"""Requests end to end through real processes: what goes in, what comes back, and how a request may end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from offpath.bindings.errors import HeaderError, PeerGone
from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, HEADER_PART_BYTES
from offpath.cli.admin_client import AdminClient, all_tenants
from offpath.host_helper import AsyncRequester, Options, Requester, RequestFailed, RequestTimeout
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.errors import PayloadTooLarge, UnknownKernel

from ..support.cluster import MIB, TIMEOUT, Cluster, said
from ..support.clusters import NARROW, first_pid, path_array, seconds, until_read
from ..support.processes import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    tenants: dict[str, dict[str, Any]] = {"ada": {}, "bob": {"max_demand": 42}, "cyd": {}}
    tenants |= {f"narrow{n}": {**NARROW} for n in range(8)}
    made = Cluster(tenants)
    try:
        made.start_helper(emulate=["A100-40GB", "A100-40GB"])
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def ada(cluster: Cluster) -> Iterator[Requester]:
    with cluster.connect("ada", slots=2, payload_bytes=4 * MIB, result_bytes=4 * MIB) as requester:
        yield requester


@pytest_asyncio.fixture
async def async_ada(cluster: Cluster) -> AsyncIterator[AsyncRequester]:
    async with await open_async(cluster, "ada") as requester:
        yield requester


async def open_async(cluster: Cluster, tenant: str, **sizes: Any) -> AsyncRequester:
    sizes = {"payload_bytes": 128 << 10, "result_bytes": 128 << 10, **sizes}
    token_file = str(cluster.folder / f"{tenant}.token")
    return await AsyncRequester.open(cluster.address, tenant=tenant, token_file=token_file, **sizes)


def ended(call: Any, *arguments: Any, **options: Any) -> tuple[Status, Reason]:
    """How the request ended, which must not be well."""
    with pytest.raises(RequestFailed) as failed:
        call(*arguments, **options)
    return failed.value.status, failed.value.reason


async def until_there(path: Path) -> None:
    """Kernel "held" runs."""
    async with asyncio.timeout(TIMEOUT):
        while not path.exists():
            await asyncio.sleep(0.002)


def unanswered(cluster: Cluster, tenant: str) -> int:
    with AdminClient(str(cluster.run_folder)) as client:
        return next(line.jobs for line in all_tenants(client)[1] if line.tenant == tenant)


def runs_beside(cluster: Cluster, requester: Requester, pid: int) -> bool:
    """What was begun last was launched while that worker still runs; one that was killed for lingering does not."""
    until_read(cluster, requester)
    with AdminClient(str(cluster.run_folder)) as client:
        jobs = client.query(admin.JobsRequest(session=requester.welcome.session), admin.Jobs).jobs
    return jobs[-1].state not in ("queued", "copying", "copied") and os.path.exists(f"/proc/{pid}")


# -- what comes back ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "nbytes",
    [0, 1, 3071, 3072, 3073, 4096, MIB, MIB + 1, 4 * MIB],
    ids=["none", "1 B", "just inline", "3 KiB", "above 3 KiB", "4 KiB", "1 MiB", "above 1 MiB", "4 MiB"],
)
def test_a_result_of_any_length_comes_back_whole(ada: Requester, nbytes: int) -> None:
    """Inline up to 3 KiB, then by the lane's result half, above 1 MiB by the copy thread."""
    result = ada.submit("fill", [np.array([nbytes, 0xA5])], timeout=TIMEOUT)
    assert (result.array.dtype, result.array.shape) == (np.uint8, (nbytes,))
    assert (result.array == 0xA5).all()


@pytest.mark.parametrize("nbytes", [1, 4096, MIB, MIB + 8, 4 * MIB])
def test_a_payload_of_any_length_arrives_whole(ada: Requester, nbytes: int) -> None:
    payload = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    assert np.array_equal(ada.submit("echo", [payload], timeout=TIMEOUT).array, payload)


@pytest.mark.parametrize("dtype", [numpy_dtype(code) for code in DTYPES], ids=DTYPE_CODES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 1, 2, 1, 2), (0, 4), (1500,)], ids=str)
def test_every_dtype_and_shape_goes_there_and_back(ada: Requester, dtype: Any, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    array = np.random.default_rng(7).integers(0, 2, count, np.uint8).astype(dtype).reshape(shape)
    if dtype.hasobject:
        array = np.array([b"%d" % number for number in range(count)], object).reshape(shape)
    result = ada.submit("echo", [array], timeout=TIMEOUT).array
    assert (result.dtype, result.shape) == (array.dtype, shape)
    assert np.array_equal(result, array)


@pytest.mark.parametrize("times", [1, 10])
def test_eight_and_eighty_arrays_go_there_and_back_in_order(ada: Requester, times: int) -> None:
    arrays = [np.full((n + 1, 3), n, dtype) for n, dtype in enumerate(list(DTYPE_CODES)[:8] * times)]
    results = ada.submit("echo", arrays, timeout=TIMEOUT).arrays
    assert [(r.dtype, r.shape) for r in results] == [(a.dtype, a.shape) for a in arrays]
    assert all(np.array_equal(r, a) for r, a in zip(results, arrays, strict=True))


def test_several_large_results_come_back_by_the_result_half(ada: Requester) -> None:
    arrays = [np.arange(1001, dtype=np.float64), np.arange(3, dtype=np.uint8), np.ones((700, 333), np.float32)]
    results = ada.submit("echo", arrays, timeout=TIMEOUT).arrays
    assert all(np.array_equal(r, a) for r, a in zip(results, arrays, strict=True))


def test_arrays_that_are_not_contiguous_arrive_as_they_look(ada: Requester) -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (array[:, ::2], array.T, array[::-1], np.broadcast_to(array[0], (5, 6))):
        assert np.array_equal(ada.submit("echo", [view], timeout=TIMEOUT).array, view)


def test_a_request_without_arrays_gives_the_kernel_an_empty_payload(ada: Requester) -> None:
    assert said(ada.submit("describe", [], timeout=TIMEOUT)) == [["uint8", [0]]]


def test_a_kernel_without_a_result_completes_with_none(ada: Requester) -> None:
    result = ada.submit("nothing", seconds(0), timeout=TIMEOUT)
    assert result.arrays == ()
    with pytest.raises(ValueError, match="returned 0 arrays"):
        result.array  # noqa: B018


def test_a_scalar_result_stays_without_dimensions(ada: Requester) -> None:
    result = ada.submit("scalar", [np.arange(5)], timeout=TIMEOUT).array
    assert (result.shape, result.item()) == ((), 10)


def test_a_result_in_foreign_byte_order_keeps_its_values(ada: Requester) -> None:
    for length in (3, 3000):
        array = np.arange(length, dtype=np.float32)
        assert np.array_equal(ada.submit("big-endian", [array], timeout=TIMEOUT).array, array)


def test_an_array_in_foreign_byte_order_is_refused_even_after_a_native_one_of_its_shape(ada: Requester) -> None:
    array = np.arange(5, dtype="<i4")
    assert np.array_equal(ada.submit("echo", [array], timeout=TIMEOUT).array, array)
    with pytest.raises(TypeError, match="native order"):
        ada.submit("echo", [array.astype(">i4")], timeout=TIMEOUT)


def test_a_result_stays_what_it_was_when_its_slot_is_used_again(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=1) as requester:
        first = requester.submit("fill", [np.array([5000, 1])], timeout=TIMEOUT).array
        requester.submit("fill", [np.array([5000, 2])], timeout=TIMEOUT)
    assert (first == 1).all()


def test_an_answer_names_its_stages_and_they_add_up(ada: Requester) -> None:
    stages = ada.submit("sleep", seconds(0.02), timeout=TIMEOUT).stages
    parts = stages.queued + stages.copy + stages.launch + stages.kernel + stages.back
    assert stages.kernel >= 20_000_000
    assert 0 <= stages.total - parts < 5_000_000


# -- what does not -------------------------------------------------------------------------------------------------
def test_a_kernel_that_raises_fails_its_job_with_its_words(ada: Requester) -> None:
    with pytest.raises(RequestFailed, match="no such cat: Félix") as failed:
        ada.submit("fail", [np.frombuffer("no such cat: Félix".encode(), np.uint8)], timeout=TIMEOUT)
    assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_RAISED)
    assert failed.value.detail == "RuntimeError: no such cat: Félix"


def test_a_long_complaint_is_cut_and_stays_a_kernels(ada: Requester) -> None:
    with pytest.raises(RequestFailed) as failed:
        ada.submit("fail", [np.full(100_000, ord("a"), np.uint8)], timeout=TIMEOUT)
    assert failed.value.reason is Reason.KERNEL_RAISED
    assert len(failed.value.detail) == 3072


@pytest.mark.parametrize("result_bytes", [0, 5, 100])
def test_a_session_with_little_room_for_results_gets_what_fits(cluster: Cluster, result_bytes: int) -> None:
    """The text of a failure is cut to the room there is; it must not reach into the next slot's answer."""
    with cluster.connect("ada", slots=2, result_bytes=result_bytes) as requester:
        for _ in range(2):
            pending = [
                requester.begin("fail", [np.full(300, ord("a"), np.uint8)]),
                requester.begin("fill", [np.array([result_bytes + 1, 1])]),
            ]
            failures = []
            for each in pending:
                with pytest.raises(RequestFailed) as failed:
                    each.result(TIMEOUT)
                failures.append((failed.value.reason, len(failed.value.detail) <= result_bytes))
            assert failures == [(Reason.KERNEL_RAISED, True), (Reason.RESULT_TOO_LARGE, True)]
        assert requester.submit("fill", [np.array([result_bytes, 1])], timeout=TIMEOUT).array.sum() == result_bytes


def test_a_result_above_the_lanes_room_fails_its_job(ada: Requester) -> None:
    assert ended(ada.submit, "fill", [np.array([4 * MIB + 1, 1])], timeout=TIMEOUT) == (
        Status.FAILED,
        Reason.RESULT_TOO_LARGE,
    )


def test_a_result_dtype_that_cannot_travel_fails_its_job(ada: Requester) -> None:
    with pytest.raises(RequestFailed, match="may not return dtype complex"):
        ada.submit("complex", [np.ones(3)], timeout=TIMEOUT)


def test_an_unknown_kernel_is_named_with_those_there_are(ada: Requester) -> None:
    with pytest.raises(UnknownKernel, match=r"no helper serves 'sing'; served: .*echo.*sum"):
        ada.submit("sing", seconds(0))


def test_a_kernel_number_nobody_gave_is_rejected(ada: Requester) -> None:
    ada._link.negotiation.kernels["ghost"] = ada._link.negotiation.kernels["echo"].model_copy(update={"kernel_id": 999})
    assert ended(ada.submit, "ghost", seconds(0), timeout=TIMEOUT) == (Status.REJECTED, Reason.UNKNOWN_KERNEL)


def test_more_than_the_slot_holds_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=1, payload_bytes=1000) as requester:
        with pytest.raises(PayloadTooLarge, match="1001 bytes of arrays, the session's slots hold 1000"):
            requester.submit("echo", [np.zeros(1001, np.uint8)], timeout=TIMEOUT)
        with pytest.raises(HeaderError, match="too_many_tensors"):
            requester.submit("echo", [np.zeros(1)] * 81, timeout=TIMEOUT)
        assert requester.submit("echo", [np.zeros(1000, np.uint8)], timeout=TIMEOUT).array.size == 1000


@pytest.mark.parametrize("wrong", [{"demand": -1}, {"demand": 70_000}, {"priority": 256}, {"budget_ms": -1}], ids=str)
def test_options_out_of_range_cost_no_slot(cluster: Cluster, wrong: dict[str, int]) -> None:
    with cluster.connect("ada", slots=1) as requester:
        for _ in range(2):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                requester.submit("echo", seconds(0), timeout=TIMEOUT, options=Options(**wrong))
        assert requester.submit("echo", seconds(0), timeout=TIMEOUT).array == 0


# -- checksums -----------------------------------------------------------------------------------------------------
def test_a_payload_with_a_checksum_is_checked_where_it_lands(ada: Requester) -> None:
    payload = np.random.default_rng(1).integers(0, 256, 2 * MIB, np.uint8)
    result = ada.submit("echo", [payload], timeout=TIMEOUT, options=Options(with_checksum=True))
    assert np.array_equal(result.array, payload)


def test_a_payload_that_changed_after_its_checksum_fails_its_job(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=1) as requester:
        with cluster.daemon.stopped():
            pending = requester.begin("echo", [np.zeros(5000, np.uint8)], options=Options(with_checksum=True))
            requester._link.session.payload_view(0)[4999] = 1
        assert ended(pending.result, TIMEOUT) == (Status.FAILED, Reason.PAYLOAD_CHECKSUM)
        assert requester.submit("echo", seconds(3), timeout=TIMEOUT).array == 3


def test_without_a_checksum_the_owner_of_a_slot_spoils_only_its_own_job(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=1) as requester:
        with cluster.daemon.stopped():
            pending = requester.begin("echo", [np.zeros(3, np.uint8)])
            requester._link.session.payload_view(0)[1] = 9
        assert pending.result(TIMEOUT).array.tolist() == [0, 9, 0]


# -- demand --------------------------------------------------------------------------------------------------------
def test_a_request_takes_the_smallest_instance_that_holds_its_demand(ada: Requester) -> None:
    """From the smallest on: what the last one left is too small, so that nothing larger stands there already."""
    profiles = {14: "1g.5gb", 20: "2g.10gb", 28: "2g.10gb", 42: "3g.20gb", 57: "4g.20gb", 100: "7g.40gb"}
    for demand, profile in sorted(profiles.items()):
        ran = said(ada.submit("where", seconds(0), timeout=TIMEOUT, options=Options(demand=demand)))
        assert (ran["tenant"], ran["profile"]) == ("ada", profile)


@pytest.mark.parametrize(
    ("tenant", "demand", "reason"),
    [
        ("bob", 43, Reason.TENANT_SHARE_LIMIT),
        ("narrow0", 15, Reason.TENANT_SHARE_LIMIT),
        ("ada", 101, Reason.BAD_DEMAND),
        ("ada", 200, Reason.GANG_UNSUPPORTED),
    ],
)
def test_a_demand_beyond_the_tenants_or_any_instance_is_rejected(
    cluster: Cluster, tenant: str, demand: int, reason: Reason
) -> None:
    with cluster.connect(tenant, slots=1) as requester:
        options = Options(demand=demand)
        assert ended(requester.submit, "echo", seconds(0), timeout=TIMEOUT, options=options) == (
            Status.REJECTED,
            reason,
        )


# -- deadlines and cancels -----------------------------------------------------------------------------------------
def test_a_running_request_expires_at_its_deadline_and_its_lane_comes_back(cluster: Cluster) -> None:
    """The kernel ends when its file is removed, so an answer before that came at the deadline."""
    with cluster.connect("narrow1") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        for budget_ms in (150, 1_500, 15_000):  # a longer one where the machine is too slow to start it in time
            path = cluster.folder / f"late-{budget_ms}"
            late = requester.begin("held", path_array(path), options=Options(budget_ms=budget_ms))
            assert ended(late.result, TIMEOUT) == (Status.EXPIRED, Reason.DEADLINE_PASSED)
            if path.exists():
                break
        pid = first_pid(path)
        behind = requester.begin("echo", seconds(0))
        assert not runs_beside(cluster, requester, pid), "the next job ran beside one of the same share"
        path.unlink()
        assert behind.result(TIMEOUT).array == 0


def test_a_queued_request_expires_at_its_deadline_and_never_runs(cluster: Cluster) -> None:
    with cluster.connect("narrow2") as requester:
        held, never = cluster.folder / "held", cluster.folder / "never-run"
        ahead = [requester.begin("held", path_array(held)), *(requester.begin("echo", seconds(n)) for n in range(2))]
        first_pid(held)
        late = requester.begin("mark", path_array(never), options=Options(budget_ms=100))
        assert ended(late.result, TIMEOUT) == (Status.EXPIRED, Reason.DEADLINE_PASSED)
        assert not any(each.done for each in ahead), "it is answered at its deadline, not when its turn comes"
        held.unlink()
        for each in ahead:
            each.result(TIMEOUT)
        assert not never.exists()


def test_a_deadline_that_cannot_be_met_is_said_at_once(cluster: Cluster) -> None:
    """Four kernels of 50 ms wait behind one that does not end: a budget of 100 ms is hopeless at any time."""
    with cluster.connect("narrow3") as requester:
        requester.submit("sleep", seconds(0.05), timeout=TIMEOUT)
        held = cluster.folder / "held3"
        ahead = [requester.begin("held", path_array(held)), *(requester.begin("sleep", seconds(0)) for _ in range(4))]
        first_pid(held)
        assert ended(requester.submit, "sleep", seconds(0), timeout=TIMEOUT, options=Options(budget_ms=100)) == (
            Status.REJECTED,
            Reason.DEADLINE_UNREACHABLE,
        )
        held.unlink()
        for each in ahead:
            each.result(TIMEOUT)


def test_one_slow_kernel_locks_no_deadline_out_of_an_idle_daemon(cluster: Cluster) -> None:
    """A run of a second, then a budget of half of that for a kernel that takes no time: it is not turned away."""
    with cluster.connect("narrow3") as requester:
        requester.submit("sleep", seconds(1.0), timeout=TIMEOUT)
        for name in ("sleep", "echo"):
            pending = requester.begin(name, seconds(0), options=Options(budget_ms=500))
            until(lambda pending=pending: pending.done or requester.poll(0.05) or pending.done)
            outcome = pending.outcome
            assert not isinstance(outcome, RequestFailed) or outcome.status is Status.EXPIRED, "a very slow machine"


CANCELLED = (Status.CANCELLED, Reason.CANCELLED_BY_REQUESTER)


def test_a_request_is_cancelled_while_it_is_queued_copied_or_running(cluster: Cluster) -> None:
    with cluster.connect("narrow4") as requester:
        held, never = cluster.folder / "held4", cluster.folder / "never4"
        running = requester.begin("held", path_array(held))
        copied, queued = [requester.begin("mark", path_array(never)) for _ in range(2)]
        pid = first_pid(held)
        for pending in (queued, copied, running):
            pending.cancel()
            assert ended(pending.result, TIMEOUT) == CANCELLED
        behind = requester.begin("echo", seconds(0))
        assert not runs_beside(cluster, requester, pid), "the cancelled one that runs has left its lane"
        held.unlink()
        assert behind.result(TIMEOUT).array == 0
        assert not never.exists(), "of the cancelled ones only the running one ran"


def test_a_request_is_cancelled_while_its_payload_is_being_copied(cluster: Cluster) -> None:
    with cluster.connect("narrow5", payload_bytes=4 * MIB, slots=4) as requester:
        payload = np.ones(4 * MIB, np.uint8)
        requester.submit("sum", [payload], timeout=TIMEOUT)
        for _ in range(5):
            with cluster.daemon.stopped():  # it finds submit and cancel together, the copy is still in its thread
                pending = requester.begin("sum", [payload])
                pending.cancel()
            assert ended(pending.result, TIMEOUT) == CANCELLED
        assert requester.submit("sum", [payload], timeout=TIMEOUT).array == 4 * MIB


def test_cancelling_what_has_ended_changes_nothing(ada: Requester) -> None:
    pending = ada.begin("echo", seconds(1))
    result = pending.result(TIMEOUT)
    pending.cancel()
    assert pending.result(TIMEOUT) is result
    assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_a_time_out_gives_the_request_up_and_the_slot_comes_back(cluster: Cluster) -> None:
    with cluster.connect("narrow6", slots=1) as requester:
        held = cluster.folder / "held6"
        for _ in range(2):
            with pytest.raises(RequestTimeout, match=r"no answer within 0\.1 s"):
                requester.submit("held", path_array(held), timeout=0.1)
            held.unlink(missing_ok=True)
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1


def test_a_time_out_counts_while_all_slots_are_taken(cluster: Cluster) -> None:
    with cluster.connect("narrow6", slots=1) as requester:
        held = cluster.folder / "held-slot"
        running = requester.begin("held", path_array(held))
        first_pid(held)
        with pytest.raises(RequestTimeout):
            requester.submit("echo", seconds(0), timeout=0.1)
        assert not running.done
        held.unlink()
        running.result(TIMEOUT)


def test_a_higher_priority_goes_first(cluster: Cluster) -> None:
    with cluster.connect("narrow7") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        ahead = [requester.begin("sleep", seconds(0.1)) for _ in range(2)]
        order = [3, 1, 2, 3, 1]
        pending = [requester.begin("where", seconds(0.01), options=Options(priority=p)) for p in order]
        ran = sorted((said(each.result(TIMEOUT))["from"], p) for each, p in zip(pending, order, strict=True))
        assert [priority for _, priority in ran] == [3, 3, 2, 1, 1]
        assert [each.result(TIMEOUT).array.item() for each in ahead] == [0.1, 0.1]


# -- many ----------------------------------------------------------------------------------------------------------
def test_sixteen_in_flight_two_hundred_times_over_are_all_answered_right(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=16, payload_bytes=8192, result_bytes=8192) as requester:
        flight: list[tuple[int, Any]] = []
        for n in range(16 * 200):
            if len(flight) == 16:
                number, pending = flight.pop(0)
                assert (pending.result(TIMEOUT).array == number).all()
            flight.append((n, requester.begin("echo", [np.full(1 + n % 1000, n)])))
        for number, pending in flight:
            assert (pending.result(TIMEOUT).array == number).all()


async def test_more_tasks_than_slots_are_all_answered_right(cluster: Cluster) -> None:
    async with await open_async(cluster, "ada", slots=16, payload_bytes=8192, result_bytes=8192) as requester:

        async def several(first: int) -> None:
            for n in range(first, 16 * 200, 48):
                result = await requester.submit("echo", [np.full(1 + n % 1000, n)], timeout=TIMEOUT)
                assert (result.array == n).all()

        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
            for first in range(48):
                tasks.create_task(several(first))


# -- async ---------------------------------------------------------------------------------------------------------
async def test_cancelling_a_task_cancels_its_request(cluster: Cluster) -> None:
    async with await open_async(cluster, "narrow0", slots=4) as requester, asyncio.timeout(TIMEOUT):
        await requester.submit("echo", seconds(0), timeout=TIMEOUT)
        held, never = cluster.folder / "held-task", cluster.folder / "never-task"
        tasks = [asyncio.create_task(requester.submit("held", path_array(held)))]
        tasks += [asyncio.create_task(requester.submit("mark", path_array(never))) for _ in range(3)]
        await until_there(held)
        for task in tasks:
            task.cancel()
        assert [type(r) for r in await asyncio.gather(*tasks, return_exceptions=True)] == [asyncio.CancelledError] * 4
        until(lambda: unanswered(cluster, "narrow0") == 0)
        held.unlink()
        assert (await requester.submit("sleep", seconds(0), timeout=TIMEOUT)).array == 0
        assert not never.exists(), "cancelled requests ran one after the other"


async def test_a_task_cancelled_while_it_waits_for_a_slot_leaves_the_slot_to_the_next(cluster: Cluster) -> None:
    async with await open_async(cluster, "ada", slots=1) as requester:
        first = asyncio.create_task(requester.submit("sleep", seconds(0.1)))
        await asyncio.sleep(0.02)
        waiting = [asyncio.create_task(requester.submit("echo", seconds(n))) for n in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        async with asyncio.timeout(TIMEOUT):
            await first
            assert [(await task).array.item() for task in waiting[1:]] == [1, 2]


async def test_a_request_that_does_not_fit_leaves_its_slot_to_the_next(cluster: Cluster) -> None:
    async with await open_async(cluster, "ada", slots=1, payload_bytes=1000) as requester:
        first = asyncio.create_task(requester.submit("sleep", seconds(0.1)))
        await asyncio.sleep(0.02)
        too_large = asyncio.create_task(requester.submit("echo", [np.zeros(1001, np.uint8)]))
        behind = asyncio.create_task(requester.submit("echo", seconds(1)))
        async with asyncio.timeout(TIMEOUT):
            await first
            with pytest.raises(PayloadTooLarge):
                await too_large
            assert (await behind).array == 1


async def test_an_async_time_out_counts_while_all_slots_are_taken(cluster: Cluster) -> None:
    async with await open_async(cluster, "narrow0", slots=1) as requester, asyncio.timeout(TIMEOUT):
        held = cluster.folder / "held-async"
        running = asyncio.create_task(requester.submit("held", path_array(held)))
        await until_there(held)
        for timeout in (0.1, 0.05):
            with pytest.raises(RequestTimeout):
                await requester.submit("echo", seconds(0), timeout=timeout)
        assert not running.done()
        held.unlink()
        await running
        with pytest.raises(RequestTimeout):
            await requester.submit("held", path_array(held), timeout=0.05)
        held.unlink(missing_ok=True)
        assert (await requester.submit("echo", seconds(7), timeout=TIMEOUT)).array == 7


async def test_an_async_request_ends_as_a_plain_one_does(async_ada: AsyncRequester) -> None:
    with pytest.raises(RequestFailed, match="FAILED: kernel_raised"):
        await async_ada.submit("fail", [np.zeros(1, np.uint8)], timeout=TIMEOUT)
    unknown = [async_ada.submit("sing", seconds(0)) for _ in range(8)]
    async with asyncio.timeout(TIMEOUT):
        outcomes = await asyncio.gather(*unknown, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnknownKernel] * 8


async def test_closing_an_async_requester_ends_what_is_in_flight(cluster: Cluster) -> None:
    requester = await open_async(cluster, "ada", slots=1)
    tasks = [asyncio.create_task(requester.submit("sleep", seconds(0.2))) for _ in range(2)]
    await asyncio.sleep(0.02)
    await requester.close()
    await requester.close()
    async with asyncio.timeout(TIMEOUT):
        outcomes: Sequence[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[0].status is Status.OUTCOME_UNKNOWN
        assert isinstance(outcomes[1], PeerGone)
        with pytest.raises(PeerGone):
            await requester.submit("echo", seconds(0))


# -- sessions ------------------------------------------------------------------------------------------------------
def test_a_session_closed_with_jobs_in_flight_frees_their_lanes(cluster: Cluster) -> None:
    requester = cluster.connect("narrow5", slots=8)
    held, never = cluster.folder / "held5", cluster.folder / "never5"
    requester.begin("held", path_array(held))
    for _ in range(7):
        requester.begin("mark", path_array(never))
    first_pid(held)
    until_read(cluster, requester)
    requester.close()
    with cluster.connect("narrow5", slots=1) as other:
        until(lambda: unanswered(cluster, "narrow5") == 0)
        held.unlink()
        assert other.submit("sleep", seconds(0), timeout=TIMEOUT).array == 0
    assert not never.exists(), "jobs of the closed session ran on"


def test_two_sessions_of_a_tenant_do_not_mix_their_answers(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=4) as one, cluster.connect("ada", slots=4) as two:
        for n in range(100):
            pending = [(s, s.begin("echo", [np.array([n, k])])) for k, s in enumerate((one, two))]
            assert [p.result(TIMEOUT).array.tolist() for _, p in pending] == [[n, 0], [n, 1]]


def test_a_requester_can_hand_its_credits_back_without_submitting(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=2) as requester:
        for slot in (1, 0, 0, 1):
            requester.return_credit(slot)
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        for slot in (1, 0, 0, 1):
            requester.return_credit(slot)
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1


def test_the_header_part_of_a_slot_is_outside_the_payload(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=2, payload_bytes=1000) as requester:
        assert len(requester._link.session.payload_view(1)) == 1000
        requester._link.session.payload_view(0)[:] = b"\xff" * 1000
        assert requester._link.session._slots.view[:HEADER_PART_BYTES].tobytes() == bytes(HEADER_PART_BYTES)
