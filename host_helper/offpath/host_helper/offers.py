"""Messages of a helper's supervisor about itself: its kernels, its GPUs, what it holds, and its shutdown."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pydantic import BaseModel

from offpath.bindings.mig import WHOLE
from offpath.bindings.ports import Gpu, HostConnection
from offpath.bindings.wire import control
from offpath.bindings.wire.fields import MAX_GPUS, MAX_LISTED
from offpath.bindings.wire.signatures import KernelSignature, parts
from offpath.host_helper.demands import needs
from offpath.host_helper.kernels import KernelTable

logger = logging.getLogger(__name__)

_LEAVE_S: Final = 5.0
_MOST_LINKS: Final = 64
"""`control.GpuLink` carries no more."""


def helper_hello(
    name: str, incarnation: str, table: KernelTable, gpus: int, held: int, needed: int, revision: int
) -> control.HelperHello:
    """The first message. The last four: how many GPUs, held instances and needs of kernels follow, and how often the
    process has reloaded its kernels. The signatures that follow are those of the table."""
    offers = kernel_offers(table)
    return control.HelperHello(
        name=name, pid=os.getpid(), kernels=offers[:MAX_LISTED], more_kernels=len(offers[MAX_LISTED:]), gpu_count=gpus,
        incarnation=incarnation, held_count=held, needs_count=needed, signature_count=len(signatures(table)),
        revision=revision,
    )  # fmt: skip


def take_leave(connection: HostConnection) -> None:
    """Announce the shutdown; the daemon closes the connection once none of its copies can land in the instances.
    Raises: PeerGone: it did.
    """
    connection.finish()
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    deadline = time.monotonic() + _LEAVE_S
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1e3):
            connection.receive()  # an order that crossed the goodbye: ignored
    logger.warning("the daemon did not close in time; scrubbing although a copy may be in flight")


def kernels_reloaded(table: KernelTable, gpus: Sequence[Gpu], revision: int) -> list[BaseModel]:
    """The messages about the kernels of a reload, in order."""
    needed = needs(table.kernels.values(), gpus)
    declared = signatures(table)
    offers = kernel_offers(table)
    first = control.KernelsReloaded(
        revision=revision, kernels=offers[:MAX_LISTED], more_kernels=len(offers[MAX_LISTED:]), needs_count=len(needed),
        signature_count=len(declared),
    )  # fmt: skip
    return [first, *kernel_messages(table, needed)]


def kernel_offers(table: KernelTable) -> list[control.KernelOffer]:
    """All kernels, with their R."""
    return [control.KernelOffer(name=kernel.name, demand=kernel.demand) for kernel in table.kernels.values()]


def kernel_messages(table: KernelTable, needed: Sequence[control.KernelNeeds]) -> list[BaseModel]:
    """What follows the first message about the kernels, in order: those for which it has no room, what they need, and
    their signatures, each in as many messages as it takes."""
    offers = kernel_offers(table)
    more = [
        control.MoreKernels(kernels=offers[at : at + MAX_LISTED]) for at in range(MAX_LISTED, len(offers), MAX_LISTED)
    ]
    return [*more, *needed, *(part for each in signatures(table) for part in parts(each))]


def signatures(table: KernelTable) -> list[KernelSignature]:
    """Those that kernels declare."""
    return [kernel.signature for kernel in table.kernels.values() if kernel.signature is not None]


def instance_held(order: control.OpenInstance, lanes: Iterable[tuple[int, int]]) -> control.InstanceHeld:
    """``lanes``: those that have a worker or get one, each with the number of its last renewal."""
    ordered = sorted(lanes)
    return control.InstanceHeld(
        lease=order.lease, generation=order.generation, lanes=[lane for lane, _ in ordered],
        renewals=[renewal for _, renewal in ordered],
    )  # fmt: skip


def instance_failed(order: control.OpenInstance, detail: str) -> control.InstanceFailed:
    """The order cannot be carried out."""
    return control.InstanceFailed(lease=order.lease, generation=order.generation, detail=detail[:500])


def gpu_offer(gpu: Gpu, offered: Collection[str] = ()) -> control.GpuOffer:
    """One GPU, with its geometry, and with its NVLinks to the GPUs ``offered`` by the same helper (UUIDs)."""
    model = gpu.model
    return control.GpuOffer(
        uuid=gpu.uuid, model=model.name, is_emulated=gpu.is_emulated,
        compute_slices=model.compute_slices, memory_slices=model.memory_slices,
        profiles=[
            control.ProfileInfo(
                name=p.name, compute_slices=p.compute_slices, memory_slices=p.memory_slices,
                memory_bytes=gpu.profile_bytes(p.name), starts=list(p.starts), max_instances=p.max_instances,
                rated_bytes=p.memory_bytes,
            )
            for p in model.profiles
        ],
        linked=_linked(gpu, offered),
    )  # fmt: skip


def _linked(gpu: Gpu, offered: Collection[str]) -> list[control.GpuLink]:
    """Only of a whole GPU: gangs have no others. The most links come first, so that a limit drops the fewest."""
    if [profile.name for profile in gpu.model.profiles] != [WHOLE]:
        return []
    reached = [(uuid, links) for uuid, links in gpu.links.items() if uuid in offered and uuid != gpu.uuid and links > 0]
    reached.sort(key=lambda one: (-one[1], one[0]))
    return [control.GpuLink(uuid=uuid, links=min(links, _MOST_LINKS)) for uuid, links in reached[: MAX_GPUS - 1]]
