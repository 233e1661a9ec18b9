"""The workload: promises in worlds of lost answers and killed processes, and single cases by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from offpath.sched.workload import workload as module
from offpath.sched.workload.records import (
    Decision,
    End,
    Forget,
    Held,
    Node,
    Placed,
    Release,
    Report,
    Save,
    Seen,
    Share,
    Spec,
    Start,
    Work,
    WorkState,
)
from offpath.sched.workload.workload import Workload, WorkRefused

from ...sizes import sized
from .world import Broken, drive

RUNS = sized(quick=60, fast=150, slow=600, full=20_000)
NODES = (Node("a", 4), Node("b", 4))


def spec(name: str = "job", gpus: int = 2, **more: object) -> Spec:
    return Spec(**{"name": name, "gpus": gpus, "model": "vgg16", "argv": ("train",), **more})  # type: ignore[arg-type]


def made(*specs: Spec) -> Workload:
    workload = Workload(("vgg16", "alexnet"))
    workload.see_nodes(NODES)
    for number, each in enumerate(specs, start=1):
        workload.submit(each, f"{each.name}.{number}", number)
    return workload


def place(workload: Workload, identity: str, *shares: Share, server: str = "") -> list[object]:
    return list(workload.decide([Decision(identity, Placed(shares, server, reasons=("because",)))]))


def test_no_world_breaks_a_promise() -> None:
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        seen.update(drive(seed).seen)
    wanted = {
        "succeeded",
        "failed",
        "cancelled",
        "refused",
        "request lost",
        "answer lost",
        "kill",
        "lose",
        "job_exists",
    }
    assert {name for name in wanted if not seen[name]} == set()


def test_a_job_is_saved_with_its_places_before_it_is_started() -> None:
    workload = made(spec())
    saved, start = place(workload, "job.1", Share("a", 2))
    assert isinstance(saved, Save)
    assert saved.work.placed == Placed((Share("a", 2, (0, 1)),), reasons=("because",))
    assert start == Start("job.1")
    assert workload.free() == {"a": (2, 3), "b": (0, 1, 2, 3)}


def test_a_job_that_the_engine_lost_fails_when_the_engine_says_that_it_had_begun() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.answered(Seen("job.1", Report.RUNNING), 5)
    assert workload.see_jobs([], 6, is_all=True)[-1] == Start("job.1"), "the engine knows whether its command began"
    workload.answered(Seen("job.1", Report.LOST), 7)
    assert (workload.get("job").state, workload.get("job").detail) == (WorkState.FAILED, "the engine lost it")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_may_have_begun_is_not_placed_elsewhere_when_its_node_is_refused(restarted: bool) -> None:
    """Slurm forgets an end after MinJobAge; what proves that the command ran is on the disk of the drained node."""
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    if restarted:  # before the answer to the start was recorded
        saved, workload = workload.get("job"), made()
        workload.remember([saved])
    else:
        workload.answered(Seen("job.1", Report.RUNNING), 5)
    asked = 0
    for look in range(20):
        workload.see_nodes(NODES)
        if workload.see_jobs([], look, is_all=True)[-1:] == [Start("job.1")]:
            asked += 1
            workload.refused("job.1", "node a is drained", look)
    assert asked == module.MOST_REFUSALS
    work = workload.get("job")
    assert work.state is WorkState.FAILED
    assert work.detail.endswith("node a is drained")


def test_a_job_whose_start_was_not_answered_is_not_placed_elsewhere() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.unanswered("job.1")
    workload.refused("job.1", "node a is drained", 5)
    assert workload.get("job").state is WorkState.STARTING


def test_a_job_that_the_engine_proves_not_to_have_begun_is_placed_elsewhere() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.answered(Seen("job.1", Report.RUNNING), 5)
    assert workload.see_jobs([Seen("job.1", Report.LOST, has_begun=False)], 6, is_all=True)[-1] == Start("job.1")
    workload.refused("job.1", "node a is drained", 7)
    assert workload.get("job").state is WorkState.QUEUED


def test_a_job_that_a_killed_engine_holds_again_is_started_again() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.answered(Seen("job.1", Report.RUNNING), 5)
    again = workload.see_jobs([Seen("job.1", Report.PENDING, reason="held")], 6, is_all=True)[-1]
    assert isinstance(again, Start)
    assert workload.is_due(again)
    assert workload.get("job").state is WorkState.STARTING


def test_a_job_whose_start_was_not_answered_is_started_again() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    assert workload.see_jobs([], 6, is_all=True) == [Start("job.1")]
    assert workload.see_jobs([Seen("job.1", Report.LOST)], 7, is_all=True) == [Start("job.1")]
    assert workload.answered(Seen("job.1", Report.LOST), 8)[-1] == Forget("job.1")
    assert workload.get("job").state is WorkState.FAILED


def test_an_engines_refusal_comes_back_with_its_reason() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    work = workload.get("job")
    for turn in range(2):
        workload.refused("job.1", "Invalid account", 5)
        assert (work.state, work.detail) == (WorkState.QUEUED, "Invalid account")
        assert workload.batch() is None, "it rests until the engine was looked at some times"
        for _ in range(3 * (turn + 1)):
            workload.see_nodes(NODES)
        assert workload.batch() is not None
        place(workload, "job.1", Share("a", 2))
    workload.refused("job.1", "Invalid account", 5)
    assert (work.state, work.detail, work.ended_ns) == (WorkState.REFUSED, "Invalid account", 5)
    assert workload.free()["a"] == (0, 1, 2, 3)


def test_a_job_whose_node_was_drained_before_its_start_is_placed_again() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.see_nodes((Node("a", 4, is_ready=False, reason="drained by root"), Node("b", 4)))
    workload.refused("job.1", "node is drained", 5)
    work = workload.get("job")
    assert (work.state, work.placed) == (WorkState.QUEUED, None)
    assert "node is drained" in work.reasons[0]
    place(workload, "job.1", Share("b", 2))
    assert work.state is WorkState.STARTING


@pytest.mark.parametrize(
    ("shares", "server", "text"),
    [((Share("a", 1),), "", "does not have the job's 2 GPUs"), ((Share("a", 1), Share("a", 1)), "", "each node once"),
     ((Share("c", 2),), "", "c left"), ((Share("a", 3), Share("b", -1)), "", "-1 GPUs on b"),
     ((Share("a", 2),), "b", "no share on the parameter server's node"),
     ((Share("a", 2), Share("b", 0)), "", "0 GPUs")],
)  # fmt: skip
def test_a_policys_answer_that_cannot_be_carried_out_is_a_deferral(
    shares: tuple[Share, ...], server: str, text: str
) -> None:
    workload = made(spec())
    assert place(workload, "job.1", *shares, server=server) == []
    work = workload.get("job")
    assert (work.state, work.batches) == (WorkState.QUEUED, 1)
    assert text in work.reasons[0]


def test_what_was_taken_while_a_batch_was_decided_is_not_given_twice() -> None:
    workload = made(spec("one", 3), spec("two", 3))
    assert workload.batch() is not None
    both = [Decision(each, Placed((Share("a", 3),))) for each in ("one.1", "two.2")]
    assert [each for each in workload.decide(both) if isinstance(each, Start)] == [Start("one.1")]
    assert workload.get("two").reasons == ("a has 1 free GPUs now, not 3",)


def test_a_server_without_workers_is_a_share_of_no_gpu() -> None:
    workload = made(spec("wide", 5))
    place(workload, "wide.1", Share("a", 4), Share("b", 1), server="b")
    assert workload.get("wide").placed is not None
    other = made(spec())
    place(other, "job.1", Share("a", 2), Share("b", 0), server="b")
    assert other.free() == {"a": (2, 3), "b": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"gpus": 0}, "gpus"), ({"gpus": -3}, "gpus"), ({"gpus": 9}, "gpus"), ({"gpus": 1 << 40}, "gpus"),
     ({"model": "no-such"}, "model"), ({"data_bytes": -1}, "data"), ({"data_bytes": 1 << 60}, "data"),
     ({"value": 0.0}, "value"), ({"value": float("nan")}, "value"), ({"value": float("inf")}, "value"),
     ({"argv": ()}, "command")],
)  # fmt: skip
def test_bad_jobs_are_refused_and_leave_nothing(wrong: dict[str, object], code: str) -> None:
    workload = made(spec("good"))
    with pytest.raises(WorkRefused) as refused:
        workload.submit(spec("bad", **wrong), "bad.2", 2)
    assert refused.value.code == code
    assert [work.identity for work in workload.works.values()] == ["good.1"]


def test_an_open_job_keeps_its_name_and_an_ended_one_gives_it_back() -> None:
    workload = made(spec())
    with pytest.raises(WorkRefused, match="job is queued"):
        workload.submit(spec(), "job.2", 2)
    workload.cancel("job", 3)
    workload.submit(spec(), "job.2", 4)
    assert workload.get("job").identity == "job.2"
    assert workload.get("job.1").state is WorkState.CANCELLED


def test_a_job_cancelled_before_its_start_reached_the_engine_is_ended_there_and_never_started() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    assert workload.cancel("job", 5)[-1] == End("job.1")
    assert workload.see_jobs([], 6, is_all=True) == [End("job.1")]
    workload.unknown("job.1", 7)
    assert workload.get("job").state is WorkState.CANCELLED


def test_a_held_job_is_released_on_its_places_and_cancelled_with_the_engines_own_command() -> None:
    workload = made()
    held = [Held("slurm-7", "ada", 2, "vgg16"), Held("slurm-8", "bob", 2, "vgg16")]
    workload.see_held(held, 5)
    assert place(workload, "slurm-7", Share("b", 2))[-1] == Release("slurm-7")
    workload.see_held([], 6)
    assert workload.get("slurm-7").state is WorkState.STARTING
    assert (workload.get("slurm-8").state, workload.get("slurm-8").detail) == (
        WorkState.CANCELLED, "cancelled at the engine",
    )  # fmt: skip


def test_a_job_found_at_the_engine_holds_its_gpus_although_no_state_of_it_was_saved() -> None:
    workload = made()
    workload.see_jobs([Seen("old.3", Report.RUNNING, (Share("a", 2, (1, 3)),))], 5, is_all=True)
    assert workload.free()["a"] == (0, 2)
    workload.see_jobs([Seen("old.3", Report.SUCCEEDED, exit_code=0)], 6, is_all=True)
    assert workload.free()["a"] == (0, 1, 2, 3)


def test_indices_that_the_engine_chose_replace_the_planned_ones() -> None:
    workload = made(spec())
    place(workload, "job.1", Share("a", 2))
    workload.see_jobs([Seen("job.1", Report.RUNNING, (Share("a", 2, (2, 3)),))], 5, is_all=True)
    assert workload.free()["a"] == (0, 1)


def test_ended_jobs_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENDED", 2)
    workload = made(*[spec(f"job-{number}") for number in range(4)])
    for number in range(4):
        workload.cancel(f"job-{number}", 9)
    assert [work.identity for work in workload.works.values()] == ["job-2.3", "job-3.4"]


def _keeps(self: Workload, work: Work) -> list[object]:
    self.works[work.identity] = work
    self._open[work.spec.name] = work.identity
    return []


def _running(self: Workload) -> tuple[Work, ...]:
    return tuple([work for work in self.works.values() if work.state is WorkState.RUNNING])


def _elsewhere(self: Workload, identity: str, reason: str, now_ns: int) -> list[object]:
    self.works[identity].may_have_begun = False
    return list(_REFUSED(self, identity, reason, now_ns))


_REFUSED = Workload.refused
PLANTED: dict[str, tuple[str, object]] = {
    "starts a job that has run again": ("_missing", lambda self, work, now_ns: [Start(work.identity)]),
    "forgets a start whose answer was lost": ("_missing", lambda self, work, now_ns: []),
    "gives the GPUs of starting jobs away": ("active", property(_running)),
    "does not save what it accepts": ("_accept", _keeps),
    "places a job that may have begun elsewhere": ("refused", _elsewhere),
    "loses a cancellation": ("cancel", lambda self, name, now_ns: [End(self.get(name).identity)]),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = PLANTED[bug]
    monkeypatch.setattr(Workload, name, wrong)
    with pytest.raises(Broken):
        _hunt()


def _hunt() -> None:
    for seed in range(400):
        drive(seed)


def test_a_batch_passes_a_job_over_only_if_it_starts_another() -> None:
    """What counts is starts of others, not time: batches come each second, jobs last days."""
    workload = made(spec("one"), spec("two"))
    deferred = Decision("two.2", None, ("full",))
    for _ in range(3):
        assert workload.decide([Decision("one.1", None, ("full",)), deferred]) == []
    work = workload.get("two")
    assert (work.batches, work.passed_over) == (3, 0)
    workload.decide([deferred, Decision("one.1", Placed((Share("a", 2),), "", reasons=("room",)))])
    assert (work.batches, work.passed_over) == (4, 1)
