"""What the controller remembers is a cache: lost or damaged it is made anew; and the jobs that it knows."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from offpath.dpu_daemon.controller.jobs import REST_NS, JobRefused, Jobs
from offpath.dpu_daemon.controller.store import Kept, Store
from offpath.dpu_daemon.controller.tracking import Tracking
from offpath.sched.ina.protocol.records import EpochRecord, Grant, RankState
from offpath.sched.placement.baselines import FirstN
from offpath.sched.topology import imported

TOPOLOGY = imported.regular("leaf-spine:2x2x1")
H = TOPOLOGY.names


def opened(path: Path) -> Store:
    store = Store(str(path))
    store.open()
    return store


def jobs(store: Store | None = None, most_ranks: int = 2) -> Jobs:
    return Jobs(TOPOLOGY, FirstN(), store or Store(""), most_ranks)


def state(job: str, rank: int, incarnation: int = 1, ranks: int = 2, is_gone: bool = False) -> RankState:
    return RankState(job, incarnation, rank, ranks, is_gone=is_gone)


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    assert store.kept == Kept()
    store.term(7)
    store.job("a", {"name": "a"})
    store.job("b", {"name": "b"})
    store.forget("a")
    store.ledger({"s0 b 1": {"job": "b"}})
    store.close()
    assert os.stat(tmp_path / "state").st_mode & 0o777 == 0o600
    assert opened(tmp_path / "state").kept == Kept(7, ({"name": "b"},), ({"job": "b"},))


@pytest.mark.parametrize("damage", ["text", "cut", "form", "row", "term", "table"])
def test_a_file_that_is_none_of_ours_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    store = opened(path)
    for n in range(200):
        store.job(f"job{n}", {"name": "x" * 100})
    store.close()
    if damage == "text":
        path.write_bytes(b"no database " * 1000)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with sqlite3.connect(path) as database:
            database.execute({
                "form": "PRAGMA user_version=99",
                "row": "UPDATE job SET data='[1' WHERE name='job3'",
                "term": "INSERT INTO meta VALUES ('term', -4)",
                "table": "DROP TABLE ledger",
            }[damage])  # fmt: skip
        database.close()
    store = opened(path)
    assert store.remade
    assert store.kept == Kept()
    store.term(3)
    store.close()
    assert opened(path).kept.term == 3


def test_a_place_where_nothing_can_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    store = opened(tmp_path / "missing" / "state")
    store.term(3)
    store.job("a", {})
    store.close()


def test_hosts_are_full_when_their_ranks_are_and_free_again_when_the_job_is_cancelled() -> None:
    known = jobs(most_ranks=2)
    assert known.submit("a", 4, (), 1, 0).hosts == H[:4]
    assert known.submit("b", 0, (H[1], H[0]), 1, 0).rank_hosts() == (H[1], H[0])
    with pytest.raises(JobRefused, match="no_room"):
        known.submit("c", 3, (), 1, 0)
    with pytest.raises(JobRefused, match="no_room"):
        known.submit("c", 0, (H[0],), 1, 0)
    known.cancel("b")
    assert known.submit("c", 0, (H[0],), 1, 0).state == "waiting"


@pytest.mark.parametrize(
    ("hosts", "on", "code"),
    [(0, (), "hosts"), (1, (H[0],), "hosts"), (0, (H[0], H[0]), "hosts"), (0, ("far",), "unknown_host"),
     (9, (), "no_room")],
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_refused(hosts: int, on: tuple[str, ...], code: str) -> None:
    with pytest.raises(JobRefused) as refused:
        jobs().submit("a", hosts, on, 1, 0)
    assert refused.value.code == code


def test_a_job_that_nobody_submitted_is_known_from_its_ranks_and_forgotten_after_them() -> None:
    known = jobs()
    known.seen(H[0], [state("met", 0)], 5)
    known.seen(H[1], [state("met", 1)], 6)
    job = known.get("met")
    assert (job.state, job.hosts, job.rank_hosts()) == ("running", (H[0], H[1]), ())
    known.seen(H[0], [state("met", 0, is_gone=True)], 7)
    known.seen(H[1], [state("met", 1, is_gone=True)], 8)
    assert known.over(8 + REST_NS - 1) == ()
    assert known.over(8 + REST_NS) == ("met",)
    assert not known.knows("met")


def test_a_cancelled_job_is_heard_of_again_only_as_another_incarnation() -> None:
    known = jobs()
    known.seen(H[0], [state("a", 0, incarnation=5)], 0)
    known.cancel("a")
    assert known.is_cancelled("a", 5)
    assert known.get("a").state == "cancelled"
    known.seen(H[0], [state("a", 0, incarnation=6)], 0)
    assert not known.is_cancelled("a", 6)
    assert known.get("a").state == "running"


def test_jobs_of_an_earlier_controller_are_known_and_rows_that_are_none_are_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    before = jobs(store)
    before.submit("a", 0, (H[0], H[2]), 2, 0)
    store.job("bad", {"name": "bad", "hosts": [1]})
    store.job("far", {"name": "far", "hosts": ["far"], "ranks_per_host": 1, "is_submitted": True, "reasons": [],
                      "cancelled": None, "incarnation": 0})  # fmt: skip
    store.close()
    after = jobs(opened(tmp_path / "state"))
    after.remember(9)
    assert [job.name for job in after.known()] == ["a"]
    assert after.get("a").rank_hosts() == (H[0], H[0], H[2], H[2])


def epoch(number: int, tree: str = "") -> EpochRecord:
    return EpochRecord("a", 1, 1, number, Grant(tree, ("x",), "t") if tree else None)


def applied(number: int) -> tuple[RankState, ...]:
    return (RankState("a", 1, 0, 1, 1 << 32 | number, 1 << 32 | number),)


def test_a_migration_is_counted_once_with_the_time_between_two_trees() -> None:
    tracking = Tracking()
    assert tracking.published(epoch(1, "t1"), 10)
    assert not tracking.published(epoch(1, "t1"), 11), "to the next of its hosts"
    assert tracking.moved("a", applied(1), 12) is None
    tracking.published(epoch(2), 20)
    tracking.published(epoch(3, "t2"), 30)
    assert tracking.moved("a", applied(2), 35) is None
    assert tracking.moved("a", applied(3), 45) == 25
    assert tracking.moved("a", applied(3), 46) is None
    assert list(tracking.downtime_ns) == [25]


def test_a_tree_that_is_given_back_and_got_again_is_no_migration() -> None:
    tracking = Tracking()
    for number, tree in ((1, "t1"), (2, ""), (3, "t1")):
        tracking.published(epoch(number, tree), number)
    assert tracking.moved("a", applied(3), 9) is None
    assert not tracking.downtime_ns
