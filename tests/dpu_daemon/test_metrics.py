"""What Prometheus and a load balancer see: numbers that are right, and health that is tried, not remembered."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offpath.host_helper import Options, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, free_port
from ..support.clusters import Make, seconds
from ..support.command import offpath
from ..support.processes import until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def watched(make: Make, tenants: dict[str, dict[str, Any]], **tables: Any) -> tuple[Cluster, int]:
    """A cluster with metrics on a port of its own; returns when they are there."""
    port = free_port()
    cluster = make(tenants, operation={"metrics_listen": f"127.0.0.1:{port}"}, **tables)
    return cluster, port


def get(port: int, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scraped(port: int) -> Samples:
    status, text = get(port, "/metrics")
    assert status == 200, text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def test_every_request_is_counted_once_by_tenant_status_and_reason(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}, "bob": {"max_demand": 20}})
    cluster.start_helper()
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        for n in range(5):
            ada.submit("echo", seconds(n), timeout=TIMEOUT)
        with pytest.raises(RequestFailed):
            ada.submit("fail", seconds(1), timeout=TIMEOUT)
        with pytest.raises(RequestFailed):
            bob.submit("echo", seconds(1), timeout=TIMEOUT, options=Options(demand=90))
        running = ada.begin("sleep", seconds(20))
        now = scraped(port)
        answers = {key[1]: value for key, value in now.items() if key[0] == "offpath_answers_total"}
        assert answers == {
            labels(tenant="ada", status="completed", reason="none"): 5,
            labels(tenant="ada", status="failed", reason="kernel_raised"): 1,
            labels(tenant="bob", status="rejected", reason="tenant_share_limit"): 1,
        }
        assert now["offpath_requests_total", ()] >= 7
        assert now["offpath_request_duration_seconds_count", labels(tenant="ada")] == 5
        assert now["offpath_request_duration_seconds_bucket", labels(tenant="ada", le="+Inf")] == 5
        assert 0 < now["offpath_request_duration_seconds_sum", labels(tenant="ada")] < 5 * TIMEOUT
        assert now["offpath_stage_duration_seconds_count", labels(stage="kernel")] == 5
        assert now["offpath_sessions", labels(tenant="ada")] == 1
        assert now["offpath_copied_bytes_total", ()] >= 5 * 8
        assert (now["offpath_helper_joined", ()], now["offpath_draining", ()]) == (1, 0)
        until(lambda: scraped(port)["offpath_requests_unanswered", labels(tenant="ada")] == 1)
        gpu = next(dict(key[1])["gpu"] for key in now if key[0] == "offpath_running_share_ratio")
        until(lambda: scraped(port)["offpath_running_share_ratio", labels(gpu=gpu)] == 0.14)
        assert scraped(port)["offpath_leases", labels(gpu=gpu, state="warm")] == 1
        assert scraped(port)["offpath_gpu_emulated", labels(gpu=gpu)] == 1
        running.cancel()
    counted = cluster.statistics()
    assert counted["ended_completed"] == 5


def test_sequences_are_counted_by_tenant_and_by_how_they_ended(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {"max_sequences": 3}}, limits={"sequence_idle_ms": 1_000})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        for number, end in ((1, True), (2, False)):
            options = Options(sequence_id=number, sequence_start=True, sequence_end=end)
            ada.submit("accumulate", seconds(1), timeout=TIMEOUT, options=options)
        now = scraped(port)
        assert now["offpath_max_sequences", labels(tenant="ada")] == 3
        ended = labels(tenant="ada", cause="idle")
        assert now["offpath_sequences", labels(tenant="ada")] + now["offpath_sequences_ended_total", ended] == 1
        now = until(lambda: (now := scraped(port))["offpath_sequences", labels(tenant="ada")] == 0 and now)
        assert now["offpath_sequences_ended_total", ended] == 1
        assert now["offpath_sequences_ended_total", labels(tenant="ada", cause="lost")] == 0


def test_the_bounds_of_a_histogram_rise_and_its_counts_add_up(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        for n in range(20):
            ada.submit("echo", seconds(n), timeout=TIMEOUT)
    buckets = [
        (float(dict(key[1])["le"]), value)
        for key, value in scraped(port).items()
        if key[0] == "offpath_request_duration_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[0][0] == 8.192e-06
    assert (buckets[-1][0], buckets[-1][1]) == (float("inf"), 20)


def test_ready_means_that_a_helper_has_joined_and_healthy_that_the_path_works(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    status, text = get(port, "/healthz")
    assert (status, json.loads(text)) == (200, {"loop": "ok", "book": "ok", "copy": "ok"})
    status, text = get(port, "/readyz")
    assert (status, json.loads(text)["ready"]) == (503, "no helper has joined")
    cluster.start_helper()
    assert get(port, "/readyz")[0] == 200
    assert get(port, "/elsewhere")[0] == 404
    before = scraped(port)["offpath_copied_bytes_total", ()]
    for _ in range(3):
        get(port, "/healthz")
    assert scraped(port)["offpath_copied_bytes_total", ()] == before, "a probe's bytes are nobody's"


def test_a_stopped_daemon_is_not_healthy(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    assert get(port, "/healthz")[0] == 200
    with cluster.daemon.stopped(), pytest.raises(TimeoutError):
        get(port, "/healthz", timeout_s=1.0)
    assert get(port, "/healthz")[0] == 200


def test_a_blocked_loop_is_noticed_by_the_thread_beside_it(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    cluster.daemon.tell("block")
    status, text = until(lambda: (got := get(port, "/healthz"))[0] == 503 and got)
    assert json.loads(text)["loop"] == "no answer within 1 s"
    status, text = get(port, "/metrics")
    assert (status, "does not answer" in text) == (503, True)
    assert get(port, "/readyz")[0] == 503
    cluster.daemon.tell("go on")
    until(lambda: get(port, "/healthz")[0] == 200)


def test_a_copy_engine_that_copies_no_more_is_not_healthy_although_nobody_sent_a_request(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    cluster.start_helper()
    assert get(port, "/readyz")[0] == 200
    cluster.daemon.tell("jam")
    _, text = until(lambda: (got := get(port, "/healthz"))[0] == 503 and got)
    assert json.loads(text) == {"loop": "ok", "book": "ok", "copy": "no answer within 1 s"}
    assert get(port, "/readyz")[0] == 503
    assert scraped(port)["offpath_helper_joined", ()] == 1, "the loop itself goes on"


def test_slow_and_silent_http_peers_hold_nothing_for_long(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}})
    assert get(port, "/healthz")[0] == 200
    before = cluster.daemon.fds_at_rest()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    with contextlib.ExitStack() as held:
        for sock in silent:
            held.enter_context(sock)
            with contextlib.suppress(OSError):
                sock.send(b"GET /metrics HT")
        until(lambda: get(port, "/healthz")[0] == 200)
        until(lambda: cluster.daemon.open_fds() <= before + 12)
    until(lambda: cluster.daemon.open_fds() <= before + 1)
    assert len(os.listdir(f"/proc/{cluster.daemon.pid}/task")) < 20


def test_an_address_that_is_taken_is_a_fault_of_the_configuration(make_cluster: Make) -> None:
    _, port = watched(make_cluster, {"ada": {}})
    (folder := Path(tempfile.mkdtemp(prefix="offpath-t-"))).joinpath("d.toml").write_text(
        f'[[tenant]]\nname = "ada"\n[operation]\nmetrics_listen = "127.0.0.1:{port}"\n'
    )
    try:
        done = offpath("daemon", "run", "--config", str(folder / "d.toml"), "--runtime-dir", str(folder / "run"))
    finally:
        shutil.rmtree(folder)
    assert (done.code, "operation.metrics_listen" in done.err) == (78, True)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4", "application/openmetrics-text"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ("text/plain", "text/plain"),
        ("", "text/plain"),
        ("application/openmetrics-text; version=", "text/plain"),
        ("application/openmetrics-text; version=one", "text/plain"),
        ("application/openmetrics-text; version=1.0.0.0.x", "text/plain"),
        ("application/openmetrics-text; escaping=none; version", "text/plain"),
        ("text/plain; version=zero", "text/plain"),
        ("," * 5000 + ";=;version", "text/plain"),
    ],
)
def test_whatever_a_peer_accepts_it_gets_metrics(metrics_port: int, accept: str, kind: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=15)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        response = connection.getresponse()
        text = response.read().decode()
        assert (response.status, (response.headers["Content-Type"] or "").split(";")[0]) == (200, kind), text[:500]
        assert "offpath_requests" in text
    finally:
        connection.close()


@pytest.fixture(scope="module")
def metrics_port() -> Iterator[int]:
    """One daemon for all of them, which must have complained of nothing."""
    port = free_port()
    cluster = Cluster({"ada": {}}, operation={"metrics_listen": f"127.0.0.1:{port}"})
    try:
        yield port
        cluster.close()
    finally:
        cluster.kill()
