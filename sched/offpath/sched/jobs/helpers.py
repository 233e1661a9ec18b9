"""The helpers that a daemon serves: for each name its connection, its GPUs and its kernels.

A helper is known by its name. The same name joining again is the same helper under a new number. After a loss its
kernels stay known, so that requests for them are accepted and wait for its return.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import HelperNames
from offpath.sched.jobs import events
from offpath.sched.jobs.demands import Instances, instances_of, union

MOST_FORMER: Final = 64
"""Helpers without a connection that are remembered. Beyond it the one that left first is forgotten."""


@dataclass(slots=True, eq=False)
class KnownKernel:
    """A kernel's number and name, its demand R in percent of a GPU, and the time since which no helper serves it."""

    kernel: int
    name: str
    share: int
    is_served: bool = True
    gone_ns: int = 0


@dataclass(slots=True, eq=False)
class Helper:
    """A helper by name. ``number``: of its connection, never reused; 0: it is not connected, and ``gpus`` is empty.
    ``origin``: the shell's identifier of its process. ``instances``: those that leases on its GPUs may have.
    ``lost_gpus``: those of ``gpus`` that need a reset. ``revision``: how often this process has reloaded its
    kernels."""

    name: str
    number: int
    origin: str
    gpus: tuple[GpuSpec, ...]
    instances: Instances
    kernels: tuple[events.Kernel, ...]
    lost_gpus: tuple[str, ...] = ()
    revision: int = 0

    @property
    def usable_gpus(self) -> list[GpuSpec]:
        """Its GPUs without the lost ones."""
        return [gpu for gpu in self.gpus if gpu.gpu not in self.lost_gpus]


class Helpers:
    """The helpers by name, connected and former ones, in the order in which they joined or were lost."""

    def __init__(self) -> None:
        self.by_name: dict[str, Helper] = {}
        self.last = 0
        """The largest number ever used."""
        self.instances: dict[HelperNames, Instances] = {(): Instances()}
        """The instances that leases may have on the GPUs of these helpers; without names: of all. Former ones count if
        none of them is connected. For every value of ``only_on``."""
        self.only_on: dict[int, HelperNames] = {}
        """The only helpers whose GPUs can run a kernel, for each that not all connected helpers serve."""
        self.kernels: dict[int, events.Kernel] = {}
        """The kernels that requests may name: those of connected helpers and of former ones. A kernel of several
        helpers needs as much as the most demanding of them states; see `_of_one_kind`."""

    def joined(self, event: events.HelperJoined, instances: Instances) -> Helper:
        """Record the helper, which replaces the former one of its name."""
        gpus = tuple([replace(gpu, helper=event.name) for gpu in event.gpus])
        helper = Helper(event.name, event.helper, event.origin, gpus, instances, event.kernels, revision=event.revision)
        self.by_name.pop(event.name, None)
        self.by_name[event.name] = helper
        self.last = max(self.last, event.helper)
        self._changed()
        return helper

    def reloaded(self, event: events.KernelsReloaded) -> Helper | None:
        """The helper serves other kernels on the same GPUs. None: none has this number."""
        helper = self.connection(event.helper)
        if helper is None:
            return None
        helper.kernels, helper.revision = event.kernels, event.revision
        self._changed()
        return helper

    def lost(self, number: int, lease_bytes: int) -> Helper | None:
        """Mark the helper as not connected; its GPUs are gone. Returns it as it was; None: none has this number. Lost
        GPUs may return with it."""
        helper = self.connection(number)
        if helper is None:
            return None
        del self.by_name[helper.name]
        instances = instances_of(helper.gpus, lease_bytes) if helper.lost_gpus else helper.instances
        former = replace(helper, number=0, origin="", gpus=(), instances=instances, lost_gpus=())
        self.by_name[helper.name] = former
        away = [name for name, each in self.by_name.items() if not each.number]
        for name in away[: max(0, len(away) - MOST_FORMER)]:
            del self.by_name[name]
        self._changed()
        return helper

    def gpu_lost(self, helper: Helper, gpu: str, lease_bytes: int) -> None:
        """Mark a GPU of the helper as lost: no lease may be on it."""
        helper.lost_gpus = (*helper.lost_gpus, gpu)
        helper.instances = instances_of(helper.usable_gpus, lease_bytes)
        self._changed()

    def lost_gpus(self, number: int) -> tuple[str, ...]:
        """The GPUs of the connected helper of this number that need a reset."""
        helper = self.connection(number)
        return helper.lost_gpus if helper is not None else ()

    def connection(self, number: int) -> Helper | None:
        """The connected helper of this number, or None."""
        return next((each for each in self.by_name.values() if each.number == number), None) if number else None

    @property
    def connected(self) -> list[Helper]:
        """The connected helpers, in the order in which they joined."""
        return [each for each in self.by_name.values() if each.number]

    def served(self) -> set[int]:
        """The kernels that a connected helper serves."""
        return {kernel.kernel for each in self.connected for kernel in each.kernels}

    def forget(self, numbers: set[int]) -> None:
        """These kernels are forgotten; no connected helper serves them. Former helpers without a kernel are forgotten
        too."""
        for helper in [each for each in self.by_name.values() if not each.number]:
            helper.kernels = tuple([kernel for kernel in helper.kernels if kernel.kernel not in numbers])
            if not helper.kernels:
                del self.by_name[helper.name]
        self._changed()

    def restored(self, helpers: list[Helper], last: int) -> None:
        """Load a saved state."""
        self.by_name = {each.name: each for each in helpers}
        self.last = last
        self._changed()

    def known_instances(self, kernel: int) -> Instances | None:
        """The instances that leases for the kernel may have. None: no GPU of its helpers is known."""
        names = self.only_on.get(kernel, ())
        found = self.instances[names]
        return found if found.alphas or any(each.gpus for each in self._those(names)) else None

    def _those(self, names: HelperNames) -> list[Helper]:
        """Those that are connected, or else the former ones."""
        those = [each for each in self.by_name.values() if not names or each.name in names]
        return [each for each in those if each.number] or those

    def _changed(self) -> None:
        """Derive what is looked up for each request, in the tables that the ledger holds."""
        helpers = [*self.connected, *(each for each in self.by_name.values() if not each.number)]
        servers: dict[int, list[Helper]] = {}
        for helper in helpers:
            for kernel in helper.kernels:
                servers.setdefault(kernel.kernel, []).append(helper)
        servers = {number: _of_one_kind(number, those) for number, those in servers.items()}
        self.kernels.clear()
        self.kernels.update((number, _offered(number, those)) for number, those in servers.items())
        connected = {each.name for each in helpers if each.number}
        self.only_on = {
            number: tuple(sorted(each.name for each in those))
            for number, those in servers.items()
            if not connected <= {each.name for each in those}
        }
        self.instances = {
            names: union(each.instances for each in self._those(names)) for names in {(), *self.only_on.values()}
        }


