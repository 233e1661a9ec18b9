"""External policy plug-ins, with a built-in policy that takes over when one fails (docs/design.md, Policies).

To the job book `PluginPolicy` is a normal policy. It queries the plug-in (another process, behind an `Advisor`) and
checks each answer against the free resources. After the first late, malformed or illegal answer the built-in decides,
and the plug-in is quarantined until it is restarted. Every answer, and every decision made in its place, becomes a
`PluginDecision` among the book's commands. It is thus journalled, and replay needs no plug-in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from offpath.sched.errors import PlainError, SchedError
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.policy import (
    DecisionPort,
    Demand,
    LeasePlan,
    LeaseView,
    Opening,
    Placement,
    Policy,
    PolicyState,
    Refusal,
)
from offpath.sched.plain import from_plain, to_plain
from offpath.sched.record import record

PREFIX: Final = "plugin:"
"""Prefix of the entry point's name wherever a policy is named."""
START: Final = "restore"
PLACE: Final = "place"
PLAN: Final = "plan"
_MOST_SENT: Final = 160


def gateway_of(port: DecisionPort) -> PluginGateway:
    """The port as the gateway that the daemon and the journal use to run plug-ins. Raises: TypeError: it is not one."""
    if not isinstance(port, PluginGateway):
        raise TypeError(f"not a gateway of plug-ins: {type(port).__name__}")
    return port


def one_line(text: str) -> str:
    """Make a plug-in's text safe for a log and a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_SENT])


class AdvisorError(SchedError):
    """The plug-in did not answer correctly. ``code``: overrun, raised, nonsense, gone."""

    def __init__(self, code: str, detail: str = "") -> None:
        text = f"{code}: {detail}" if detail else code
        super().__init__(one_line(text))
        self.code = code


class Advisor(Protocol):
    """Connection to a plug-in: forwards the notifications and queries of `Policy` as plain data."""

    def notify(self, kind: str, *arguments: Any) -> None:
        """Send without waiting. Does not raise: an error becomes the next answer."""

    def query(self, kind: str, *arguments: Any) -> Any:
        """Return an `Answer` as plain data. Raises: AdvisorError."""

    def begin(self) -> None:
        """Start a new event, which resets the total time limit for its answers."""

    def dismiss(self) -> None:
        """Stop using the plug-in; idempotent."""


@record
class Answer:
    """A plug-in's answer: one of the three, or none where no answer is expected."""

    placement: Placement | None = None
    plan: LeasePlan | None = None
    refusal: Refusal | None = None


@record
class PluginDecision:
    """A query to a plug-in and the decision. ``fault`` "": the plug-in's answer; otherwise the reason why the plug-in
    is no longer queried, and the decision is the built-in's. ``query``: `START`, `PLACE` or `PLAN`."""

    query: str
    fault: str
    decided: Answer


class PluginGateway:
    """A job book's access to its policy plug-in. ``recalled``: answers of a journal, which are used first."""

    def __init__(self, on_decision: Callable[[PluginDecision], None]) -> None:
        self.on_decision = on_decision
        self.advisor: Advisor | None = None
        self.arriving: Advisor | None = None
        """The advisor from the next `PluginPolicy.start` on."""
        self.recalled: deque[PluginDecision] = deque()
        self.has_new_decider = False
        """True if the decider changed since the waiting jobs were refused; the job book retries them and resets
        this."""

    def attach(self, policy: Policy) -> None:
        """See `DecisionPort.attach`."""
        if isinstance(policy, PluginPolicy):
            policy.gateway = self

    def start(self, policy: Policy) -> None:
        """See `DecisionPort.start`."""
        if isinstance(policy, PluginPolicy):
            policy.start()

    def begin_event(self) -> None:
        """See `DecisionPort.begin_event`."""
        if self.advisor is not None:
            self.advisor.begin()

    def forecaster(self, policy: Policy) -> Policy:
        """See `DecisionPort.forecaster`."""
        return policy.builtin if isinstance(policy, PluginPolicy) else policy

    def decider_changed(self) -> None:
        """See `DecisionPort.decider_changed`."""
        self.has_new_decider = True

    def take_decider_change(self) -> bool:
        """See `DecisionPort.take_decider_change`."""
        is_new, self.has_new_decider = self.has_new_decider, False
        return is_new

    def query(self, kind: str, *arguments: Any) -> Answer:
        """Query the plug-in. Raises: AdvisorError: of the plug-in, or as recorded in the journal."""
        if self.recalled:
            decision = self.recalled.popleft()
            if decision.query != kind:
                raise AdvisorError("nonsense", f"the query is {kind}, the journal's answer is to {decision.query}")
            if decision.fault:
                raise AdvisorError(decision.fault)
            return decision.decided
        if self.advisor is None:
            raise AdvisorError("gone", "no plug-in runs")
        data = self.advisor.query(kind, *arguments)
        try:
            return from_plain(Answer, data)
        except PlainError as fault:
            raise AdvisorError("nonsense", str(fault)) from None


def _refusal(answer: Answer) -> Refusal | None:
    """The refusal without duplicates, since jobs keep it while they wait. None if there is no refusal or no reason."""
    refusal = answer.refusal
    if refusal is None or not refusal.obstacles:
        return None
    return Refusal(tuple(dict.fromkeys(refusal.obstacles)), tuple(dict.fromkeys(refusal.unblocked_by)))


