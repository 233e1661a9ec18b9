"""A collaboration controller that is killed at seeded moments, under devices and jobs that repeat what had no answer.

All is looked at from outside, through the sockets: no device ever has two leases on a day, no lease that was answered
is lost, no result counts twice, and no round gets more devices than it asked for.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import collab_admin

from ..sizes import sized
from ..support.collab import Controller, configuration, message

KILLS = sized(quick=2, fast=2, slow=8, full=100)
DEVICES = 400
DEMAND = {"a": 7, "b": 4}
DAY_MS = 86_400_000
POINTS = ("collab.write", "collab.written")


@dataclass(slots=True)
class Books:
    """What devices were answered; `leased` and `over` refuse what must not be."""

    holder: dict[int, str] = field(default_factory=dict)
    """Lease → its device."""
    had: dict[tuple[str, int], int] = field(default_factory=dict)
    """(device, day) → its lease."""
    open: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Device → the lease that it has."""
    finished: dict[tuple[str, int], int] = field(default_factory=dict)
    """(job, round) → devices whose result counts."""

    def leased(self, device: str, answer: dict[str, Any]) -> None:
        lease, day = answer["lease"], answer["now_ms"] // DAY_MS
        assert self.holder.setdefault(lease, device) == device, f"lease {lease} is of two devices"
        assert self.had.setdefault((device, day), lease) == lease, f"{device} has two leases on a day"
        if device in self.open:
            assert self.open[device]["lease"] == lease, f"{device} has lost lease {self.open[device]['lease']}"
        self.open[device] = answer

    def not_leased(self, device: str) -> None:
        assert device not in self.open, f"{device} has lost lease {self.open[device]['lease']}"

    def over(self, device: str, answers: list[str]) -> None:
        """The answers to one result that was sent until there was one: the first may have been lost."""
        assert answers in (["recorded"], ["", "recorded"], ["", "no_lease"]), f"a result was answered {answers}"
        lease = self.open.pop(device)
        key = lease["job"], lease["round"]
        self.finished[key] = self.finished.get(key, 0) + 1

    def balance(self, job: collab_admin.JobLine) -> None:
        """A job's line, when nothing is on its way."""
        open_here = sum((each["job"], each["round"]) == (job.job, job.round) for each in self.open.values())
        done = self.finished.get((job.job, job.round), 0)
        if job.state == "idle":
            assert job.last_end == "complete"
            assert done == DEMAND[job.job]
        else:
            assert (job.leased, job.done) == (open_here, done)
            assert job.leased + job.done <= job.demand
        assert job.rounds_completed == sum(
            count == DEMAND[job.job] for (name, _), count in self.finished.items() if name == job.job
        )


