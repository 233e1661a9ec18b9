"""Connects the protocol's state machine, which makes all decisions, to agents, switches, operators and the store."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.wire import cluster
from offpath.dpu_daemon.controller.agents import Agents
from offpath.dpu_daemon.controller.jobs import JobRefused, Jobs
from offpath.dpu_daemon.controller.store import Store
from offpath.dpu_daemon.controller.switches import Switches
from offpath.dpu_daemon.controller.trust import BY_OPERATOR, CLOCKS_APART_NS, TERM_NOT_ISSUED, Trust
from offpath.sched.ina.protocol import events
from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.controller import Controller
from offpath.sched.ina.protocol.records import (
    MOST_TERM,
    RankState,
    RecordError,
    epoch_to_data,
    permission_to_data,
    state_from_data,
)
from offpath.sched.ina.sharing.planner import Planner
from offpath.sched.ina.sharing.tracking import Tracking

logger = logging.getLogger(__name__)
TICK_S: Final = 0.25
YOUNG_S: Final = 10.0
"""Within this time after its start, a controller that learns of a greater term takes over from it as well, because the
greater term means that its own store was lost. Later, it has itself been superseded."""
TERMS_BEGAN_S: Final = 1_577_836_800
"""2020-01-01. Terms are seconds since then, or above every known term; they last until 2087."""
_MOST_RESTARTS: Final = 1 << 24
CLAIMS_AGAIN_S: Final = 1.0
"""Interval at which hosts are queried again after states were refused because another host has the rank."""
_MS: Final = 1_000_000


class ControllerShell:
    """One controller. Create it in a running loop; `start` activates it. ``on_deposed``: another one has taken over."""

    def __init__(
        self, planner: Planner, store: Store, jobs: Jobs, trust: Trust, *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:  # fmt: skip
        self.planner, self.store, self.jobs, self.trust = planner, store, jobs, trust
        self.now_ns = now_ns
        self.started_ns = now_ns()
        self.counters: Counter[str] = Counter()
        self.tracking = Tracking()
        self.reporting: set[str] = set()
        """Hosts that have reported all states of their ranks in this term."""
        self.on_deposed: Callable[[], None] = lambda: None
        self.agents: Agents
        self.switches: Switches
        self.machine: Controller
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._events: list[events.Event] = []
        self._has_granted = False
        self._is_changed = False
        self._contested: dict[str, str] = {}
        """Hosts with states refused because another host has the rank, each with one such job."""
        self._ticks = 0

    def start(self, agents: Agents, switches: Switches) -> None:
        """Become active with a term above the stored one. Raises: PlaceUnusable: no term is left."""
        self.agents, self.switches = agents, switches
        if self.store.kept.term >= MOST_TERM:
            raise PlaceUnusable(
                f"the state file's term {self.store.kept.term} is the last: stop agents and switches, delete the file, "
                "create a new key for the controller, and start all again"
            )
        self._begin(max(self.store.kept.term + 1, self._second()))
        self._timer = self._loop.call_later(TICK_S, self._tick)

    @staticmethod
    def _second() -> int:
        """The lowest first term. Without a stored term, controllers started in different seconds get different ones."""
        return min(max(1, int(time.time()) - TERMS_BEGAN_S), MOST_TERM - _MOST_RESTARTS)

    def _begin(self, term: int) -> None:
        """Start with a machine that knows only the jobs' names; query all agents and switches."""
        seal = self.trust.seal
        self.machine = Controller(
            term, self.planner, lambda: secrets.token_urlsafe(18), proof=seal.proof(term), is_proven=seal.is_proven
        )
        self._newest = term << 32
        """Stamp: no rank can hold a greater one issued by this controller."""
        self.store.term(term, seal.proof(term))
        self.reporting.clear()
        logger.info("controller active, term %d", term, extra={"code": "controller_rules"})
        for host in self.trust.quarantined:
            self.dispatch(events.HostQuarantined(host))
        for job in self.jobs.known():
            self.planner.restrict(job.name, job.switches)
            self.dispatch(events.JobSubmitted(job.name, job.rank_hosts()))
        for host in self.agents.hosts:
            self.dispatch(events.AgentUp(host))
        self.switches.lead(term)

    # -- events in, commands out ----------------------------------------------------------------------------------
    def dispatch(self, event: events.Event) -> None:
        """Queue an event for the machine. All events of one turn of the loop are handled together by `settle`."""
        self._events.append(event)
        if len(self._events) == 1:
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """Handle the queued events and execute the resulting commands."""
        while self._events:
            waiting, self._events = self._events, []
            now_ns = self.now_ns()
            for command in self.machine.handle_all(waiting, now_ns=now_ns):
                self._carry(command, now_ns)
            for job in {state.job for event in waiting if isinstance(event, Report) for state in event.states}:
                self._look_whether_moved(job, now_ns)
        if self.machine.is_spent and not self.machine.is_deposed:
            logger.warning(
                "term %d is almost out of epoch numbers; starting the next term",
                self.machine.term,
                extra={"code": "term_spent"},
            )
            self._take_over(self.machine.term + 1)

    def _look_whether_moved(self, job: str, now_ns: int) -> None:
        downtime_ns = self.tracking.moved(job, self.machine.states(job), now_ns)
        if downtime_ns is not None:
            self.counters["migrations"] += 1
            logger.info(
                "job %s moved to another tree: %.0f ms without one",
                job,
                downtime_ns / _MS,
                extra={"code": "job_migrated"},
            )

    def _carry(self, command: events.Command, now_ns: int) -> None:
        match command:
            case events.Publish(host, epoch):
                self.counters["epochs_sent"] += 1
                self._newest = max(self._newest, epoch.stamp)
                self._has_granted |= epoch.grant is not None
                if self.tracking.published(epoch, now_ns):
                    self.counters["epochs"] += 1
                self.agents.send(host, cluster.NewEpoch(epoch=epoch_to_data(epoch)))
            case events.Ask(host, term, proof):
                self.agents.send(host, cluster.AskAll(term=term, proof=proof))
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
        self._ticks += 1
        if self._ticks % round(CLAIMS_AGAIN_S / TICK_S) == 0:
            contested, self._contested = self._contested, {}
            for host in contested:  # the rank's former host may have released it
                self.dispatch(events.AgentUp(host))
        for job in self.jobs.over(self.now_ns()):
            logger.info("job %s has ended", job, extra={"code": "job_over"})
            self.tracking.forget(job)
            self.planner.restrict(job, None)
            self.dispatch(events.JobEnded(job))
        if self._is_changed:
            self._is_changed = False
            self.store.ledger({
                f"{hold.switch} {hold.permission.job} {hold.permission.stamp}": permission_to_data(hold.permission)
                for hold in self.machine.ledger.holds()
            })  # fmt: skip

    # -- agents ---------------------------------------------------------------------------------------------------
    def agent_came(self, host: str) -> None:
        """The host's agent connected."""
        self.reporting.discard(host)
        self.dispatch(events.AgentUp(host))

    def agent_left(self, host: str) -> None:
        """The host's agent disconnected."""
        self.reporting.discard(host)
        self.dispatch(events.AgentGone(host))

    def reported(self, host: str, report: cluster.AgentReport) -> None:
        """Handles an agent's report of its ranks' states. Invalid states are skipped and counted."""
        self.counters["reports"] += 1
        if host in self.trust.quarantined:
            self.counters["reports_refused"] += 1
            return
        states: list[RankState] = []
        for data in report.states:
            try:
                state = state_from_data(data)
            except RecordError:
                self.counters["states_refused"] += 1
                continue
            states.append(state)
        rival = self.trust.rival(self.machine.term, report, states)
        if rival is not None:
            self.on_term(rival)
            return
        if self.trust.is_made_up(self.machine.term, report):
            why = f"its agent reports term {report.term}, which no controller issued; the term is {self.machine.term}"
            self.quarantine(host, TERM_NOT_ISSUED, why)
            return
        possible = self._possible(host, states)
        kept, contested = self.jobs.seen(host, possible, self.agents.hosts, self.now_ns())
        self.counters["states_refused"] += len(states) - len(kept)
        if contested and host not in self._contested:
            self._contested[host] = contested[0]
            logger.warning(
                "host %s reports ranks of job %s that belong to another host; refused",
                host,
                contested[0],
                extra={"code": "foreign_rank_refused"},
            )
        for pattern in report.patterns:
            self._measured(host, pattern)
        self._is_changed = True
        if report.is_whole:
            self.reporting.add(host)
        live = tuple(state for state in kept if not self.jobs.is_cancelled(state.job, state.incarnation))
        self.dispatch(Report(host, report.term, live, report.is_whole))

    def _possible(self, host: str, states: list[RankState]) -> list[RankState]:
        """Drops states with epochs that no controller issued or incarnations in the future: ranks have forged them."""
        latest = time.time_ns() + CLOCKS_APART_NS
        early = next((state.job for state in states if state.incarnation > latest), None)
        if early is not None:
            logger.warning(
                "host %s reports an incarnation of job %s that is more than a day ahead; refused",
                host,
                early,
                extra={"code": "incarnation_refused"},
            )
        return [state for state in states if state.held <= self._newest and state.incarnation <= latest]

    def _measured(self, host: str, data: dict[str, object]) -> None:
        job, incarnation = data.get("job"), data.get("incarnation")
        if isinstance(job, str) and isinstance(incarnation, int) and self.jobs.runs_on(job, incarnation, host):
            if self.planner.measured(job, incarnation, data.get("pattern")):
                self.counters["patterns"] += 1
        else:
            self.counters["patterns_refused"] += 1

    @property
    def _is_young(self) -> bool:
        return not self._has_granted and self.now_ns() - self.started_ns < YOUNG_S * 1e9

    def quarantine(self, host: str, code: str, detail: str) -> None:
        """Ignore the host's reports and fence what its jobs hold, until `release`."""
        self.counters["quarantines"] += 1
        self.trust.quarantine(host, code, detail)
        self.reporting.discard(host)
        self.jobs.quarantined(host, self.now_ns())
        self.dispatch(events.HostQuarantined(host))

    def led_elsewhere(self, switch: str, term: int) -> bool:
        """A switch follows a controller of that term. False: the term is ignored, and no controller starts or ends
        because of it: a switch's report has no proof, and must not exhaust the terms."""
        if term > MOST_TERM - _MOST_RESTARTS:
            return False
        self.on_term(term)
        return True

    def on_term(self, term: int) -> None:
        """Another controller process was active in that term: an agent proves it, or a switch has followed it."""
        if term < self.machine.term or self.machine.is_deposed:
            return
        self.store.term(term, self.trust.seal.proof(term))
        if self._is_young:
            logger.warning("taking over from a controller with term %d", term, extra={"code": "controller_takes_over"})
            self._loop.call_soon(self._take_over, term + 1)
            return
        logger.error("superseded by a controller with term %d, exiting", term, extra={"code": "controller_deposed"})
        self.dispatch(events.Deposed(term))
        self.settle()
        self.on_deposed()

    def _take_over(self, term: int) -> None:
        if term > MOST_TERM:
            logger.error("no term is left above %d, exiting", self.machine.term, extra={"code": "terms_used_up"})
            self.dispatch(events.Deposed(self.machine.term))
            self.settle()
            self.on_deposed()
        elif term > self.machine.term:
            self._events.clear()
            self._begin(term)

    # -- operators ------------------------------------------------------------------------------------------------
    def judge_host(self, host: str, is_quarantined: bool) -> None:
        """Quarantine a host, or release it. Raises: JobRefused."""
        if not is_quarantined:
            self.trust.release(host)
            self.dispatch(events.HostReleased(host, host in self.agents.hosts))
        elif not self.agents.is_host(host):
            raise JobRefused("unknown_host", f"the topology has no host named {host!r:.80}")
        else:
            self.quarantine(host, BY_OPERATOR, "requested by an operator")
        self.settle()

    def plan_again(self) -> None:
        """Plan again at once, because settings have changed."""
        self.dispatch(events.Tick())
        self.settle()

    def close(self) -> None:
        """Stop. Grants stay valid, so running jobs are not affected."""
        if self._timer is not None:
            self._timer.cancel()
        self.agents.close()
        self.switches.close()
        self.store.close()
