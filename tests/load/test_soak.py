"""A day's life in an hour: tenants of all manners, clients of a gateway, workers killed, helpers restarted, sessions
come and gone. Nothing grows, no answer is wrong, and every accepted request is answered exactly once."""

from __future__ import annotations

import csv
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from ..host_helper.gateway.process import GatewayProcess
from ..host_helper.gateway.rig import Rig
from ..sizes import SIZE, sized
from ..support.cluster import Cluster, pids_of
from ..support.evidence import keep
from ..support.processes import Process, rss_anon, until

TENANTS = ("ada", "bob", "eve", "joe")
BY_GATEWAY = TENANTS[:2]
"""Of these clients come by the gateway too."""
SOAK_S = float(os.environ.get("OFFPATH_SOAK_S") or sized(quick=10, fast=15, slow=60, full=3600))
SAMPLE_S = 5.0
WARM_UP = 1 / 6
"""Of the time: layouts are cached, the allocator finds its level, each tenant has had each lease."""
SLOPE_PER_HOUR = 0.01
SEED = 20_261_121


@dataclass
class Soak:
    """Who takes part. ``idle``: the descriptors of a daemon to which nobody is connected."""

    cluster: Cluster
    gateway: GatewayProcess
    tenants: dict[str, Process]
    idle: int


@pytest.fixture
def soaking(tmp_path: Path) -> Iterator[Soak]:
    """Four tenants on one GPU of seven slices: they take leases from each other."""
    cluster = Cluster({name: {"max_share": 42, "max_jobs": 5, "max_sessions": 4} for name in TENANTS})
    gateway = None
    try:
        idle = cluster.daemon.fds_at_rest()
        cluster.start_helper()
        gateway = GatewayProcess(cluster, tmp_path)
        tenants = {}
        for n, name in enumerate(TENANTS):
            token_file = str(cluster.folder / f"{name}.token")
            tenants[name] = cluster.start(name, "soak_main.py", cluster.address, name, token_file, str(SEED + n))
        for n, name in enumerate(BY_GATEWAY):
            tenants[f"clients of {name}"] = cluster.start(
                f"web-{name}", "soak_web_main.py", gateway.addresses["http"], Rig.token(name), str(SEED + n)
            )
        for process in tenants.values():
            assert process.hear() == "ready"
        yield Soak(cluster, gateway, tenants, idle)
    finally:
        if gateway is not None:
            gateway.kill()
        cluster.kill()


def disturb(cluster: Cluster, noise: Random) -> str:
    """Kill a worker, or end the helper (in order, or by SIGKILL) and start another."""
    helper = cluster.helper
    assert helper is not None
    if noise.random() < 0.7:
        workers = pids_of(helper)
        if workers:
            os.kill(noise.choice(workers), signal.SIGKILL)  # a child of a child of ours: it is still there, or a zombie
        return "worker killed"
    if noise.random() < 0.5:
        helper.finish()
    else:
        helper.kill()
    cluster._more.remove(helper)
    cluster.start_helper()
    return "helper restarted"


def slope_per_hour(samples: list[tuple[float, float]]) -> float:
    """Least squares through (seconds, bytes), as a fraction of the mean per hour."""
    fit = statistics.linear_regression([t for t, _ in samples], [value for _, value in samples])
    return fit.slope * 3600 / statistics.fmean(value for _, value in samples)


