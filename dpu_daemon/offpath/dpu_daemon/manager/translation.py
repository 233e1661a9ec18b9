"""Between the engines' port and the workload's records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite

from offpath.bindings.engines.port import Engine, EngineJob, NodeInfo, NodeState, PendingJob, Place, Start
from offpath.bindings.errors import EngineAnswerInvalid
from offpath.sched.topology import hostlist
from offpath.sched.topology.graph import TopologyError
from offpath.sched.workload.records import Held, Node, Report, Seen, Share, Work

_MOST_BYTES = 1 << 50


def expanded(hostlist_text: str) -> list[str]:
    """The names of a hostlist that an engine printed. Raises: EngineAnswerInvalid."""
    try:
        return hostlist.expand(hostlist_text)
    except TopologyError as fault:
        raise EngineAnswerInvalid(f"hostlist: {fault}") from None


def node_of(info: NodeInfo) -> Node:
    """A node; its GPUs' indices count from 0."""
    reason = info.reason or ("" if info.state is NodeState.READY else str(info.state))
    return Node(info.name, len(info.gpus), info.switch, info.state is NodeState.READY, reason)


def seen_of(job: EngineJob) -> Seen:
    """A job as the engine reports it."""
    shares = tuple([Share(place.node, place.gpu_count, place.gpus) for place in job.places])
    return Seen(job.identity, Report(str(job.state)), shares, job.exit_code, job.reason, job.has_begun)


def held_of(job: PendingJob) -> Held:
    """A held job. Its comment, ``model=NAME;data=BYTES;value=V`` in any order, is its submitter's: what is not valid in
    it counts as not given."""
    words = dict(part.strip().partition("=")[::2] for part in job.comment[:1024].split(";") if "=" in part)
    data, value = words.get("data", ""), words.get("value", "")
    nbytes = int(data) if data.isascii() and data.isdecimal() and len(data) < 17 else 0
    try:
        weight = float(value)
    except ValueError:
        weight = 1.0
    if not (isfinite(weight) and 0 < weight <= 1e9):
        weight = 1.0
    return Held(job.identity, job.user, job.gpus, words.get("model", "")[:64], min(nbytes, _MOST_BYTES), weight)


def places_of(work: Work, engine: Engine) -> tuple[Place, ...]:
    """Where the job goes; with indices if the engine follows them."""
    assert work.placed is not None
    named = engine.names_gpus
    return tuple([Place(each.node, each.count, each.gpus if named else ()) for each in work.placed.shares])


def start_of(work: Work, engine: Engine, switches: Mapping[str, str], nodes: Sequence[Node]) -> Start:
    """The order to start it. ``switches``: addresses for jobs, by switch."""
    assert work.placed is not None
    environment = dict(work.spec.environment) | placement_variables(work, switches, nodes)
    return Start(
        identity=work.identity, places=places_of(work, engine), argv=work.spec.argv, environment=environment,
        working_directory=work.spec.directory, output=work.spec.output, user=work.spec.user,
    )  # fmt: skip


def placement_variables(work: Work, switches: Mapping[str, str], nodes: Sequence[Node]) -> dict[str, str]:
    """What a job's processes learn of its placement, beside the engine's own variables:

    ``OFFPATH_WORKERS``: ``NODE:GPUS,…``, the nodes with workers in the order of their ranks; ``OFFPATH_PS_NODE``: node
    of the parameter server, empty if there is none; ``OFFPATH_INA``: 1 if switches may aggregate its packets, else 0;
    ``OFFPATH_SWITCHES``: JSON object of node and its leaf switch's address; ``OFFPATH_MODEL``;
    ``OFFPATH_DATA_BYTES``: gradients of an iteration as submitted, 0 for the model's.
    """
    placed = work.placed
    assert placed is not None
    leaf = {node.name: node.switch for node in nodes}
    reached = {share.node: switches.get(leaf.get(share.node, ""), "") for share in placed.shares}
    return {
        "OFFPATH_WORKERS": ",".join(f"{share.node}:{share.count}" for share in placed.shares if share.count),
        "OFFPATH_PS_NODE": placed.server,
        "OFFPATH_INA": str(int(placed.uses_ina)),
        "OFFPATH_SWITCHES": json.dumps({node: address for node, address in reached.items() if address}),
        "OFFPATH_MODEL": work.spec.model,
        "OFFPATH_DATA_BYTES": str(work.spec.data_bytes),
    }
