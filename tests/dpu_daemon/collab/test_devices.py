"""What a device's message is answered with: its lease, no job, or a typed refusal; all of it after the disk has it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.wire import collab_admin
from offpath.bindings.wire.collab import CHECK_IN, FROM_GATEWAY, Answers, Leased, NoJob, Recorded, Refusal
from offpath.dpu_daemon.collab.answers import Answers as AdminAnswers
from offpath.dpu_daemon.collab.store import Changes
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.sched.collab.records import DAY_NS, JobSpec
from offpath.sched.collab.requirements import Requirement

from ...support.collab import KEY, message
from .conftest import World

HOUR_S = 3_600


async def test_a_device_gets_a_job_and_answers(world: World) -> None:
    world.job(demand=1)
    lease = await world.check_in("d1")
    assert isinstance(lease, Leased)
    assert (lease.job, lease.round, lease.now_ms) == ("a", 0, world.clock.ms)
    world.clock.pass_s(60)
    assert isinstance(await world.result("d1", lease.lease), Recorded)
    assert world.shell.book.jobs["a"].rounds == 1
    assert world.shell.last_ends == {"a": "complete"}


async def test_with_looser_limits_devices_wait_as_these_say_and_no_longer(tmp_path: Path) -> None:
    world = World(tmp_path, per_minute=1, burst=10, per_second=5)
    world.start()
    world.clock.pass_s(1)
    assert (await world.check_in("d1")).kind == "no_job"
    assert (await world.check_in("d2")).code == "busy"
    strict = world.loaded.config.devices
    world.devices.reload(Tokens([KEY.encode()]), strict.model_copy(update={"per_second": 20_000}))
    world.clock.pass_s(0.001)
    assert [(await world.check_in("d1")).kind for _ in range(9)] == ["no_job"] * 9
    assert (await world.check_in("d1")).retry_ms == 59_999
    world.devices.reload(Tokens([KEY.encode()]), strict.model_copy(update={"per_minute": 60, "per_second": 20_000}))
    assert (await world.check_in("d1")).retry_ms == 1_000
    world.clock.pass_s(1)
    assert (await world.check_in("d1")).kind == "no_job"
    await world.stop()


async def test_a_device_that_no_job_needs_is_told_when_to_come_again(world: World) -> None:
    found = await world.check_in("d1")
    assert found == NoJob(why="idle", retry_ms=60_000, now_ms=world.clock.ms)


async def test_a_device_that_has_worked_today_is_told_to_come_tomorrow(world: World) -> None:
    world.job()
    lease = await world.check_in("d1")
    await world.result("d1", lease.lease)
    world.clock.pass_s(10)
    found = await world.check_in("d1")
    assert (found.kind, found.why) == ("no_job", "spent")
    world.clock.now_ns += found.retry_ms * 10**6
    assert world.clock.now_ns % DAY_NS < 10**9, "the retry is at the beginning of the next day"
    world.job("b")
    assert isinstance(await world.check_in("d1"), Leased)


async def test_the_same_check_in_again_gives_the_same_lease_also_to_the_next_process(world: World) -> None:
    world.job()
    sent_ms = world.clock.ms
    first = await world.check_in("d1", sent_ms)
    world.clock.pass_s(5)
    again = await world.check_in("d1", sent_ms)
    await world.again()
    world.clock.pass_s(5)
    after = await world.check_in("d1", sent_ms)
    assert first.lease == again.lease == after.lease
    assert first.expires_ms == after.expires_ms
    assert len(world.shell.book.leases) == 1


async def test_a_lease_expires_and_the_device_gets_no_other_that_day(world: World) -> None:
    world.job(deadline_s=100 * HOUR_S)
    lease = await world.check_in("d1")
    world.clock.pass_s(world.loaded.config.policy.lease_s)
    assert (await world.result("d1", lease.lease)).code == "no_lease"
    world.clock.pass_s(10)
    assert (await world.check_in("d1")).why == "spent"
    request = world.shell.book.jobs["a"].request
    assert request is not None
    assert request.remaining == 10


async def test_a_round_ends_by_its_deadline_though_nobody_comes(world: World) -> None:
    world.job(deadline_s=30)
    world.clock.pass_s(31)
    async with asyncio.timeout(30):
        while not world.shell.last_ends:
            await asyncio.sleep(0.01)
    assert world.shell.last_ends == {"a": "aborted"}


# -- refusals -------------------------------------------------------------------------------------------------------
async def test_a_forged_message_is_refused_and_its_device_is_not_harmed(world: World) -> None:
    world.job()
    forged = CHECK_IN.validate_python({**message("d1", world.clock.ms + 50), "token": "A" * 64})
    assert (await world.ask(forged)).code == "forged"
    assert isinstance(await world.check_in("d1"), Leased), "the forger's later time counts for nothing"
    assert world.shell.refused == {"forged": 1}


@pytest.mark.parametrize("seconds", [-61, 61, -(10**6)])
async def test_a_clock_that_differs_too_much_is_refused_with_the_right_time(world: World, seconds: int) -> None:
    found = await world.check_in("d1", world.clock.ms + seconds * 1_000)
    assert (found.code, found.now_ms) == ("clock", world.clock.ms)
    assert isinstance(await world.check_in("d1", found.now_ms), NoJob)


async def test_an_earlier_message_is_a_replay(world: World) -> None:
    await world.check_in("d1", world.clock.ms)
    assert (await world.check_in("d1", world.clock.ms - 1)).code == "replayed"


async def test_the_last_message_replayed_gets_no_job_that_came_meanwhile(world: World) -> None:
    sent_ms = world.clock.ms
    assert (await world.check_in("d1", sent_ms)).why == "idle"
    world.job()
    assert (await world.check_in("d1", sent_ms)).why == "idle"
    assert isinstance(await world.check_in("d1", sent_ms + 1), Leased)


async def test_what_was_sent_before_the_start_of_the_process_gets_no_new_job(world: World) -> None:
    """The process before this one may have answered it: its memory of messages is gone."""
    sent_ms = world.clock.ms
    await world.check_in("d1", sent_ms)
    world.clock.pass_s(3)
    await world.again()
    world.job()
    assert (await world.check_in("d1", sent_ms)).why == "idle"
    world.clock.pass_s(1)
    assert isinstance(await world.check_in("d1"), Leased)


async def test_a_device_that_floods_is_refused_and_others_are_served(world: World) -> None:
    world.job()
    table = world.loaded.config.devices
    codes = []
    for number in range(table.burst + 3):
        codes.append(getattr(await world.check_in("d1", world.clock.ms + number), "code", "served"))
    assert codes == ["served"] * table.burst + ["device_rate"] * 3
    assert isinstance(await world.check_in("d2"), Leased)
    refused = await world.check_in("d1", world.clock.ms + 99)
    assert refused.retry_ms == 60_000 / table.per_minute
    world.clock.now_ns += refused.retry_ms * 10**6
    assert isinstance(await world.check_in("d1", world.clock.ms + 99), Leased)


async def test_more_than_all_devices_may_send_is_refused_with_a_time(tmp_path: Path) -> None:
    world = World(tmp_path, per_second=20)
    world.start()
    world.clock.pass_s(1)
    found = [await world.check_in(f"d{n}") for n in range(5)]
    assert [getattr(each, "code", "served") for each in found] == ["served"] * 2 + ["busy"] * 3
    assert all(each.retry_ms >= 1_000 for each in found[2:])
    world.clock.pass_s(1)
    assert isinstance(await world.check_in("d9"), NoJob)
    await world.stop()


async def test_a_result_for_another_devices_lease_is_refused(world: World) -> None:
    world.job()
    lease = await world.check_in("d1")
    assert (await world.result("d2", lease.lease)).code == "no_lease"
    assert (await world.result("d1", lease.lease + 1)).code == "no_lease"
    assert len(world.shell.book.leases) == 1


async def test_too_many_properties_are_refused(world: World) -> None:
    numbers = {f"n{n}": n for n in range(20)}
    found = await world.check_in("d1", numbers=numbers, labels=[f"l{n}" for n in range(20)])
    assert found.code == "properties"


@pytest.mark.parametrize("more", [{"versions": {"os": "14."}}, {"versions": {"os": "1.2.3.4.5"}}, {"labels": ["\n"]}])
async def test_a_property_that_is_none_is_refused(world: World, more: dict[str, Any]) -> None:
    assert (await world.check_in("d1", **more)).code == "properties"


async def test_devices_of_ever_new_kinds_do_not_fill_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpath.dpu_daemon.collab.devices.MOST_KINDS", 8)
    for number in range(50):
        await world.check_in(f"d{number}", numbers={"mem": number})
        assert len(world.devices._kinds) <= 8


# -- the disk -------------------------------------------------------------------------------------------------------
async def test_no_lease_is_answered_before_it_is_on_the_disk(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(writes=False)
    world.clock.pass_s(1)
    world.job()
    model = CHECK_IN.validate_python(message("d1", world.clock.ms))
    assert world.give(model) == []
    assert world.give(model) == [], "nor when it is asked again"
    assert len(world.give(CHECK_IN.validate_python(message("d2", 0)))) == 1, "a refusal waits for nothing"
    await world.stop()


async def test_a_file_that_cannot_be_written_ends_the_controller_without_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(changes: Changes) -> None:
        raise PlaceUnusable("disk full")

    world.job()
    await world.shell.durable()
    monkeypatch.setattr(world.shell.store, "write", fails)
    given = world.give(CHECK_IN.validate_python(message("d1", world.clock.ms)))
    assert world._running is not None
    with pytest.raises(PlaceUnusable, match="disk full"):
        await world._running
    assert given == []
    world._running = None
    monkeypatch.undo()


async def test_many_answers_share_one_write(world: World) -> None:
    world.job(demand=1_000)
    await world.shell.durable()
    before = world.shell.commits
    given: list[Any] = []
    for number in range(300):
        model = CHECK_IN.validate_python(message(f"d{number}", world.clock.ms))
        world.devices.answer(model, lambda answer, is_valid: given.append(answer))
    async with asyncio.timeout(30):
        while len(given) < 300:
            await asyncio.sleep(0.001)
    assert world.shell.commits - before <= 2
    assert len({each.lease for each in given}) == 300


async def test_a_batch_is_answered_as_its_messages_would_be_in_their_order(world: World) -> None:
    world.job(demand=1)
    now_ms = world.clock.ms
    batch = FROM_GATEWAY.validate_python(
        {
            "kind": "batch", "number": 7,
            "items": [
                {"kind": "checkin", **message("d1", now_ms)},
                {"kind": "checkin", **message("d2", now_ms), "token": "B" * 64},
                {"kind": "checkin", **message("d3", now_ms)},
                {"kind": "result", **message("d1", now_ms + 1), "lease": 1, "is_good": True},
                {"kind": "checkin", **message("d1", now_ms)},
            ],
        }
    )  # fmt: skip
    given: list[Answers] = []
    world.devices.answer_batch(batch, given.append)
    assert given == [], "the lease in it is not on the disk yet"
    await world.shell.durable()
    (answers,) = given
    assert answers.number == 7
    assert [getattr(each, "code", each.kind) for each in answers.items] == [
        "lease", "forged", "no_job", "recorded", "replayed",
    ]  # fmt: skip


# -- a clock that goes back, a new process ----------------------------------------------------------------------------
async def test_a_day_does_not_come_twice_though_the_clock_goes_back(world: World) -> None:
    world.job(deadline_s=5 * 24 * HOUR_S)
    world.clock.now_ns = (world.clock.now_ns // DAY_NS + 1) * DAY_NS + 10**9
    lease = await world.check_in("d1")
    await world.result("d1", lease.lease)
    world.clock.set_wrong_s(-24 * HOUR_S)
    await world.again()
    assert world.shell.now_ns() // DAY_NS == world.clock.now_ns // DAY_NS
    assert (await world.check_in("d1", world.clock.ms + 1)).why == "spent"
    world.job("b", deadline_s=60)
    fresh = await world.check_in("d2")
    assert fresh.expires_ms - fresh.now_ms == world.shell.config.policy.lease_s * 1_000, "by the clock that devices see"


@pytest.mark.parametrize("step_s", [1_800, 365 * 24 * HOUR_S])
async def test_a_clock_that_stepped_forward_and_back_costs_no_device_anything(world: World, step_s: int) -> None:
    """Leases stay, rounds go on, and every device is served again at once, in the same process and in the next: those
    that came before, those that came with the wrong time, and new ones."""
    world.job(demand=10)
    leases = {device: (await world.check_in(device)).lease for device in ("d1", "d2")}
    world.clock.set_wrong_s(step_s)
    world.clock.pass_s(1.5)
    assert (await world.check_in("d3", world.clock.ms - step_s * 1_000)).code == "clock", "its clock is right"
    leases["d4"] = (await world.check_in("d4")).lease
    world.clock.set_wrong_s(0)
    world.clock.pass_s(1.5)
    assert isinstance(await world.check_in("d3"), Leased)
    assert (await world.check_in("d4")).lease == leases["d4"]
    assert isinstance(await world.result("d1", leases["d1"]), Recorded)
    await world.again()
    world.clock.pass_s(1)
    assert isinstance(await world.check_in("d5"), Leased)
    assert (await world.check_in("d2")).lease == leases["d2"]
    assert isinstance(await world.result("d4", leases["d4"]), Recorded)


async def test_a_controller_that_started_with_a_wrong_clock_needs_no_restart(world: World) -> None:
    await world.stop()
    world.clock.set_wrong_s(1_800)
    world.start()
    world.job(demand=10)
    world.clock.set_wrong_s(0)
    world.clock.pass_s(1)
    assert isinstance(await world.check_in("d1"), Leased)


async def test_messages_of_before_a_step_back_stay_replays(world: World) -> None:
    world.job(demand=10)
    first_ms = world.clock.ms
    await world.check_in("d1", first_ms)
    world.clock.pass_s(5)
    await world.check_in("d1")
    world.clock.set_wrong_s(1_800)
    await world.check_in("d2")
    world.clock.set_wrong_s(0)
    assert (await world.check_in("d1", first_ms)).code == "replayed"


async def test_an_open_round_goes_on_in_the_next_process(world: World) -> None:
    world.job(demand=3)
    lease = await world.check_in("d1")
    await world.check_in("d2")
    await world.result("d1", lease.lease)
    await world.again()
    request = world.shell.book.jobs["a"].request
    assert request is not None
    assert (request.demand, request.leased, request.done) == (3, 1, 1)


async def test_a_controller_that_is_stopped_at_any_moment_leaves_a_file_that_holds_all(world: World) -> None:
    """A write that was about to begin when the controller was stopped is not left out."""
    world.job(demand=100)
    for number in range(5):
        world.give(CHECK_IN.validate_python(message(f"d{number}", world.clock.ms)))
        for _ in range(number):
            await asyncio.sleep(0)
        leases = dict(world.shell.book.leases)
        await world.again()
        assert world.shell.book.leases == leases
        assert len(leases) == number + 1


async def test_no_answer_shows_a_round_after_its_deadline(tmp_path: Path) -> None:
    """The timer that ends rounds may be late."""
    world = World(tmp_path)
    world.start()
    world.job(deadline_s=5)
    world.clock.pass_s(5)
    found = await AdminAnswers(world.shell, lambda: 0).to(collab_admin.JobsRequest(), 0)
    assert isinstance(found, collab_admin.JobLines)
    assert [(line.state, line.last_end) for line in found.jobs] == [("idle", "aborted")]
    await world.stop()


async def test_the_share_that_is_explained_is_the_one_that_decides(tmp_path: Path) -> None:
    """It changes at the end of a round, and not with each device."""
    world = World(tmp_path, policy='name = "venn-paper"\nepsilon = 2.0')
    world.start()
    world.clock.pass_s(1)
    world.shell.open(JobSpec("a", "t", Requirement(), alone_ns=400 * 10**9))
    world.job(demand=2)
    leases = [(device, (await world.check_in(device)).lease) for device in ("d1", "d2")]

    async def explained() -> str:
        found = await AdminAnswers(world.shell, lambda: 0).to(collab_admin.ExplainRequest(job="a"), 0)
        assert isinstance(found, collab_admin.Explanation)
        return found.reasons[-1]

    for (device, lease), share in zip(leases, ("0", "0.25"), strict=True):
        world.clock.pass_s(50 if device == "d1" else 100)
        await world.result(device, lease)
        assert f"has received {share} of the time" in await explained()
    await world.stop()


async def test_a_closed_job_stays_closed(world: World) -> None:
    world.job()
    lease = await world.check_in("d1")
    world.shell.close_job("a")
    assert (await world.result("d1", lease.lease)).code == "no_lease"
    await world.again()
    assert world.shell.book.jobs == {}
    assert world.shell.book.leases == {}


async def test_no_name_and_no_token_is_in_an_answer_or_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.job(demand=1)
    said: list[Any] = [await world.check_in("grandma-phone")]
    forged = {**message("grandma-phone", world.clock.ms + 1), "token": "Z" * 64}
    said.append(await world.ask(CHECK_IN.validate_python(forged)))
    said.append(await world.check_in("grandma-phone", 5))
    said.append(await world.result("grandma-phone", 99, sent_ms=world.clock.ms + 2))
    said.append(await world.result("grandma-phone", said[0].lease, sent_ms=world.clock.ms + 3))
    assert [isinstance(each, Refusal) for each in said] == [False, True, True, True, False]
    text = caplog.text + "".join(each.model_dump_json() for each in said)
    assert "token is not this device's" in caplog.text
    for secret in ("grandma", message("grandma-phone", 0)["token"], "ZZZZ"):
        assert str(secret) not in text
