"""What the adapter reads from `sinfo --json`: forms of Slurm 22.05 (numbers, one state) and of later releases."""

from __future__ import annotations

import json

import pytest

from offpath.bindings.engines.slurm_reading import unregistered


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
    ],
)
def test_a_node_that_did_not_register_since_slurmctld_started(node: dict[str, object], is_unregistered: bool) -> None:
    found = unregistered(json.dumps({"nodes": [{"name": "h0", **node}]}).encode())
    assert found == ({"h0"} if is_unregistered else set())
