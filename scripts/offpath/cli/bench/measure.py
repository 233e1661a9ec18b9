"""Shared by benchmarks: cores, background load, CPU time of processes, blocks of latencies, ratios."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from offpath.cli.local.child import end_with_parent

_PERIOD_S: Final = 0.010
_AVAILABLE: Final = frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that stand for the DPU and the host; None: not pinned."""

    dpu: int | None
    host: int | None
    spare: int | None = None
    """A third core, for a worker that busy-polls beside its requester."""

    @property
    def is_pinned(self) -> bool:
        """True if both roles have their own core."""
        return self.dpu is not None


def cores(*, pinned: bool) -> Cores:
    """The last core is the DPU, the first the host; with one core nothing is pinned."""
    available = sorted(os.sched_getaffinity(0))
    if not pinned or len(available) < 2:
        return Cores(None, None)
    return Cores(available[-1], available[0], available[1] if len(available) > 2 else None)


def pin(core: int | None) -> None:
    """Pin the calling process. None: let it run on every core that this program was started with."""
    os.sched_setaffinity(0, _AVAILABLE if core is None else {core})


@contextmanager
def realtime(pids: Sequence[int]) -> Iterator[bool]:
    """Give the processes SCHED_RR for the block's length; yields False if the system forbids it."""
    try:
        for pid in pids:
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
        yield True
    except PermissionError:
        yield False
    finally:
        for pid in pids:
            with suppress(PermissionError, ProcessLookupError):
                os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def machine() -> dict[str, Any]:
    """The machine's description."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "python": platform.python_version(), "python_is_optimised": _is_optimised(),
    }  # fmt: skip


def _is_optimised() -> bool:
    """Whether this interpreter was built with profile-guided optimisation; without it, it is slower. Distributions
    build theirs with it, which their recorded flags do not always show."""
    flags = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "--enable-optimizations" in flags or sysconfig.get_config_var("prefix") == "/usr"


def cpu_ns(pids: Sequence[int]) -> int:
    """User and system time of all threads of the processes, in ns (/proc/PID/task/*/schedstat)."""
    total = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def children(pid: int) -> list[int]:
    """Processes whose parent is ``pid``."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(p) for p in file.read().split()]


def fork(core: int | None, serve: Any) -> int:
    """Run ``serve()`` in a child that dies with this process; returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["OFFPATH_PARENT"] = str(os.getpid())
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pin(core)
        serve()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def end(pid: int, number: int = signal.SIGKILL, timeout_s: float = 10.0) -> None:
    """End a child and reap it."""
    deadline = time.monotonic() + timeout_s
    os.kill(pid, number)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


@contextmanager
def background_load(percent: int, host: int | None) -> Iterator[None]:
    """Keep the host core busy ``percent`` of the time, in periods of 10 ms (unpinned: one such process per core)."""
    if percent == 0:
        yield
        return
    targets = [host] if host is not None else [None] * len(os.sched_getaffinity(0))
    pids = [fork(core, lambda: _burn(percent)) for core in targets]
    time.sleep(0.05)
    try:
        yield
    finally:
        for pid in pids:
            end(pid)


@contextmanager
def burning(share: float) -> Iterator[None]:
    """Compute on so many cores, wherever the system puts it."""
    percents = [100] * int(share) + [round(100 * (share % 1))]
    pids = [fork(None, partial(_burn, percent)) for percent in percents if percent]
    try:
        yield
    finally:
        for pid in pids:
            end(pid)


def _burn(percent: int) -> None:
    busy = _PERIOD_S * percent / 100
    while True:
        start = time.perf_counter()
        while time.perf_counter() - start < busy:
            pass
        rest = _PERIOD_S - (time.perf_counter() - start)
        if percent < 100 and rest > 0:
            time.sleep(rest)


class CpuMeter:
    """CPU time from its creation, by role. The calling process is the role ``requester``."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._before = {role: cpu_ns(each) for role, each in pids.items()}
        self._own_ns = time.process_time_ns()  # /proc shows a running process's own time only up to its last tick

    def spent(self) -> dict[str, int]:
        """ns of each role."""
        own_ns = time.process_time_ns() - self._own_ns
        return {role: cpu_ns(each) - self._before[role] for role, each in self._pids.items()} | {"requester": own_ns}


@dataclass(slots=True)
class Block:
    """One uninterrupted run of requests against one setting."""

    latencies_ns: list[int]
    wall_ns: int
    host_cpu_ns: int
    """CPU time of the host's processes, without the requester, which stands for another machine."""
    stages: list[tuple[int, ...]] = field(default_factory=list)
    cpu_ns: dict[str, int] = field(default_factory=dict)
    """CPU time by role: ``daemon`` (or the floor's middle), ``worker``, ``helper``, ``requester``."""

    def percentile(self, q: float) -> float:
        """In µs."""
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e3

    @property
    def p50(self) -> float:
        """Median latency, µs."""
        return statistics.median(self.latencies_ns) / 1e3

    @property
    def p99(self) -> float:
        """99th percentile of this block, µs."""
        return self.percentile(0.99)

    @property
    def host_cpu_us(self) -> float:
        """Host CPU time per request, µs."""
        return self.host_cpu_ns / len(self.latencies_ns) / 1e3

    def cpu_us(self, role: str) -> float:
        """CPU time of the role per request, µs."""
        return self.cpu_ns[role] / len(self.latencies_ns) / 1e3

    @property
    def requests_per_s(self) -> float:
        """Answers per second of wall time."""
        return len(self.latencies_ns) / self.wall_ns * 1e9


@dataclass(slots=True)
class OtherWork:
    """What other processes took of the machine's cores while blocks ran; much of it makes a run worthless."""

    wall_ns: int = 0
    other_ns: int = 0
    stolen_ns: int = 0
    """By other virtual machines."""

    def cores(self) -> dict[str, float]:
        """As numbers of cores. The kernel counts in ticks, so a short run is inexact."""
        wall_ns = max(1, self.wall_ns)
        return {"other": round(max(0, self.other_ns) / wall_ns, 2), "stolen": round(self.stolen_ns / wall_ns, 2)}

    def measured(self, run: Callable[[], Block]) -> Block:
        """Run a block and count what was not its own."""
        begun_ns, (busy_ns, stolen_ns) = time.perf_counter_ns(), _machine_ns()
        block = run()
        ended_busy_ns, ended_stolen_ns = _machine_ns()
        self.wall_ns += time.perf_counter_ns() - begun_ns
        self.other_ns += ended_busy_ns - busy_ns - sum(block.cpu_ns.values())
        self.stolen_ns += ended_stolen_ns - stolen_ns
        return block


def _machine_ns() -> tuple[int, int]:
    """Busy and stolen time of all cores (/proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, irq, softirq, stolen = (int(word) for word in file.readline().split()[1:9])
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_ns, stolen * tick_ns


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median, min and max of the per-block ratios."""
    ratios = [a / b for a, b in zip(above, below, strict=True) if b]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios), "blocks": len(ratios)}
