"""Reads the JSON and the text of Slurm's commands: `squeue --json`, `sinfo --json`, `scontrol show topology`.

JSON, because a job's own text cannot forge another job's line in it. Slurm 22.05 writes numbers and one state; later
releases write ``{"number": …}`` and lists of states. Both are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from offpath.bindings.engines import slurm_gres as gres
from offpath.bindings.engines.port import EngineJob, Gpu, JobState, NodeInfo, NodeState, PendingJob, Place, bounded
from offpath.bindings.errors import EngineAnswerInvalid, EngineUnavailable

Expand = Callable[[str], Sequence[str]]
"""From a hostlist to its names."""
MOST_NAMES: Final = 1_000_000
"""Of all hostlists of one answer of Slurm."""
MARK: Final = "offpath:"
"""Begins the comment of a job of the controller, ``offpath:IDENTITY:NONCE``, and the administrator's comment of a held
one, ``offpath:held:UUID``; job_submit.lua keeps users from both."""
FORGOTTEN, RAN_BEFORE = 118, 119
"""Exit codes of the job's script before its command (see `slurm_script`)."""
_OURS: Final = re.compile(r"offpath:([A-Za-z0-9][A-Za-z0-9._-]{0,63}):([0-9a-f]{16})")
_HELD: Final = re.compile(r"offpath:held:([0-9a-f-]{36})")
_UNFINISHED: Final = {
    "PENDING",
    "CONFIGURING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
_RUNNING: Final = {"RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "RESIZING", "SIGNALING"}
_LOST: Final = {"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"}
_CLOSED: Final = {"DRAIN", "FAIL", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED",
                  "POWERING_DOWN", "POWER_DRAIN", "BLOCKED", "INVALID_REG"}  # fmt: skip
_NO_CONTACT: Final = {"DOWN", "ERROR", "FUTURE"}
_SILENT: Final = {"NOT_RESPONDING", "NO_RESPOND"}
_STARTABLE: Final = {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}
"""Slurm starts such a node for a job. Until it has registered, its slurmd does not answer."""
_POWER: Final = {*_STARTABLE, "POWERING_DOWN"}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of squeue that is the controller's or held. ``leader``: the id by which all its components are addressed.
    ``offset``: of a component of a heterogeneous job. ``raw_exit``: as of waitpid(2). ``is_unreleased``: its priority
    is 0, also after a cancellation."""

    identity: str
    nonce: str
    leader: int
    offset: int
    state: str
    reason: str
    is_unreleased: bool
    places: tuple[Place, ...]
    raw_exit: int
    user: str
    nodes: int
    gpus_per_node: int
    gpus_in_all: int
    model: str
    comment: str

    @property
    def is_held(self) -> bool:
        """It waits for its release."""
        return self.is_unreleased and self.state == "PENDING"

    @property
    def was_surplus(self) -> bool:
        """Cancelled before its release, as the younger of two submissions of a job is."""
        return self.is_unreleased and self.state == "CANCELLED" and not self.is_plain

    @property
    def is_plain(self) -> bool:
        """A user submitted it straight to Slurm."""
        return not self.nonce

    @property
    def is_unfinished(self) -> bool:
        """Slurm may still run it, or it runs."""
        return self.state in _UNFINISHED | _RUNNING

    @property
    def never_ran(self) -> bool:
        """Its script ended before the command: Slurm had forgotten this start."""
        return not self.is_plain and self.state == "FAILED" and self.raw_exit >> 8 == FORGOTTEN


def jobs(text: bytes, expand: Expand) -> list[SlurmJob]:
    """The controller's and the held jobs of `squeue --json`. Raises: EngineAnswerInvalid, EngineUnavailable, and what
    ``expand`` raises."""
    within = _within(expand)
    return [job for each in _list(text, "jobs") if (job := _job(each, within)) is not None]


def nodes(text: bytes, switches: dict[str, str]) -> tuple[NodeInfo, ...]:
    """The nodes of `sinfo --json`, sorted. ``switches``: node → leaf switch. One whose Gres cannot be read is drained,
    with the reason. Raises: EngineAnswerInvalid, EngineUnavailable."""
    found = {}
    for each in _list(text, "nodes"):
        name = _text(each, "name")
        known, reason = _standing(each)
        try:
            gpus = _gpus(_text(each, "gres"))
        except EngineAnswerInvalid as fault:
            gpus = ()
            if known is NodeState.READY:
                known, reason = NodeState.DRAINED, bounded(str(fault))
        found[name] = NodeInfo(name, gpus, switches.get(name, ""), known, reason)
    return tuple(found[name] for name in sorted(found))


def _standing(each: dict[str, Any]) -> tuple[NodeState, str]:
    """A node's state, and the reason where it takes no jobs."""
    state = _node_states(each)
    down = state & {*_NO_CONTACT, "UNKNOWN", *(_SILENT if not state & _STARTABLE else ())}
    closed = state & _CLOSED
    if not (down or closed):
        return NodeState.READY, ""
    reason = bounded(_text(each, "reason")) or f"Slurm: {', '.join(sorted(down or closed))}"
    return (NodeState.DOWN if down else NodeState.DRAINED), reason


def given(text: bytes) -> dict[str, int]:
    """How many GPUs slurmctld counts as given, by node of `sinfo --json`. Left out: nodes that did not register since
    slurmctld was started, and those that it powers up or down: it counts all GPUs of a job on each of the job's nodes
    until they register. Also nodes whose text cannot be read; `nodes` reports them."""
    unknown = unregistered(text)
    found = {}
    for each in _list(text, "nodes"):
        name = _text(each, "name")
        if name not in unknown and not _node_states(each) & _POWER:
            with contextlib.suppress(EngineAnswerInvalid):
                found[name] = gres.count(_text(each, "gres_used"))
    return found


def occupied(text: bytes) -> Counter[str]:
    """How many GPUs the jobs of `squeue --json` have, by node; jobs of all users, as far as squeue shows them. A text
    that cannot be read counts as all that a node can have."""
    found: Counter[str] = Counter()
    for each in _list(text, "jobs"):
        if not _states(each, "job_state") & {*_RUNNING, "SUSPENDED", "CONFIGURING"}:
            continue
        resources = each.get("job_resources")
        names = _nodes_of(resources) if isinstance(resources, dict) else []
        for name, detail in zip(names, _strings(each.get("gres_detail")), strict=False):
            try:
                found[name] += gres.count(detail)
            except EngineAnswerInvalid:
                found[name] += gres.MOST_GPUS
    return found


def unregistered(text: bytes) -> set[str]:
    """Nodes of `sinfo --json` that did not register since slurmctld was started, and that it did not give up.

    The state of most is UNKNOWN. One that had a job when slurmctld wrote its state has the state of then, but no start
    time of its slurmd, which only a registration brings.
    """
    found = set()
    for each in _list(text, "nodes"):
        state = _node_states(each)
        has_registered = "slurmd_start_time" not in each or _number(each, "slurmd_start_time") > 0
        if "UNKNOWN" in state or not (has_registered or state & (_CLOSED | _NO_CONTACT | _POWER)):
            found.add(_text(each, "name"))
    return found


def topology(text: str) -> str:
    """`scontrol show topology` as topology.conf(5): without what the file must not have, and a switch's nodes only
    where it is a leaf."""
    lines = []
    for line in text.splitlines():
        words = [word for word in line.split() if re.match(r"(SwitchName|Nodes|Switches|BlockName)=.", word)]
        if any(word.startswith("Switches=") for word in words):
            words = [word for word in words if not word.startswith("Nodes=")]
        if words:
            lines.append(" ".join(words))
    return "".join(f"{line}\n" for line in lines)


def leaves(conf: str, expand: Expand) -> dict[str, str]:
    """Node → leaf switch or block, of `topology`'s text. Raises: what ``expand`` raises."""
    found: dict[str, str] = {}
    expand = _within(expand)
    for line in conf.splitlines():
        words = dict(word.split("=", 1) for word in line.split())
        if "Nodes" in words:
            name = words.get("SwitchName") or words.get("BlockName", "")
            found |= dict.fromkeys(expand(words["Nodes"]), name)
    return found


def _within(expand: Expand) -> Expand:
    """As ``expand``, for all lists of one answer."""
    left = [MOST_NAMES]

    def within(text: str) -> Sequence[str]:
        names = expand(text)
        left[0] -= len(names)
        if left[0] < 0:
            raise EngineAnswerInvalid(f"the hostlists of Slurm's answer have more than {MOST_NAMES} names")
        return names

    return within


def held(job: SlurmJob) -> PendingJob:
    """A plain job that waits for its places."""
    gpus = job.gpus_in_all or job.gpus_per_node * job.nodes
    return PendingJob(
        job.identity, str(job.leader), job.user, job.nodes, gpus, job.gpus_per_node, job.model, bounded(job.comment)
    )


def merged(components: Sequence[SlurmJob]) -> EngineJob:
    """One submission: its components, the leader first, as a job of the port."""
    leader = components[0]
    state, code, reason = _outcome(leader)
    places = tuple(place for each in components for place in each.places)
    return EngineJob(leader.identity, str(leader.leader), state, places, code, reason, not leader.never_ran)


def _outcome(job: SlurmJob) -> tuple[JobState, int | None, str]:
    if job.is_held:
        return JobState.PENDING, None, "held in Slurm: start it again" if not job.is_plain else "held until placed"
    if job.state in _UNFINISHED:
        return JobState.PENDING, None, job.reason
    if job.state in _RUNNING:
        return JobState.RUNNING, None, ""
    if job.state in _LOST:
        return JobState.LOST, None, f"Slurm: {job.state}" + (f", {job.reason}" if job.reason else "")
    if job.state == "CANCELLED":
        return JobState.CANCELLED, None, job.reason
    code = os.waitstatus_to_exitcode(job.raw_exit & 0xFFFF)
    if not job.is_plain and code == RAN_BEFORE:
        return JobState.LOST, None, "it ran before; its outcome is unknown"
    if job.never_ran:
        return JobState.LOST, None, "slurmctld forgot this start before the command ran: start it again"
    if job.state == "COMPLETED":
        return JobState.SUCCEEDED, code, ""
    return JobState.FAILED, code, "" if job.state == "FAILED" and code else f"Slurm: {job.state}, {job.reason}"


def _job(each: dict[str, Any], expand: Expand) -> SlurmJob | None:
    comment, administrator = _text(each, "comment"), _text(each, "admin_comment")
    ours, held = _OURS.fullmatch(comment), _HELD.fullmatch(administrator)
    if held is not None:
        identity, nonce = f"slurm-{held[1]}", ""
    elif ours is not None:
        identity, nonce = ours[1], ours[2]
    else:
        return None
    state = next(iter(_states(each, "job_state") - {"COMPLETING"}), "COMPLETING")
    if "COMPLETING" in _states(each, "job_state"):
        state = "COMPLETING"
    per_node, model = _asked(_text(each, "tres_per_node"))
    per_job, model_of_all = _asked(_text(each, "tres_per_job"))
    per_task, model_of_each = _asked(_text(each, "tres_per_task"))
    per_job = per_job or per_task * _number(each, "tasks")
    count = _number(each, "node_count")
    reason = _text(each, "state_description") or _text(each, "state_reason")
    return SlurmJob(
        identity, nonce, _number(each, "het_job_id") or _number(each, "job_id"), _number(each, "het_job_offset"),
        state, bounded("" if reason == "None" else reason), _number(each, "priority") == 0,
        _places(each, per_node, model, expand), _exit(each), bounded(_text(each, "user_name"), 64), count,
        per_node, per_job, model or model_of_all or model_of_each, comment,
    )  # fmt: skip


def _places(each: dict[str, Any], gpus: int, model: str, expand: Expand) -> tuple[Place, ...]:
    """The nodes that the job has or will have; with indices while Slurm reports them."""
    resources = each.get("job_resources")
    allocated = _nodes_of(resources) if isinstance(resources, dict) else []
    required = _text(each, "required_nodes")
    names = allocated or (list(expand(required)) if required else [])
    details = _strings(each.get("gres_detail"))
    if allocated and len(details) == len(names):
        return tuple(_place(name, detail, gpus, model) for name, detail in zip(names, details, strict=True))
    return tuple(Place(name, gpus, model=model) for name in names)


def _nodes_of(resources: dict[str, Any]) -> list[str]:
    nodes = resources.get("allocated_nodes")
    if isinstance(nodes, dict):
        nodes = nodes.get("allocation") or list(nodes.values())
    found = [each.get("nodename") or each.get("name") for each in nodes or [] if isinstance(each, dict)]
    return [name for name in found if isinstance(name, str)]


def _place(name: str, detail: str, gpus: int, model: str) -> Place:
    """``gpus``: of the request, for a node of which Slurm gives no detail."""
    given = gres.gpus(detail)
    indices = tuple(index for each in given for index in each.indices)
    count = len(indices) or (sum(each.count for each in given) if given else gpus)
    return Place(name, count, indices, model)


def _gpus(text: str) -> tuple[Gpu, ...]:
    """Of a node. Raises: EngineAnswerInvalid."""
    models = [each.model for each in gres.gpus(text) for _ in range(each.count)]
    if len(models) > gres.MOST_GPUS:
        raise EngineAnswerInvalid(f"Slurm's node has {len(models)} GPUs; the limit is {gres.MOST_GPUS}")
    return tuple(Gpu(index, model) for index, model in enumerate(models))


def _asked(tres: str) -> tuple[int, str]:
    """How many GPUs a request like ``gres:gpu:a100:2`` names, and their model; empty: none, or several."""
    asked = gres.gpus(tres)
    models = {each.model for each in asked}
    return sum(each.count for each in asked), models.pop() if len(models) == 1 else ""


def _exit(each: dict[str, Any]) -> int:
    """As of waitpid(2)."""
    value = each.get("exit_code")
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal")
        number = _plain(signal.get("id") if isinstance(signal, dict) else 0)
        return _plain(value["return_code"]) << 8 | number
    return _plain(value)


def _list(text: bytes, name: str) -> list[dict[str, Any]]:
    try:
        document = orjson.loads(text)  # refuses half characters, and numbers that are none
    except ValueError as fault:
        raise EngineAnswerInvalid(f"Slurm's {name}: no JSON: {fault!r}"[:200]) from fault
    if isinstance(document, dict) and document.get("errors"):  # with exit code 0 and an empty list
        raise EngineUnavailable(f"Slurm's {name}: " + bounded(json.dumps(document["errors"])))
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EngineAnswerInvalid(f"Slurm's {name}: not a list of objects")
    return found


def _text(each: dict[str, Any], name: str) -> str:
    value = each.get(name)
    return value if isinstance(value, str) else ""


def _strings(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _states(each: dict[str, Any], name: str) -> set[str]:
    value = each.get(name)
    return {one.upper() for one in ([value] if isinstance(value, str) else _strings(value))}


def _node_states(each: dict[str, Any]) -> set[str]:
    """State and flags: releases differ in what is which."""
    return _states(each, "state") | {flag.upper() for flag in _strings(each.get("state_flags"))}


def _number(each: dict[str, Any], name: str) -> int:
    return _plain(each.get(name))


def _plain(value: object) -> int:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else 0
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
