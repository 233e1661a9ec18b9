"""What the book should know of kernels, from the same facts; `shadow` asks it."""

from __future__ import annotations

from collections.abc import Mapping

from offpath.sched.jobs import events
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.service import KERNELS, ServiceTimes

from .shadow_records import Needs, ShadowJob, promise


class ShadowKernels:
    """``served`` by the helper that is or was here last, with their needs; ``gone``: since when nobody serves one."""

    def __init__(self) -> None:
        self.served: dict[int, Needs] = {}
        self.batching: dict[int, events.Batching] = {}
        self.sequential: set[int] = set()
        """Those that take requests of sequences only."""
        self.names: dict[int, str] = {}
        """Of every kernel that ever was."""
        self.gone: dict[int, int] = {}
        self.forgotten: set[int] = set()
        self.overdue: list[int] = []

    def joined(self, kernels: tuple[events.Kernel, ...], now_ns: int) -> None:
        former = set(self.served)
        self.served.clear()
        self.served.update((each.kernel, Needs(each.share, each.models, each.memory_bytes)) for each in kernels)
        self.batching = {each.kernel: each.batching for each in kernels if each.batching is not None}
        self.sequential = {each.kernel for each in kernels if each.sequences}
        self.names.update((kernel.kernel, kernel.name) for kernel in kernels)
        promise(not self.served.keys() & self.forgotten, "the world gives no number twice")
        for number in former - self.served.keys():
            self.gone.setdefault(number, now_ns)
        for number in self.served:
            self.gone.pop(number, None)

    def is_unlike(self, job: ShadowJob) -> bool:
        """True if the kernel takes sequences, and the job is of none; or the reverse."""
        return (job.event.kernel in self.sequential) is not (job.follows is not None)

    def lost(self, now_ns: int) -> None:
        for number in self.served:
            self.gone.setdefault(number, now_ns)

    def forget_overdue(self, limit_ns: int, now_ns: int) -> None:
        """Those that were without a helper for too long by now; what follows, the next event's judge takes up."""
        for number in [number for number, since_ns in self.gone.items() if limit_ns and since_ns + limit_ns <= now_ns]:
            del self.gone[number]
            self.served.pop(number, None)
            self.forgotten.add(number)
            self.overdue.append(number)

    def take_overdue(self) -> list[int]:
        taken, self.overdue = self.overdue, []
        return taken

    def explain(self, history: Mapping[int, ServiceTimes]) -> None:
        ever = self.served.keys() | self.gone.keys() | self.forgotten
        promise(history.keys() <= ever and len(history) <= KERNELS, f"a tenant's history has {list(history)}")

    def agrees(self, ledger: Ledger) -> None:
        promise(set(ledger.known) == self.served.keys() | self.gone.keys(), "the kernels known")
        promise(ledger.kernels.keys() == self.served.keys(), "the kernels accepted")
        promise(ledger.last_kernel >= max(self.forgotten, default=0), "the numbers of kernels only rise")
