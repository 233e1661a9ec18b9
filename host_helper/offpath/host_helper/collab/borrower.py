"""Nodes for the rounds of one job: asked for, checked in, used and given back. Flower is not needed here.

Every job's process checks in the nodes that it sees, and the controller answers with the job that needs the node most;
every process gets the same answer. So a job learns of its own nodes, and leaves the others to theirs.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offpath.bindings.device_tokens import keyed, token_of
from offpath.bindings.errors import PeerGone
from offpath.bindings.wire.collab import CheckIn, Leased, Refusal, Result
from offpath.bindings.wire.collab_admin import (
    CloseRequest,
    DevicesRequest,
    ExplainRequest,
    Explanation,
    JobAnswer,
    OpenRequest,
    Requirement,
)
from offpath.host_helper.collab.controller import Controller, JobRefused
from offpath.host_helper.collab.settings import NodeTable

logger = logging.getLogger(__name__)
_PASSING: Final = frozenset(("replayed", "clock", "device_rate", "busy"))
"""Refusals of a message that is sent again later: another job's process has sent one of the same device, or too
many."""
_RETRY_S: Final = 0.5
_MOST_TRIES: Final = 20
"""Of results that the controller is to get later, because the device has sent too much."""
_HURRY: Final = 0.5
"""Of the pause between check-ins: a random part up to this one is left out, so that jobs do not ask in step."""


@dataclass(frozen=True, slots=True)
class JobWish:
    """``demand``: nodes of a round. ``deadline_s``: of a round, from its request on. Others:
    `collab_admin.OpenRequest`."""

    name: str
    demand: int
    deadline_s: float
    requirement: Requirement = field(default_factory=Requirement)
    rounds: int = 0
    quorum_percent: int = 80
    speed: str = ""
    tiers: int = 0


class _Lease(NamedTuple):
    """``until``: its end, of the monotonic clock."""

    number: int
    until: float


@dataclass(slots=True)
class _Round:
    """``leases``: of the job's nodes. ``until``: its deadline, of the monotonic clock. Both ends are never later than
    the controller's."""

    number: int
    until: float
    leases: dict[int, _Lease] = field(default_factory=dict)
    answers: dict[int, bool] = field(default_factory=dict)
    """Results that were not sent yet, by node."""
    good: int = 0
    """Good results that were sent."""


