"""Anybody may connect: who says nothing takes no descriptor, no core and no log from those who do. Real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import OffpathError
from offpath.dpu_daemon.doctor import place
from offpath.host_helper import Requester, Tls

from ..support.certificates import Authority
from ..support.cluster import TIMEOUT, Cluster, free_port, pids_of
from ..support.clusters import Make, seconds
from ..support.processes import BOUND_S, until
from .test_metrics import get, scraped

WATCHDOG_S = 4
LIMIT = 256
"""Descriptors of the daemon: far fewer than the connections that are tried."""


FLOOD = """
import errno, os, resource, socket, sys, time
place, kind, most, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, most + 64), hard))
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
held, tried = [], 0
host, _, port = place.rpartition(":")
family = socket.AF_INET if port.isdigit() else socket.AF_UNIX
end = None
while True:
    if len(held) >= most:
        held.pop(0).close()
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    said = sock.connect_ex((host, int(port)) if family == socket.AF_INET else place)
    if said in (0, errno.EINPROGRESS):
        held.append(sock)
        tried += 1
        if tried == most:
            print("full", flush=True)
        if tried >= most:
            time.sleep(0.001)  # the machine is not to be out of cores, but the daemon out of descriptors
    else:
        sock.close()
        time.sleep(0.001)
"""


class Flood:
    """A process that keeps ``most`` connections open which say nothing, and makes new ones without pause."""

    def __init__(self, place: str, kind: socket.SocketKind, most: int, uid: int = 0) -> None:
        words = [sys.executable, "-c", FLOOD, place, str(int(kind)), str(most), str(uid)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)

    def wait_full(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"full\n"

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *ignored: object) -> None:
        assert self._process.poll() is None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def besieged(make_cluster: Make, authority: Authority) -> tuple[Cluster, dict[str, tuple[str, socket.SocketKind]], int]:
    """A kept daemon of few descriptors, all its listeners, and the port of its metrics."""
    cert, key = authority.issue("offpathd", is_server=True)
    tls = {
        "listen": f"127.0.0.1:{free_port()}", "ca_file": authority.ca_file, "cert_file": cert, "key_file": key
    }  # fmt: skip
    metrics = free_port()
    cluster = make_cluster(
        {"alpha": {"uids": [os.getuid(), 4242]}}, keep={"watchdog_s": WATCHDOG_S, "starts": 1}, tls=tls,
        operation={"metrics_listen": f"127.0.0.1:{metrics}"}, environment={"OFFPATH_TEST_NOFILE": str(LIMIT)},
    )  # fmt: skip
    cluster.folder.chmod(0o755)
    cluster.run_folder.chmod(0o755)
    places = {
        "negotiate": (str(cluster.run_folder / "negotiate.sock"), socket.SOCK_STREAM),
        "fabric": (str(cluster.run_folder / "fabric.sock"), socket.SOCK_SEQPACKET),
        "host": (str(cluster.run_folder / "host.sock"), socket.SOCK_SEQPACKET),
        "admin": (str(cluster.run_folder / "admin.sock"), socket.SOCK_STREAM),
        "tls": (tls["listen"], socket.SOCK_STREAM),
        "metrics": (f"127.0.0.1:{metrics}", socket.SOCK_STREAM),
    }
    return cluster, places, metrics


@pytest.mark.parametrize("names", [["tls"], ["fabric"], ["host"], ["negotiate", "fabric", "host", "admin", "tls"]])
def test_a_flood_of_silent_connections_costs_no_honest_requester_and_no_restart(
    make_cluster: Make, authority: Authority, names: list[str]
) -> None:
    """Six times as many connections as the daemon may have descriptors, renewed without pause, for longer than the
    watchdog of its manager waits."""
    cluster, places, _ = besieged(make_cluster, authority)
    cluster.start_helper()
    pid = pids_of(cluster.daemon)
    uid = 4242 if os.getuid() == 0 else 0
    with contextlib.ExitStack() as held:
        for name in names:
            whose = uid if name in ("negotiate", "fabric") else 0
            held.enter_context(Flood(*places[name], 6 * LIMIT, whose)).wait_full()
        end = time.monotonic() + WATCHDOG_S + 0.5
        served = 0
        while time.monotonic() < end or served < 5:
            with cluster.connect("alpha") as requester:
                requester.submit("echo", seconds(served), timeout=TIMEOUT)
            served += 1
        assert len(os.listdir(f"/proc/{pid[0]}/fd")) < LIMIT
    assert pids_of(cluster.daemon) == pid
    assert "not feeding the watchdog" not in cluster.daemon.errors
    assert cluster.daemon.errors.count("Traceback") == 0


def test_out_of_descriptors_is_no_hang_no_hot_loop_and_one_line_a_second(
    make_cluster: Make, authority: Authority
) -> None:
    """Every descriptor is taken, by sessions that are let in: nothing can be evicted, nothing accepted."""
    cluster, places, metrics = besieged(make_cluster, authority)
    (pid,) = pids_of(cluster.daemon)
    fds = Path(f"/proc/{pid}/fd")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(fds)), LIMIT))
    before_s, before_log, started = cpu_s(pid), len(cluster.daemon.errors), time.monotonic()
    with contextlib.ExitStack() as held:
        for place, kind in places.values():
            family = socket.AF_UNIX if place.startswith("/") else socket.AF_INET
            host, _, port = place.rpartition(":")
            where: Any = place if family == socket.AF_UNIX else (host, int(port))
            for _ in range(40):
                sock = held.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK))
                assert sock.connect_ex(where) in (0, errno.EINPROGRESS, errno.EAGAIN)
        until(lambda: cluster.daemon.errors.count("self-check ran out of resources") >= 2)
        lasted_s = time.monotonic() - started
        used_s, log = cpu_s(pid) - before_s, cluster.daemon.errors[before_log:]
    assert pids_of(cluster.daemon) == [pid]
    assert "not feeding the watchdog" not in log
    assert "Traceback" not in log
    lines = log.splitlines()
    causes: dict[str, int] = {}
    for line in lines:
        if "could not accept a connection" in line:
            cause = re.split(r": could not accept", line)[0]
            causes[cause] = causes.get(cause, 0) + 1
    assert causes, log
    assert max(causes.values()) <= lasted_s + 2, causes
    assert used_s < 0.1 * lasted_s, f"{used_s:.2f} s of a core in {lasted_s:.2f} s"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    until(lambda: serves(metrics))
    assert scraped(metrics)["offpath_descriptors_exhausted_total", ()] > 0
    with cluster.connect("alpha"):
        pass


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_half_open_handshakes_count_against_the_bound_and_a_client_with_a_certificate_is_served(
    make_cluster: Make, authority: Authority
) -> None:
    cluster, places, metrics = besieged(make_cluster, authority)
    cert, key = authority.issue("alpha", "offpath://tenant/alpha")
    tls = Tls(authority.ca_file, cert, key)
    with Flood(*places["tls"], 6 * LIMIT) as flood:
        flood.wait_full()
        rss = cluster_rss(pids_of(cluster.daemon)[0])
        for _ in range(3):
            until(lambda: is_served(places["tls"][0], tls), 4 * BOUND_S)
        assert cluster_rss(pids_of(cluster.daemon)[0]) - rss < 16 << 20
        until(lambda: scraped(metrics)["offpath_connections_evicted_total", ()] > LIMIT)  # the flood goes on until then


def is_served(address: str, tls: Tls) -> bool:
    """False: crowded out; it tries again."""
    try:
        Requester(f"tls:{address}", tls=tls, payload_bytes=4096, result_bytes=4096).close()
    except (OffpathError, OSError):
        return False
    return True


def cluster_rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_session_takes_as_many_descriptors_as_the_doctor_counts(make_cluster: Make) -> None:
    cluster = make_cluster({"alpha": {"max_sessions": 64, "max_bytes": 1 << 30}})
    sizes = {"slots": 1, "payload_bytes": 4096, "result_bytes": 4096}
    cluster.connect("alpha", **sizes).close()
    fds = Path(f"/proc/{cluster.daemon.pid}/fd")
    with contextlib.ExitStack() as held:
        held.enter_context(cluster.connect("alpha", **sizes))
        before = until(lambda: settled(fds))
        for _ in range(50):
            held.enter_context(cluster.connect("alpha", **sizes))
        until(lambda: settled(fds) == before + 50 * place._FDS_PER_SESSION)


def settled(fds: Path) -> int:
    """How many are open, twice the same."""
    first = len(os.listdir(fds))
    time.sleep(0.05)
    return first if len(os.listdir(fds)) == first else 0


def serves(metrics: int) -> bool:
    """The metrics are answered: a connection made while no descriptor was left may still be reset."""
    try:
        return get(metrics, "/metrics")[0] == 200
    except ConnectionError:
        return False
