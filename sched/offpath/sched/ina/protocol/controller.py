"""The controller: decides which job is granted which tree, and when a tree is free again. No I/O; events in, commands
out.

Break before make: a job that moves to another tree first gets an epoch without INA. It then runs plain and blocks no
other job; its old place is free when the `ledger.Ledger` shows so. A grant takes these steps: permission to every
switch of the tree; all confirm; the epoch to the agents. A grant that fails on the way is revoked and retried later.

The controller needs no persistent state. A new controller (with a greater term) queries the agents for what their ranks
hold and the switches for what they allow. Grants of an old controller hold their places until they are drained or
fenced, and switches ignore the old controller. A switch that has not answered in this term gets no new grant.

An old incarnation of a job is fenced before the new one gets anything, because its processes may still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.events import (
    AgentGone,
    AgentUp,
    Allow,
    Allowed,
    Ask,
    Assignment,
    Command,
    Deposed,
    Event,
    Fence,
    Fenced,
    HostQuarantined,
    HostReleased,
    JobEnded,
    JobSubmitted,
    JobView,
    Planner,
    Publish,
    SwitchDown,
    SwitchUp,
    Tick,
)  # fmt: skip
from offpath.sched.ina.protocol.ledger import Hold, Ledger
from offpath.sched.ina.protocol.records import (
    MOST_NUMBER,
    MOST_TERM,
    EpochRecord,
    Grant,
    Permission,
    RankState,
)

_ALL_STAMPS: Final = (1 << 63) - 1
_NUMBERS_LEFT: Final = 1 << 20
"""More epochs than the events of one turn can cause: a term with fewer left is no longer used."""
IsProven = Callable[[int, str], bool]
"""(term, proof) → True if a controller of this cluster issued the term."""


@dataclass(slots=True)
class _Job:
    name: str
    since_ns: int
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank."""
    ranks: int = 0
    incarnation: int = 0
    """0: none of its ranks was seen."""
    states: dict[int, RankState] = field(default_factory=dict)
    epoch: EpochRecord | None = None
    """The newest epoch published in this term."""
    assignment: Assignment | None = None
    """What ``epoch`` grants, or ``pending`` will grant."""
    pending: EpochRecord | None = None
    """A grant that not all of its switches have confirmed."""
    changed_ns: int = 0
    """Time at which ``pending`` or ``epoch`` was created."""
    rest_ns: int = 0
    """No grant before this time: the last one failed."""
    is_submitted: bool = False
    is_ended: bool = False

    def is_whole(self) -> bool:
        """True if all its ranks are known to be alive."""
        return 0 < len(self.states) == self.ranks and not any(state.is_gone for state in self.states.values())

    def applied(self) -> int:
        """The lowest stamp that a rank has applied; 0 while a rank is unknown."""
        return min((state.applied for state in self.states.values()), default=0) if self.is_whole() else 0


