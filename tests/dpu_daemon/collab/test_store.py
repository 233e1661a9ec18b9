"""The controller's file: what is written is found again; what cannot be trusted is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from offpath.bindings.errors import PlaceUnusable
from offpath.dpu_daemon.collab import store
from offpath.dpu_daemon.collab.store import Changes, StateFile, profile_row, row_of
from offpath.sched.collab.book import Book
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import DAY_NS, Job, JobSpec, Lease
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.collab.tiers import Sample

from ...support.collab import loaded
from .conftest import World


def job(name: str = "a") -> Job:
    book = Book(make("fifo", lambda below: 0), lambda below: 0, 1)
    book.open(JobSpec(name, "t", Requirement(Properties.of({"mem": 4}, {"os": (14, 2)}, ["wifi"])), speed="cpu"), 5)
    book.request(name, 3, 4, 1_000, 6)
    book.jobs[name].profile.learn(Sample(7, 1.5))
    return book.jobs[name]


def lease(number: int, issued_ns: int = DAY_NS, name: str = "a") -> Lease:
    return Lease(number, number * 11, name, 3, issued_ns, issued_ns + 9, 2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


def reopened(path: str, *changes: Changes) -> store.Found:
    with closing(StateFile(path)) as file:
        for each in changes:
            file.write(each)
    with closing(StateFile(path)) as again:
        return again.read()


def test_jobs_leases_and_who_has_worked_are_found_again(path: str) -> None:
    made = job()
    first = Changes({"a": row_of(made, "complete")}, {"a": profile_row(made)}, leases=[lease(1), lease(2)])
    found = reopened(path, first, Changes(ended=[1]))
    assert found.kept.leases == (lease(2),)
    assert found.kept.worked == {11, 22}
    assert (found.kept.day, found.kept.following, found.last_ns) == (1, 3, DAY_NS)
    assert found.last_ends == {"a": "complete"}
    (read,) = found.kept.jobs
    assert (read.spec, read.request, read.last_round) == (made.spec, made.request, 3)
    assert list(read.profile.samples) == [Sample(7, 1.5)]


@pytest.mark.parametrize("count", [7, 8, 9, 63, 64, 65, 201])
def test_any_number_of_leases_is_issued_and_ended_in_one_write(path: str, count: int) -> None:
    issued = [lease(number) for number in range(1, count + 2)]
    found = reopened(path, Changes(leases=issued), Changes(ended=list(range(1, count + 1))))
    assert found.kept.leases == (issued[-1],)
    assert found.kept.worked == {each.device for each in issued}


def test_a_row_that_is_written_again_keeps_its_profile(path: str) -> None:
    made = job()
    first = Changes({"a": row_of(made, "")}, {"a": profile_row(made)})
    (read,) = reopened(path, first, Changes({"a": row_of(made, "aborted")})).kept.jobs
    assert list(read.profile.samples) == [Sample(7, 1.5)]


def test_a_closed_job_is_not_found_again(path: str) -> None:
    assert reopened(path, Changes({"a": row_of(job(), "")}), Changes(closed=["a"])).kept.jobs == ()


def test_a_job_that_is_closed_and_opened_in_one_write_is_open(path: str) -> None:
    row = row_of(job(), "")
    assert len(reopened(path, Changes({"a": row}), Changes({"a": row}, closed=["a"])).kept.jobs) == 1


def test_only_those_of_the_last_day_have_worked_on_it(path: str) -> None:
    found = reopened(path, Changes(leases=[lease(1, DAY_NS), lease(2, 2 * DAY_NS)], ended=[1, 2]))
    assert (found.kept.worked, found.kept.day) == ({22}, 2)


def test_ended_leases_of_earlier_days_are_removed_a_part_at_a_time(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PURGED", 3)
    file = StateFile(path)
    old = [lease(number, DAY_NS) for number in range(1, 9)]
    file.write(Changes(leases=[*old, lease(9, 2 * DAY_NS)], ended=[1, 2, 3, 5, 6, 7, 8]))
    left = []
    for _ in range(3):
        file.write(Changes(purge_before_ns=2 * DAY_NS))
        left.append([number for (number,) in file._database.execute("SELECT number FROM lease ORDER BY number")])
    assert left == [[4, 5, 6, 7, 8, 9], [4, 7, 8, 9], [4, 7, 8, 9]], "4 has not ended: those behind it wait for it"
    file.write(Changes(ended=[4], purge_before_ns=2 * DAY_NS))
    file.write(Changes(purge_before_ns=2 * DAY_NS))
    file.write(Changes(purge_before_ns=2 * DAY_NS))
    assert file.read().kept.following == 10
    file.close()


def test_a_lease_number_is_never_given_twice_though_all_leases_are_old(path: str) -> None:
    found = reopened(path, Changes(leases=[lease(5)], ended=[5]), Changes(purge_before_ns=9 * DAY_NS))
    assert found.kept.following == 6


def test_another_controller_does_not_get_the_file(path: str) -> None:
    file = StateFile(path)
    with pytest.raises(PlaceUnusable, match="locked"):
        StateFile(path)
    file.close()


def test_the_secret_of_identities_stays(path: str) -> None:
    first = StateFile(path)
    secret = first.secret()
    first.close()
    again = StateFile(path)
    assert again.secret() == secret
    assert len(secret) == 32
    again.close()


@pytest.mark.parametrize(
    "statement", ["PRAGMA user_version=9", "UPDATE job SET data = x'00'", "UPDATE job SET data = '{}'"]
)
def test_a_file_of_another_version_or_with_a_damaged_row_is_refused(path: str, statement: str) -> None:
    reopened(path, Changes({"a": row_of(job(), "")}))
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    with pytest.raises(PlaceUnusable, match="state file"):
        reopened(path)


def test_what_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"not a database" * 100)
    with pytest.raises(PlaceUnusable):
        StateFile(path)


def test_after_a_failed_write_nothing_more_is_written(path: str) -> None:
    """Later changes build on the lost ones: a result of a lease that the file does not have."""
    file = StateFile(path)
    with pytest.raises(PlaceUnusable, match="UNIQUE"):
        file.write(Changes(leases=[lease(1), lease(1)]))
    with pytest.raises(PlaceUnusable, match="an earlier write failed: UNIQUE"):
        file.write(Changes(leases=[lease(2)]))
    file.close()
    assert reopened(path).kept.leases == ()


async def test_after_a_longer_period_only_devices_of_the_last_shorter_one_are_known_to_have_worked(
    tmp_path: Path,
) -> None:
    """As docs/collab.md states. The leases of earlier periods are removed from the file with the next writes."""
    world = World(tmp_path, policy="period_s = 60")
    world.start()
    world.job(demand=10, deadline_s=86_400)
    world.clock.pass_s(1)
    for device in ("early", "late"):
        world.clock.pass_s(61)
        lease = await world.check_in(device)
        await world.result(device, lease.lease)
    world.loaded = loaded(tmp_path, policy="period_s = 86400")
    await world.again()
    world.clock.pass_s(2)
    assert (await world.check_in("early")).kind == "lease"
    found = await world.check_in("late")
    assert (found.kind, found.why) == ("no_job", "spent")
    await world.stop()


async def test_after_a_shorter_period_a_device_that_worked_in_the_present_one_gets_no_second_job(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.start()
    world.job(demand=10, deadline_s=86_400)
    world.clock.pass_s(1)
    for device in ("early", "late"):
        lease = await world.check_in(device)
        await world.result(device, lease.lease)
        world.clock.pass_s(3_600 if device == "early" else 2)
    world.loaded = loaded(tmp_path, policy="period_s = 600")
    await world.again()
    world.clock.pass_s(2)
    assert (await world.check_in("late")).why == "spent"
    assert (await world.check_in("early")).kind == "lease"
    await world.stop()
