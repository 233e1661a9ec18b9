"""Drives one rank's protocol machine: boundaries, operations by tree or plain, statements, redistributed results.

Not thread-safe; `runtime` serializes the calls. Every wait of the engine is a loop over `_turn`, so that its trees and
the current gather always progress: another rank may be waiting for this rank's statement (`protocol.rank`).
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto
from typing import Any, Final

import torch

from offpath.bindings.ina.port import TreeAttached, TreeLost, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter, plain_bytes
from offpath.host_helper.ina.collectives import Collectives, Pending, Shape
from offpath.host_helper.ina.plan import Plan
from offpath.host_helper.ina.rank_file import RankFileError, RankStateFile
from offpath.host_helper.ina.timeline import Entry, How, Timeline
from offpath.host_helper.ina.trees import Trees
from offpath.sched.ina.patterns import Pattern
from offpath.sched.ina.protocol.rank import Give, Rank, Receive, RunPlain
from offpath.sched.ina.protocol.records import Operation, RankState

logger = logging.getLogger(__name__)
DTYPES: Final[dict[Any, str]] = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "int32",
}  # fmt: skip
"""The types that a switch can add."""
_TURN_S: Final = 0.02


class _Way(Enum):
    """The path of the current operation."""

    TREE = auto()
    PLAIN = auto()
    DONE = auto()


class Engine:
    """``patience_s``: an operation under a grant that lasts longer counts as a loss of the tree.

    Every wait raises RuntimeError when gloo reports that a rank of the job is gone.
    """

    def __init__(
        self,
        machine: Rank,
        collectives: Collectives,
        trees: Trees,
        state_file: RankStateFile | None,
        *,
        link: RateLimiter | None = None,
        shape: Shape | None = None,
        patience_s: float = 5.0,
    ) -> None:
        self.machine = machine
        self.timeline = Timeline()
        self._collectives = collectives
        self._trees = trees
        self._state_file = state_file
        self._link = link
        self._shape = shape
        self._patience_s = patience_s
        self._plan = Plan()
        self._boundary: Pending | None = None
        self._gathering: tuple[int, Pending] | None = None
        self._sharing: tuple[Receive | Give, Pending] | None = None
        self._way: _Way | None = None
        """None: no operation is under way."""
        self._tensor: Any = None
        self._result: Any = None
        self._how = How.PLAIN
        self._kept: tuple[int, Any] = (-1, None)
        """The last result from a tree, for ranks that did not receive it: index and bytes."""
        self._published: RankState | None = None
        self.index = 0
        self.step = 0
        self.is_due = False
        """The MIN of the boundary just passed has not begun."""
        self.is_quiet = False
        """No operation can use a tree and no rank waits for a statement: plain operations may bypass the engine."""
        self._look()

    # -- boundaries ---------------------------------------------------------------------------------------------------
    def agree(self) -> None:
        """A step begins: the result of the previous boundary's MIN takes effect. `offer` must follow soon."""
        if self.is_due:  # the step was too short for `idle` to do it
            self.offer()
        previous = None
        if self._boundary is not None:
            if not self.is_quiet:
                self._await(self._boundary)
            previous = self._boundary.result()
        applied = self.machine.agreed(previous)
        if applied.epoch is not None:
            self._plan.adopt(applied.epoch)
            logger.debug("rank %d applies epoch %d", self.machine.rank, applied.epoch.stamp)
        self._plan.begin()
        self.step += 1
        self.is_due = True
        if applied.epoch is not None or not self.is_quiet:
            self._recover()
            self._look()

    def offer(self) -> None:
        """Begin this boundary's MIN. In a long step `idle` begins it later, so that it does not delay the first
        operations."""
        self.is_due = False
        self._read_page()
        self._boundary = self._collectives.least(self.machine.boundary())

    # -- operations ---------------------------------------------------------------------------------------------------
    def plain_now(self, tensor: Any) -> Any:
        """An all-reduce while `is_quiet`; returns gloo's Work."""
        self.machine.issue(tensor.nbytes, "", False)
        self.machine.complete(self.index)
        self.index += 1
        return self._collectives.sum_now(tensor)

    def run(self, tensor: Any, requested_ns: int) -> None:
        """Sum ``tensor`` over all ranks, in place; it must be contiguous."""
        while self.machine.waits or self._sharing is not None:
            self._turn(_TURN_S)
        begin_ns = time.monotonic_ns()
        dtype = DTYPES.get(tensor.dtype, "") if tensor.device.type == "cpu" and tensor.numel() else ""
        operation = self.machine.issue(tensor.nbytes, dtype, bool(dtype) and self._plan.wants())
        self._tensor, self._way = tensor, _Way.TREE if operation else _Way.PLAIN
        self._how = How.PLAIN
        if operation is not None:
            self._in_tree(operation)
        if self._way is _Way.PLAIN:
            self._run_plain()
        self.machine.complete(self.index)
        how = self._how
        self._plan.ended(used_ina=how is How.INA)
        self._tensor = self._way = None
        entry = Entry(self.index, self.step, tensor.nbytes, how, requested_ns, begin_ns, time.monotonic_ns())
        self.index += 1
        self.timeline.add(entry)
        self._recover()
        self._look()

    def _in_tree(self, operation: Operation) -> None:
        """Run it until it is done or must run plain. The input stays unchanged until the result is complete."""
        self._result = torch.empty_like(self._tensor)
        source, target = _bytes(self._tensor), _bytes(self._result)
        if not self._trees.start(operation, source, target, is_last=self._plan.is_last):
            self._lose(operation.stamp)
        while self._way is _Way.TREE:
            self._turn(_TURN_S)

    def _run_plain(self) -> None:
        """Under a grant, a plain operation that hangs also counts as a loss: another rank may wait for a switch's
        answer.
        """
        epoch = self.machine.epoch
        began = time.monotonic()
        pending = self._collectives.sum(self._tensor, self._shape)
        if self._link is not None:
            self._link.owe(plain_bytes(self._tensor.nbytes, self.machine.ranks), began)
        if epoch is None or epoch.grant is None:
            pending.result()
            while self._link is not None and (left := self._link.owed_s()):
                time.sleep(min(left, _TURN_S))
            return
        pending.on_done(self._trees.wake)
        deadline = 0.0
        while True:
            owed = self._link.owed_s() if self._link is not None else 0.0
            if pending.is_done() and not owed:
                break
            self._turn(min(owed, _TURN_S) if owed else _TURN_S)
            if owed:
                deadline = 0.0
            elif not deadline:
                deadline = time.monotonic() + self._patience_s
            elif time.monotonic() > deadline:
                self._lose(epoch.stamp)
                deadline = float("inf")
        pending.result()

    # -- progress ----------------------------------------------------------------------------------------------------
    def idle(self) -> None:
        """No operation is pending: poll trees, settle statements, read the state file. Does not block."""
        self._turn(0.0)
        if self.is_due:
            self.offer()
        self._read_page()
        self._recover()
        self._look()

    def _await(self, pending: Pending) -> None:
        pending.on_done(self._trees.wake)
        while not pending.is_done():
            self._turn(_TURN_S)

    def _turn(self, timeout_s: float) -> None:
        """Process tree events for up to ``timeout_s``."""
        self._recover()
        for stamp, event in self._trees.poll(timeout_s):
            match event:
                case TreeAttached():
                    self.machine.ready(stamp)
                case TreeRefused():
                    if self.machine.refused(event.index):
                        self._way, self._how = _Way.PLAIN, How.REFUSED
                case TreeResult():
                    self._arrived(event.index)
                case TreeLost():
                    logger.warning("lost the tree of epoch %d: %s", stamp, event.reason)
                    self._lose(stamp)
        self._recover()

    def _arrived(self, index: int) -> None:
        if self._way is _Way.TREE and index == self.index and not self.machine.waits:
            self._tensor.copy_(self._result)
            self._kept = index, self._result
            self._way, self._how = _Way.DONE, How.INA

    def _lose(self, stamp: int) -> None:
        self.machine.lost(stamp)
        self._trees.drop(stamp)

    def _recover(self) -> None:
        """Gather statements, one after the other, and act on each."""
        while True:
            if self._sharing is not None:
                shared, pending = self._sharing
                if not pending.is_done():
                    return
                self._shared(shared, pending.result())
            elif self._gathering is not None:
                stamp, gathered = self._gathering
                if not gathered.is_done():
                    return
                self._gathering = None
                for redo in self.machine.gathered(stamp, gathered.result()):
                    self._redo(redo)
            elif (statement := self.machine.statement()) is not None:
                gathering = self._collectives.gather(statement.value)
                gathering.on_done(self._trees.wake)
                self._gathering = statement.stamp, gathering
            else:
                return

    def _redo(self, redo: Give | Receive | RunPlain) -> None:
        if isinstance(redo, RunPlain):
            self._way, self._how = _Way.PLAIN, How.REDONE
            return
        if isinstance(redo, Give):
            assert self._kept[0] == redo.index, "the result to redistribute was not kept"
            buffer = self._kept[1].view(-1).view(torch.uint8)
        else:
            buffer = torch.empty(redo.nbytes, dtype=torch.uint8)
        pending = self._collectives.give(buffer, redo.source)
        pending.on_done(self._trees.wake)
        self._sharing = redo, pending

    def _shared(self, redo: Give | Receive, buffer: Any) -> None:
        self._sharing = None
        if isinstance(redo, Receive) and redo.is_needed:
            self._tensor.view(-1).view(torch.uint8).copy_(buffer)
            self._kept = redo.index, self._tensor.clone()
            self._way, self._how = _Way.DONE, How.REDONE

    # -- the state file -----------------------------------------------------------------------------------------------
    def _read_page(self) -> None:
        if self._state_file is not None and (epoch := self._state_file.read_epoch()) is not None:
            self.machine.hold(epoch)

    def show(self, pattern: Pattern) -> None:
        """Write the pattern to the state file, for the controller's Plan."""
        if self._state_file is not None:
            try:
                self._state_file.write_pattern(pattern)
            except (RankFileError, OSError) as fault:
                logger.warning("could not publish the pattern: %s", fault)

    def _look(self) -> None:
        """Update trees, state file and `is_quiet` after any change of the machine."""
        trees = self.machine.trees()
        self._trees.follow(trees)
        state = self.machine.state()
        self.is_quiet = (
            self.machine.is_settled and self._sharing is None and self._link is None and self._shape is None
            and all(each.stamp != state.applied for each in trees)
        )  # fmt: skip
        published = self._published
        if self._state_file is not None and (
            published is None
            or (published.held, published.applied, published.lost) != (state.held, state.applied, state.lost)
        ):
            self._published = state
            try:
                self._state_file.write_state(state)
            except OSError as fault:
                logger.warning("could not publish the rank's state: %s", fault)

    def close(self, timeout_s: float) -> None:
        """After the last operation: leave the epoch with all other ranks, because one may need the last result."""
        self.machine.close()
        self._look()
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self._turn(_TURN_S)
            if self.machine.is_settled and self._sharing is None:
                break
        else:
            logger.warning("not all ranks left epoch %d within %g s", self.machine.state().applied, timeout_s)
        self._look()


def _bytes(tensor: Any) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
