"""Jobs with a GPU count, as a state machine: a placement policy decides in batches, an engine runs them (NetPack §3.2).

It is durable and exactly once: a job is saved with its places before the engine is asked to start it, and the engine
recognises its identity: it begins the job's command once, however often it is asked. So whatever is killed, the same is
asked again until the engine reports the job's end. Nothing is migrated: a job keeps its places until its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.workload import fitting
from offpath.sched.workload.records import (
    MOST_GPUS,
    Batch,
    Command,
    Decision,
    Drop,
    End,
    Forget,
    Held,
    Node,
    Placed,
    Release,
    Report,
    Save,
    Seen,
    Spec,
    Start,
    Work,
    WorkState,
)

MOST_OPEN: Final = 65_536
"""Jobs that have not ended."""
MOST_ENDED: Final = 4_096
"""Jobs that have ended and are remembered; the oldest are forgotten first."""
_MOST_BYTES: Final = 1 << 50
_MOST_VALUE: Final = 1e9
_ENDS: Final = {
    Report.SUCCEEDED: WorkState.SUCCEEDED,
    Report.FAILED: WorkState.FAILED,
    Report.CANCELLED: WorkState.CANCELLED,
    Report.LOST: WorkState.FAILED,
}
MOST_REFUSALS: Final = 3
"""Refusals of the engine in a row with which a job ends. Slurm refuses what its nodes cannot do just now, too."""
_LOOKS_BETWEEN: Final = 3
_LOST: Final = "the engine lost it"
_MAY_HAVE_BEGUN: Final = "the engine does not know it any more, its command may have begun, and its places are refused"


class WorkRefused(SchedError):
    """A job is not accepted, or not known; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class Workload:
    """The jobs of one controller. Each method returns the commands to carry out, in order."""

    def __init__(self, models: Iterable[str]) -> None:
        """``models``: the names that the policy knows."""
        self.models = frozenset(models)
        self.works: dict[str, Work] = {}
        """By identity, in the order of submission."""
        self.nodes: tuple[Node, ...] = ()
        """As the engine last reported them; empty before."""
        self.batches = 0
        self.looks = 0
        """How often the engine's inventory was read."""
        self._open: dict[str, str] = {}
        """Identities of jobs that have not ended, by name, in the order of submission."""

    # -- lookups --------------------------------------------------------------------------------------------------
    def remember(self, works: Iterable[Work]) -> None:
        """Load what an earlier controller saved, in the order of submission."""
        for work in works:
            self.works[work.identity] = work
            if not work.state.is_final:
                self._open[work.spec.name] = work.identity
            self.batches = max(self.batches, work.batches)
            work.rests_until = 0
            work.may_have_begun |= work.is_active  # the earlier controller may have had it started

    def get(self, name: str) -> Work:
        """The open job of that name, or else the last one that ended. Raises: WorkRefused."""
        identity = self._open.get(name)
        if identity is not None:
            return self.works[identity]
        for work in reversed(self.works.values()):
            if work.spec.name == name or work.identity == name:
                return work
        raise WorkRefused("unknown_job", f"no job is named {name!r:.80}")

    @property
    def active(self) -> tuple[Work, ...]:
        """Jobs that hold GPUs."""
        return tuple([self.works[each] for each in self._open.values() if self.works[each].is_active])

    @property
    def queued(self) -> tuple[Work, ...]:
        """Jobs that wait for a placement, in the order of submission."""
        found = [self.works[each] for each in self._open.values()]
        return tuple([work for work in found if work.state is WorkState.QUEUED])

    def free(self) -> dict[str, tuple[int, ...]]:
        """Indices of the GPUs that no job holds, by ready node. If the engine has not reported a job's indices, the
        highest ones count as its."""
        named: dict[str, set[int]] = {}
        unnamed: dict[str, int] = {}
        for work in self.active:
            for share in work.placed.shares if work.placed is not None else ():
                named.setdefault(share.node, set()).update(share.gpus)
                unnamed[share.node] = unnamed.get(share.node, 0) + share.count - len(share.gpus)
        found = {}
        for node in self.nodes:
            if node.is_ready:
                taken = named.get(node.name, set())
                rest = [gpu for gpu in range(node.gpus) if gpu not in taken]
                found[node.name] = tuple(rest[: max(0, len(rest) - unnamed.get(node.name, 0))])
        return found

    # -- users ----------------------------------------------------------------------------------------------------
    def submit(self, spec: Spec, identity: str, now_ns: int) -> list[Command]:
        """Accept a job. ``identity``: new. Raises: WorkRefused."""
        self.check(spec)
        if not spec.argv:
            raise WorkRefused("command", "a job needs a command")
        if spec.name in self._open:
            raise WorkRefused("job_exists", f"{spec.name} is {self.works[self._open[spec.name]].state}")
        if len(self._open) >= MOST_OPEN:
            raise WorkRefused("jobs", f"the limit of {MOST_OPEN} jobs is reached")
        if identity in self.works:
            raise WorkRefused("identity", f"{identity} names another job")
        return self._accept(Work(spec, identity, now_ns))

    def check(self, spec: Spec) -> None:
        """Raises: WorkRefused: no cluster could run the job, or this one is too small."""
        if not 1 <= spec.gpus <= MOST_GPUS:
            raise WorkRefused("gpus", f"{spec.gpus} GPUs; 1 to {MOST_GPUS} are allowed")
        if spec.model not in self.models:
            raise WorkRefused("model", f"unknown model {spec.model!r:.80}; known are {', '.join(sorted(self.models))}")
        if not 0 <= spec.data_bytes <= _MOST_BYTES:
            raise WorkRefused("data", f"{spec.data_bytes} bytes of gradients; 0 to {_MOST_BYTES} are allowed")
        if not (isfinite(spec.value) and 0 < spec.value <= _MOST_VALUE):
            raise WorkRefused("value", f"a value of {spec.value}; above 0 and at most {_MOST_VALUE:g} are allowed")
        total = sum(node.gpus for node in self.nodes)
        if self.nodes and spec.gpus > total:
            raise WorkRefused("gpus", f"{spec.gpus} GPUs; the cluster has {total}")

    def _accept(self, work: Work) -> list[Command]:
        self.works[work.identity] = work
        self._open[work.spec.name] = work.identity
        return [Save(work)]

    def cancel(self, name: str, now_ns: int) -> list[Command]:
        """End a job. Raises: WorkRefused: unknown."""
        work = self.get(name)
        if work.state.is_final or work.is_cancelled:
            return []
        work.is_cancelled = True
        if work.state is WorkState.QUEUED and not work.is_held:
            return self._end(work, WorkState.CANCELLED, "cancelled before it was placed", now_ns)
        return [Save(work), End(work.identity)]

    # -- the engine -----------------------------------------------------------------------------------------------
    def see_nodes(self, nodes: Iterable[Node]) -> None:
        """The engine's inventory."""
        self.looks += 1
        self.nodes = tuple(sorted(nodes, key=lambda node: node.name))

    def see_held(self, held: Iterable[Held], now_ns: int, *, busy: Collection[str] = ()) -> list[Command]:
        """All jobs that the engine holds until they are placed. One that it no longer holds was cancelled there, unless
        it runs: call `see_jobs` first. ``busy``: see there."""
        commands: list[Command] = []
        there = {each.identity: each for each in held if each.identity not in busy}
        for identity in [each for each in self._open.values() if each not in there and each not in busy]:
            work = self.works[identity]
            if work.is_held and work.state is WorkState.QUEUED:
                commands += self._end(work, WorkState.CANCELLED, "cancelled at the engine", now_ns)
        for identity, each in islice(there.items(), MOST_OPEN):
            known = self.works.get(identity)
            if known is None and len(self._open) < MOST_OPEN:
                spec = Spec(identity, each.gpus, each.model, each.data_bytes, each.value, user=each.user)
                commands += self._accept(Work(spec, identity, now_ns, is_held=True))
            elif known is not None and known.is_cancelled and known.state is WorkState.QUEUED:
                commands.append(End(identity))
        return commands

    def see_jobs(self, jobs: Iterable[Seen], now_ns: int, *, is_all: bool, busy: Collection[str] = ()) -> list[Command]:
        """The engine's jobs. ``is_all``: an active job that is not among them is unknown to the engine. ``busy``: jobs
        of which the engine was asked something since it began to list them: the list may be older than its answer."""
        commands: list[Command] = []
        seen = {each.identity: each for each in jobs if each.identity not in busy}
        for each in seen.values():
            work = self.works.get(each.identity)
            if work is None:
                commands += self._adopt(each, now_ns)
            elif work.state.is_final:
                commands += [Forget(each.identity)] if each.report in _ENDS else [End(each.identity)]
            else:
                commands += self._see(work, each, now_ns)
        if is_all:
            for work in self.active:
                if work.identity not in seen and work.identity not in busy:
                    commands += self._missing(work, now_ns)
        return commands

    def _adopt(self, seen: Seen, now_ns: int) -> list[Command]:
        """An engine's job of which the state file knows nothing: its GPUs are taken while it runs."""
        if seen.report in _ENDS:
            return [Forget(seen.identity)]
        gpus = sum(share.count for share in seen.shares)
        work = Work(
            Spec(seen.identity, gpus, ""), seen.identity, now_ns, state=WorkState.RUNNING,
            placed=Placed(seen.shares, reasons=("found at the engine",)), has_run=True, may_have_begun=True,
            started_ns=now_ns, reasons=("found at the engine; no state of it was saved",),
        )  # fmt: skip
        return self._accept(work)

    def _see(self, work: Work, seen: Seen, now_ns: int) -> list[Command]:
        if seen.report is Report.LOST and work.state is WorkState.QUEUED and not work.is_cancelled:
            return []  # it was lost, and then refused: it is placed anew
        work.may_have_begun = seen.has_begun
        if seen.report is Report.LOST and not work.is_cancelled and not work.is_held:
            return self._again(work)  # the engine runs it if its command never began, and else reports it as lost again
        if seen.report in _ENDS:
            return [*self._seen_end(work, seen, now_ns), Forget(work.identity)]
        before = (work.state, work.detail, work.placed)
        work.detail = seen.reason
        if work.placed is None:
            work.placed = Placed(seen.shares, reasons=("released by somebody else",))
        if work.placed is not None and any(share.gpus for share in seen.shares):
            work.placed = replace(work.placed, shares=fitting.with_indices(work.placed.shares, seen.shares))
        if seen.report is Report.RUNNING and work.state is not WorkState.RUNNING:
            work.state, work.has_run, work.started_ns = WorkState.RUNNING, True, now_ns
        again: list[Command] = []
        if work.is_cancelled:
            again = [End(work.identity)]
        elif seen.report is Report.PENDING:  # a killed engine may hold it again
            again = self._again(work)
        return [Save(work), *again] if (work.state, work.detail, work.placed) != before else again

    def _again(self, work: Work) -> list[Command]:
        """Repeat what the engine was asked: it finds the job, or starts it if its command never began."""
        if work.rests_until > self.looks and work.state is WorkState.STARTING:
            return []
        saves: list[Command] = [Save(work)] if work.state is not WorkState.STARTING else []
        work.state = WorkState.STARTING
        return [*saves, Release(work.identity) if work.is_held else Start(work.identity)]

    def _missing(self, work: Work, now_ns: int) -> list[Command]:
        if work.has_run and work.is_held:
            return self._end(work, WorkState.FAILED, "the engine does not know it any more", now_ns)
        return [End(work.identity)] if work.is_cancelled else self._again(work)

    def _seen_end(self, work: Work, seen: Seen, now_ns: int) -> list[Command]:
        state = WorkState.CANCELLED if work.is_cancelled and seen.report is Report.LOST else _ENDS[seen.report]
        work.exit_code = seen.exit_code
        return self._end(work, state, seen.reason or (_LOST if seen.report is Report.LOST else ""), now_ns)

    def answered(self, seen: Seen, now_ns: int) -> list[Command]:
        """The engine's answer to `Start` or `Release`."""
        work = self.works.get(seen.identity)
        if work is None or work.state.is_final:
            return [] if seen.report in _ENDS else [End(seen.identity)]
        if seen.report is Report.LOST:
            return [*self._seen_end(work, seen, now_ns), Forget(work.identity)]
        return self._see(work, seen, now_ns)

    def refused(self, identity: str, reason: str, now_ns: int) -> list[Command]:
        """The engine does not take the job; nothing of it is left there. It waits for another place: one of its nodes
        may have left, or may not be ready yet. With the third refusal it ends; one that the engine holds waits on.

        A job that may have begun keeps its places: an engine's proof may be on their disks alone. The engine is asked
        again some looks later, and with the third refusal the job ends as failed.
        """
        work = self.works.get(identity)
        if work is None or work.state is not WorkState.STARTING:
            return []
        if work.is_cancelled:
            return self._end(work, WorkState.CANCELLED, reason, now_ns)
        work.refusals += 1
        if work.may_have_begun and not work.is_held:
            work.detail, work.rests_until = reason, self.looks + _LOOKS_BETWEEN * work.refusals
            if work.refusals >= MOST_REFUSALS:
                return self._end(work, WorkState.FAILED, f"{_MAY_HAVE_BEGUN}: {reason}", now_ns)
            return [Save(work)]
        if work.refusals >= MOST_REFUSALS and not work.is_held:
            return self._end(work, WorkState.REFUSED, reason, now_ns)
        work.state, work.placed, work.detail = WorkState.QUEUED, None, reason
        work.rests_until = self.looks + _LOOKS_BETWEEN * min(work.refusals, MOST_REFUSALS)
        work.reasons = (f"the engine refused its places, and is asked again: {reason}",)
        return [Save(work)]

    def unanswered(self, identity: str) -> None:
        """The engine did not answer to `Start`, and may have carried it out."""
        work = self.works.get(identity)
        if work is not None:
            work.may_have_begun = True

    def unknown(self, identity: str, now_ns: int) -> list[Command]:
        """The engine knows no such job; asked by `End` or `Release`."""
        work = self.works.get(identity)
        if work is None or work.state.is_final:
            return []
        if work.is_cancelled or work.is_held:
            end = WorkState.FAILED if work.has_run and not work.is_cancelled else WorkState.CANCELLED
            return self._end(work, end, "the engine has no such job", now_ns)
        return []

    def is_due(self, command: Command) -> bool:
        """False: the job's state has changed since, and the command must not be carried out any more. To be asked right
        before each is."""
        if not isinstance(command, Start | Release):
            return True
        work = self.works.get(command.identity)
        return work is not None and work.state is WorkState.STARTING and not work.is_cancelled

    # -- decisions ------------------------------------------------------------------------------------------------
    def batch(self) -> Batch | None:
        """What a policy is to decide now; None: no job waits, or no node is known."""
        queued = tuple([work for work in self.queued if not work.is_cancelled and work.rests_until <= self.looks])
        if not queued or not self.nodes:
            return None
        self.batches += 1
        return Batch(self.batches, queued, self.active, self.nodes, self.free())

    def decide(self, decisions: Iterable[Decision]) -> list[Command]:
        """Carry out a policy's decisions. One that no longer fits the cluster, or does not fit the job, is a deferral:
        the policy may have decided about a state of some seconds ago."""
        commands: list[Command] = []
        deferred: list[Work] = []
        free = {node: list(gpus) for node, gpus in self.free().items()}
        for decision in decisions:
            work = self.works.get(decision.identity)
            if work is None or work.state is not WorkState.QUEUED or work.is_cancelled:
                continue
            fault = "" if decision.placed is None else fitting.fault(work, decision.placed, free)
            if decision.placed is None or fault:
                deferred.append(work)
                work.reasons = (fault,) if fault else decision.reasons
                continue
            work.placed = fitting.taken(decision.placed, free)
            work.state, work.reasons = WorkState.STARTING, decision.placed.reasons
            commands += [Save(work), Release(work.identity) if work.is_held else Start(work.identity)]
        for work in deferred:
            work.batches += 1
            work.passed_over += bool(commands)
        return commands

    # -- ends -----------------------------------------------------------------------------------------------------
    def _end(self, work: Work, state: WorkState, detail: str, now_ns: int) -> list[Command]:
        work.state, work.detail, work.ended_ns = state, detail, now_ns
        self._open.pop(work.spec.name, None)
        return [Save(work), *self._trim()]

    def _trim(self) -> list[Command]:
        excess = len(self.works) - len(self._open) - MOST_ENDED
        if excess <= 0:
            return []
        old = list(islice((identity for identity, work in self.works.items() if work.state.is_final), excess))
        for identity in old:
            del self.works[identity]
        return [Drop(identity) for identity in old]