class Controller:
    """See the module. ``new_token``: returns an unguessable token that identifies a grant to ranks and switches.
    ``proof``: proof of the term, which agents return. ``is_proven``: verifies a returned proof. ``patience_ns``: time
    after which a grant is revoked, or a drain fenced. ``repeat_ns``: time after which an unanswered message is
    repeated. ``rest_ns``: time without grants for a job after a failed grant."""

    def __init__(
        self, term: int, planner: Planner, new_token: Callable[[], str], *,
        proof: str = "", is_proven: IsProven = lambda term, proof: False,
        patience_ns: int = 10_000_000_000, repeat_ns: int = 500_000_000, rest_ns: int = 1_000_000_000,
    ) -> None:  # fmt: skip
        if not 0 < term <= MOST_TERM:
            raise ValueError(f"term {term}")
        self.term, self.proof = term, proof
        self._is_proven = is_proven
        self._quarantined: set[str] = set()
        self.ledger = Ledger()
        self.is_deposed = False
        self._planner = planner
        self._new_token = new_token
        self._patience_ns, self._repeat_ns, self._rest_ns = patience_ns, repeat_ns, rest_ns
        self._jobs: dict[str, _Job] = {}
        self._switches: dict[str, tuple[int, int]] = {}
        """Reachable switches that answered in this term: boot, capacity."""
        self._unheard: dict[str, int] = {}
        """Agents that have not answered a query, with its time."""
        self._number = 0
        self._now_ns = 0
        self._out: list[Command] = []

    # -- views for the shell and the command line -----------------------------------------------------------------
    def views(self) -> tuple[JobView, ...]:
        """Jobs with all ranks known to be alive, in order of arrival."""
        whole = [job for job in self._jobs.values() if job.is_whole() and not job.is_ended]
        return tuple(
            JobView(job.name, job.incarnation, tuple(job.hosts[rank] for rank in range(job.ranks)), job.since_ns)
            for job in sorted(whole, key=lambda job: (job.since_ns, job.name))
        )

    def states(self, job: str) -> tuple[RankState, ...]:
        """The known states of a job's ranks."""
        return tuple(self._jobs[job].states.values()) if job in self._jobs else ()

    def granted(self, job: str) -> tuple[EpochRecord, Assignment] | None:
        """The job's grant of this term, unless a newer epoch or grant replaced it."""
        found = self._jobs.get(job)
        if found is None or found.epoch is None or found.assignment is None or found.pending is not None:
            return None
        return found.epoch, found.assignment

    @property
    def is_spent(self) -> bool:
        """True if the term has few epoch numbers left: the shell must start a new term."""
        return self._number > MOST_NUMBER - _NUMBERS_LEFT

    # -- events ---------------------------------------------------------------------------------------------------
    def handle(self, event: Event, *, now_ns: int) -> tuple[Command, ...]:
        """Handle one event; execute the commands in this order."""
        return self.handle_all((event,), now_ns=now_ns)

    def handle_all(self, events: Iterable[Event], *, now_ns: int) -> tuple[Command, ...]:
        """Handle several events that arrived together. The plan is computed once: its cost
        grows with the number of jobs."""
        self._now_ns, self._out = now_ns, []
        for event in events:
            if not self.is_deposed:
                self._take(event)
        if self.is_deposed:
            return ()
        self._forget_jobs()
        self._follow_plan()
        return tuple(self._out)

    def _take(self, event: Event) -> None:
        match event:
            case JobSubmitted(job, hosts):
                self._submitted(job, hosts)
            case JobEnded(job):
                self._ended(job)
            case AgentUp(host) if host in self._quarantined:
                pass
            case AgentUp(host):
                self._unheard[host] = self._now_ns
                self._out.append(Ask(host, self.term, self.proof))
            case AgentGone(host):
                self._unheard.pop(host, None)
            case HostQuarantined(host):
                self._quarantine(host)
            case HostReleased(host, is_up):
                self._quarantined.discard(host)
                if is_up:
                    self._take(AgentUp(host))
            case Report(host) if host in self._quarantined:
                pass
            case Report():
                self._reported(event)
            case SwitchUp():
                self._switch_up(event)
            case SwitchDown(switch):
                self._switches.pop(switch, None)
            case Allowed():
                self._allowed(event)
            case Fenced(switch, boot, job, incarnation, up_to):
                self.ledger.fenced(switch, boot, job, incarnation, up_to)
            case Deposed(term):
                self.is_deposed = term >= self.term
            case Tick():
                self._repeat()

    def _submitted(self, name: str, hosts: tuple[str, ...]) -> None:
        job = self._jobs.setdefault(name, _Job(name, self._now_ns))
        job.hosts.update(enumerate(hosts))
        job.is_submitted = True

    def _ended(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None:
            job.is_ended = True
            self._abandon(job)
            self._fence(name, job.incarnation, _ALL_STAMPS)

    def _reported(self, report: Report) -> None:
        if report.term > self.term:
            self.is_deposed = self._is_proven(report.term, report.proof)
            return
        if report.is_whole:
            self._unheard.pop(report.host, None)
            self._miss(report)
        for state in report.states:
            self._rank(report.host, state, report.is_whole)
        for name in dict.fromkeys(state.job for state in report.states):
            self._drain(self._jobs[name])

    def _quarantine(self, host: str) -> None:
        """Fence what the host's jobs hold at the switches, because reports of their ranks cannot be trusted. Later
        incarnations or grants of these jobs are not fenced."""
        self._quarantined.add(host)
        self._unheard.pop(host, None)
        for job in self._jobs.values():
            there = [rank for rank in job.states if job.hosts[rank] == host]
            if not there:
                continue
            if job.assignment is not None or job.pending is not None:
                self._revoke(job)
            for hold in self.ledger.holds(job.name):
                self._send_fence(hold, (hold.permission.incarnation, hold.permission.stamp))
            for rank in there:
                del job.states[rank]

    def _miss(self, report: Report) -> None:
        """Forget the host's ranks that a whole report does not list; if one is there, its state file is reported
        again."""
        here = {(state.job, state.incarnation, state.rank) for state in report.states}
        for job in self._jobs.values():
            for rank in [rank for rank in job.states if job.hosts[rank] == report.host]:
                if (job.name, job.incarnation, rank) not in here:
                    del job.states[rank]

    def _rank(self, host: str, state: RankState, is_whole: bool) -> None:
        job = self._jobs.setdefault(state.job, _Job(state.job, self._now_ns))
        if state.incarnation < job.incarnation:
            return
        if state.incarnation > job.incarnation:
            self._begin_anew(job, state)
        if state.ranks != job.ranks:  # contradicts the other ranks of its job
            return
        job.hosts[state.rank] = host
        is_new = state.rank not in job.states
        before = job.states.get(state.rank, state)
        job.states[state.rank] = now = RankState(
            state.job, state.incarnation, state.rank, state.ranks,
            max(before.held, state.held), max(before.applied, state.applied), max(before.lost, state.lost),
            max(before.index, state.index), before.is_gone or state.is_gone,
            state.proof if state.held >= before.held else before.proof,
        )  # fmt: skip
        if now.is_gone:
            self._abandon(job)
            self._fence(job.name, job.incarnation, _ALL_STAMPS)
        elif job.epoch is not None:
            if now.held < job.epoch.stamp and (is_new or is_whole):
                self._out.append(Publish(host, job.epoch))
            if job.epoch.grant and now.lost >= job.epoch.stamp:
                self._withdraw(job)

    def _begin_anew(self, job: _Job, state: RankState) -> None:
        """Start a new incarnation: discard all state of the old one and fence it."""
        self._abandon(job)
        self._fence(job.name, state.incarnation - 1, _ALL_STAMPS)
        job.incarnation, job.ranks, job.is_ended = state.incarnation, state.ranks, False
        job.states, job.epoch, job.assignment = {}, None, None
        job.hosts = {rank: host for rank, host in job.hosts.items() if rank < state.ranks}

    def _switch_up(self, event: SwitchUp) -> None:
        self.ledger.reborn(event.switch, event.boot)
        self._switches[event.switch] = event.boot, event.capacity
        for permission in event.permissions:
            hold = self.ledger.add(event.switch, event.boot, permission, self._now_ns, is_allowed=True)
            job = self._jobs.get(permission.job)
            if job is not None and permission.incarnation < job.incarnation:
                self._send_fence(hold, (job.incarnation - 1, _ALL_STAMPS))
        for job in self._jobs.values():
            self._push(job)

    def _allowed(self, event: Allowed) -> None:
        hold = self.ledger.allowed(event.switch, event.boot, event.job, event.incarnation, event.stamp)
        job = self._jobs.get(event.job)
        if job is None or job.pending is None or job.pending.stamp != event.stamp or hold is None:
            return
        if event.is_allowed:
            self._push(job)
        else:
            self._withdraw(job)

    # -- grants ---------------------------------------------------------------------------------------------------
    def _drain(self, job: _Job) -> None:
        """Fence what all ranks report to have left: its place is free once the switches have confirmed the fence."""
        applied = job.applied()
        for hold in self.ledger.drained(job.name, job.incarnation, applied) if applied else ():
            self._send_fence(hold, (job.incarnation, hold.permission.stamp))

    def _push(self, job: _Job) -> None:
        """Publish a grant that all its switches have confirmed; withdraw one that a switch has forgotten."""
        pending = job.pending
        if job.assignment is None or pending is None:
            return
        holds = {hold.switch: hold for hold in self.ledger.holds(job.name) if hold.permission.stamp == pending.stamp}
        if any(part.switch not in holds for part in job.assignment.tree.parts):
            self._withdraw(job)
        elif all(hold.is_allowed for hold in holds.values()):
            job.pending = None
            self._publish(job, pending)

    def _forget_jobs(self) -> None:
        """Forget jobs that have ended and hold nothing."""
        for name, job in list(self._jobs.items()):
            is_over = job.is_ended or (not job.is_submitted and not job.states)
            is_over |= bool(job.states) and all(state.is_gone for state in job.states.values())
            if is_over and not self.ledger.holds(name):
                del self._jobs[name]

    def _publish(self, job: _Job, epoch: EpochRecord) -> None:
        job.epoch, job.changed_ns = epoch, self._now_ns
        for host in dict.fromkeys(job.hosts[rank] for rank in sorted(job.states)):
            self._out.append(Publish(host, epoch))

    def _next(self, job: _Job, assignment: Assignment | None) -> EpochRecord:
        self._number += 1
        if assignment is None:
            return EpochRecord(job.name, job.incarnation, self.term, self._number, proof=self.proof)
        return EpochRecord(
            job.name, job.incarnation, self.term, self._number,
            Grant(assignment.tree.name, assignment.tree.attach, self._new_token()), assignment.wants,
            assignment.is_shared, assignment.step, self.proof,
        )  # fmt: skip

    def _abandon(self, job: _Job) -> None:
        """Drop an unpublished grant. Its permissions keep their places like any other."""
        job.pending = job.assignment = None

    def _withdraw(self, job: _Job) -> None:
        """Revoke a failed grant, delay the next one, and query the agents whether the job's ranks are still there."""
        self._revoke(job)
        job.rest_ns = self._now_ns + self._rest_ns
        for host in dict.fromkeys(job.hosts[rank] for rank in sorted(job.states)):
            self._unheard[host] = self._now_ns
            self._out.append(Ask(host, self.term, self.proof))

    def _revoke(self, job: _Job) -> None:
        self._abandon(job)
        self._publish(job, self._next(job, None))

    def _follow_plan(self) -> None:
        """Move every job toward its assignment in the plan."""
        views = self.views()
        capacities = {switch: capacity for switch, (_, capacity) in self._switches.items()}
        plan = self._planner(views, capacities, self._now_ns)
        for view in views:  # revoke before granting, so that places become free
            job = self._jobs[view.job]
            if job.assignment is not None:
                if not self._is_kept(job.assignment, plan.get(view.job)):
                    self._revoke(job)
            elif job.epoch is None and not self._is_next(job, plan.get(view.job)):
                self._revoke(job)
        for view in views:
            wanted = plan.get(view.job)
            if wanted is not None:
                self._grant(self._jobs[view.job], wanted)

    def _is_kept(self, held: Assignment, wanted: Assignment | None) -> bool:
        """The grant may stay until the wanted one replaces it: at the switches only the stamp differs."""
        return wanted is not None and (held.tree, held.slot) == (wanted.tree, wanted.slot)

    def _is_next(self, job: _Job, wanted: Assignment | None) -> bool:
        """True if what an earlier controller granted the job, if anything, can turn into the wanted assignment."""
        holds = [hold for hold in self.ledger.holds(job.name) if not hold.is_left]
        return not holds or (wanted is not None and all(self._is_same(hold, job, wanted) for hold in holds))

    def _grant(self, job: _Job, wanted: Assignment) -> None:
        if job.assignment == wanted or job.pending is not None or self._now_ns < job.rest_ns:
            return
        if len(wanted.tree.attach) != job.ranks:
            return
        holds = self.ledger.holds(job.name)
        others = [hold for hold in holds if not hold.is_left and not self._is_same(hold, job, wanted)]
        if others or not all(self._has_place(part.switch, wanted.slot) for part in wanted.tree.parts):
            return
        epoch = self._next(job, wanted)
        assert epoch.grant is not None
        job.assignment, job.pending, job.changed_ns = wanted, epoch, self._now_ns
        for part in wanted.tree.parts:
            permission = Permission(
                job.name, job.incarnation, self.term, epoch.stamp, epoch.grant.token, job.ranks, part.parent,
                part.local, part.below, wanted.slot,
            )  # fmt: skip
            boot, _ = self._switches[part.switch]
            self.ledger.add(part.switch, boot, permission, self._now_ns, is_allowed=False)
            self._out.append(Allow(part.switch, boot, permission))

    def _is_same(self, hold: Hold, job: _Job, wanted: Assignment) -> bool:
        """True if what the job holds takes the same place as the wanted assignment."""
        permission = hold.permission
        return permission.incarnation == job.incarnation and permission.group == wanted.slot

    def _has_place(self, switch: str, slot: str) -> bool:
        found = self._switches.get(switch)
        return found is not None and self.ledger.fits(slot, switch, found[1])

    def _is_up(self, hold: Hold) -> bool:
        return self._switches.get(hold.switch, (None, 0))[0] == hold.boot

    # -- fences and repetition ------------------------------------------------------------------------------------
    def _fence(self, job: str, incarnation: int, up_to: int) -> None:
        for hold in self.ledger.holds(job):
            if (hold.permission.incarnation, hold.permission.stamp) <= (incarnation, up_to):
                self._send_fence(hold, (incarnation, up_to))

    def _send_fence(self, hold: Hold, fence: tuple[int, int]) -> None:
        if hold.fenced_by is not None and hold.fenced_by >= fence and self._now_ns < hold.fenced_ns + self._repeat_ns:
            return
        hold.fenced_by = max(hold.fenced_by or fence, fence)
        hold.fenced_ns = self._now_ns
        if self._is_up(hold):
            self._out.append(Fence(hold.switch, hold.boot, self.term, hold.permission.job, *hold.fenced_by))

    def _repeat(self) -> None:
        for host, requested_ns in self._unheard.items():
            if self._now_ns >= requested_ns + self._repeat_ns:
                self._unheard[host] = self._now_ns
                self._out.append(Ask(host, self.term, self.proof))
        for job in self._jobs.values():
            self._repeat_to(job)
        for hold in self.ledger.holds():
            self._repeat_at(hold)

    def _repeat_to(self, job: _Job) -> None:
        is_late = self._now_ns >= job.changed_ns + self._patience_ns
        if job.pending is not None:
            if is_late:
                self._withdraw(job)
        elif job.epoch is not None:
            behind = [rank for rank, state in sorted(job.states.items()) if state.held < job.epoch.stamp]
            for host in dict.fromkeys(job.hosts[rank] for rank in behind):
                self._out.append(Publish(host, job.epoch))
            if job.epoch.grant and is_late and job.is_whole() and job.applied() < job.epoch.stamp:
                self._withdraw(job)

    def _repeat_at(self, hold: Hold) -> None:
        permission = hold.permission
        job = self._jobs.get(permission.job)
        newest = (job.pending, job.epoch) if job is not None and job.incarnation == permission.incarnation else ()
        if hold.fenced_by is not None:
            self._send_fence(hold, hold.fenced_by)
        elif (
            job is not None and job.is_whole()  # else its ranks may have ended unnoticed and would never drain
            and any(epoch is not None and epoch.stamp == permission.stamp for epoch in newest)
        ):  # fmt: skip
            hold.left_ns = None
            if not hold.is_allowed and self._is_up(hold):
                self._out.append(Allow(hold.switch, hold.boot, permission))
        elif hold.left_ns is None:
            hold.left_ns = self._now_ns
        elif self._now_ns >= hold.left_ns + self._patience_ns:
            self._send_fence(hold, (permission.incarnation, permission.stamp))
