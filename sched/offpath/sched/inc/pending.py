"""A job in the scheduler: which flavor it has, and which of its tasks still wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from offpath.sched.inc import flavors
from offpath.sched.inc.flavors import Flavor, Status
from offpath.sched.inc.poly import GroupId, PolyReq, TaskGroup


@dataclass(frozen=True, slots=True)
class Decided:
    """The implementation that was chosen for a composite, and since when it waits for all its places."""

    implementation: str
    since_ms: int


@dataclass(slots=True)
class PendingJob:
    """``number``: jobs are served in this order. ``started`` and ``ended``: tasks by group; a group is done when all
    its tasks have ended. ``shunned``: by composite, the implementation whose choice was taken back, and when; until
    `forgive` it is not chosen again while there is another. ``holding_since_ms``: since when it holds places while
    others of its tasks wait and none starts; None if it does not. ``not_before_ms``: it stays out of the network until
    then. ``aside``: groups that wait, and that are not in the network. ``sizes``: of groups whose number of
    tasks was found only when they were placed."""

    request: PolyReq
    number: int
    submitted_ms: int
    active: Flavor = ""
    started: dict[GroupId, int] = field(default_factory=dict)
    ended: dict[GroupId, int] = field(default_factory=dict)
    decided: dict[str, Decided] = field(default_factory=dict)
    shunned: dict[str, Decided] = field(default_factory=dict)
    holding_since_ms: int | None = None
    not_before_ms: int = 0
    aside: frozenset[GroupId] = frozenset()
    sizes: dict[GroupId, int] = field(default_factory=dict)
    _sorted: tuple[Flavor, dict[Status, list[TaskGroup]]] | None = None
    """The groups by status, under which active vector."""

    def __post_init__(self) -> None:
        self.active = self.active or self.request.active

    def size(self, group: TaskGroup) -> int:
        """All tasks of the group."""
        return self.sizes.get(group.id, group.tasks)

    def waiting(self, group: TaskGroup) -> int:
        """Tasks that are still to start."""
        return self.sizes.get(group.id, group.tasks) - self.started.get(group.id, 0)

    def wait_ms(self, now_ms: int) -> int:
        """Since the submission."""
        return max(0, now_ms - self.submitted_ms)

    def materialized(self) -> list[TaskGroup]:
        """Selected groups with tasks that wait, but for those ``aside``."""
        started, sizes, aside = self.started, self.sizes, self.aside
        return [  # `waiting` written out: a round asks this of every job several times
            each for each in self._of(Status.SELECTED)
            if sizes.get(each.id, each.tasks) != started.get(each.id, 0) and each.id not in aside
        ]  # fmt: skip

    def undecided(self) -> list[TaskGroup]:
        """Groups whose flavor is still to be chosen, without those ``aside``, and without what was preempted last if
        something else is left."""
        groups = self._of(Status.UNDECIDED)
        if self.aside:
            groups = [each for each in groups if each.id not in self.aside]
        if not self.shunned:
            return list(groups)
        return [each for each in groups if not self.is_shunned(each) or not self._has_other(each)]

    @property
    def is_open(self) -> bool:
        """Some group waits or is undecided, ``aside`` or not."""
        return bool(self._of(Status.UNDECIDED)) or any(self.waiting(each) for each in self._of(Status.SELECTED))

    def is_shunned(self, group: TaskGroup) -> bool:
        """The group's implementation was taken back last."""
        shunned = self.shunned.get(group.composite)
        return shunned is not None and shunned.implementation == group.implementation

    def _has_other(self, group: TaskGroup) -> bool:
        return any(
            each.composite == group.composite and each.implementation != group.implementation
            for each in self._of(Status.UNDECIDED)
        )

    def _of(self, status: Status) -> list[TaskGroup]:
        if self._sorted is None or self._sorted[0] != self.active:
            found: dict[Status, list[TaskGroup]] = {each: [] for each in Status}
            for group in self.request.groups:
                found[flavors.status(group.flavor, self.active)].append(group)
            self._sorted = self.active, found
        return self._sorted[1][status]

    def choose(self, group: TaskGroup, now_ms: int) -> None:
        """Decide for the group's implementation. Raises: FlavorsContradict."""
        self.active = flavors.chosen(group.flavor, self.active)
        self.decided[group.composite] = Decided(group.implementation, now_ms)
        self.shunned.pop(group.composite, None)

    def forgive(self, before_ms: int) -> None:
        """What was taken back before then may be chosen again."""
        if not self.shunned:
            return
        self.shunned = {name: each for name, each in self.shunned.items() if each.since_ms >= before_ms}

    def take_back(self, composite: str, now_ms: int) -> list[TaskGroup]:
        """Undo the choice for a composite. Returns its groups; their tasks must be stopped."""
        implementation = self.decided.pop(composite).implementation
        groups = self.request.implementation(composite, implementation)
        self.active = flavors.released(groups[0].flavor, self.active)
        self.shunned[composite] = Decided(implementation, now_ms)
        return groups

    def note_holding(self, now_ms: int) -> None:
        """Begin or end the time for which places are held without running. A job with an ended task runs already."""
        is_holding = any(self.started.values()) and not self.ended and bool(self.materialized() or self.undecided())
        if not is_holding:
            self.holding_since_ms = None
        elif self.holding_since_ms is None:
            self.holding_since_ms = now_ms

    def release(self, not_before_ms: int) -> None:
        """All its tasks were stopped: it begins anew, with all flavors open, but not before then."""
        self.active = self.request.active
        self.started.clear()
        self.sizes.clear()
        self.decided.clear()
        self.holding_since_ms, self.not_before_ms = None, not_before_ms

    @property
    def is_done(self) -> bool:
        """True if every selected group's tasks have ended and nothing is undecided."""
        return not self._of(Status.UNDECIDED) and all(
            self.ended.get(each.id, 0) == self.size(each) for each in self._of(Status.SELECTED)
        )
