"""What the job book records of a sequence: requests of one session and kernel that share a state in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence. ``number``: of the job that created it; no other sequence has it. ``sequence_id``: the client's.

    ``state``: number of its state in the worker: of the job that started it last, so that each start has another one.
    ``lease`` and ``lane``: where its requests run; ``lease`` 0: it is not bound. ``share``: R of its requests there, in
    percent of that GPU. ``has_state``: a request of it was launched on that lane, whose worker may hold its state.

    ``head``: the job that waits for a lane, or is on one; 0: none. ``later``: the jobs behind it, in the order of their
    submission. ``is_over``: only a request that starts the sequence anew may follow the last one. ``is_ending``: the
    state is dropped when the head has left its lane.
    ``idle_since_ns``: since when it has no job; 0: it has one.
    """

    number: int
    sequence_id: int
    tenant: str
    session: int
    kernel: int
    state: int = 0
    lease: int = 0
    lane: int = 0
    share: int = 0
    has_state: bool = False
    head: int = 0
    later: list[int] = field(default_factory=list)
    is_over: bool = False
    is_ending: bool = False
    idle_since_ns: int = 0
