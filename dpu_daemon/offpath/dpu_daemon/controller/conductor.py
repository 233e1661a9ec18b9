"""The controller's shell: agents, switches, operators and memory around the protocol's machine. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from offpath.bindings.wire import cluster
from offpath.dpu_daemon.controller.door import Door
from offpath.dpu_daemon.controller.jobs import Jobs
from offpath.dpu_daemon.controller.plan import Planner
from offpath.dpu_daemon.controller.store import Store
from offpath.dpu_daemon.controller.switches import Switches
from offpath.dpu_daemon.controller.tracking import Tracking
from offpath.sched.ina.protocol import events
from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.controller import Controller
from offpath.sched.ina.protocol.records import (
    RankState,
    RecordError,
    epoch_to_data,
    permission_to_data,
    state_from_data,
)

logger = logging.getLogger(__name__)
TICK_S: Final = 0.25
YOUNG_S: Final = 10.0
"""So long after its start a controller that hears of a greater term takes over from that one too: its memory was lost.
Later it is the one that was taken over from."""
_MS: Final = 1_000_000


class Conductor:
    """One controller. Made inside a running loop; `start` begins to act. ``on_deposed``: another has taken over."""

    def __init__(
        self, planner: Planner, store: Store, jobs: Jobs, *, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.planner, self.store, self.jobs = planner, store, jobs
        self.now_ns = now_ns
        self.started_ns = now_ns()
        self.counters: Counter[str] = Counter()
        self.tracking = Tracking()
        self.heard: set[str] = set()
        """Hosts that have said in this term what their ranks hold."""
        self.on_deposed: Callable[[], None] = lambda: None
        self.door: Door
        self.switches: Switches
        self.machine: Controller
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[events.Event] = deque()
        self._is_handling = False
        self._has_granted = False
        self._is_changed = False

    def start(self, door: Door, switches: Switches) -> None:
        """Begin to rule, under a term above that of the memory."""
        self.door, self.switches = door, switches
        self._begin(self.store.kept.term + 1)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _begin(self, term: int) -> None:
        """A machine that knows nothing but the jobs' names; all agents and switches are asked."""
        self.machine = Controller(term, self.planner, lambda: secrets.token_urlsafe(18))
        self.store.term(term)
        self.heard.clear()
        logger.info("rules in term %d", term)
        for job in self.jobs.known():
            self.dispatch(events.JobSubmitted(job.name, job.rank_hosts()))
        for host in self.door.hosts:
            self.dispatch(events.AgentUp(host))
        self.switches.lead(term)

    # -- events in, commands out ----------------------------------------------------------------------------------
    def dispatch(self, event: events.Event) -> None:
        """Give an event to the machine and carry out what it says; what arises meanwhile waits its turn."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                now_ns = self.now_ns()
                for command in self.machine.handle(self._events.popleft(), now_ns=now_ns):
                    self._carry(command, now_ns)
        finally:
            self._is_handling = False

    def _carry(self, command: events.Command, now_ns: int) -> None:
        match command:
            case events.Publish(host, epoch):
                self.counters["epochs_sent"] += 1
                self._has_granted |= epoch.grant is not None
                if self.tracking.published(epoch, now_ns):
                    self.counters["epochs"] += 1
                self.door.say(host, cluster.NewEpoch(epoch=epoch_to_data(epoch)))
            case events.Ask(host, term):
                self.door.say(host, cluster.AskAll(term=term))
            case events.Allow(switch, boot, permission):
                self.counters["permissions"] += 1
                self._is_changed = True
                self.switches.allow(switch, boot, permission)
            case events.Fence(switch, boot, term, job, incarnation, stamp):
                self.counters["fences"] += 1
                self._is_changed = True
                self.switches.fence(switch, boot, term, job, incarnation, stamp)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self.dispatch(events.Tick())
        for job in self.jobs.over(self.now_ns()):
            logger.info("job %s is over", job)
            self.tracking.forget(job)
            self.dispatch(events.JobEnded(job))
        if self._is_changed:
            self._is_changed = False
            self.store.ledger({
                f"{hold.switch} {hold.permission.job} {hold.permission.stamp}": permission_to_data(hold.permission)
                for hold in self.machine.ledger.holds()
            })  # fmt: skip

    # -- agents ---------------------------------------------------------------------------------------------------
    def agent_came(self, host: str) -> None:
        """Its agent can be spoken to."""
        self.heard.discard(host)
        self.dispatch(events.AgentUp(host))

    def agent_left(self, host: str) -> None:
        """It cannot."""
        self.heard.discard(host)
        self.dispatch(events.AgentGone(host))

    def reported(self, host: str, report: cluster.AgentReport) -> None:
        """A host's agent says what its ranks say. States that are none are left out and counted."""
        self.counters["reports"] += 1
        states: list[RankState] = []
        for data in report.states:
            try:
                state = state_from_data(data)
            except RecordError:
                self.counters["states_refused"] += 1
                continue
            states.append(state)
        # An agent that began anew has heard of no term, but its ranks may hold what a later controller gave.
        term = max([report.term, *(state.held >> 32 for state in states)])
        if term > self.machine.term:
            self.heard_of(term)
            return
        for pattern in report.patterns:
            self._measured(pattern)
        self._is_changed = True
        if report.is_whole:
            self.heard.add(host)
        self.jobs.seen(host, states, self.now_ns())
        live = tuple(state for state in states if not self.jobs.is_cancelled(state.job, state.incarnation))
        self.dispatch(Report(host, report.term, live, report.is_whole))
        for job in dict.fromkeys(state.job for state in live):
            downtime_ns = self.tracking.moved(job, self.machine.states(job), self.now_ns())
            if downtime_ns is not None:
                self.counters["migrations"] += 1
                logger.info("job %s moved to another tree: %.0f ms without one", job, downtime_ns / _MS)

    def _measured(self, data: dict[str, object]) -> None:
        job, incarnation = data.get("job"), data.get("incarnation")
        if isinstance(job, str) and isinstance(incarnation, int) and self.jobs.knows(job):
            if self.planner.measured(job, incarnation, data.get("pattern")):
                self.counters["patterns"] += 1
        else:
            self.counters["patterns_refused"] += 1

    def heard_of(self, term: int) -> None:
        """Somebody, an agent or a switch, has listened to a controller of that term."""
        if term <= self.machine.term:
            return
        self.store.term(term)
        is_young = self.now_ns() - self.started_ns < YOUNG_S * 1e9
        if is_young and not self._has_granted:
            logger.warning("a controller ruled in term %d; taking over", term)
            self._loop.call_soon(self._take_over, term + 1)
            return
        logger.error("another controller rules, in term %d: this one ends", term)
        self.dispatch(events.Deposed(term))
        self.on_deposed()

    def _take_over(self, term: int) -> None:
        if term > self.machine.term:
            self._events.clear()
            self._begin(term)

    # -- operators ------------------------------------------------------------------------------------------------
    def plan_again(self) -> None:
        """Settings changed: what is to be different begins at once."""
        self.dispatch(events.Tick())

    def close(self) -> None:
        """Stop. What was granted stays granted: no job notices."""
        if self._timer is not None:
            self._timer.cancel()
        self.door.close()
        self.switches.close()
        self.store.close()
