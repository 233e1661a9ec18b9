"""A day's life in an hour: tenants of all manners, workers killed, helpers restarted, sessions come and gone. Nothing
grows, no answer is wrong, and every accepted request is answered exactly once."""

from __future__ import annotations

import csv
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ..sizes import SIZE, sized
from ..support.cluster import Cluster, pids_of
from ..support.evidence import keep
from ..support.processes import Process, until

TENANTS = ("ada", "bob", "eve", "joe")
SOAK_S = float(os.environ.get("OFFPATH_SOAK_S") or sized(quick=10, fast=15, slow=60, full=3600))
SAMPLE_S = 5.0
WARM_UP = 1 / 6
"""Of the time: layouts are cached, the allocator finds its level, each tenant has had each lease."""
SLOPE_PER_HOUR = 0.01
SEED = 20_261_121


@pytest.fixture
def soaking() -> Iterator[tuple[Cluster, dict[str, Process], int]]:
    """Four tenants on one GPU of seven slices: they take leases from each other. The number is the descriptors of a
    daemon to which nobody is connected."""
    cluster = Cluster({name: {"max_share": 42, "max_jobs": 5, "max_sessions": 4} for name in TENANTS})
    try:
        idle = cluster.daemon.fds_at_rest()
        cluster.start_helper()
        tenants = {}
        for n, name in enumerate(TENANTS):
            token_file = str(cluster.folder / f"{name}.token")
            tenants[name] = cluster.start(name, "soak_main.py", cluster.address, name, token_file, str(SEED + n))
            assert tenants[name].hear() == "ready"
        yield cluster, tenants, idle
    finally:
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


def test_soak_an_hour_changes_nothing(
    soaking: tuple[Cluster, dict[str, Process], int], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, tenants, idle = soaking
    daemon = cluster.daemon
    noise = Random(SEED)
    started = time.monotonic()
    series: list[tuple[float, int, int, int]] = []
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
            answered = sum(each.ask("count").get("right", 0) for each in tenants.values())
            series.append((now - started, daemon.rss_anon(), daemon.open_fds(), answered))
            next_sample += min(SAMPLE_S, SOAK_S / 20)
        time.sleep(0.05)
    counted = {name: Counter(process.ask("stop")) for name, process in tenants.items()}
    for process in tenants.values():
        assert process.ended() == 0, process.errors
    assert cluster.helper is not None
    cluster.helper.finish()
    until(lambda: daemon.open_fds() == idle)
    statistics_ = cluster.statistics()
    settled = [(at, float(rss)) for at, rss, *_ in series if at > SOAK_S * WARM_UP]
    slope = slope_per_hour(settled)
    total = sum(counted.values(), Counter[str]())
    with capsys.disabled():
        keep(
            "soak.txt",
            f"\nsoak of {SOAK_S:.0f} s: {dict(total)}; {dict(done)}; RssAnon {settled[0][1] / 1e6:.1f} → "
            f"{settled[-1][1] / 1e6:.1f} MB, slope {slope:+.2%} per hour; descriptors "
            f"{min(row[2] for row in series)}..{max(row[2] for row in series)} at work, {idle} before and after",
        )
    write(series)
    assert total["wrong"] == total["lost"] == total["refused"] == 0
    for name, of_tenant in counted.items():
        ended = sum(n for key, n in of_tenant.items() if key not in ("sent", "sessions"))
        assert ended == of_tenant["sent"], (name, of_tenant)
    answers = sum(n for key, n in statistics_.items() if key.startswith("ended_"))
    assert answers == statistics_["requests"], statistics_
    assert statistics_.get("violations", 0) == 0
    # What was rung and read is what was sent, but for doorbells that died with sessions left in the middle of things.
    assert 0 <= total["sent"] - statistics_["requests"] <= total["left behind"]
    assert total["right"] > 0
    assert done["worker killed"] > 0
    if SIZE == "full":
        assert slope < SLOPE_PER_HOUR


def write(series: list[tuple[float, int, int, int]]) -> None:
    """The evidence, where it is wanted."""
    folder = os.environ.get("OFFPATH_EVIDENCE")
    if folder:
        with open(Path(folder, "soak.csv"), "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("seconds", "rss_anon_bytes", "descriptors", "right_answers"))
            rows.writerows((f"{at:.1f}", *rest) for at, *rest in series)
