"""A small cluster in one thread: every step, one of all things that could happen next does, drawn from a seed.

Four hosts, four switches (two leaves under either of two roots), two jobs, a controller and the ones that replace it.
Between controller and agents messages are lost, doubled, reordered, delayed and held up by partitions; a controller's
session with a switch does the same until it breaks. Streams between ranks and switches keep their order and break.

First everything may fail. Then nothing fails any more, and of controllers, agents and switches some or all are dead or
frozen for good: every job whose ranks live must end all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from offpath.sched.ina.protocol.agent import Agent, Report
from offpath.sched.ina.protocol.controller import Controller
from offpath.sched.ina.protocol.events import (
    AgentUp,
    Allow,
    Ask,
    Assignment,
    Command,
    Deposed,
    Event,
    Fence,
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
    Tree,
    TreeMember,
)  # fmt: skip
from offpath.sched.ina.protocol.modes import Mode, planner
from offpath.sched.ina.protocol.records import Wants

from .judge import Judge, Violation
from .ranks import Collectives, SimRank
from .switches import SimSwitch

HOSTS = ("h0", "h1", "h2", "h3")
LEAF = {"h0": "l0", "h1": "l0", "h2": "l1", "h3": "l1"}
ROOTS = ("r0", "r1")
_STEP_NS = 1_000_000
_CHAOS = 2_500
_STILL = 1_500


@dataclass(eq=False, slots=True)
class Session:
    """What a controller says to one life of a switch, until one side hangs up."""

    controller: SimController
    switch: SimSwitch
    is_open: bool = True


class SimController:
    """A controller through its one life; its successor is another one."""

    def __init__(self, world: World, term: int) -> None:
        self.world = world
        self.is_alive = True
        self.is_deaf = False
        """No agent's word reaches it: it does not learn that it was replaced."""
        tokens = iter(range(1 << 30))
        world.newest_term = max(world.newest_term, term)
        self.machine = Controller(
            term, world.draw_planner(), lambda: f"{term}-{next(tokens)}", patience_ns=1_000 * _STEP_NS,
            repeat_ns=60 * _STEP_NS, rest_ns=100 * _STEP_NS, proof=f"of {term}", is_proven=self._is_proven,
        )  # fmt: skip
        self.sessions: dict[str, Session] = {}

    def _is_proven(self, term: int, proof: str) -> bool:
        return proof == f"of {term}"

    def handle(self, event: Event) -> None:
        if self.is_alive:
            for command in self.machine.handle(event, now_ns=self.world.now_ns):
                self.world.carry_out(self, command)
            if self.machine.is_deposed:
                self.world.judge.deposed(self.machine.term)

    def act(self) -> bool:
        """Reconnect to a switch, or let time pass."""
        if not self.is_alive or self.machine.is_deposed:
            return False
        switch = self.world.random.choice(list(self.world.switches.values()))
        session = self.sessions.get(switch.name)
        if session is not None and not session.is_open:
            del self.sessions[switch.name]
            self.handle(SwitchDown(switch.name))
        elif session is None and switch.is_alive and not switch.is_frozen:
            self._connect(switch)
        else:
            self.handle(Tick())
        return True

    def _connect(self, switch: SimSwitch) -> None:
        if not switch.root.led_by(self.machine.term):
            self.handle(Deposed(switch.root.term))
            return
        self.sessions[switch.name] = session = Session(self, switch)
        self.world.open_sessions.append(session)
        self.handle(SwitchUp(switch.name, switch.boot, switch.capacity, switch.root.permissions()))