class Borrower:
    """``key``: of tokens; ``prefix``: of nodes' names as devices. ``now_ms``: for messages; a device's messages have
    rising ones, also if several jobs send them."""

    def __init__(
        self, controller: Controller, wish: JobWish, key: bytes, prefix: str, poll_s: float = 1.0, *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._controller, self._wish, self._key, self._prefix = controller, wish, keyed(key), prefix
        self._poll_s, self._now_ms, self._clock, self._sleep = poll_s, now_ms, clock, sleep
        self._demand = wish.demand
        self._next = -1
        """Number of the next round; -1: not known."""
        self._round: _Round | None = None
        self._again: dict[int, float] = {}
        """When a node may check in again, by node."""
        self._sent_ms: dict[int, int] = {}

    def borrow(
        self, nodes: Callable[[], Mapping[int, NodeTable]], patience_s: float, demand: int = 0
    ) -> list[int]:  # fmt: skip
        """``demand`` nodes, or as many as the job wishes, for a round of its own; a round that gets too few by its
        deadline is asked for anew. ``nodes``: those that are there now. Raises: PeerGone: the controller has not
        answered for ``patience_s``. JobRefused: it does not serve this job.
        """
        self._demand = demand or self._wish.demand
        answered = self._clock()
        while True:
            try:
                if self._borrowed(nodes):
                    assert self._round is not None
                    return sorted(self._round.leases)
                answered = self._clock()
            except PeerGone:
                if self._clock() - answered >= patience_s:
                    raise
            self._sleep(self._poll_s * (1 - _HURRY * random.random()))

    @property
    def left_s(self) -> float:
        """Until the round's deadline, or until the first of its nodes' leases ends: then others may get the node."""
        if self._round is None:
            return 0.0
        ends = min((lease.until for lease in self._round.leases.values()), default=self._round.until)
        return max(0.0, min(ends, self._round.until) - self._clock())

    def has(self, node: int) -> bool:
        """The node works for this job's round, and its lease has not ended."""
        lease = self._round.leases.get(node) if self._round is not None else None
        return lease is not None and self._clock() < lease.until

    def report(self, results: Mapping[int, bool]) -> None:
        """Nodes have answered, rightly or not: they are free. While others of the round still work, results that would
        complete its quorum wait, because the controller would lend those others to the next job. Raises: PeerGone:
        report them again."""
        if self._round is not None:
            self._round.answers |= {node: good for node, good in results.items() if node in self._round.leases}
            self._send(self._round, self._timely(self._round))

    def _timely(self, round_: _Round) -> dict[int, bool]:
        """Results that end no round in which nodes still work."""
        answers = round_.answers
        if not round_.leases.keys() - answers.keys():
            return dict(answers)
        room = -(-self._demand * self._wish.quorum_percent // 100) - 1 - round_.good
        good = [node for node, is_good in answers.items() if is_good][: max(0, room)]
        return {node: is_good for node, is_good in answers.items() if not is_good or node in good}

    def _send(self, round_: _Round, results: dict[int, bool]) -> None:
        """Raises: PeerGone."""
        left = results
        for _ in range(_MOST_TRIES):
            left = self._reported(left, round_)
            if not left:
                return
            self._sleep(_RETRY_S)
        logger.warning("job %s: %d results were refused %d times", self._wish.name, len(left), _MOST_TRIES)

    def _reported(self, results: Mapping[int, bool], round_: _Round) -> dict[int, bool]:
        """Those that are to be sent again. A lease that has ended needs no result."""
        if not results:
            return {}
        messages = [
            Result(device=self._device(node), token=self._token(node), sent_ms=self._stamp(node),
                   lease=round_.leases[node].number, is_good=is_good)
            for node, is_good in results.items()
        ]  # fmt: skip
        again = {}
        for (node, is_good), answer in zip(results.items(), self._controller.exchange(messages), strict=True):
            if isinstance(answer, Refusal) and answer.code in _PASSING:
                again[node] = is_good
            else:
                del round_.leases[node], round_.answers[node]
                round_.good += is_good
        return again

    def end(self) -> None:
        """The round is over for the job: all results are sent. Nodes that have not answered stay leased, if the quorum
        is not reached, until they do or the lease ends."""
        round_, self._round = self._round, None
        if round_ is not None and round_.answers:
            try:
                self._send(round_, dict(round_.answers))
            except PeerGone as fault:
                logger.warning("job %s: %d results were not sent, their leases expire: %s", self._wish.name,
                               len(round_.answers), fault)  # fmt: skip

    def close(self) -> None:
        """Send results that are due, see `end`, close the job, if the controller answers, and hang up."""
        self.end()
        try:
            if self._next >= 0:
                self._controller.ask(CloseRequest(job=self._wish.name), JobAnswer)
        except (PeerGone, JobRefused) as fault:
            logger.info("job %s was not closed: %s", self._wish.name, fault)
        self._controller.close()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _borrowed(self, nodes: Callable[[], Mapping[int, NodeTable]]) -> bool:
        """True: the round has all its nodes. Raises: PeerGone, JobRefused."""
        if self._next < 0:
            self._open()
        if self._round is not None and self._clock() >= self._round.until:
            logger.info("job %s: round %d got %d of %d nodes by its deadline; asking anew", self._wish.name,
                        self._round.number, len(self._round.leases), self._demand)  # fmt: skip
            self._round = None
        if self._round is None and not self._request():
            return False
        assert self._round is not None
        self._check_in(nodes(), self._round)
        return len(self._round.leases) >= self._demand

    def _open(self) -> None:
        wish = self._wish
        try:
            answer = self._controller.ask(
                OpenRequest(job=wish.name, requirement=wish.requirement, quorum_percent=wish.quorum_percent,
                            speed=wish.speed, tiers=wish.tiers, rounds=wish.rounds), JobAnswer)  # fmt: skip
        except JobRefused as refused:
            if refused.code != "job_exists":
                raise
            self._next = self._controller.ask(ExplainRequest(job=wish.name), Explanation).job.round + 1
            return
        self._next = answer.job.round + 1

    def _request(self) -> bool:
        """False: the former round has not ended yet."""
        wish, now = self._wish, self._clock()
        try:
            answer = self._controller.ask(
                DevicesRequest(job=wish.name, round=self._next, demand=self._demand, deadline_s=wish.deadline_s),
                JobAnswer,
            )
        except JobRefused as refused:
            if refused.code == "round_runs":
                return False
            if refused.code == "round_over":  # asked for before an answer was lost
                self._next += 1
                return False
            raise
        # less than was asked for, if the answer to an earlier request of this round was lost
        self._round = _Round(self._next, now + min(wish.deadline_s, answer.job.deadline_s))
        self._next += 1
        return True

    def _check_in(self, nodes: Mapping[int, NodeTable], round_: _Round) -> None:
        now = self._clock()
        for node in [node for node, lease in round_.leases.items() if now >= lease.until]:
            del round_.leases[node]  # the controller may have lent it to another job
            round_.answers.pop(node, None)
        asked = [
            node for node in nodes if node not in round_.leases and self._again.get(node, now) <= now
        ]  # fmt: skip
        messages = [
            CheckIn(device=self._device(node), token=self._token(node), sent_ms=self._stamp(node),
                    numbers=nodes[node].numbers, versions=nodes[node].versions, labels=nodes[node].labels)
            for node in asked
        ]  # fmt: skip
        for node, answer in zip(asked, self._controller.exchange(messages) if messages else (), strict=True):
            match answer:
                case Leased() if (answer.job, answer.round) == (self._wish.name, round_.number):
                    left_s = (answer.expires_ms - answer.now_ms) / 1e3
                    round_.leases[node] = _Lease(answer.lease, min(round_.until, now + left_s))
                case Leased():
                    self._again[node] = now + self._poll_s
                case _:
                    self._again[node] = now + max(self._poll_s, getattr(answer, "retry_ms", 0) / 1e3)

    def _stamp(self, node: int) -> int:
        """Later than the node's last message of this process."""
        stamp = self._sent_ms[node] = max(self._now_ms(), self._sent_ms.get(node, 0) + 1)
        return stamp

    def _device(self, node: int) -> str:
        return f"{self._prefix}-{node}"

    def _token(self, node: int) -> str:
        return token_of(self._key, self._device(node))
