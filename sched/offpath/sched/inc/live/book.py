"""The book of live requests: events in, commands out. It alone decides; the shell starts and stops what it says.

Each request is saved before anything of it is started, with its tasks and their identities. An identity names one task
for ever. A task that gives up its place is *stopping* until the engine or the switch has confirmed its end; its place
counts as free at once, and a switch that is still full refuses the next task, which is then placed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from offpath.sched.inc import flavors
from offpath.sched.inc.decisions import Decision, FlavorChosen, Placed, Postponed, Preempted, Stopped
from offpath.sched.inc.errors import (
    FlavorsContradict,
    IncRefused,
    PlacementInvalid,
    ProgramMissing,
    RequestExists,
    RequestTooLarge,
    RequestUnknown,
    TenantUnknown,
)
from offpath.sched.inc.live import quotas
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.ports import FreePorts, Ports
from offpath.sched.inc.live.quotas import Quota
from offpath.sched.inc.live.records import (
    Command,
    Drop,
    Program,
    Request,
    RequestState,
    Save,
    Service,
    Spec,
    StartTask,
    StopTask,
    Task,
    TaskState,
    TreeJob,
    is_leaving,
)
from offpath.sched.inc.poly import PolyReq
from offpath.sched.inc.store import CompStore
from offpath.sched.inc.transform import transform

MOST_TASKS: Final = 1_024
"""Of one request in any of its flavors: each task on a server is a process."""
MOST_REQUESTS: Final = 4_096
MOST_FINAL: Final = 256
"""Ended requests that are kept."""
MOST_FAILURES: Final = 8


class Book:
    """``identity``: a new, never used identity for a task of the named request. ``tenants``: None: any tenant, without
    quotas."""

    def __init__(
        self, scheduler: LiveHire, store: CompStore, tenants: Mapping[str, Quota] | None, ports: Ports,
        identity: Callable[[str], str],
    ) -> None:  # fmt: skip
        self.scheduler, self.store, self.tenants = scheduler, store, tenants
        self.requests: dict[str, Request] = {}
        self._ports, self._identity = FreePorts(ports), identity
        self._numbers = 0
        names = scheduler.resources.topology.names
        self._node = {name: node for node, name in enumerate(names)}
        self._names = names

    # -- users -----------------------------------------------------------------------------------------------------
    def get(self, name: str) -> Request:
        """Raises: RequestUnknown."""
        found = self.requests.get(name)
        if found is None:
            raise RequestUnknown(f"no request is named {name!r:.80}")
        return found

    def submit(self, spec: Spec, now_ms: int) -> list[Command]:
        """Accept a request; nothing happens if the same one is open. Raises: IncRefused: nothing changes."""
        before = self.requests.get(spec.name)
        if before is not None and not before.state.is_final:
            if before.spec.body == spec.body:
                return []
            raise RequestExists(f"another request named {spec.name} is open; cancel it first")
        if before is not None and (before.tasks or before.trees):
            raise RequestExists(f"the tasks of the former request {spec.name} are still being stopped")
        poly = self._transformed(spec)
        self._check_quota(spec, poly)
        self.scheduler.submit(poly, now_ms)
        commands: list[Command] = [Drop(spec.name)] if before is not None else []
        self.requests.pop(spec.name, None)
        self.requests[spec.name] = Request(spec, self._numbers, now_ms)
        self._numbers += 1
        return [*commands, *self._forget_oldest(), Save(spec.name)]

    def cancel(self, name: str) -> list[Command]:
        """End a request; nothing happens if it has ended. Raises: RequestUnknown."""
        request = self.get(name)
        if request.state.is_final:
            return []
        return self._end(request, RequestState.CANCELLED, "cancelled by its tenant")

    def _transformed(self, spec: Spec) -> PolyReq:
        """Raises: IncRefused."""
        poly = self.scheduler.prepared(transform(spec.request, self.store, self.scheduler.earlier()))
        if sum(each.tasks for each in poly.groups) > MOST_TASKS:
            raise RequestTooLarge(f"more than {MOST_TASKS} tasks in all flavors together")
        for group in poly.groups:
            program = spec.programs.get(group.composite, Program())
            if not group.is_inc and not program.argv and program.service is Service.NONE:
                raise ProgramMissing(f"composite {group.composite}: its tasks on servers need argv, or a service")
        return poly

    def _check_quota(self, spec: Spec, poly: PolyReq) -> None:
        open_ = [each for each in self.requests.values() if not each.state.is_final]
        if len(open_) >= MOST_REQUESTS:
            raise RequestTooLarge(f"{MOST_REQUESTS} requests are open")
        if self.tenants is None:
            return
        quota = self.tenants.get(spec.tenant)
        if quota is None:
            raise TenantUnknown(f"no tenant {spec.tenant!r:.80}; known are {', '.join(sorted(self.tenants)[:20])}")
        held = [
            quotas.taken(self.scheduler.jobs[each.spec.name].request)
            for each in open_
            if each.spec.tenant == spec.tenant
        ]
        quotas.check(spec.tenant, quota, held, quotas.taken(poly))

    def _forget_oldest(self) -> Iterator[Command]:
        final = [each for each in self.requests.values() if each.is_gone]
        for each in final[: max(0, len(final) - MOST_FINAL)]:
            del self.requests[each.spec.name]
            yield Drop(each.spec.name)

    # -- a round ---------------------------------------------------------------------------------------------------
    def take_back(self, now_ms: int) -> list[Command]:
        """End the gangs whose deadline is over, and take back the places of flavors and jobs that did not get all of
        theirs in time. Carry the commands out before `round`, which may raise: what ended must be on the disk then."""
        return [*self._expire(now_ms), *self._apply(self.scheduler.take_back(now_ms))]

    def round(self, now_ms: int) -> list[Command]:
        """Decide on all that waits. Raises: SolverMissing: nothing has changed if `take_back` was called first, with
        the same time."""
        decisions = [] if self.scheduler.is_idle else self.scheduler.round(now_ms)
        if decisions:
            for request in self.requests.values():
                request.waits.clear()
        return [*self._apply(decisions), *self._begin()]

    def _expire(self, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        for request in list(self.requests.values()):
            spec = request.spec
            is_late = spec.is_gang and 0 < spec.deadline_ms <= now_ms - request.submitted_ms
            has_begun = any(task.state is not TaskState.PLACED for task in request.tasks.values())
            if is_late and request.state is RequestState.WAITING and not has_begun:
                why = "; ".join(f"{group}: {text}" for group, text in sorted(request.waits.items())) or "places"
                line = f"not all its tasks had a place within {spec.deadline_ms} ms: {why}"
                commands += self._end(request, RequestState.EXPIRED, line)
        return commands

    def _begin(self) -> Iterator[Command]:
        """Start what is placed: of a gang only once all is. A request that may get a tree is one: its ranks learn of
        the tree at their start."""
        for request in self.requests.values():
            if request.state.is_final:
                continue
            is_complete = self.scheduler.is_complete(request.spec.name)
            waits = RequestState.RUNNING if is_complete else RequestState.WAITING
            changed = request.state is not waits
            request.state = waits
            placed = [each for each in request.tasks.values() if each.state is TaskState.PLACED]
            has_begun = any(each.state is not TaskState.PLACED for each in request.tasks.values())
            is_gang = request.spec.is_gang or self.scheduler.has_tree(request.spec.name)
            if placed and (is_complete or has_begun or not is_gang):
                for task in placed:
                    task.state = TaskState.STARTING
                yield Save(request.spec.name)
                for task in placed:
                    yield StartTask(request.spec.name, task.identity)
            elif changed:
                yield Save(request.spec.name)

    def _apply(self, decisions: Iterable[Decision]) -> Iterator[Command]:
        for each in decisions:
            match each:
                case FlavorChosen(job, composite, implementation, reason):
                    request = self.requests[job]
                    request.chosen[composite] = implementation
                    request.reasons[composite] = reason.text
                    request.note(f"{composite}: {implementation} is chosen: {reason.text}")
                case Preempted(job, composite, implementation, reason):
                    request = self.requests[job]
                    request.chosen.pop(composite, None)
                    request.reasons.pop(composite, None)
                    request.note(f"{composite}: {implementation} is taken back: {reason.text}")
                    yield Save(job)
                case Placed((job, group), node, tasks, reason):
                    self._place(self.requests[job], group, node, tasks, reason.text)
                    yield Save(job)
                case Stopped((job, group), node, tasks, reason):
                    yield from self._stopped(self.requests[job], group, node, tasks, reason.text)
                case Postponed((job, group), tasks, reason):
                    self.requests[job].waits[group] = f"{tasks} wait: {reason.text}"

    def _place(self, request: Request, name: str, node: int, tasks: int, reason: str) -> None:
        group = self.scheduler.jobs[request.spec.name].request.by_id[(request.spec.name, name)]
        request.chosen.setdefault(group.composite, group.implementation)
        if self.scheduler.is_tree(group.id) and group.composite not in request.trees:
            prefix = f"{request.spec.name[:16]}-{group.composite[:16]}"
            request.trees[group.composite] = TreeJob(self._identity(prefix), {})
        for _ in range(tasks):
            taken = {each.slot for each in request.tasks.values()
                     if each.group == name and each.state is not TaskState.STOPPING}  # fmt: skip
            slot = next(at for at in range(len(taken) + 1) if at not in taken)
            identity = self._identity(request.spec.name)
            program = request.spec.programs.get(group.composite, Program())
            address = self._address(self._names[node]) if not group.is_inc and program.service else ""
            request.tasks[identity] = Task(
                identity, name, group.composite, group.implementation, self._names[node], group.is_inc, slot,
                address=address, reason=reason,
            )  # fmt: skip

    def _address(self, node: str) -> str:
        used = {task.address for request in self.requests.values() for task in request.tasks.values()}
        return self._ports.address(node, used)

    def _stopped(self, request: Request, group: str, node: int, tasks: int, reason: str) -> Iterator[Command]:
        name = self._names[node]
        found = [each for each in request.tasks.values()
                 if (each.group, each.node) == (group, name) and each.state is not TaskState.STOPPING]  # fmt: skip
        for task in found[:tasks]:
            if task.state is TaskState.PLACED:
                del request.tasks[task.identity]
            else:
                task.state, task.reason = TaskState.STOPPING, reason
        request.note(f"{group}: {min(tasks, len(found))} on {name} stop: {reason}")
        if not request.state.is_final:
            request.state = RequestState.WAITING  # here, because no round may follow: without a solver
        yield Save(request.spec.name)
        for task in found[:tasks]:
            if task.state is TaskState.STOPPING:
                yield StopTask(request.spec.name, task.identity, task.node, task.is_inc)

    # -- tasks -----------------------------------------------------------------------------------------------------
    def started(self, name: str, identity: str, address: str = "") -> list[Command]:
        """The task runs. ``address``: of its data plane, if the switch chose one."""
        request, task = self._task(name, identity)
        if request is None or task is None or task.state is TaskState.STOPPING:
            return []
        if task.state is TaskState.RUNNING and address in ("", task.address):
            return []
        task.state, task.address = TaskState.RUNNING, address or task.address
        request.failures = 0 if request.spec.programs.get(task.composite, Program()).service else request.failures
        return [Save(name)]

    def refused(self, name: str, identity: str, reason: str, now_ms: int) -> list[Command]:
        """Engine or switch does not take the task; nothing of it is left there. It is no failure of the request if a
        task that gave up its place is still on the switch."""
        _, task = self._task(name, identity)
        is_early = task is not None and task.is_inc and is_leaving(self.requests.values(), task.node)
        return self._over(name, identity, f"refused: {reason}", now_ms, is_failure=not is_early)

    def lost(self, name: str, identity: str, reason: str, now_ms: int) -> list[Command]:
        """Engine or switch has no such task any more."""
        return self._over(name, identity, f"lost: {reason}", now_ms, is_failure=False)

    def ended(self, name: str, identity: str, is_success: bool, reason: str, now_ms: int) -> list[Command]:
        """The task's process ended by itself, or because it was stopped. A built-in program never ends by itself."""
        request, task = self._task(name, identity)
        if request is None or task is None:
            return []
        is_service = not request.spec.programs.get(task.composite, Program()).argv
        if task.state is TaskState.STOPPING or not is_success or is_service:
            return self._over(name, identity, f"ended: {reason}", now_ms, is_failure=True)
        del request.tasks[identity]
        self.scheduler.ended((name, task.group), self._node[task.node])
        if self.scheduler.is_over(name):
            return self._end(request, RequestState.SUCCEEDED, "all its tasks have ended")
        if name not in self.scheduler.jobs:
            request.state = RequestState.SUCCEEDED
            request.note("all its tasks have ended")
        return [Save(name)]

    def _over(self, name: str, identity: str, reason: str, now_ms: int, *, is_failure: bool) -> list[Command]:
        request, task = self._task(name, identity)
        if request is None or task is None:
            return []
        del request.tasks[identity]
        if task.state is TaskState.STOPPING:
            return [Save(name)]
        self.scheduler.give_back((name, task.group), self._node[task.node], now_ms)
        request.note(f"{task.group} on {task.node} is to be placed again; {reason}"[:400])
        request.failures += is_failure
        if request.failures > MOST_FAILURES:
            return self._end(request, RequestState.FAILED, f"{MOST_FAILURES} tasks failed; the last one {reason}"[:400])
        request.state = RequestState.WAITING
        return [Save(name)]

    def _end(self, request: Request, state: RequestState, line: str) -> list[Command]:
        request.state = state
        decisions = self.scheduler.cancel(request.spec.name)
        commands = list(self._apply(decisions))
        request.waits.clear()
        request.note(line)
        return [*commands, Save(request.spec.name)]

    def _task(self, name: str, identity: str) -> tuple[Request | None, Task | None]:
        request = self.requests.get(name)
        return request, request.tasks.get(identity) if request is not None else None

    def decided(self, decisions: Iterable[Decision]) -> list[Command]:
        """The scheduler has decided this outside of a round."""
        return list(self._apply(decisions))

    # -- nodes -----------------------------------------------------------------------------------------------------
    def node_lost(self, name: str, now_ms: int) -> list[Command]:
        """The node's tasks end and are placed again. May be repeated."""
        node = self._node.get(name)
        return list(self._apply(self.scheduler.lose(node, now_ms))) if node is not None else []

    def node_closed(self, name: str) -> None:
        """The node takes no further task; what runs there goes on. May be repeated."""
        node = self._node.get(name)
        if node is not None and not self.scheduler.resources.is_lost(node):
            self.scheduler.resources.lose(node)
            self.scheduler.changed(node)

    def node_back(self, name: str) -> None:
        """The node takes tasks again. May be repeated."""
        node = self._node.get(name)
        if node is not None and self.scheduler.resources.is_lost(node):
            self.scheduler.restore(node)

    # -- restart ---------------------------------------------------------------------------------------------------
    def remember(self, requests: Iterable[Request], now_ms: int) -> None:
        """Take over what an earlier process saved, in the order of submission. A gang's deadline counts anew; a tie to
        a request that has ended meanwhile ties no more."""
        for request in requests:
            self.requests[request.spec.name] = request
            request.number, request.submitted_ms = self._numbers, now_ms
            self._numbers += 1
            self.scheduler.recall(request)
            if request.state.is_final:
                continue
            known = self.scheduler.earlier()
            ties = tuple(each for each in request.spec.request.ties if each.earlier_job in known)
            spec = replace(request.spec, request=replace(request.spec.request, ties=ties))
            try:
                self.scheduler.submit(self._transformed(spec), now_ms)
            except IncRefused as refused:
                request.state = RequestState.FAILED
                request.note(f"after a restart it is refused: {refused}"[:400])
                request.stop_all()
                continue
            self.scheduler.expect(request)
            for task in list(request.tasks.values()):
                self._adopt(request, task, now_ms)
            self.scheduler.begun(request)

    def _adopt(self, request: Request, task: Task, now_ms: int) -> None:
        if task.state is TaskState.STOPPING:
            return
        try:
            self.scheduler.adopt((request.spec.name, task.group), self._node[task.node], now_ms)
        except (KeyError, PlacementInvalid, FlavorsContradict) as fault:
            task.state = TaskState.STOPPING
            request.note(f"{task.group} on {task.node} cannot stay after a restart: {fault}"[:400])

    def due(self) -> Iterator[StartTask | StopTask]:
        """What is to be carried out, perhaps once more: all starts and stops that are not confirmed."""
        for request in self.requests.values():
            for task in request.tasks.values():
                if task.state is TaskState.STARTING:
                    yield StartTask(request.spec.name, task.identity)
                elif task.state is TaskState.STOPPING:
                    yield StopTask(request.spec.name, task.identity, task.node, task.is_inc)

    def check(self) -> None:
        """Raises: AssertionError: tasks and the scheduler's places differ. For tests."""
        for name, request in self.requests.items():
            held = [each for each in request.tasks.values() if each.state is not TaskState.STOPPING]
            job = self.scheduler.jobs.get(name)
            assert (job is None) == request.state.is_final, f"{name}: {request.state}"
            if job is None:
                assert not held, f"{name} has ended, and holds places"
                continue
            for group in job.request.groups:
                mine = [each for each in held if each.group == group.id[1]]
                counted = self.scheduler.resources.nodes_of(group.id)
                assert sorted(self._node[each.node] for each in mine) == sorted(counted.elements()), name
                assert len({each.slot for each in mine}) == len(mine), f"{name}: two tasks have one slot"
                if mine:
                    assert flavors.status(group.flavor, job.active) is flavors.Status.SELECTED, group.id