def test_soak_an_hour_changes_nothing(soaking: Soak, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, daemon, gateway, tenants = soaking.cluster, soaking.cluster.daemon, soaking.gateway, soaking.tenants
    series, done = soak(soaking)
    counted = {name: Counter(process.ask("stop")) for name, process in tenants.items()}
    for process in tenants.values():
        assert process.ended() == 0, process.errors
    gateway.close()
    assert cluster.helper is not None
    cluster.helper.finish()
    until(lambda: daemon.open_fds() == soaking.idle)
    statistics_ = cluster.statistics()
    settled = [each for each in series if each.at_s > SOAK_S * WARM_UP]
    slopes = [slope_per_hour([(each.at_s, float(each.rss[n])) for each in settled]) for n in range(2)]
    total = sum(counted.values(), Counter[str]())
    grown = [
        f"{who} {settled[0].rss[n] / 1e6:.1f} → {settled[-1].rss[n] / 1e6:.1f} MB, slope {slopes[n]:+.2%} per hour"
        for n, who in enumerate(("daemon", "gateway"))
    ]
    by_gateway = sum((counted[f"clients of {name}"] for name in BY_GATEWAY), Counter[str]())
    with capsys.disabled():
        keep(
            "soak.txt",
            f"\nsoak of {SOAK_S:.0f} s: {dict(total)}; of them by the gateway {dict(by_gateway)}; {dict(done)}; "
            f"RssAnon {', '.join(grown)}; descriptors of the daemon "
            f"{min(each.descriptors for each in series)}..{max(each.descriptors for each in series)} at work, "
            f"{soaking.idle} before and after",
        )
    write(series)
    assert total["wrong"] == total["lost"] == 0
    for name, of_tenant in counted.items():
        ended = sum(n for key, n in of_tenant.items() if key not in ("sent", "sessions", "connections", "refused"))
        assert ended == of_tenant["sent"], (name, of_tenant)
        assert name not in TENANTS or of_tenant["refused"] == 0
    answers = sum(n for key, n in statistics_.items() if key.startswith("ended_"))
    assert answers == statistics_["requests"], statistics_
    assert statistics_.get("violations", 0) == 0
    # What was rung and read is what was sent, but for doorbells that died with sessions left in the middle of things,
    # and for what the gateway sent again because it had not begun.
    again = statistics_.get("ended_RETRY_SAFE", 0)
    assert -again <= total["sent"] - statistics_["requests"] <= total["left behind"]
    assert min(of_tenant["right"] for of_tenant in counted.values()) > 0
    assert done["worker killed"] > 0
    if SIZE == "full":
        assert max(slopes) < SLOPE_PER_HOUR


@dataclass(frozen=True)
class Sample:
    at_s: float
    rss: tuple[int, int]
    """RssAnon of daemon and gateway."""
    descriptors: int
    right: int


def soak(soaking: Soak) -> tuple[list[Sample], Counter[str]]:
    """For `SOAK_S`. Returns what was seen, and how often something was disturbed."""
    cluster, daemon, tenants = soaking.cluster, soaking.cluster.daemon, soaking.tenants
    noise = Random(SEED)
    started = time.monotonic()
    series: list[Sample] = []
    done: Counter[str] = Counter()
    next_sample = next_fault = started + 1.0
    while (now := time.monotonic()) - started < SOAK_S:
        if now >= next_fault:
            done[disturb(cluster, noise)] += 1
            next_fault = time.monotonic() + noise.uniform(1.0, 6.0)
        if now >= next_sample:
            assert all(each.is_alive for each in tenants.values()), "\n".join(
                each.errors[-900:] for each in tenants.values()
            )
            right = sum(each.ask("count").get("right", 0) for each in tenants.values())
            rss = (daemon.rss_anon(), rss_anon(soaking.gateway.process.pid))
            series.append(Sample(now - started, rss, daemon.open_fds(), right))
            next_sample += min(SAMPLE_S, SOAK_S / 20)
        time.sleep(0.05)
    return series, done


def write(series: list[Sample]) -> None:
    """The evidence, where it is wanted."""
    folder = os.environ.get("OFFPATH_EVIDENCE")
    if folder:
        with open(Path(folder, "soak.csv"), "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("seconds", "rss_anon_bytes", "gateway_rss_anon_bytes", "descriptors", "right_answers"))
            rows.writerows((f"{each.at_s:.1f}", *each.rss, each.descriptors, each.right) for each in series)