class Life:
    """Devices and jobs at work on a controller that dies."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.controller = Controller(folder, configuration(folder, per_minute=60_000, burst=1_000), {})
        self.books = Books()
        self.kills = 0
        self.sent_ms = 0
        self.outside = 0
        """Messages until the controller is killed from outside; 0: a fault point kills it."""

    def start(self) -> None:
        """The next process, with its end planned."""
        self.outside = self.random.randrange(3, 25) if self.random.random() < 0.4 else 0
        armed = f"{self.random.choice(POINTS)}=kill@{self.random.randrange(1, 20)}"
        # a job that is opened again and the ends of old leases are written too: the first write may be any of them
        self.controller.environment = {**os.environ, **({} if self.outside else {"OFFPATH_FAULTS": armed})}
        self.controller.start()

    def again(self) -> None:
        self.kills += 1
        if self.controller.process is not None:
            self.controller.kill()
        self.start()

    def repeated(self, act: Callable[[], Any]) -> tuple[Any, int]:
        """The answer, and how often there was none before."""
        for lost in range(50):
            try:
                return act(), lost
            except (OSError, http.client.HTTPException, OffpathError, json.JSONDecodeError) as fault:
                if type(fault).__name__ == "Refused":
                    raise
                self.again()
        raise AssertionError("50 processes in a row gave no answer")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Killed from outside, the message is on its way and its answer is not read."""
        if self.outside:
            self.outside -= 1
            if not self.outside:
                with socket.create_connection(self.controller.address) as peer:
                    text = json.dumps(body).encode()
                    peer.sendall(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(text), text))
                    time.sleep(self.random.random() * 0.01)
                    self.controller.kill()
                raise ConnectionResetError("killed")
        return self.controller.post(path, body)

    def message(self, device: str, **more: object) -> dict[str, Any]:
        self.sent_ms = max(self.sent_ms + 1, time.time_ns() // 10**6)
        return message(device, self.sent_ms, **more)

    # -- steps ----------------------------------------------------------------------------------------------------
    def check_in(self, device: str) -> None:
        body = self.message(device, labels=["b"] if self.random.random() < 0.5 else [])
        answer, _ = self.repeated(lambda: self.post("/v1/checkin", body))
        if answer["kind"] == "lease":
            self.books.leased(device, answer)
            again, _ = self.repeated(lambda: self.post("/v1/checkin", body))
            assert again["lease"] == answer["lease"], "the same check-in again, perhaps in another process"
        else:
            assert answer["kind"] == "no_job", answer
            self.books.not_leased(device)

    def finish(self, device: str) -> None:
        body = self.message(device, lease=self.books.open[device]["lease"], is_good=True)
        answer, lost = self.repeated(lambda: self.post("/v1/result", body))
        self.books.over(device, [*[""] * min(lost, 1), answer.get("code", answer["kind"])])

    def jobs(self) -> dict[str, collab_admin.JobLine]:
        found, _ = self.repeated(lambda: self.controller.ask(collab_admin.JobsRequest(), collab_admin.JobLines))
        return {job.job: job for job in found.jobs}

    def next_rounds(self) -> None:
        """What every job does that is idle, and what it repeats until it has an answer."""
        for name, job in self.jobs().items():
            self.books.balance(job)
            if job.state == "idle" or job.round < 0:
                self.request(name, job.round + 1)

    def request(self, name: str, number: int) -> None:
        asked = collab_admin.DevicesRequest(job=name, round=number, demand=DEMAND[name], deadline_s=20_000)
        self.repeated(lambda: self.controller.ask(asked))

    def open_jobs(self) -> None:
        for name in DEMAND:
            needs = collab_admin.Requirement(labels=["b"] if name == "b" else [])
            asked = collab_admin.OpenRequest(job=name, requirement=needs, quorum_percent=100)
            self.repeated(lambda asked=asked: self.controller.ask(asked))
            self.request(name, 0)


def test_no_lease_is_lost_or_given_twice_whenever_the_controller_is_killed(tmp_path: Path) -> None:
    life = Life(tmp_path, seed=20_261_126)
    life.start()
    try:
        life.open_jobs()
        fresh = iter(range(DEVICES * KILLS))
        while life.kills < KILLS:
            act = life.random.random()
            if act < 0.5:
                life.check_in(f"d{next(fresh)}")
            elif act < 0.65 and life.books.had:
                life.check_in(life.random.choice(list(life.books.had))[0])
            elif act < 0.9 and life.books.open:
                life.finish(life.random.choice(list(life.books.open)))
            else:
                life.next_rounds()
        for device in list(life.books.open):
            life.check_in(device)
            life.finish(device)
        life.next_rounds()
        assert sum(life.books.finished.values()) > KILLS
        assert life.controller.stop() in (0, -9)
        assert not [line for line in life.controller.log if "Traceback" in line]
    finally:
        if life.controller.process is not None:
            life.controller.kill()


# -- the books find what they are for ---------------------------------------------------------------------------------
def lease(number: int, now_ms: int = 5) -> dict[str, Any]:
    return {"lease": number, "job": "a", "round": 0, "now_ms": now_ms}


@pytest.mark.parametrize(
    ("device", "answer"),
    [("d2", lease(1)), ("d1", lease(2)), ("d1", lease(2, DAY_MS + 5))],
    ids=["of two devices", "two on a day", "lost at midnight"],
)
def test_the_books_refuse_a_lease_that_must_not_be(device: str, answer: dict[str, Any]) -> None:
    books = Books()
    books.leased("d1", lease(1))
    books.leased("d1", lease(1))
    with pytest.raises(AssertionError):
        books.leased(device, answer)
    with pytest.raises(AssertionError, match="lost"):
        books.not_leased("d1")


@pytest.mark.parametrize("answers", [["no_lease"], ["", "idle"], ["forged"]])
def test_the_books_refuse_an_answer_to_a_result_that_lost_it(answers: list[str]) -> None:
    books = Books()
    books.leased("d1", lease(1))
    with pytest.raises(AssertionError):
        books.over("d1", answers)


def test_the_books_refuse_a_count_that_differs() -> None:
    books = Books()
    books.leased("d1", lease(1))
    line = collab_admin.JobLine(
        job="a", tenant="t", requirement="any device", state="waits", round=0, demand=7, leased=1, done=0,
        rounds_completed=0, deadline_s=1, last_end="", age_s=1,
    )  # fmt: skip
    books.balance(line)
    for wrong in ({"leased": 0}, {"done": 1}, {"rounds_completed": 1}):
        with pytest.raises(AssertionError):
            books.balance(line.model_copy(update=wrong))
