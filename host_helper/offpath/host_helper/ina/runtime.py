"""`Runtime`: performs one job's data-parallel all-reduces, by INA where the current epoch grants it, else plain.

Without a grant, an all-reduce goes to gloo in the caller's thread, which avoids a thread switch. With a grant it
goes to the communication thread, one at a time and in the order of issue. Without agent, folder, fabric or switch
there is never a grant, so all all-reduces are plain.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, deque
from datetime import timedelta
from typing import Any, Final, Self

import torch
import torch.distributed as dist

from offpath.bindings.errors import OffpathError, ResourceClosed
from offpath.bindings.ina.connection import SwitchFabric
from offpath.bindings.ina.port import InaFabric
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.bindings.runtime import ina_directory
from offpath.host_helper.ina.carried import check, flat
from offpath.host_helper.ina.collectives import Collectives, Shape, left_to_right
from offpath.host_helper.ina.engine import Engine
from offpath.host_helper.ina.patterns import Collector
from offpath.host_helper.ina.rank_file import RankStateFile, make_folder
from offpath.host_helper.ina.timeline import Entry, How, Timeline
from offpath.host_helper.ina.trees import Trees
from offpath.sched.ina.protocol.rank import Rank

logger = logging.getLogger(__name__)
JOB: Final = "OFFPATH_INA_JOB"
LINK: Final = "OFFPATH_INA_LINK"
EVERY: Final = 16
"""Operations between two boundaries in a job that marks no steps."""
TIMEOUT: Final = timedelta(minutes=30)
_LOOK_S: Final = 0.01
"""How often the idle thread reads the state file."""
_CLOSE_S: Final = 30.0
_EXIT_S: Final = 2.0


class AbsentRuntime:
    """In the place of a runtime in what was unpickled: a runtime is of its process."""

    def __getattr__(self, name: str) -> Any:
        """Raises: ResourceClosed: of every attribute that a runtime has."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise ResourceClosed(
            "a runtime does not travel with a model: start one here and register(model, runtime) again"
        )


