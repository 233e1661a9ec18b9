"""What the adapter reads from Slurm's commands: forms of Slurm 22.05 (numbers, one state) and of later releases."""

from __future__ import annotations

import json

import pytest

from offpath.bindings.engines import slurm_gres, slurm_reading
from offpath.bindings.engines.port import Gpu, NodeInfo, NodeState, Place, check_places
from offpath.bindings.engines.slurm_gres import Gpus
from offpath.bindings.engines.slurm_reading import SlurmJob, given, jobs, leaves, nodes, occupied, unregistered
from offpath.bindings.errors import EngineAnswerInvalid
from offpath.sched.topology.hostlist import expand


@pytest.mark.parametrize(
    ("node", "is_unregistered"),
    [
        ({"state": "unknown", "slurmd_start_time": 0}, True),
        ({"state": "mixed", "slurmd_start_time": 0}, True),  # it had a job when slurmctld was killed
        ({"state": "idle", "state_flags": ["COMPLETING"], "slurmd_start_time": 0}, True),
        ({"state": ["IDLE"], "slurmd_start_time": {"set": True, "infinite": False, "number": 0}}, True),
        ({"state": ["UNKNOWN"]}, True),
        ({"state": "idle", "slurmd_start_time": 1_795_545_734}, False),
        ({"state": ["IDLE"], "slurmd_start_time": {"set": True, "infinite": False, "number": 1_795_545_734}}, False),
        ({"state": "idle"}, False),  # a release that does not say it
        ({"state": "down", "state_flags": ["NOT_RESPONDING"], "slurmd_start_time": 0}, False),
        ({"state": "idle", "state_flags": ["DRAIN"], "slurmd_start_time": 0}, False),
        ({"state": ["IDLE", "CLOUD", "POWERED_DOWN"], "slurmd_start_time": {"set": True, "number": 0}}, False),
        ({"state": ["IDLE", "CLOUD", "POWERING_UP"], "slurmd_start_time": {"set": True, "number": 0}}, False),
    ],
)
def test_a_node_that_did_not_register_since_slurmctld_started(node: dict[str, object], is_unregistered: bool) -> None:
    found = unregistered(json.dumps({"nodes": [{"name": "h0", **node}]}).encode())
    assert found == ({"h0"} if is_unregistered else set())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:a100:4(S:0-1)", [Gpus("a100", 4)]),
        ("gpu:4", [Gpus("", 4)]),
        ("gpu", [Gpus("", 1)]),
        ("gpu:a100", [Gpus("a100", 1)]),
        ("gres:gpu:2", [Gpus("", 2)]),
        ("gres/gpu:a100=2", [Gpus("a100", 2)]),
        ("gpu:3090:2", [Gpus("3090", 2)]),
        ("gpu:1K", [Gpus("", 1024)]),
        ("gpu:a100:1k", [Gpus("a100", 1024)]),
        ("gpu:a100:no_consume:4", [Gpus("a100", 4)]),
        ("gpu:no_consume:4", [Gpus("", 4)]),
        ("gpu:nvidia_a100_1g.5gb+me:1,gpu:a100_2g.10gb:3", [Gpus("nvidia_a100_1g.5gb+me", 1), Gpus("a100_2g.10gb", 3)]),
        ("craynetwork:4,gpu:h100:8(S:0,2),shard:h100:64", [Gpus("h100", 8)]),
        ("gpu:a100:2(IDX:2-3),nic:1(IDX:0)", [Gpus("a100", 2, (2, 3))]),
        ("nic:1(IDX:0,1),gpu:tesla:1(IDX:0),gpu:k80:2(S:0)(IDX:2,4)", [Gpus("tesla", 1, (0,)), Gpus("k80", 2, (2, 4))]),
        ("gpu:a100:0(IDX:N/A)", [Gpus("a100", 0)]),
        ("gpu:2(CNT:2)", [Gpus("", 2)]),
        ("", []),
        ("(null)", []),
        ("gpu_mem:80G,shard:8,mps:100(50/100,0/100),mygpu:2", []),
    ],
)
def test_gpus_are_read_as_slurm_writes_them(text: str, expected: list[Gpus]) -> None:
    assert slurm_gres.gpus(text) == expected
    assert slurm_gres.count(text) == sum(each.count for each in expected)


