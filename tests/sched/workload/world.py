"""A workload, a policy and an engine that loses requests and answers, drains nodes and is killed; a controller too.

The engine keeps the promises of the port and no more. It counts what really runs, and that is judged.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random

from offpath.sched.workload.records import (
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
    Share,
    Spec,
    Start,
    Work,
    WorkState,
)
from offpath.sched.workload.workload import Workload, WorkRefused

GPUS = 4
NODES = tuple(f"n{number}" for number in range(5))


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass
class Job:
    """At the engine. ``launches``: how often its command was started; the engine reports it as running some time
    before. ``is_held``: it waits until it is started again."""

    shares: tuple[Share, ...]
    report: Report = Report.PENDING
    launches: int = 0
    is_held: bool = False


@dataclass
class Engine:
    """``runs`` and ``ledger`` survive its restarts; ``jobs`` may lose those that were accepted last."""

    random: Random
    jobs: dict[str, Job] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    submitted: set[str] = field(default_factory=set)
    """Jobs that were in ``held``: their users have the ids, and this engine does not lose them."""
    launches: Counter[str] = field(default_factory=Counter)
    forgotten: set[str] = field(default_factory=set)
    records: dict[str, str] = field(default_factory=dict)
    """Of commands that began: the first node, on whose disk that is written; nobody else knows it for ever."""
    ready: set[str] = field(default_factory=lambda: set(NODES))
    names_gpus: bool = True

    def seen(self, identity: str) -> Seen:
        job = self.jobs[identity]
        shares = job.shares if job.report is not Report.PENDING else ()
        code = {Report.SUCCEEDED: 0, Report.FAILED: 1}.get(job.report)
        return Seen(identity, job.report, shares, code, has_begun=job.report is not Report.LOST or job.launches > 0)

    def start(self, work: Work) -> Seen | str:
        """A text: it refuses."""
        assert work.placed is not None
        if work.identity in self.forgotten:
            raise Broken(f"{work.identity} is used again after it was forgotten")
        job = self.jobs.get(work.identity)
        if job is not None and (job.report is not Report.LOST or job.launches):
            job.is_held = False
            return self.seen(work.identity)
        if not {share.node for share in work.placed.shares} <= self.ready:
            return "a node is drained"
        if work.identity.endswith("3"):
            return "no such partition"
        if self.records.get(work.identity) == work.placed.shares[0].node:
            self.jobs[work.identity] = Job(work.placed.shares, Report.LOST, launches=1)
        else:
            self.jobs[work.identity] = Job(work.placed.shares)
        return self.seen(work.identity)

    def release(self, work: Work) -> Seen | None:
        """None: it has no such job."""
        assert work.placed is not None
        if work.identity in self.jobs:
            return self.seen(work.identity)
        if self.held.pop(work.identity, None) is None:
            return None
        self.jobs[work.identity] = Job(work.placed.shares)
        return self.seen(work.identity)

    def end(self, identity: str) -> bool:
        """False: it has no such job."""
        if self.held.pop(identity, None) is not None:
            self.jobs[identity] = Job((), Report.CANCELLED)
            return True
        job = self.jobs.get(identity)
        if job is None:
            return False
        if job.report in (Report.PENDING, Report.RUNNING):
            job.report = Report.CANCELLED
        return True

    def step(self) -> None:
        """Something happens by itself."""
        for identity, job in self.jobs.items():
            if job.report is Report.PENDING and not job.is_held and self.random.random() < 0.4:
                job.report = Report.RUNNING
            elif job.report is Report.RUNNING and not job.launches and self.random.random() < 0.5:
                job.launches += 1
                self.launches[identity] += 1
                self.records[identity] = job.shares[0].node
            elif job.report is Report.RUNNING and job.launches and self.random.random() < 0.15:
                job.report = self.random.choice((Report.SUCCEEDED, Report.SUCCEEDED, Report.FAILED))
        self.judge()

    def lose(self) -> None:
        """It is killed: a job whose command has not begun may be lost with its record, or as a record, or be held
        again. One that runs may be reported as lost, after its processes have ended."""
        for identity, job in list(self.jobs.items()):
            if self.random.random() > 0.3 or identity in self.submitted:
                continue
            has_begun = job.launches or job.report not in (Report.PENDING, Report.RUNNING)
            if not has_begun and self.random.random() < 0.4:
                del self.jobs[identity]
            elif not has_begun and self.random.random() < 0.5:
                job.report, job.is_held = Report.PENDING, True
            elif job.report in (Report.PENDING, Report.RUNNING):
                job.report = Report.LOST

    def expire(self) -> None:
        """It forgets what ended long ago, whether the controller has recorded it or not."""
        for identity, job in list(self.jobs.items()):
            has_ended = job.report not in (Report.PENDING, Report.RUNNING)
            if has_ended and identity not in self.submitted and self.random.random() < 0.3:
                del self.jobs[identity]

    def judge(self) -> None:
        """Every job runs once at most, and no GPU has two."""
        if twice := [identity for identity, count in self.launches.items() if count > 1]:
            raise Broken(f"{twice} ran twice")
        taken: Counter[tuple[str, int]] = Counter()
        on_node: Counter[str] = Counter()
        for job in self.jobs.values():
            if job.report is Report.RUNNING:
                for share in job.shares:
                    on_node[share.node] += share.count
                    taken.update((share.node, gpu) for gpu in share.gpus)
        if over := [node for node, count in on_node.items() if count > GPUS]:
            raise Broken(f"{over} run more than {GPUS} GPUs")
        if self.names_gpus and (shared := [gpu for gpu, count in taken.items() if count > 1]):
            raise Broken(f"GPUs {shared} have two jobs")


class World:
    """One run. ``seed`` decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.engine = Engine(self.random)
        self.saved: dict[str, Work] = {}
        self.now_ns = 0
        self.submitted: set[str] = set()
        self.asked: set[str] = set()
        """Cancelled by a user."""
        self.early: set[str] = set()
        """… before they were placed."""
        self.waiting: list[Command] = []
        """What the shell has not carried out yet."""
        self.batch: Batch | None = None
        self.seen: Counter[str] = Counter()
        self.workload = self._new()

    def _new(self) -> Workload:
        made = Workload(("vgg16",))
        made.remember(deepcopy(list(self.saved.values())))
        return made

    def carry(self, commands: list[Command]) -> None:
        """`Save` and `Drop` happen at once, in order; the others when the shell gets to them."""
        for command in commands:
            match command:
                case Save(work):
                    self.saved[work.identity] = deepcopy(work)
                case Drop(identity):
                    del self.saved[identity]
                case _:
                    if self._state(command.identity) is WorkState.STARTING:
                        kept = self.saved[command.identity]
                        if kept.state is not WorkState.STARTING and not isinstance(command, Forget):
                            raise Broken(f"{command} before it was saved")
                    self.waiting.append(command)

    def _state(self, identity: str) -> WorkState | None:
        work = self.workload.works.get(identity)
        return work.state if work is not None else None

    # -- what may happen ------------------------------------------------------------------------------------------
    def step(self) -> None:
        """One event."""
        self.now_ns += self.random.randrange(1, 1_000)
        acts = (
            self.submit, self.submit, self.hold, self.cancel, self.look, self.look, self.look, self.carry_one,
            self.carry_one, self.carry_one, self.decide, self.decide, self.engine.step, self.engine.step, self.kill,
            self.engine.lose, self.engine.expire, self.drain,
        )  # fmt: skip
        act = self.random.choice(acts)
        self.seen[act.__name__] += 1
        act()

    def submit(self) -> None:
        number = len(self.submitted)
        spec = Spec(f"job-{number % 7}", self.random.choice((1, 2, 4, 6, 9, 30)), "vgg16", argv=("train",))
        try:
            self.carry(self.workload.submit(spec, f"{spec.name}.{number}", self.now_ns))
        except WorkRefused as refused:
            self.seen[refused.code] += 1
            return
        self.submitted.add(f"{spec.name}.{number}")

    def hold(self) -> None:
        identity = f"held-{len(self.submitted)}"
        self.engine.submitted.add(identity)
        self.engine.held[identity] = Held(identity, "ada", self.random.choice((1, 2, 5)), "vgg16")
        self.submitted.add(identity)

    def cancel(self) -> None:
        open_works = [work for work in self.workload.works.values() if not work.state.is_final]
        if open_works:
            work = self.random.choice(open_works)
            self.asked.add(work.identity)
            if work.state is WorkState.QUEUED and not work.is_held:
                self.early.add(work.identity)
            self.carry(self.workload.cancel(work.spec.name, self.now_ns))

    def look(self) -> None:
        """The shell asks the engine for everything."""
        nodes = [Node(name, GPUS, "rack", name in self.engine.ready) for name in NODES]
        self.workload.see_nodes(nodes)
        jobs = [self.engine.seen(identity) for identity in self.engine.jobs]
        self.carry(self.workload.see_jobs(jobs, self.now_ns, is_all=not self.waiting))
        self.carry(self.workload.see_held(list(self.engine.held.values()), self.now_ns))

    def decide(self) -> None:
        """A batch is begun, or its decision arrives, when the cluster may have changed."""
        if self.batch is None:
            self.batch = self.workload.batch()
            return
        batch, self.batch = self.batch, None
        self.carry(self.workload.decide(decisions(batch, self.random)))

    def carry_one(self) -> None:
        """One of the commands, in order for each job. The request or its answer may be lost."""
        if not self.waiting:
            return
        first = {command.identity: command for command in reversed(self.waiting)}
        command = self.random.choice(list(first.values()))
        self.waiting.remove(command)
        if not self.workload.is_due(command):
            self.seen["not due"] += 1
            return
        if self.random.random() < 0.15:
            self.seen["request lost"] += 1
            return
        answer = self._at_engine(command)
        if self.random.random() < 0.15:
            self.seen["answer lost"] += 1
            if isinstance(command, Start):
                self.workload.unanswered(command.identity)
            return
        match command, answer:
            case (Start() | Release(), Seen()):
                self.carry(self.workload.answered(answer, self.now_ns))
            case (Start(), str()):
                self.carry(self.workload.refused(command.identity, answer, self.now_ns))
            case (Release(), None) | (End(), False):
                self.carry(self.workload.unknown(command.identity, self.now_ns))

    def _at_engine(self, command: Command) -> Seen | str | bool | None:
        match command:
            case Start(identity) | Release(identity):
                work = self.workload.works.get(identity)
                if work is None or work.placed is None:
                    return True
                return self.engine.start(work) if isinstance(command, Start) else self.engine.release(work)
            case End(identity):
                return self.engine.end(identity)
            case Forget(identity):
                if identity in self.engine.jobs and self.engine.jobs[identity].report in (
                    Report.PENDING,
                    Report.RUNNING,
                ):
                    raise Broken(f"{identity} is forgotten before its end")
                self.engine.jobs.pop(identity, None)
                self.engine.forgotten.add(identity)
        return None

    def kill(self) -> None:
        """The controller is killed, and another one starts from the state file."""
        self.waiting.clear()
        self.batch = None
        self.workload = self._new()

    def drain(self) -> None:
        node = self.random.choice(NODES)
        self.engine.ready ^= {node}

    # -- the end --------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Nothing fails any more: every job must end but those that were accepted before the first inventory, and need
        more GPUs than there are: these wait, with a reason."""
        self.engine.ready = set(NODES)
        for _ in range(3_000):
            self.now_ns += 1
            for act in (self.look, self.decide, self.carry_one, self.carry_one, self.engine.step):
                act()
            open_works = [work for work in self.workload.works.values() if not work.state.is_final]
            open_works = [work for work in open_works if work.spec.gpus <= GPUS * len(NODES) or not work.reasons]
            if not open_works and not self.engine.held and not self.waiting:
                break
        else:
            raise Broken(f"never ends: {[(work.identity, work.state, work.reasons) for work in open_works]}")
        self.judge()

    def judge(self) -> None:
        """What users were promised, once everything has ended."""
        for identity in self.submitted:
            work = self.workload.works.get(identity)
            if work is None:
                raise Broken(f"{identity} is not known any more")
            self.seen[str(work.state)] += 1
            if work.state is WorkState.SUCCEEDED and self.engine.launches[identity] != 1:
                raise Broken(f"{identity} succeeded, and ran {self.engine.launches[identity]} times")
            if work.state is WorkState.CANCELLED and identity not in self.asked and not work.is_held:
                raise Broken(f"{identity} was cancelled by nobody: {work.detail}")
            if identity in self.early and self.engine.launches[identity]:
                raise Broken(f"{identity} ran although it had been cancelled in the queue")
            if work.state is WorkState.REFUSED and self.engine.launches[identity]:
                raise Broken(f"{identity} ran and is said to be refused")
        if running := [each for each, job in self.engine.jobs.items() if job.report is Report.RUNNING]:
            raise Broken(f"{running} run, and the workload has ended")


def decisions(batch: Batch, random: Random) -> list[Decision]:
    """First fit, sometimes wrong or late."""
    free = {node: len(gpus) for node, gpus in batch.free.items()}
    made = []
    for work in batch.queued:
        need, shares = work.spec.gpus, []
        for node in sorted(free):
            count = min(need, free[node])
            if count:
                shares.append(Share(node, count))
                free[node] -= count
                need -= count
        if need or random.random() < 0.1:
            for share in shares:
                free[share.node] += share.count
            made.append(Decision(work.identity, None, ("too few GPUs are free",)))
        else:
            server = shares[0].node if len(shares) > 1 else ""
            made.append(Decision(work.identity, Placed(tuple(shares), server, reasons=("first fit",))))
    if made and random.random() < 0.05:
        wrong = random.choice(made)
        if wrong.placed is not None:
            made.append(Decision(wrong.identity, replace(wrong.placed, shares=(*wrong.placed.shares, Share("n9", 1)))))
    return made


def drive(seed: int, steps: int = 150) -> World:
    """One world, to its end. Raises: Broken."""
    world = World(seed)
    try:
        for _ in range(steps):
            world.step()
        world.settle()
    except (Broken, AssertionError, KeyError) as fault:
        raise Broken(f"seed {seed}: {fault!r}") from fault
    return world