class Runtime:
    """Created by `start`, on all ranks of the group together. Call `all_reduce` from one thread at a time, as gloo's
    ordering requires, and `close` after the last one, on all ranks. A context manager.
    """

    @classmethod
    def start(
        cls,
        group: Any = None,
        *,
        job: str | None = None,
        fabric: InaFabric | None = None,
        link: RateLimiter | None = None,
        directory: str | None = None,
        deterministic: bool | Shape = False,
        every: int = EVERY,
        trace: bool = False,
        timeout: timedelta = TIMEOUT,
        patience_s: float = 5.0,
    ) -> Self:
        """Create a runtime; a collective.

        Args:
            group: the process group of the job's ranks; default: all.
            job: the controller's name of the job; default: ``$OFFPATH_INA_JOB``; "": no INA.
            fabric: how trees are joined; default: emulated switches, over ``link`` if given.
            link: the rank's emulated link; plain all-reduces take its time, too. Default: from the file
                ``$OFFPATH_INA_LINK``, else none.
            directory: of the state files; default: ``$OFFPATH_INA_DIRECTORY``, else ``ina`` in the runtime directory.
            deterministic: fix the order of plain sums: True: ((0 + 1) + 2) + …, as one switch sums; a shape: as a tree
                of switches sums. Slower: every rank gathers all parts.
            every: operations between two boundaries if `step_boundary` is never called.
            trace: `timeline` also records plain all-reduces that bypassed the communication thread.
            patience_s: a tree without progress for this long is dropped.
        """
        parent = group if group is not None else dist.group.WORLD
        return cls(
            _store(parent), dist.get_rank(parent), dist.get_world_size(parent), job=job, fabric=fabric, link=link,
            directory=directory, deterministic=deterministic, every=every, trace=trace, timeout=timeout,
            patience_s=patience_s,
        )  # fmt: skip

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: int,
        *,
        job: str | None = None,
        fabric: InaFabric | None = None,
        link: RateLimiter | None = None,
        directory: str | None = None,
        deterministic: bool | Shape = False,
        every: int = EVERY,
        trace: bool = False,
        timeout: timedelta = TIMEOUT,
        patience_s: float = 5.0,
    ) -> None:
        """As `start`, over a store of the ranks."""
        job = os.environ.get(JOB, "") if job is None else job
        if link is None and (path := os.environ.get(LINK)):
            link = RateLimiter(path=path)
        if fabric is None and job:
            fabric = SwitchFabric(link if link is not None else RateLimiter(), patience_s)
        self.rank, self.ranks, self.job, self.link = rank, ranks, job, link
        self._collectives = Collectives(store, rank, ranks, timeout)
        self.incarnation = self._collectives.incarnation()
        machine = Rank(job or "-", self.incarnation, rank, ranks)
        self._state_file = self._make_page(machine, directory) if job else None
        self._trees = Trees(fabric if job else None, rank)
        shape = left_to_right(ranks) if deterministic is True else (None if deterministic is False else deterministic)
        self._engine = Engine(
            machine, self._collectives, self._trees, self._state_file, link=link, shape=shape, patience_s=patience_s
        )
        self._other: Any = None
        self._collector = Collector(job)
        self._every, self._trace = every, trace
        self._since = 0
        self._begins = True
        self._began_s = 0.0
        self._has_steps = False
        self._mutex = threading.Lock()
        """Guards the engine, except while the thread `_is_busy` with it, and the fields below."""
        self._requested: deque[tuple[Any, Any, bool, int]] = deque()
        self._is_busy = False
        """The thread runs an operation in the engine: later ones are queued."""
        self._fault: Exception | None = None
        self._leave_s: float | None = None
        """Set by `close`: the thread must end within this time."""
        self._thread = threading.Thread(target=self._communicate, name="offpath-ina", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def _make_page(self, machine: Rank, directory: str | None) -> RankStateFile | None:
        where = directory or ina_directory()
        try:
            make_folder(where)
            return RankStateFile(where, machine.state())
        except (OffpathError, OSError) as fault:
            logger.warning("no state file in %s, running without INA: %s", where, fault)
            return None

    # -- for training code -----------------------------------------------------------------------------------------
    def step_boundary(self) -> None:
        """Mark the next all-reduce as the first of a step. A job that calls this calls it at every step."""
        self._begins = self._has_steps = True

    def all_reduce(self, tensor: Any) -> Any:
        """Sum ``tensor`` over all ranks in place; returns a `torch.futures.Future` of [tensor]. The tensor must be
        contiguous and untouched until the future is done. All ranks issue the same operations in the same order, as
        gloo requires.

        Raises: TensorRejected: a tensor that gloo cannot sum, see `carried.rejection`; the runtime stays usable.
        ResourceClosed: after `close`; RuntimeError: an earlier one failed (a rank is gone).
        """
        check(tensor)
        with self._mutex:
            begins = self._begins or (self._since >= self._every and not self._has_steps)
            if begins:
                self._begins, self._since = False, 0
            self._since += 1
            watch = self._trace or (self._has_steps and self._collector.is_watching)
            requested_ns = time.monotonic_ns() if watch else 0
            if self._fault is not None or self._leave_s is not None:
                self._refuse()
            if self._has_steps:
                if begins and (pattern := self._collector.step()) is not None:
                    self._engine.show(pattern)
                self._collector.issued(tensor.nbytes, requested_ns)
            engine = self._engine
            if engine.is_quiet and not self._is_busy and not self._requested:
                if begins:
                    engine.agree()
                if engine.is_quiet:
                    future = engine.plain_now(flat(tensor) if tensor.is_complex() else tensor).get_future()
                    if begins and self._is_short():
                        engine.offer()
                    if watch:
                        self._watch(future, tensor.nbytes, requested_ns)
                    return future.then(lambda done: _as_asked(done, tensor)) if tensor.is_complex() else future
                if begins:
                    engine.offer()
                    begins = False
            future = torch.futures.Future()
            self._requested.append((tensor, future, begins, requested_ns or time.monotonic_ns()))
        self._trees.wake()
        return future

    @property
    def is_closed(self) -> bool:
        """No more operations are possible: closed, or a rank is gone."""
        return not self._thread.is_alive()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of what has a runtime has this one."""
        return self

    def __reduce__(self) -> tuple[type[AbsentRuntime], tuple[()]]:
        """What is loaded elsewhere has none."""
        return AbsentRuntime, ()

    def other_group(self) -> Any:
        """A gloo group for collectives outside of the runtime's order. Its first call is a collective."""
        if self._other is None:
            self._other = self._collectives.another()
        return self._other

    @property
    def timeline(self) -> Timeline:
        """When each operation ran, and how. A plain one may appear shortly after the end of its wait."""
        return self._engine.timeline

    @property
    def state(self) -> Any:
        """The rank's `RankState`, as the helper reads it from the state file."""
        with self._mutex:
            return self._engine.machine.state()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """After all requested operations, leave the tree together with all other ranks, waiting up to ``timeout_s`` for
        their close. Idempotent.
        """
        with self._mutex:
            if self._leave_s is None:
                self._leave_s = timeout_s
        self._trees.wake()
        self._thread.join()
        atexit.unregister(self._exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------------
    def _refuse(self) -> None:
        if self._fault is not None:
            raise RuntimeError(f"an earlier all-reduce failed: {self._fault}") from self._fault
        raise ResourceClosed("an all-reduce after the runtime's close")

    def _is_short(self) -> bool:
        """Whether the last step was too short for the thread to run in between."""
        began, self._began_s = self._began_s, time.monotonic()
        return self._began_s - began < 2 * _LOOK_S

    def _watch(self, future: Any, nbytes: int, requested_ns: int) -> None:
        index, step = self._engine.index - 1, self._engine.step

        def ended(_: Any) -> None:
            now = time.monotonic_ns()
            self._collector.complete(now)
            if self._trace:
                self._engine.timeline.add(Entry(index, step, nbytes, How.PLAIN, requested_ns, requested_ns, now))

        future.add_done_callback(ended)

    def _communicate(self) -> None:
        """The communication thread."""
        try:
            while self._turn():
                pass
        finally:
            self._trees.close()
            if self._state_file is not None:
                self._state_file.close()

    def _turn(self) -> bool:
        """Run one operation, or poll once; False: the thread ends."""
        with self._mutex:
            requested = self._requested.popleft() if self._requested else None
            self._is_busy = requested is not None
            leave_s = self._leave_s
        if requested is not None:
            return self._run(*requested)
        try:
            if leave_s is not None:
                self._engine.close(leave_s)
                return False
            self._trees.wait(_LOOK_S)
            with self._mutex:
                if not self._requested:
                    self._engine.idle()
        except Exception as fault:
            self._fail(fault)
            return False
        return True

    def _run(self, tensor: Any, future: Any, begins: bool, requested_ns: int) -> bool:
        try:
            if begins:
                self._engine.agree()
                self._engine.offer()
            self._engine.run(flat(tensor), requested_ns)
        except Exception as fault:
            future.set_exception(fault)
            self._fail(fault)
            return False
        self._collector.complete(time.monotonic_ns())
        future.set_result([tensor])
        return True

    def _fail(self, fault: Exception) -> None:
        """A rank is gone (gloo raises RuntimeError), or there is a bug here: fail all waiters, so that none hangs."""
        if not isinstance(fault, RuntimeError):
            logger.error("internal error in the communication thread; please report it", exc_info=fault)
        with self._mutex:
            self._fault = fault
            left, self._requested = self._requested, deque()
        for _, future, _, _ in left:
            future.set_exception(fault)

    def _exit(self) -> None:
        self.close(_EXIT_S)


def _as_asked(done: Any, tensor: Any) -> list[Any]:
    done.value()  # raises the operation's error
    return [tensor]


_named: Counter[str] = Counter()
"""Runtimes by group: a later runtime on the same group needs other names in the group's store."""


def _store(group: Any) -> Any:
    name = str(group.group_name)
    _named[name] += 1
    store = dist.distributed_c10d._get_process_group_store(group)
    return dist.PrefixStore(f"offpath-ina/{name}/{_named[name]}", store)