class PluginPolicy:
    """Implements `offpath.sched.gpu.policy.Policy`. The built-in decides until `start`."""

    def __init__(self, plugin: str, builtin: OldestGpuFirst | None = None) -> None:
        """``builtin`` decides in the plug-in's place and tracks what is free."""
        self.name = PREFIX + plugin
        self.gateway = PluginGateway(lambda decision: None)
        """The job book replaces it with its own."""
        self.is_advised = False
        """False: the built-in decides."""
        self._builtin = builtin or OldestGpuFirst()

    def start(self) -> None:
        """The plug-in's process has started: send it the state, and query it from now on."""
        self.gateway.has_new_decider = True
        self.gateway.advisor, self.gateway.arriving = self.gateway.arriving, None
        self.is_advised = False
        try:
            if self.gateway.query(START, to_plain(self.state())) != Answer():
                raise AdvisorError("nonsense", "an answer where none was expected")
        except AdvisorError as fault:
            self._quarantine()
            self.gateway.on_decision(PluginDecision(START, str(fault), Answer()))
        else:
            self.is_advised = True
            self.gateway.on_decision(PluginDecision(START, "", Answer()))

    def _quarantine(self) -> None:
        self.is_advised = False
        self.gateway.has_new_decider = True
        if self.gateway.advisor is not None:
            self.gateway.advisor.dismiss()

    def _decided(self, query: str, fault: str, decided: Placement | LeasePlan | Refusal) -> None:
        if fault:
            self._quarantine()
        answer = Answer(
            decided if isinstance(decided, Placement) else None,
            decided if isinstance(decided, LeasePlan) else None,
            decided if isinstance(decided, Refusal) else None,
        )
        self.gateway.on_decision(PluginDecision(query, fault, answer))

    # -- queries --------------------------------------------------------------------------------------------------
    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """See `Policy.place`."""
        if not self.is_advised:
            return self._builtin.place(demand, now_ns)
        decided: Placement | Refusal | None = None
        fault = ""
        try:
            answer = self.gateway.query(PLACE, to_plain(demand), now_ns)
            if answer.placement is not None:
                decided = self._builtin.seat(demand, answer.placement.lease, answer.placement.lane, now_ns)
            else:
                decided = _refusal(answer)
            if decided is None:
                fault = str(AdvisorError("nonsense", f"no lane for {demand}: {answer}"))
        except AdvisorError as given:
            fault = str(given)
        if decided is None:
            decided = self._builtin.place(demand, now_ns)
        self._decided(PLACE, fault, decided)
        return decided

    @property
    def builtin(self) -> Policy:
        """The policy that decides without the plug-in."""
        return self._builtin

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """See `Policy.plan`."""
        builtin = self._builtin.plan(demand, now_ns, opening)
        if not self.is_advised:
            return builtin
        decided: LeasePlan | Refusal | None = None
        fault = ""
        try:
            answer = self.gateway.query(PLAN, to_plain(demand), now_ns, to_plain(opening))
            if answer.plan is not None:
                mask = self._builtin.mask(demand, opening.profile)
                decided = self._builtin.vetted(answer.plan, mask, opening)
            else:
                decided = _refusal(answer)
            if decided is None:
                fault = str(AdvisorError("nonsense", f"no place for {demand}: {answer}"))
        except AdvisorError as given:
            fault = str(given)
        if decided is None:
            decided = builtin
        self._decided(PLAN, fault, decided)
        return decided

    # -- state ----------------------------------------------------------------------------------------------------
    def state(self) -> PolicyState:
        """See `Policy.state`."""
        return replace(self._builtin.state(), advised_by=self.name if self.is_advised else "")

    def restore(self, state: PolicyState) -> None:
        """See `Policy.restore`. With another policy's state the built-in decides until `start`."""
        self._builtin.restore(state)
        self.is_advised = state.advised_by == self.name

    # -- notifications --------------------------------------------------------------------------------------------
    def _notify(self, kind: str, *arguments: Any) -> None:
        if self.is_advised and self.gateway.advisor is not None:
            self.gateway.advisor.notify(kind, *map(to_plain, arguments))

    def gpu_added(self, spec: GpuSpec) -> None:
        """See `Policy.gpu_added`."""
        self._builtin.gpu_added(spec)
        self._notify("gpu_added", spec)

    def gpu_removed(self, gpu: str) -> None:
        """See `Policy.gpu_removed`."""
        self._builtin.gpu_removed(gpu)
        self._notify("gpu_removed", gpu)

    def lease_planned(self, lease: LeaseView) -> None:
        """See `Policy.lease_planned`."""
        self._builtin.lease_planned(lease)
        self._notify("lease_planned", lease)

    def lease_opened(self, lease: int) -> None:
        """See `Policy.lease_opened`."""
        self._builtin.lease_opened(lease)
        self._notify("lease_opened", lease)

    def lease_draining(self, lease: int) -> None:
        """See `Policy.lease_draining`."""
        self._builtin.lease_draining(lease)
        self._notify("lease_draining", lease)

    def lane_paused(self, lease: int, lane: int) -> None:
        """See `Policy.lane_paused`."""
        self._builtin.lane_paused(lease, lane)
        self._notify("lane_paused", lease, lane)

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """See `Policy.lane_taken`."""
        self._builtin.lane_taken(lease, lane, share, now_ns)
        self._notify("lane_taken", lease, lane, share, now_ns)

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        self._builtin.lease_lost(lease)
        self._notify("lease_lost", lease)

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        self._builtin.release(placement, share, now_ns)
        self._notify("release", placement, share, now_ns)
