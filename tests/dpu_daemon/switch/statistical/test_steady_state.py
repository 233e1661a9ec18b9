"""Figure 15 without a machine's noise: the water filling's rates against those of real windows on the rack, in virtual
time. The job manager's estimate knows neither packets nor windows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from offpath.dpu_daemon.switch.statistical.rack import Rack
from offpath.host_helper.ina.statistical.sender import Window
from offpath.sched.ina.statistical.network import pat_gbps, regular
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement

from ....sizes import sized
from .virtual import MS, SETTINGS, WIRE_BITS, Job, rates

SEEDS = sized(quick=4, fast=4, slow=6, full=60)
SERVERS = "abcde"
RTT_S = (SETTINGS.rtt_ns / 1e9) + SETTINGS.mark_bytes * 8 / SETTINGS.link_bps
"""§4.1: without queues, plus the ECN threshold over the bandwidth."""


def placed(seed: int) -> tuple[int, list[tuple[str, str]]]:
    """Aggregators, and each job's servers with workers and with its PS."""
    noise = Random(seed)
    jobs = []
    for _ in range(noise.randrange(1, 4)):
        workers = "".join(sorted(noise.sample(SERVERS, noise.randrange(2, 4))))
        jobs.append((workers, noise.choice(SERVERS)))
    return noise.choice((0, 0, 20, 40, 400)), jobs


def estimated(aggregators: int, jobs: list[tuple[str, str]]) -> list[float]:
    pat = pat_gbps(aggregators * WIRE_BITS / 8, RTT_S)
    cluster = GpuCluster(regular(1, 5, link_gbps=SETTINGS.link_bps / 1e9, pat=pat), 8, compiled=False)
    for number, (workers, ps) in enumerate(jobs):
        shares = tuple((SERVERS.index(server), 1) for server in workers)
        cluster.start(str(number), JobPlacement(shares, SERVERS.index(ps), has_ina=True), 1.0)
    return [cluster.steady.rate_gbps(str(number)) * 1e9 for number in range(len(jobs))]


def measured(aggregators: int, jobs: list[tuple[str, str]]) -> list[float]:
    rack = Rack(replace(SETTINGS, servers=tuple(SERVERS), aggregators=aggregators, stale_ns=500 * MS))
    window = Window(2, 8, 64)
    return rates(rack, [Job(rack, number, *where, window) for number, where in enumerate(jobs, 1)], 3, 4)


def test_jobs_get_about_the_rates_that_the_water_filling_estimates() -> None:
    """Jobs alone get them. Of jobs that compete, windows give less than max-min to one whose packets cross the full
    link more often, because any of them can be marked."""
    pairs = []
    for seed in range(SEEDS):
        aggregators, jobs = placed(seed)
        found = list(zip(estimated(aggregators, jobs), measured(aggregators, jobs), strict=True))
        if len(jobs) == 1:
            assert abs(found[0][1] / found[0][0] - 1) < 0.1, seed
        pairs += found
    estimates, rates_bps = np.array(pairs).T
    assert np.corrcoef(estimates, rates_bps)[0, 1] >= 0.85
    assert abs(np.mean(rates_bps / estimates) - 1) < 0.1