class SimHost:
    """An agent through its lives, and the pages of its ranks, which outlive it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = True
        self.is_cut_off = False
        self.is_liar = False
        self.newest: dict[str, int] = defaultdict(int)
        """Stamps that the controllers have sent, by job."""
        self.agent = Agent(name)

    def start(self) -> None:
        self.is_alive, self.agent = True, Agent(self.name)
        for controller in self.world.controllers:
            controller.handle(AgentUp(self.name))

    def act(self) -> bool:
        here = [rank for rank in self.world.ranks if rank.host == self.name]
        if not self.is_alive or not here:
            return False
        rank = self.world.random.choice(here)
        is_gone = not rank.is_alive or rank.is_done
        state = rank.state_file.state
        if self.is_liar:  # it says that its ranks have left whatever the controller wants them to leave
            state = replace(state, held=self.newest[rank.job], applied=self.newest[rank.job])
        report = self.agent.on_state(replace(state, is_gone=is_gone))
        if report is not None:
            self.send(report)
        return report is not None

    def send(self, report: Report) -> None:
        for controller in [each for each in self.world.controllers if not each.is_deaf]:
            self.world.post(self.name, lambda controller=controller: controller.handle(report))

    def receive(self, command: Publish | Ask) -> None:
        if not self.is_alive:
            return
        if isinstance(command, Ask):
            report = self.agent.on_query(command.term, command.proof)
            if report is not None:
                self.send(report)
            return
        self.newest[command.epoch.job] = max(self.newest[command.epoch.job], command.epoch.stamp)
        handed = self.agent.epoch(command.epoch)
        if handed is not None:
            for rank in self.world.ranks:
                if (rank.host, rank.job, rank.incarnation) == (self.name, handed.epoch.job, handed.epoch.incarnation):
                    rank.state_file.epoch = handed.epoch


class World:
    """One schedule. `live` it; it raises `Violation`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.steps = 0
        capacity = self.random.choice((1, 1, 1, 2))
        self.judge = Judge(self)
        self.bag: list[tuple[str, Any]] = []
        """Messages under way, by whom a partition would hold them up."""
        self.open_sessions: list[Session] = []
        self.switches: dict[str, SimSwitch] = {}
        for name in ("l0", "l1", *ROOTS):
            self.switches[name] = SimSwitch(self, name, capacity)
        self.hosts = {name: SimHost(self, name) for name in HOSTS}
        self.ranks: list[SimRank] = []
        self.running: list[SimRank] = []
        self._incarnations: dict[str, int] = {}
        self.quarantined: set[str] = set()
        self.newest_term = 0
        self._restarts = 3
        self._switches, self._hosts = list(self.switches.values()), list(self.hosts.values())
        self.pace = self.random.choice((0.15, 0.35))
        """How much goes to the ranks: where they are slow, results wait to be taken."""
        self.snipes = self.random.choice((0.0, 0.0, 0.01, 0.05))
        """How often a rank's connection breaks while a result waits in it."""
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        self.fault = self.random.choice((0.0, 0.002, 0.006, 0.02))
        self.kinds = self.random.sample(list(self._faults()), self.random.randint(1, 5))
        self.controllers = [SimController(self, 1)]
        for job in ("a", "bb"):
            self.start_job(job)
        self._connect(self.controllers[0])

    # -- jobs -----------------------------------------------------------------------------------------------------
    def start_job(self, job: str) -> None:
        incarnation = self._incarnations[job] = self._incarnations.get(job, 0) + self.random.choice((1, 1, 5))
        ranks = self.random.choice((2, 2, 3))
        hosts = self.random.choices(HOSTS, k=ranks)
        group, steps, ops = Collectives(ranks), self.random.randint(8, 30), self.random.randint(1, 3)
        for rank in range(ranks):
            self.ranks.append(SimRank(self, job, incarnation, rank, hosts[rank], group, steps, ops))
        for controller in getattr(self, "controllers", ()):
            if self.random.random() < 0.5:
                controller.handle(JobSubmitted(job, tuple(hosts)))

    def ranks_of(self, job: str, incarnation: int) -> list[SimRank]:
        return [rank for rank in self.ranks if rank.job == job and rank.incarnation == incarnation]

    def draw_planner(self) -> Planner:
        """Each controller wants something else: a successor, and one that was replaced and does not know it."""
        chosen = self.random.choice([*Mode, Mode.TRYLOCK, Mode.TRYLOCK, Mode.SHARED, None, None, None])
        roots = self.random.choice((("r0",), ROOTS))

        def tree_of(view: JobView, switches: Mapping[str, int], root: str | None = None) -> Tree | None:
            attach = tuple(LEAF[host] for host in view.hosts)
            root = root or roots[len(view.job) % len(roots)]
            if root == "leaf":
                if len(set(attach)) > 1:
                    return None
                return Tree(attach[0], (TreeMember(attach[0], local=tuple(range(len(attach)))),), attach)
            below = {leaf: tuple(n for n, each in enumerate(attach) if each == leaf) for leaf in sorted(set(attach))}
            parts = [TreeMember(leaf, root, local) for leaf, local in below.items()]
            return Tree(root, (*parts, TreeMember(root, below=tuple(below.items()))), attach)

        if chosen is not None:
            return planner(chosen, tree_of, turn_ns=self.random.choice((100, 300, 1_000)) * _STEP_NS)
        turn_ns, salt = self.random.choice((100, 300, 1_000)) * _STEP_NS, self.random.random()

        def churn(jobs: tuple[JobView, ...], switches: Mapping[str, int], now_ns: int) -> Mapping[str, Assignment]:
            draw = Random(f"{salt} {now_ns // turn_ns}")
            out = {}
            for view in jobs:
                tree = tree_of(view, switches, draw.choice((*ROOTS, "leaf")))
                if tree is not None and draw.random() < 0.8:
                    group = draw.choice(("shared", view.job))
                    out[view.job] = Assignment(tree, group, draw.choice((Wants.ALWAYS, Wants.PLAN)))
            return out

        return churn

    # -- messages -------------------------------------------------------------------------------------------------
    def post(self, host: str, arrive: Any) -> None:
        """To or from a host: lost, doubled, and in any order."""
        if self.random.random() >= self.loss:
            self.bag.append((host, arrive))
        if self.random.random() < 0.1:
            self.bag.append((host, arrive))

    def carry_out(self, controller: SimController, command: Command) -> None:
        if isinstance(command, Publish | Ask):
            if isinstance(command, Publish):
                self.judge.published(command.epoch)
            self.post(command.host, lambda: self.hosts[command.host].receive(command))
            return
        session = controller.sessions.get(command.switch)
        if session is not None and session.is_open and session.switch.boot == command.boot:
            self.post("", lambda: self._to_switch(session, command))

    def _to_switch(self, session: Session, command: Allow | Fence) -> None:
        if session.is_open and not session.switch.is_frozen:
            session.switch.control(session, command)

    def answer(self, session: Session, event: Event) -> None:
        if session.is_open:
            self.post("", lambda: session.controller.handle(event) if session.is_open else None)

    def break_sessions(self, switch: SimSwitch) -> None:
        for session in self.open_sessions:
            if session.switch is switch:
                session.is_open = False
        self.open_sessions = [session for session in self.open_sessions if session.is_open]

    # -- faults ---------------------------------------------------------------------------------------------------
    def _faults(self) -> dict[str, Any]:
        return {
            "rank": self._kill_rank, "controller": self._replace_controller, "zombie": self._second_controller,
            "agent": self._kill_agent, "switch": self._kill_switch, "freeze": self._freeze_switch,
            "partition": self._cut_off, "session": self._hang_up, "end": self._end_job, "restart": self._restart_job,
            "drop": self._drop_tree, "lie": self._lie, "quarantine": self._quarantine,
            "drained": self._begin_to_lie,
        }  # fmt: skip

    def _kill_rank(self) -> None:
        """Its job is over; the other ranks learn of it much later, if a new incarnation does not come first."""
        alive = [rank for rank in self.ranks if rank.is_alive and not rank.is_done]
        if not alive:
            return
        rank = self.random.choice(alive)
        rank.kill()
        if self.random.random() < 0.7 and self._incarnations[rank.job] == rank.incarnation:
            self._start_again(rank.job)

    def _restart_job(self) -> None:
        """Its owner took it for dead; its ranks are not, and go on."""
        self._start_again(self.random.choice(sorted(self._incarnations)))

    def _start_again(self, job: str) -> None:
        self._restarts -= 1
        if self._restarts >= 0:
            self.start_job(job)

    def _drop_tree(self, only_waiting: bool = False) -> None:
        """A connection breaks, at best while a result waits in it."""
        linked = [rank for rank in self.running if rank.conns]
        waiting = [rank for rank in linked if any(conn.has_result() for conn in rank.conns.values())]
        if waiting or (linked and not only_waiting):
            self.random.choice(waiting or linked).drop()

    def _connect(self, controller: SimController) -> None:
        for name in sorted(self.quarantined):
            controller.handle(HostQuarantined(name))
        for host in self.hosts.values():
            if host.is_alive:
                controller.handle(AgentUp(host.name))

    def _second_controller(self) -> None:
        term = max(each.machine.term for each in self.controllers) + 1
        self.controllers[-1].is_deaf = self.random.random() < 0.5
        self.controllers = [*self.controllers, SimController(self, term)][-3:]
        self._connect(self.controllers[-1])

    def _replace_controller(self) -> None:
        self.controllers[-1].is_alive = False
        if self.random.random() < 0.8:
            self._second_controller()

    def _kill_agent(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        if host.is_alive:
            host.is_alive = False
        else:
            host.start()

    def _kill_switch(self) -> None:
        switch = self.random.choice(list(self.switches.values()))
        if switch.is_alive:
            switch.kill()
        if self.random.random() < 0.7:
            switch.start()

    def _freeze_switch(self) -> None:
        switch = self.random.choice(list(self.switches.values()))
        switch.is_frozen = switch.is_alive and not switch.is_frozen

    def _cut_off(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        host.is_cut_off = not host.is_cut_off

    def _hang_up(self) -> None:
        if self.open_sessions:
            self.random.choice(self.open_sessions).is_open = False

    def _lie(self) -> None:
        """A host names a term that no controller issued, with a proof of another one, or one that is replayed."""
        host = self.random.choice(self._hosts)
        newest = max(each.machine.term for each in self.controllers)
        term = self.random.choice((newest + 1, newest + 100, (1 << 31) - 2, (1 << 31) - 1))
        proof = self.random.choice(("", f"of {newest}", f"of {self.random.randint(1, newest)}", "of 0"))
        host.send(Report(host.name, term, (), self.random.random() < 0.5, proof))

    def _begin_to_lie(self) -> None:
        """All hosts of a job may be in one hand."""
        for host in self._hosts:
            host.is_liar = self.random.random() < 0.7

    def _quarantine(self) -> None:
        """An operator, or the shell after a lie; released at some time, or never."""
        host = self.random.choice(self._hosts)
        for controller in self.controllers:
            if host.name in self.quarantined:
                controller.handle(HostReleased(host.name, host.is_alive))
            else:
                controller.handle(HostQuarantined(host.name))
        self.quarantined ^= {host.name}

    def _end_job(self) -> None:
        job = self.random.choice(sorted(self._incarnations))
        for rank in self.ranks:
            if rank.job == job:
                rank.kill()
        for controller in self.controllers:
            controller.handle(JobEnded(job))
        self._start_again(job)

    # -- life -----------------------------------------------------------------------------------------------------
    def live(self) -> None:
        faults = self._faults()
        for _ in range(_CHAOS):
            if self.snipes and self.random.random() < self.snipes:
                self._drop_tree(only_waiting=True)
            if self.random.random() < self.fault:
                faults[self.random.choice(self.kinds)]()
            self.running = [rank for rank in self.ranks if rank.is_alive and not rank.is_done]
            if not self.running:
                break
            self._step()
        self._quiet()

    def _step(self) -> bool:
        self.steps += 1
        self.now_ns += _STEP_NS
        return any(self._try() for _ in range(8))

    def _try(self) -> bool:
        drawn = self.random.random()
        if drawn < 0.2:
            return self._deliver()
        if drawn < 0.2 + self.pace:
            return self.random.choice(self.running).act()
        if drawn < 0.9:
            return self.random.choice(self._switches).act()
        if drawn < 0.98:
            return self.random.choice(self._hosts).act()
        return self.random.choice(self.controllers).act()

    def _deliver(self) -> bool:
        if not self.bag:
            return False
        n = int(self.random.random() * len(self.bag))
        host, arrive = self.bag[n]
        if host and self.hosts[host].is_cut_off and self.random.random() < 0.9:
            return False
        self.bag[n] = self.bag[-1]
        self.bag.pop()
        arrive()
        return True

    def _quiet(self) -> None:
        """From here on only a job's own ranks are needed."""
        for each in (*self.controllers, *self.hosts.values()):
            each.is_alive = each.is_alive and self.random.random() < 0.3
        for switch in self.switches.values():
            drawn = self.random.random()
            if drawn < 0.3 and switch.is_alive:
                switch.kill()
            elif drawn < 0.6:
                switch.is_frozen = True
        for rank in self.ranks:  # where one is dead, the job's own watchdog has ended it by now
            if any(not each.is_alive for each in self.ranks_of(rank.job, rank.incarnation)):
                rank.kill()
        still = 0
        while any(rank.is_alive and not rank.is_done for rank in self.ranks):
            alive = self.running = [rank for rank in self.ranks if rank.is_alive and not rank.is_done]
            moved = False
            for actor in self.random.sample([*alive, *self.switches.values()], len(alive) + len(self.switches)):
                moved |= actor.act()
                self.steps += 1
            for _ in range(4):
                self._step()
            still = 0 if moved else still + 1
            if still > _STILL:
                raise Violation(f"{alive[0]} and {len(alive) - 1} others wait for ever")


__all__ = ["Violation", "World"]
