"""Which leases the book may open, from the same facts; `shadow` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpath.sched.jobs.commands import OpenLease

from ..gpus import is_legal
from .shadow_records import ShadowLease, promise

if TYPE_CHECKING:
    from .shadow import Shadow


def judge_open(shadow: Shadow, command: OpenLease) -> None:
    """A lease may be opened there."""
    gpu = shadow.gpus.get(command.gpu)
    promise(gpu is not None and command.helper == shadow.helper, f"{command}: no helper offers that GPU")
    assert gpu is not None
    profile = gpu.profile(command.profile)
    promise(profile is not None, f"{command}: no such profile")
    assert profile is not None
    promise(command.generation > shadow.generation, f"{command}: generations rise")
    shadow.generation = command.generation
    slices, count = range(command.start, command.start + profile.memory_slices), 1 + len(command.others)
    alpha = gpu.alpha(profile) if count == 1 else 100 * count
    new = ShadowLease(command, alpha, slices, gpu.model, count * profile.memory_bytes)
    _judge_gpus(shadow, new)
    has_memory = any(kernel.memory_bytes for kernel in shadow.kernels.values())
    promise(new.has_allowed_lanes(shadow.settings, may_be_few=has_memory), "lanes fit")
    shadow.seen["fewer lanes for memory"] += command.lanes < shadow.settings.lanes
    dirty = {shadow.dirty[place] for place in new.places & shadow.dirty.keys()}
    promise(command.scrub_first or not dirty, f"{command}: what {dirty} left there was never confirmed scrubbed")
    held_share = sum(held.alpha for held in shadow.leases.values() if held.opened.tenant == command.tenant)
    spec = shadow.tenants[command.tenant]
    promise(held_share + new.alpha <= spec.max_share, f"{command}: more than max_share {spec.max_share}")
    promise(command.tenant not in shadow.removed, f"{command}: for a tenant that was removed")
    new.since_ns = shadow.now_ns
    new.code = dict.fromkeys(range(command.lanes), frozenset(shadow.kernels))
    shadow.leases[command.lease] = new
    shadow.seen["scrub first" if command.scrub_first else "lease creating"] += 1


def _judge_gpus(shadow: Shadow, new: ShadowLease) -> None:
    promise(len(set(new.gpus)) == len(new.gpus), f"{new.opened}: a GPU twice")
    for name in new.gpus:
        gpu = shadow.gpus.get(name)
        promise(gpu is not None and gpu.model == new.model, f"{new.opened}: {name} is not there, or another model")
        assert gpu is not None
        there = [held for held in shadow.leases.values() if name in held.gpus]
        for held in there:
            promise(not held.places & new.places, f"{new.opened}: overlaps lease {held.opened.lease}")
        cut = [(held.opened.profile, held.opened.start) for held in (*there, new)]
        promise(is_legal(gpu, cut), f"{new.opened}: MIG forbids {cut}")
    promise(len(new.gpus) == 1 or new.opened.profile == "whole", f"{new.opened}: a gang of instances")
    shadow.seen["gang"] += len(new.gpus) > 1
