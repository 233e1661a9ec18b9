"""An event loop with a virtual clock whose every choice is drawn from a seed.

A real loop runs ``call_soon`` callbacks first in, first out, timers in the order they fall due, and leaves open in
which order descriptors become ready, which of two timers of the same instant goes first, and how all of that mixes
with what other processes do meanwhile. This one keeps what a real one keeps and draws the rest: each step runs the
head of the ``call_soon`` queue, a due timer (the earliest; among equals any), the callback of any ready descriptor, or
one action of the world outside. Nothing ready: the clock moves on to the next timer. Nothing scheduled: at rest.

Descriptors are numbers that the world hands out and flags readable or writable; no system call is made. Threads do not
exist: a function given to an executor is swapped for the world's (`executor`), and ends as one more action outside.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

FIRST_FD = 1_000_000
"""No descriptor of the process has such a number: closing one by mistake fails."""


class LoopFault(AssertionError):
    """The code under test broke a rule of event loops, or a callback of its raised."""


class Handle:
    """What `call_soon`, `call_later` and `add_reader` return."""

    __slots__ = ("args", "callback", "is_cancelled", "when_ns")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], when_ns: int = 0) -> None:
        self.callback = callback
        self.args = args
        self.when_ns = when_ns
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_ns / 1e9

    def __str__(self) -> str:
        called = getattr(self.callback, "func", self.callback)  # a partial's own name has addresses in it
        return getattr(called, "__qualname__", type(called).__name__)


class SimLoop(asyncio.AbstractEventLoop):
    """`step` runs one callback; the world outside shows what it could do in ``outside``, by key."""

    def __init__(self, random: Random, pace: float = 0.6, step_ns: int = 2_000) -> None:
        """``pace``: how often the loop goes first when the world could act too; ``step_ns``: how long a step takes."""
        self.random = random
        self.pace = pace
        self.step_ns = step_ns
        self.now_ns = 1_000_000_000
        self.steps = 0
        self.outside: dict[Any, Callable[[], None]] = {}
        self.certain: set[int] = set()
        """Descriptors that are never ready without a reason."""
        self.executor: dict[Any, Callable[..., Any]] = {}
        self.trace: Callable[[str], None] | None = None
        self._soon: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._later: list[tuple[int, int, Any, Callable[[], None]]] = []
        self._sequence = 0
        self._next_fd = FIRST_FD
        self._open: set[int] = set()
        self._flags: set[tuple[int, bool]] = set()
        self._watches: dict[tuple[int, bool], Handle] = {}
        self._ready: dict[tuple[int, bool], Handle] = {}

    # -- one step -------------------------------------------------------------------------------------------------
    def step(self) -> bool:
        """Run one callback or action; False: nothing is left to run, now or later."""
        self.now_ns += self.step_ns
        while True:
            self._wake_outside()
            ours = self._choices()
            theirs = self.outside
            if ours or theirs:
                break
            next_ns = self._next_ns()
            if next_ns is None:
                return False
            self.now_ns = max(self.now_ns, next_ns)
        self.steps += 1
        random = self.random.random
        if ours and (not theirs or random() < self.pace):
            kind, handle = ours[int(random() * len(ours))]
            if kind == "soon":
                self._soon.popleft()
            elif kind != "ready":
                self._timers.remove(kind)
                heapq.heapify(self._timers)
            if self.trace is not None:
                self.trace(f"loop: {handle}")
            self._run(handle)
        else:
            key = list(theirs)[int(random() * len(theirs))]
            theirs.pop(key)()
        return True

    def _choices(self) -> list[tuple[Any, Handle]]:
        self._drop_cancelled()
        soon, timers = self._soon, self._timers
        out: list[tuple[Any, Handle]] = [("ready", handle) for handle in self._ready.values()]
        if soon:
            out.append(("soon", soon[0]))
        if timers and timers[0][0] <= self.now_ns:
            first = timers[0][0]
            out += [(entry, entry[2]) for entry in timers if entry[0] == first and not entry[2].is_cancelled]
        return out

    def _drop_cancelled(self) -> None:
        """So that the first of each queue is one that may run."""
        soon, timers = self._soon, self._timers
        while soon and soon[0].is_cancelled:
            soon.popleft()
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)

    def _run(self, handle: Handle) -> None:
        asyncio._set_running_loop(self)
        try:
            handle.callback(*handle.args)
        finally:
            asyncio._set_running_loop(None)

    def running(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call ``function`` as if from a callback: what makes the daemon asks for the running loop."""
        asyncio._set_running_loop(self)
        try:
            return function(*args, **named)
        finally:
            asyncio._set_running_loop(None)

    def _next_ns(self) -> int | None:
        times = [heap[0][0] for heap in (self._timers, self._later) if heap]
        return min(times) if times else None

    # -- the world outside ----------------------------------------------------------------------------------------
    def after(self, delay_ns: int, key: Any, action: Callable[[], None]) -> None:
        """In ``delay_ns`` the world may do ``action``."""
        self._sequence += 1
        heapq.heappush(self._later, (self.now_ns + max(0, delay_ns), self._sequence, key, action))

    def _wake_outside(self) -> None:
        while self._later and self._later[0][0] <= self.now_ns:
            _, number, key, action = heapq.heappop(self._later)
            self.outside[key, number] = action

    def sleeps_past(self) -> int | None:
        """When the loop's own next timer fires, if nothing of its is ready now and it has one."""
        self._drop_cancelled()
        timers = self._timers
        if self._soon or self._ready or self.outside or (timers and timers[0][0] <= self.now_ns):
            return self.now_ns
        return timers[0][0] if timers else None

    def is_idle(self) -> bool:
        """Nothing is ready, and the world has nothing in store: only timers are left."""
        return not (self._soon or self._ready or self.outside or self._later)

    def timers(self) -> list[Handle]:
        """Those that were not cancelled."""
        return [handle for *_, handle in self._timers if not handle.is_cancelled]

    # -- descriptors ----------------------------------------------------------------------------------------------
    def open_fd(self) -> int:
        """A new descriptor, neither readable nor writable."""
        self._next_fd += 1
        self._open.add(self._next_fd)
        return self._next_fd

    def close_fd(self, fd: int) -> None:
        """A real loop goes wrong when a descriptor that it watches is closed, and when its number comes again."""
        for key in ((fd, False), (fd, True)):
            if key in self._watches:
                raise LoopFault(f"descriptor {fd} was closed while it is watched for {self._watches[key]}")
            self._flags.discard(key)
        self._open.discard(fd)

    def open_fds(self) -> int:
        return len(self._open)

    def watched(self) -> list[int]:
        return [fd for fd, _ in self._watches]

    def flag(self, fd: int, is_ready: bool, *, writable: bool = False) -> None:
        """The world says that ``fd`` is (no longer) readable, or writable."""
        key = (fd, writable)
        if not is_ready or fd not in self._open:
            self._flags.discard(key)
            self._ready.pop(key, None)
        elif key not in self._flags:
            self._flags.add(key)
            if key in self._watches:
                self._ready[key] = self._watches[key]

    def _watch(self, key: tuple[int, bool], handle: Handle) -> None:
        if key[0] not in self._open:
            raise LoopFault(f"{handle} is to watch descriptor {key[0]}, which is closed")
        self._unwatch(key)
        self._watches[key] = handle
        if key in self._flags:
            self._ready[key] = handle

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch((fd, False), Handle(callback, args))

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch((fd, True), Handle(callback, args))

    def _unwatch(self, key: tuple[int, bool]) -> bool:
        self._ready.pop(key, None)
        handle = self._watches.pop(key, None)
        if handle is not None:
            handle.cancel()  # it may be queued
        return handle is not None

    def remove_reader(self, fd: Any) -> bool:
        return self._unwatch((fd, False))

    def remove_writer(self, fd: Any) -> bool:
        return self._unwatch((fd, True))

    # -- callbacks and futures ------------------------------------------------------------------------------------
    def time(self) -> float:
        return self.now_ns / 1e9

    def clock_ns(self) -> int:
        """The daemon's monotonic clock."""
        return self.now_ns

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args)
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self._call_at_ns(self.now_ns + round(delay * 1e9), callback, args)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self._call_at_ns(round(when * 1e9), callback, args)

    def _call_at_ns(self, when_ns: int, callback: Callable[..., Any], args: tuple[Any, ...]) -> Handle:
        handle = Handle(callback, args, when_ns)
        self._sequence += 1
        heapq.heappush(self._timers, (when_ns, self._sequence, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        stand_in = self.executor.get(func)
        if stand_in is None:
            raise LoopFault(f"{func} wants a thread, and there are none here")
        future = self.create_future()

        def work() -> None:
            try:
                made = stand_in(*args)
            except Exception as fault:
                future.set_exception(fault)
                future.exception()  # a daemon that is killed before it asks leaves nobody to complain to
            else:
                future.set_result(made)

        self._sequence += 1
        self.outside["executor", self._sequence] = work
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise LoopFault(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def forget_daemon(self) -> None:
        """The process on this loop was killed: its callbacks, timers and watches are no more."""
        for key in [key for key in self.outside if isinstance(key, tuple) and key[0] == "executor"]:
            del self.outside[key]
        self._soon.clear()
        self._timers.clear()
        self._watches.clear()
        self._ready.clear()

    def wake_somebody(self) -> None:
        """A watched descriptor is called ready that is not, as may happen to sockets (to a pidfd it does not)."""
        keys = [key for key in self._watches if key[0] not in self.certain]
        if keys:
            handle = self._watches[keys[int(self.random.random() * len(keys))]]
            self._soon.append(handle)
