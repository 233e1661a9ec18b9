"""A group of many switches without another implementation starts although smaller requests never stop coming."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc.decisions import Placed, Postponed
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.readings import HIRE
from offpath.sched.inc.reservations import Reservations
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.shortcuts import Shortcuts
from offpath.sched.topology.fattree import leaf_spine

from .book import ROUND_MS, World, of_kind
from .worlds import cluster, inc_group

LONGEST = 6
"""A small task runs for so many rounds at most."""
WAIT_MS = 2_000
BOUND = WAIT_MS // ROUND_MS + LONGEST + 3


def request(job: str, stages: int, tasks: int) -> PolyReq:
    """Of one group on switches."""
    group = inc_group("", "netchain" if tasks > 1 else "harmonia", (0, stages, 0), (0, 0, 0), tasks)
    return PolyReq(job, (replace(group, id=(job, "c")),), "")


class Stream:
    """Three switches that are full of small tasks: as soon as one ends, others wait for its place. Four of them fill a
    switch, and one leaves too little for the large request."""

    def __init__(self, seed: int, *, is_reserving: bool) -> None:
        self._draw = Random(seed)
        self.world = World(0, replace(HIRE, is_reserving=is_reserving), cluster(leaf_spine(2, 2, 1)))
        self.world.hire.reservations = Reservations(self.world.hire.resources, WAIT_MS)
        self._ends: dict[tuple[tuple[str, str], int], int] = {}
        self._number = 0

    def round(self, *, is_streaming: bool = True) -> None:
        """Some small tasks end, new requests come, and places are given."""
        world = self.world
        for (group, node), left in list(self._ends.items()):
            self._ends[group, node] = left - 1
            if left <= 1:
                del self._ends[group, node]
                world.running -= Counter({(group, node): 1})
                world.hire.ended(group, node)
        waiting = sum(bool(job.materialized()) for job in world.hire.jobs.values())
        for _ in range(14 - waiting if is_streaming else 0):
            world.hire.submit(request(f"s{self._number}", 12, 1), world.now)
            self._number += 1
        for each in of_kind(world.round(), Placed):
            if not each.group[0].startswith("large"):
                self._ends[each.group, each.node] = self._draw.randint(2, LONGEST)

    def until_large_starts(self, most: int) -> int | None:
        """Rounds from its submission to its start; None: it has not started after so many."""
        for _ in range(3):
            self.round()
        self.world.hire.submit(request("large", 30, 3), self.world.now)
        for number in range(1, most + 1):
            self.round()
            if any(group[0] == "large" for group, _ in self.world.running):
                return number
        return None


@given(st.integers(0, 10**9))
def test_a_large_group_starts_in_bounded_time_however_many_small_requests_come(seed: int) -> None:
    assert Stream(seed, is_reserving=True).until_large_starts(BOUND) is not None


def test_without_reservations_it_waits_as_long_as_they_come() -> None:
    stream = Stream(1, is_reserving=False)
    assert stream.until_large_starts(3 * BOUND) is None
    for _ in range(LONGEST + 20):
        stream.round(is_streaming=False)
    assert "large" in {group[0] for group, _ in stream.world.running}


def test_others_get_the_switches_again_and_their_reason_names_the_reservation() -> None:
    stream = Stream(3, is_reserving=True)
    assert stream.until_large_starts(BOUND) is not None
    texts = {each.reason.text for each in of_kind(stream.world.log, Postponed) if each.group[0] != "large"}
    assert any("are kept free for another job" in each for each in texts)
    stream.round()
    current = stream.world.hire.reservations.current
    assert current is None or current.group[0] != "large"
    for _ in range(2):
        stream.round()
    small = [group for group, _ in stream.world.running if group[0] != "large"]
    assert len(small) == 3, "one beside each task of the large group"


def reserved(reservations: Reservations, jobs: list[PendingJob], now_ms: int) -> str:
    reservations.renew(jobs, now_ms)
    return reservations.current.group[0] if reservations.current is not None else ""


def test_one_group_at_a_time_the_longest_waiting_first_each_for_a_bounded_time() -> None:
    resources = cluster(leaf_spine(2, 2, 1))
    reservations = Reservations(resources, 1_000)
    jobs = [PendingJob(request(name, 30, 3), number, 100 * number) for number, name in enumerate("ab")]
    assert reserved(reservations, jobs, 1_000) == ""
    assert reserved(reservations, jobs, 1_001) == "a"
    assert reserved(reservations, jobs, 7_001) == "a", "six times as long"
    assert reserved(reservations, jobs, 7_002) == "", (
        "it ended without a start: nobody has one for as long as it lasted"
    )
    assert reserved(reservations, jobs, 13_002) == ""
    assert reserved(reservations, jobs, 13_003) == "b", "it waits since 100, the other one since 7 002"
    start(resources, jobs[1])
    assert reserved(reservations, jobs, 13_004) == "a", "it waits six times as long after a reservation without a start"
    resources.lose(6)
    assert reserved(reservations, jobs, 13_005) == "", "two switches are not enough"
    resources.restore(6)
    assert reserved(reservations, jobs, 49_005) == "", "it waits six times as long again"
    assert reserved(reservations, jobs, 49_006) == "a"


def start(resources: Resources, job: PendingJob) -> None:
    """On the three switches."""
    (group,) = job.request.groups
    for node in (4, 5, 6):
        resources.start(group, node)
    job.started[group.id] = 3


def test_any_number_of_groups_that_no_reservation_helps_leave_half_of_the_time() -> None:
    reservations = Reservations(cluster(leaf_spine(2, 2, 1)), 1_000)
    jobs = [PendingJob(request(f"j{number}", 30, 3), number, 0) for number in range(50)]
    holders = [reserved(reservations, jobs, now) for now in range(0, 200_000, 100)]
    assert 0.4 < sum(map(bool, holders)) / len(holders) < 0.52  # seen every 100 ms, a reservation ends one look late
    assert len(set(holders) - {""}) == 17, "each time another one"


def test_requests_that_are_cancelled_during_their_reservation_leave_half_of_the_time_too() -> None:
    """Of 50 requests each is cancelled 5 s after it got a reservation."""
    reservations = Reservations(cluster(leaf_spine(2, 2, 1)), 1_000)
    jobs = [PendingJob(request(f"j{number}", 30, 3), number, 0) for number in range(50)]
    holders = []
    for now in range(0, 200_000, 100):
        holders.append(reserved(reservations, jobs, now))
        held = reservations.current
        if held is not None and now - held.since_ms >= 5_000:
            jobs = [job for job in jobs if job.request.job != held.group[0]]
    assert 0.4 < sum(map(bool, holders)) / len(holders) < 0.52


def test_after_a_start_the_next_group_gets_a_reservation_at_once() -> None:
    resources = cluster(leaf_spine(2, 2, 1))
    reservations = Reservations(resources, 1_000)
    jobs = [PendingJob(request(name, 30, 3), number, 0) for number, name in enumerate("ab")]
    assert reserved(reservations, jobs, 1_001) == "a"
    start(resources, jobs[0])
    assert reserved(reservations, jobs, 1_101) == "b"


def test_groups_for_which_there_are_too_few_switches_delay_no_round_and_no_other_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look reads all switches, so a round looks for four groups."""
    resources = cluster(leaf_spine(2, 2, 1))
    looks: list[str] = []
    reservations = Reservations(resources, 1_000)
    choose = reservations._chosen

    def counted(job: PendingJob, group: TaskGroup) -> frozenset[int]:
        looks.append(group.id[0])
        return choose(job, group)

    monkeypatch.setattr(reservations, "_chosen", counted)
    jobs = [PendingJob(request(f"j{number}", 30, 4 if number < 9 else 3), number, 0) for number in range(10)]
    rounds = [reserved(reservations, jobs, now) for now in (1_001, 1_002, 1_003)]
    assert rounds == ["", "", "j9"]
    assert looks == [f"j{number}" for number in range(10)]


def test_a_group_with_another_implementation_gets_no_reservation() -> None:
    job = PendingJob(request("a", 30, 3), 0, 0)
    job.choose(job.request.groups[0], 0)
    reservations = Reservations(cluster(leaf_spine(2, 2, 1)), 1_000)
    assert reserved(reservations, [job], 5_000) == ""


def test_a_reservation_that_nobody_heeds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shortcuts, "reserve", lambda self, reservation: None)
    assert Stream(1, is_reserving=True).until_large_starts(3 * BOUND) is None