@pytest.mark.parametrize(
    "text",
    [
        "gpu:a100:two:2", "gpu:a100:b:c", "gpu:a b:2", "gpu:2M", "gpu:1025", "gpu:2(IDX:x)", "gpu:1(IDX:0-3)",
        "gpu:2(IDX:3-2)", "gpu:2(IDX:0", "gpu/2", "gpu:a100:-1", "gpu:99999999999999999999", "nic:1,gpu:2.5x(",
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_read_are_an_error_and_not_none(text: str) -> None:
    with pytest.raises(EngineAnswerInvalid, match="cannot be read"):
        slurm_gres.gpus(text)


def test_a_node_whose_gres_cannot_be_read_takes_no_jobs_and_says_why() -> None:
    good, bad = {"name": "h0", "gres": "gpu:a100:1"}, {"name": "h1", "gres": "gpu:a:b:c:1"}
    listed = json.dumps({"nodes": [{"state": ["IDLE"], **each} for each in (good, bad)]}).encode()
    reason = "Slurm's 'gpu:a:b:c:1' cannot be read as gpu[:TYPE][:COUNT], at most 1024"
    assert nodes(listed, {}) == (
        NodeInfo("h0", (Gpu(0, "a100"),)), NodeInfo("h1", (), "", NodeState.DRAINED, reason)
    )  # fmt: skip


def test_a_count_of_a_node_that_cannot_be_read_is_no_count_of_0() -> None:
    listed = json.dumps({"nodes": [{"name": "h0", "state": ["MIXED"], "gres_used": "gpu:a:b:c:1"}]}).encode()
    assert given(listed) == {}
    assert occupied(listed_job("gpu:a:b:c:1"))["h0"] >= 1024


def test_a_model_that_slurm_names_may_be_asked_for() -> None:
    check_places([Place("h0", 1, model="nvidia_a100_1g.5gb+me")])


@pytest.mark.parametrize(
    ("state", "expected", "reason"),
    [
        (["IDLE", "CLOUD", "POWERED_DOWN"], NodeState.READY, ""),
        (["IDLE", "CLOUD", "POWERED_DOWN", "POWER_DOWN"], NodeState.READY, ""),
        (["IDLE", "CLOUD", "POWERED_DOWN", "NOT_RESPONDING"], NodeState.READY, ""),
        (["MIXED", "CLOUD", "NOT_RESPONDING", "POWERING_UP"], NodeState.READY, ""),
        (["IDLE", "POWER_UP", "POWERED_DOWN"], NodeState.READY, ""),
        (["IDLE", "CLOUD", "POWERING_DOWN"], NodeState.DRAINED, "Slurm: POWERING_DOWN"),
        (["IDLE", "CLOUD", "DRAIN", "POWERED_DOWN"], NodeState.DRAINED, "Slurm: DRAIN"),
        (["DOWN", "CLOUD", "POWERED_DOWN"], NodeState.DOWN, "Slurm: DOWN"),
        (["IDLE", "NOT_RESPONDING"], NodeState.DOWN, "Slurm: NOT_RESPONDING"),
        (["IDLE", "MAINTENANCE"], NodeState.DRAINED, "Slurm: MAINTENANCE"),
    ],
)
def test_a_node_that_slurm_starts_for_a_job_is_ready(state: list[str], expected: NodeState, reason: str) -> None:
    (node,) = nodes(json.dumps({"nodes": [{"name": "h0", "gres": "gpu:1", "state": state}]}).encode(), {})
    assert (node.state, node.reason) == (expected, reason)


def test_gpus_of_nodes_that_are_powered_up_are_not_compared() -> None:
    state = ["ALLOCATED", "CLOUD", "POWERING_UP"]
    listed = {"name": "h0", "state": state, "gres_used": "gpu:8(IDX:0-7)", "slurmd_start_time": 1}
    assert given(json.dumps({"nodes": [listed]}).encode()) == {}


def listed_job(detail: str, **more: object) -> bytes:
    """`squeue --json` of a job that runs on h0."""
    job = {
        "job_id": 7, "comment": "offpath:a.b.1:0123456789abcdef", "job_state": ["RUNNING"], "node_count": 1,
        "gres_detail": [detail], "job_resources": {"allocated_nodes": [{"nodename": "h0"}]},
        "priority": {"set": True, "number": 1}, **more,
    }  # fmt: skip
    return json.dumps({"jobs": [job]}).encode()


def only(listed: bytes) -> SlurmJob:
    (job,) = jobs(listed, lambda text: [text])
    return job


@pytest.mark.parametrize(
    ("detail", "place"),
    [
        ("gpu:a100:2(IDX:2-3),nic:1(IDX:0)", Place("h0", 2, (2, 3), "a100")),
        ("nic:1(IDX:0),gpu:a100:2(IDX:2-3)", Place("h0", 2, (2, 3), "a100")),
        ("gpu:a100:1(CNT:1)", Place("h0", 1, (), "a100")),
        ("", Place("h0", 2, (), "a100")),
    ],
)
def test_a_jobs_indices_are_those_of_its_gpus_alone(detail: str, place: Place) -> None:
    assert only(listed_job(detail, tres_per_node="gres/gpu:a100:2")).places == (place,)


def test_an_answer_with_half_a_character_is_refused_where_it_is_read() -> None:
    """A node's name is sent on in JSON, and half of a surrogate pair cannot be."""
    with pytest.raises(EngineAnswerInvalid, match="no JSON"):
        nodes(json.dumps({"nodes": [{"name": "h\ud800", "gres": "gpu:2"}]}).encode(), {})


def test_the_hostlists_of_one_answer_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_reading, "MOST_NAMES", 1_000)
    waits = [
        {
            "job_id": n,
            "job_state": "PENDING",
            "comment": "offpath:a.b.1:0123456789abcdef",
            "required_nodes": "h[0-99]",
        }
        for n in range(11)
    ]
    with pytest.raises(EngineAnswerInvalid, match="more than 1000 names"):
        jobs(json.dumps({"jobs": waits}).encode(), expand)
    conf = "".join(f"SwitchName=s{n} Nodes=h{n}x[0-99]\n" for n in range(11))
    with pytest.raises(EngineAnswerInvalid, match="more than 1000 names"):
        leaves(conf, expand)


def test_gpus_per_task_count_and_several_models_are_none() -> None:
    job = only(listed_job("", tres_per_task="gres/gpu:a100:2", tasks={"set": True, "number": 3}))
    assert (job.gpus_in_all, job.model) == (6, "a100")
    job = only(listed_job("", tres_per_node="gres/gpu:a100:1,gres/gpu:h100:1"))
    assert (job.gpus_per_node, job.model) == (2, "")
