"""A policy from outside, and a built-in that answers for it when it does not (docs/design.md, Policies).

To the job book `PluginPolicy` is a policy like any other. It asks the plug-in (another process, behind an `Advisor`),
holds each answer against what is free, and from the first late, broken or illegal answer on the built-in decides: the
plug-in is quarantined until it is started again. Every answer, and every decision that was made in its stead, is said
as a `PluginDecision`, which the book hands out among its commands; so it is journalled, and replay needs no plug-in.
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
"""Before the entry point's name, wherever a policy is named."""
START: Final = "restore"
PLACE: Final = "place"
PLAN: Final = "plan"
_MOST_SENT: Final = 160


def gateway_of(port: DecisionPort) -> PluginGateway:
    """The port of a job book as the daemon and the journal need it, which run plug-ins. Raises: TypeError."""
    if not isinstance(port, PluginGateway):
        raise TypeError(f"not a gateway of plug-ins: {type(port).__name__}")
    return port


def one_line(text: str) -> str:
    """What a plug-in says, fit for a log and a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_SENT])


class AdvisorError(SchedError):
    """The plug-in did not answer. ``code``: overrun, raised, nonsense, gone."""

    def __init__(self, code: str, detail: str = "") -> None:
        text = f"{code}: {detail}" if detail else code
        super().__init__(one_line(text))
        self.code = code


class Advisor(Protocol):
    """The way to a plug-in: it is told what `Policy` is told, and asked what `Policy` is asked, in plain data."""

    def notify(self, kind: str, *arguments: Any) -> None:
        """Does not wait and does not raise: what goes wrong is the next answer."""

    def query(self, kind: str, *arguments: Any) -> Any:
        """`Answer` as plain data. Raises: AdvisorError."""

    def begin(self) -> None:
        """Another event: the time that its answers may take together begins anew."""

    def dismiss(self) -> None:
        """It will not be asked again. Repeating it is harmless."""


@record
class Answer:
    """What a plug-in says: one of the three, or nothing where there is nothing to say."""

    placement: Placement | None = None
    plan: LeasePlan | None = None
    refusal: Refusal | None = None


@record
class PluginDecision:
    """What a plug-in was asked, and what was decided. ``fault`` "": as it said; else why it is not asked any more, and
    the decision is the built-in's. ``query``: `START`, `PLACE` or `PLAN`."""

    query: str
    fault: str
    decided: Answer


class PluginGateway:
    """What a job book has for its policy plug-in. ``recalled`` are answers of a journal, which come first."""

    def __init__(self, on_decision: Callable[[PluginDecision], None]) -> None:
        self.on_decision = on_decision
        self.advisor: Advisor | None = None
        self.arriving: Advisor | None = None
        """The advisor from the next `PluginPolicy.start` on."""
        self.recalled: deque[PluginDecision] = deque()
        self.has_new_decider = False
        """Somebody else decides than when the waiting jobs were refused; the job book asks again, and takes it back."""

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

    def decider_changed(self) -> None:
        """See `DecisionPort.decider_changed`."""
        self.has_new_decider = True

    def take_decider_change(self) -> bool:
        """See `DecisionPort.take_decider_change`."""
        is_new, self.has_new_decider = self.has_new_decider, False
        return is_new

    def query(self, kind: str, *arguments: Any) -> Answer:
        """Raises: AdvisorError: as the plug-in's, or as the journal's."""
        if self.recalled:
            decision = self.recalled.popleft()
            if decision.query != kind:
                raise AdvisorError("nonsense", f"asked {kind}, the journal answers {decision.query}")
            if decision.fault:
                raise AdvisorError(decision.fault)
            return decision.decided
        if self.advisor is None:
            raise AdvisorError("gone", "no plug-in runs")
        said = self.advisor.query(kind, *arguments)
        try:
            return from_plain(Answer, said)
        except PlainError as fault:
            raise AdvisorError("nonsense", str(fault)) from None


def _refusal(said: Answer) -> Refusal | None:
    """Each reason once: jobs keep it while they wait. None: it refuses nothing, or says not why."""
    refusal = said.refusal
    if refusal is None or not refusal.obstacles:
        return None
    return Refusal(tuple(dict.fromkeys(refusal.obstacles)), tuple(dict.fromkeys(refusal.unblocked_by)))


class PluginPolicy:
    """Implements `offpath.sched.gpu.policy.Policy`. Until `start` the built-in decides."""

    def __init__(self, plugin: str, builtin: OldestGpuFirst | None = None) -> None:
        """``builtin`` is what decides in the plug-in's stead, and knows what is free."""
        self.name = PREFIX + plugin
        self.gateway = PluginGateway(lambda decision: None)
        """The job book brings its own."""
        self.is_advised = False
        """False: the built-in decides."""
        self._builtin = builtin or OldestGpuFirst()

    def start(self) -> None:
        """The plug-in's process is there: give it the state, and ask it from here on."""
        self.gateway.has_new_decider = True
        self.gateway.advisor, self.gateway.arriving = self.gateway.arriving, None
        self.is_advised = False
        try:
            if self.gateway.query(START, to_plain(self.state())) != Answer():
                raise AdvisorError("nonsense", "an answer where none was asked")
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

    def _decided(self, asked: str, fault: str, decided: Placement | LeasePlan | Refusal) -> None:
        if fault:
            self._quarantine()
        answer = Answer(
            decided if isinstance(decided, Placement) else None,
            decided if isinstance(decided, LeasePlan) else None,
            decided if isinstance(decided, Refusal) else None,
        )
        self.gateway.on_decision(PluginDecision(asked, fault, answer))

    # -- questions ------------------------------------------------------------------------------------------------
    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """See `Policy.place`."""
        if not self.is_advised:
            return self._builtin.place(demand, now_ns)
        decided: Placement | Refusal | None = None
        fault = ""
        try:
            said = self.gateway.query(PLACE, to_plain(demand), now_ns)
            if said.placement is not None:
                decided = self._builtin.seat(demand, said.placement.lease, said.placement.lane, now_ns)
            else:
                decided = _refusal(said)
            if decided is None:
                fault = str(AdvisorError("nonsense", f"no lane for {demand}: {said}"))
        except AdvisorError as given:
            fault = str(given)
        if decided is None:
            decided = self._builtin.place(demand, now_ns)
        self._decided(PLACE, fault, decided)
        return decided

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """See `Policy.plan`."""
        builtin = self._builtin.plan(demand, now_ns, opening)
        if not self.is_advised:
            return builtin
        decided: LeasePlan | Refusal | None = None
        fault = ""
        try:
            said = self.gateway.query(PLAN, to_plain(demand), now_ns, to_plain(opening))
            if said.plan is not None:
                mask = self._builtin.mask(demand, opening.profile)
                decided = self._builtin.vetted(said.plan, mask, opening)
            else:
                decided = _refusal(said)
            if decided is None:
                fault = str(AdvisorError("nonsense", f"no place for {demand}: {said}"))
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
        """See `Policy.restore`. Another policy's state has the built-in decide until `start`."""
        self._builtin.restore(state)
        self.is_advised = state.advised_by == self.name

    # -- what it is told ------------------------------------------------------------------------------------------
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

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        self._builtin.lease_lost(lease)
        self._notify("lease_lost", lease)

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        self._builtin.release(placement, share, now_ns)
        self._notify("release", placement, share, now_ns)
