"""Whether a placement fits the free GPUs, and which indices it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from offpath.sched.workload.records import Placed, Share, Work


def with_indices(shares: tuple[Share, ...], seen: tuple[Share, ...]) -> tuple[Share, ...]:
    """The shares with the GPU indices that the engine chose."""
    found: Mapping[str, tuple[int, ...]] = {share.node: share.gpus for share in seen}
    return tuple(
        [
            replace(each, gpus=found[each.node]) if len(found.get(each.node, ())) == each.count else each
            for each in shares
        ]
    )


def fault(work: Work, placed: Placed, free: Mapping[str, list[int]]) -> str:
    """Why the placement cannot be carried out; empty: it can."""
    names = [share.node for share in placed.shares]
    if len(set(names)) < len(names) or sum(share.count for share in placed.shares) != work.spec.gpus:
        return f"the policy's answer does not have the job's {work.spec.gpus} GPUs, each node once"
    if placed.server and placed.server not in names:
        return "the policy's answer has no share on the parameter server's node"
    for share in placed.shares:
        if share.count < 0 or (not share.count and share.node != placed.server):
            return f"the policy's answer has {share.count} GPUs on {share.node}"
        if share.node not in free:
            return f"{share.node} left while the batch was decided"
        if share.count > len(free[share.node]):
            return f"{share.node} has {len(free[share.node])} free GPUs now, not {share.count}"
    return ""


def taken(placed: Placed, free: dict[str, list[int]]) -> Placed:
    """The placement with GPU indices, taken from ``free``."""
    shares = []
    for share in placed.shares:
        indices, free[share.node] = free[share.node][: share.count], free[share.node][share.count :]
        shares.append(replace(share, gpus=tuple(indices)))
    return replace(placed, shares=tuple(shares))
