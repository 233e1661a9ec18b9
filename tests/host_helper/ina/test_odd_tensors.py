"""Tensors that training code seldom has: the same as gloo's sum to the bit, or rejected on every rank alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.cli.local.switches import Switches
from offpath.sched.ina.protocol.records import EpochRecord, Grant, Wants

from ...support.ina_job import Agents, Job
from ...support.optional import TORCH

pytest.importorskip("torch", reason=TORCH)
RANKS = 2
REJECTED = {
    "strided view", "transposed", "expanded", "2 TiB declared", "channels last", "sparse", "conjugated", "negated view",
    "int16", "float8", "uint64", "quantized", "meta", "a list", "None",
}  # fmt: skip
SAME = 22


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("job"), RANKS)
    yield made
    made.close()


def check(found: list[dict[str, Any]]) -> None:
    """All ranks say the same of each, and it is what is expected."""
    assert found[0]["found"] == found[1]["found"]
    each = found[0]["found"]
    assert {name for name, how in each.items() if how == "rejected"} == REJECTED
    assert {name: how for name, how in each.items() if how not in ("same", "rejected")} == {}
    assert len(each) == SAME + len(REJECTED)


@pytest.mark.parametrize("deterministic", [False, True], ids=["by gloo alone", "by the communication thread"])
def test_without_a_tree_sums_are_gloos_and_what_gloo_cannot_add_is_rejected(deterministic: bool, job: Job) -> None:
    check(job.ask("odd", deterministic=deterministic, rounds=3))


def test_in_a_tree_sums_are_gloos_and_what_gloo_cannot_add_is_rejected(job: Job, tmp_path: Path) -> None:
    agents = Agents(tmp_path, RANKS)
    with Switches(str(tmp_path), leaves=2) as switches:
        hosts = (0, 1)
        incarnation = job.begin("odd", job="odd", directories=agents.directories, steps=20, pause_s=0.03, rounds=3)
        switches.allow(switches.permissions("odd", hosts, incarnation=incarnation, number=1))
        grant = Grant("tree", switches.attach_addresses(hosts), "token")
        agents.publish(EpochRecord("odd", incarnation, 1, 1, grant, Wants.ALWAYS))
        found = job.hear()
    agents.close()
    check(found)
    last = [how for _, how in found[0]["timeline"][-SAME:]]
    assert last.count("ina") == 14, "what switches add up: fp32, fp16, bf16, int32, and not empty"


def test_two_threads_may_take_turns_and_their_counts_stay_right(job: Job) -> None:
    found = job.ask("threads", steps=50)
    assert [each["wrong"] for each in found] == [[], []]
    assert [each["index"] for each in found] == [200, 200]
