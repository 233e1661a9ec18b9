"""What the book of live requests keeps, and what it has the shell do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from offpath.sched.inc.request import CompReq

MOST_HISTORY: Final = 24
"""Lines of a request's history that are kept."""


class Service(StrEnum):
    """What the built-in data plane of a composite is."""

    NONE = ""
    STORE = "store"
    """Keys and values; every write goes here."""
    CACHE = "cache"
    """In front of a store (NetCache)."""
    CHAIN = "chain"
    """Keys and values, replicated along a chain (NetChain)."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a composite's tasks on servers run: ``argv``, or the built-in program of ``service`` if that is empty."""

    argv: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = "/"
    output: str = ""
    service: Service = Service.NONE


@dataclass(frozen=True, slots=True)
class Spec:
    """A submitted request. ``programs``: by composite. ``body``: the submitted message, which identifies it: the same
    name with the same body is the same request. ``deadline_ms``: a gang that has not all its places by then ends; 0:
    it waits for ever."""

    request: CompReq
    tenant: str
    programs: dict[str, Program]
    body: str
    is_gang: bool = False
    deadline_ms: int = 0
    user: str = ""

    @property
    def name(self) -> str:
        """Of the request."""
        return self.request.job


class TaskState(StrEnum):
    """Of one task."""

    PLACED = "placed"
    """It has a place. A gang's tasks start when all have one."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """It gave up its place; the engine or the switch has not confirmed its end."""


@dataclass(slots=True)
class Task:
    """One task of a group. ``implementation``: of its composite. ``is_inc``: it runs on a switch. ``address``:
    HOST:PORT of its data plane, empty if it has none. ``slot``: its position among the group's tasks; a task that
    replaces a lost one gets the same."""

    identity: str
    group: str
    composite: str
    implementation: str
    node: str
    is_inc: bool
    slot: int
    state: TaskState = TaskState.PLACED
    address: str = ""
    reason: str = ""


class RequestState(StrEnum):
    """Of a request."""

    WAITING = "waiting"
    """Some task has no place."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Its tasks ended too often with an error, or were refused too often."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """A gang that did not get all its places by its deadline."""

    @property
    def is_final(self) -> bool:
        """It holds no place and gets none."""
        return self not in (RequestState.WAITING, RequestState.RUNNING)


@dataclass(frozen=True, slots=True)
class TreeJob:
    """The job of the INA controller under which the ranks of a composite use its tree. The name stays for as long as
    the request is open, because running ranks cannot get another one. ``environment``: what the ranks need, by the
    controller; empty: it has not confirmed the job yet."""

    name: str
    environment: dict[str, str]


@dataclass(slots=True)
class Request:
    """``number``: requests are served in this order. ``chosen``: implementation by composite, while one is chosen.
    ``waits``: why a group's tasks wait, as of the last round. ``history``: what was decided, oldest first.
    ``failures``: tasks that ended with an error or were refused, since the last one that ran. ``trees``: by composite,
    jobs that the INA controller may have; what is here is cancelled there before the request is forgotten."""

    spec: Spec
    number: int
    submitted_ms: int
    state: RequestState = RequestState.WAITING
    tasks: dict[str, Task] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the implementation of a composite was chosen."""
    waits: dict[str, str] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    failures: int = 0
    trees: dict[str, TreeJob] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """It has ended, and nothing of it is left anywhere."""
        return self.state.is_final and not self.tasks and not self.trees

    def stop_all(self) -> None:
        """Of its tasks none has a place any more."""
        for task in list(self.tasks.values()):
            if task.state is TaskState.PLACED:
                del self.tasks[task.identity]
            else:
                task.state = TaskState.STOPPING

    def note(self, line: str) -> None:
        """Add to the history, unless it is the last line already."""
        if self.history[-1:] != [line]:
            self.history.append(line)
            del self.history[:-MOST_HISTORY]


def is_leaving(requests: Iterable[Request], node: str) -> bool:
    """A task that gave up its place is still on the node."""
    tasks = (task for request in requests for task in request.tasks.values())
    return any(task.state is TaskState.STOPPING and task.node == node for task in tasks)


@dataclass(frozen=True, slots=True)
class Save:
    """Write the request with its tasks to the disk, before anything else is carried out."""

    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The request's name was taken by a new one: the old record goes."""

    name: str


@dataclass(frozen=True, slots=True)
class StartTask:
    """May be repeated."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class StopTask:
    """May be repeated. ``node`` and ``is_inc`` say who stops it."""

    name: str
    identity: str
    node: str
    is_inc: bool


Command = Save | Drop | StartTask | StopTask
