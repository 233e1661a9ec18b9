"""Ranks of a training job without the training: pages and the protocol's machine, step after step, in a thread.

Every few milliseconds each rank takes what its page says and goes through a boundary with the others. Trees are not
joined: an epoch that is held is ready.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from offpath.host_helper.ina.rank_file import RankStateFile, make_folder
from offpath.sched.ina.patterns import Pattern
from offpath.sched.ina.protocol.rank import Rank

STEP_S = 0.005


def on_cores_s() -> float:
    """How long this thread has run, or has waited for a core: the rest of a time it waited for somebody."""
    return sum(map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2])) / 1e9


class FakeJob:
    """``folders``: by rank, where its page goes. Runs from its making until `close`."""

    def __init__(self, job: str, folders: list[str], incarnation: int | None = None) -> None:
        self.job = job
        self.incarnation = incarnation if incarnation is not None else time.time_ns()
        self.ranks = [Rank(job, self.incarnation, n, len(folders)) for n in range(len(folders))]
        for folder in folders:
            make_folder(folder)
        self.state_files: dict[int, RankStateFile] = {
            n: RankStateFile(folder, self.ranks[n].state()) for n, folder in enumerate(folders)
        }
        self.steps = 0
        self.longest_s = 0.0
        """The longest that a step took: nobody may make it wait."""
        self.applied: list[tuple[int, bool]] = []
        """Stamps in their order, and whether they granted a tree."""
        self._losses: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fake-{job}", daemon=True)
        self._fault: BaseException | None = None
        self._thread.start()

    @property
    def stamp(self) -> int:
        return self.ranks[0].state().applied

    @property
    def has_tree(self) -> bool:
        epoch = self.ranks[0].epoch
        return epoch is not None and epoch.grant is not None

    def lose(self, stamp: int) -> None:
        """Every rank hears from its connection, before its next step, that the tree of ``stamp`` is gone."""
        self._losses.put(stamp)

    def measure(self, pattern: Pattern) -> None:
        self.state_files[0].write_pattern(pattern)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for state_file in self.state_files.values():
            state_file.close()
        if self._fault is not None:
            raise self._fault

    def __enter__(self) -> FakeJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            previous: tuple[int, int] | None = None
            told: Mapping[int, object] = {}
            while not self._stop.wait(STEP_S):
                begun, ran = time.monotonic(), on_cores_s()
                previous = self._step(previous)
                told = self._tell(told)
                self.longest_s = max(self.longest_s, time.monotonic() - begun - (on_cores_s() - ran))
        except BaseException as fault:
            self._fault = fault

    def _step(self, previous: tuple[int, int] | None) -> tuple[int, int]:
        while not self._losses.empty():
            stamp = self._losses.get()
            for rank in self.ranks:
                rank.lost(stamp)
        for n, rank in enumerate(self.ranks):
            if (epoch := self.state_files[n].read_epoch()) is not None:
                rank.hold(epoch)
                rank.ready(epoch.stamp)
        found = [rank.agreed(previous) for rank in self.ranks]
        applied = {each.epoch.stamp if each.epoch else 0 for each in found}
        assert len(applied) == 1, f"ranks apart: {applied}"
        if found[0].epoch is not None:
            self.applied.append((found[0].epoch.stamp, found[0].epoch.grant is not None))
        while True:
            statements = [rank.statement() for rank in self.ranks]
            said = [each for each in statements if each is not None]
            if not said:
                break
            assert len(said) == len(self.ranks), "a statement that not all give"
            for rank in self.ranks:
                assert rank.gathered(said[0].stamp, [each.value for each in said]) == ()
        for rank in self.ranks:
            operation = rank.issue(4096, "float32", wants=True)
            rank.complete(rank.state().index - 1)
            state = rank.state()  # a lost tree stays what holds until the controller has granted anew, and is not used
            assert (operation is not None) == (self.has_tree and state.lost < state.applied)
        self.steps += 1
        values = [rank.boundary() for rank in self.ranks]
        return min(a for a, _ in values), min(b for _, b in values)

    def _tell(self, told: Mapping[int, object]) -> Mapping[int, object]:
        now = {}
        for n, rank in enumerate(self.ranks):
            state = rank.state()
            now[n] = (state.held, state.applied, state.lost)
            if told.get(n) != now[n]:
                self.state_files[n].write_state(state)
        return now
