"""kill -9 to controller, agents, switches and ranks of real trainings (docs/design.md, Guarantees)."""

from __future__ import annotations

from ...sizes import sized
from ...support.evidence import keep
from ...support.training import needs_torch
from .campaign import JOBS, PADDING_S, Found, campaign

pytestmark = needs_torch
KILLS = sized(quick=(1, 5), fast=(1, 5), slow=(1, 20), full=(5, 40))
"""Clusters of two trainings, kills in each."""
RANK_KILLS = sized(quick=1, fast=1, slow=2, full=10)


def test_trainings_go_on_when_any_process_is_killed_and_end_with_the_right_weights() -> None:
    found = Found()
    clusters, kills = KILLS
    for seed in range(clusters):
        with campaign(seed) as it:
            it.uses_ina_again()
            for _ in range(kills):
                found.kills[it.kill()] += 1
                it.goes_on()
            it.uses_ina_again()
            it.goes_on(5)
            it.end(found)
    keep("ina_kills.txt", found.text())
    assert sum(found.kills.values()) == clusters * kills
    assert found.trainings == clusters * len(JOBS)
    assert found.operations["ina"] > 10 * found.kills["switch"], "switches were not struck while they were in use"


def test_a_job_whose_rank_is_killed_goes_on_from_its_checkpoint_as_a_new_incarnation() -> None:
    from offpath.cli.demo.ina import orders

    found = Found()
    with campaign(99, checkpoint_every=3) as it:
        job = next(iter(JOBS))
        for _ in range(RANK_KILLS):
            it.uses_ina_again()
            it.goes_on(4)
            before = it.cluster.job(job).job.incarnation
            it.random.choice(it.cluster.ranks[job]).kill()
            it.cluster.end_ranks(job)
            it.cluster.train(job, JOBS[job], orders.Order(0, PADDING_S), checkpoint_every=3)
            it.goes_on(4, 120.0)
            it.cluster.wait(
                lambda before=before: it.cluster.job(job).job.incarnation > before, "known as a new incarnation"
            )
            found.kills["rank"] += 1
        it.uses_ina_again()
        it.end(found)
    keep("ina_rank_kills.txt", found.text())
    assert found.kills["rank"] == RANK_KILLS