def _of_one_kind(number: int, helpers: list[Helper]) -> list[Helper]:
    """Those to which the kernel's jobs may go; of the connected ones if there are any. A job cannot fit both of two
    that disagree. So if one takes sequences, only those that take them serve the kernel; while none is connected, the
    one that left last decides. And if some state a part of a GPU for it and others a gang: those that state a part."""
    helpers = _alike(number, helpers)

    def needs_gang(helper: Helper) -> bool:
        return any(
            share > 100
            for kernel in helper.kernels
            if kernel.kernel == number
            for share in (kernel.share, *[on_model for _, on_model in kernel.models])
        )

    asked = [each for each in helpers if each.number] or helpers
    is_gangs = all(needs_gang(each) for each in asked)
    return [each for each in helpers if needs_gang(each) is is_gangs]


def _alike(number: int, helpers: list[Helper]) -> list[Helper]:
    """Those that take sequences, or those that take none. ``helpers``: former ones in the order in which they left."""
    asked = [each for each in helpers if each.number] or helpers[-1:]
    takes = any(takes_sequences(each, number) for each in asked)
    return [each for each in helpers if takes_sequences(each, number) is takes]


def takes_sequences(helper: Helper, number: int) -> bool:
    """True if the helper's kernel of this number takes requests of sequences only."""
    return any(kernel.sequences for kernel in helper.kernels if kernel.kernel == number)


def _offered(number: int, helpers: list[Helper]) -> events.Kernel:
    """The kernel as those that are connected offer it, or else as former ones did: for each GPU model the largest R,
    the largest memory, and the smallest batches. It accepts every model if one of them does."""
    asked = [each for each in helpers if each.number] or helpers
    offers = [kernel for each in asked for kernel in each.kernels if kernel.kernel == number]
    first = max(offers, key=lambda kernel: kernel.share)
    if len(offers) == 1:
        return first
    models: dict[str, int] = {}
    for model, share in [each for kernel in offers for each in kernel.models]:
        models[model] = max(share, models.get(model, 0))
    table = tuple(sorted(models.items())) if all(kernel.models for kernel in offers) else ()
    share = min(models.values()) if table else max([kernel.share for kernel in offers] + list(models.values()))
    memory_bytes = max(kernel.memory_bytes for kernel in offers)
    return replace(
        first,
        share=share,
        models=table,
        memory_bytes=memory_bytes,
        batching=_batching(offers),
        streams=any(kernel.streams for kernel in offers),
    )


def _batching(offers: list[events.Kernel]) -> events.Batching | None:
    """A batch may run on any of the helpers: of the smallest size, and only if all of them batch."""
    each = [kernel.batching for kernel in offers if kernel.batching is not None]
    if len(each) < len(offers):
        return None
    return min(each, key=lambda batching: (batching.max_rows, batching.delay_ns, batching.preferred))
