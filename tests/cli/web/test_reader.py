"""The page's server beside a real daemon: what it reads, how often, and what it does when the daemon is gone."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.bindings.errors import RegionError
from offpath.cli.admin_client import AdminClient, Refused
from offpath.cli.exits import DaemonUnreachable
from offpath.cli.web import document
from offpath.cli.web.reader import MOST_ENDED, Reader, pause_s

from ...support.cluster import TIMEOUT, Cluster
from ...support.clusters import NARROW, seconds
from ...support.processes import BOUND_S, until
from ...support.web_process import Web

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}, **dict.fromkeys(("bob", "cyd"), NARROW)})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def reader(cluster: Cluster) -> Reader:
    return Reader(str(cluster.run_folder))


@pytest.fixture
def web(cluster: Cluster) -> Iterator[Web]:
    made = Web("--runtime-dir", str(cluster.run_folder), "--listen", "127.0.0.1:0")
    try:
        made.enter()
        yield made
        made.end()
    finally:
        made.kill()


def test_a_poll_has_the_daemons_tenants_leases_and_requests(cluster: Cluster, reader: Reader) -> None:
    with cluster.connect("bob") as bob:
        pending = bob.begin("sleep", seconds(20))
        until(lambda: any(line.running for line in daemon(reader).leases))
        seen = daemon(reader)
        (job,) = (line for line in seen.jobs if line.tenant == "bob")
        assert (job.kernel, job.state) == ("sleep", "launched")
        assert {line.tenant for line in seen.tenants} == {"ada", "bob", "cyd"}
        (mine,) = (each for each in document.held(seen) if each.tenant == "bob")
        assert (mine.gpu, mine.slices, mine.profile) == ("helper/GPU-0", 1, "1g.5gb")
        found = reader.explain({"session": job.session, "request_id": job.request_id})
        assert found.where
        pending.cancel()


def daemon(reader: Reader) -> Any:
    """What it reads of a daemon that answers."""
    seen = reader.read()
    assert seen.faults == {}
    assert seen.daemon is not None
    assert 0 < seen.waited_s < BOUND_S
    return seen.daemon


def test_requests_that_ended_are_read_once_and_their_age_counts_on(cluster: Cluster, reader: Reader) -> None:
    daemon(reader)
    with cluster.connect("cyd") as cyd:
        for _ in range(MOST_ENDED + 6):
            cyd.submit("echo", seconds(1), timeout=TIMEOUT)
        session = cyd.welcome.session
    until(lambda: daemon(reader).ended[-1].request_id == MOST_ENDED + 6)
    first = daemon(reader).ended
    assert [(line.session, line.request_id) for line in first] == [(session, n + 7) for n in range(MOST_ENDED)]
    time.sleep(0.05)
    later = daemon(reader).ended
    assert [line.job for line in later] == [line.job for line in first]
    assert all(b.age_ms >= a.age_ms + 50 for a, b in zip(first, later, strict=True))


def test_an_unknown_request_is_refused_with_the_daemons_code(reader: Reader) -> None:
    with pytest.raises(Refused) as refused:
        reader.explain({"job": 1 << 60})
    assert refused.value.code == "unknown_job"


def test_a_daemon_that_is_not_there_is_a_fault_and_no_error(tmp_path: Any) -> None:
    seen = Reader(str(tmp_path)).read()
    assert (seen.daemon, list(seen.faults)) == (None, ["daemon"])
    assert Reader(str(tmp_path), has_daemon=False).read().faults == {}


def test_a_client_without_a_free_file_reports_that_the_daemon_is_not_reached(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(DaemonUnreachable, match="Too many open files"):
        AdminClient(str(tmp_path))
    assert "Too many open files" in Reader(str(tmp_path)).read().faults["daemon"]


def test_a_fault_of_the_operating_system_ends_no_poll() -> None:
    def broken() -> NoReturn:
        raise OSError("broken")

    faults: dict[str, str] = {}
    assert Reader._part("daemon", broken, faults) is None
    assert faults == {"daemon": "broken"}


def test_without_a_runtime_directory_nothing_is_served_and_no_poll_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Reader()
    for name in ("HOME", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1 << 30)
    with pytest.raises(RegionError, match="--runtime-dir"):
        Reader()
    assert list(made.read().faults) == ["daemon", "controller", "job manager"]


def test_polls_are_so_far_apart_that_the_daemon_spends_a_hundredth_of_its_core_on_them() -> None:
    for waited_s in (0.0001, 0.01, 0.02, 0.1):
        assert waited_s / pause_s(waited_s, 1.0) <= 0.01
    assert pause_s(60.0, 1.0) == 10.0, "a slow daemon is still polled"
    assert pause_s(0.0, 5.0) == 5.0


def test_browsers_cause_no_polls(web: Web) -> None:
    begin, began_s = web.state()["poll"], time.monotonic()
    for _ in range(100):
        assert web.get("/api/state")[0] == 200
    assert web.state()["poll"] - begin <= time.monotonic() - began_s + 1


def test_the_served_page_explains_a_request_of_the_daemon(cluster: Cluster, web: Web) -> None:
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        name = f"{ada.welcome.session}/1"
    status, found, _ = web.get(f"/api/explain/{name}")
    assert (status, found["job"]["tenant"], found["job"]["state"]) == (200, "ada", "completed")
    assert [name for name, _ in found["stages"]] == ["queued", "copy", "launch", "kernel", "back", "total"]
    assert web.get("/api/explain/1/99999999")[0] == 404


def test_the_page_survives_its_daemon_and_finds_it_again() -> None:
    made = Cluster({"ada": {}})
    web = None
    try:
        web = Web("--runtime-dir", str(made.run_folder), "--listen", "127.0.0.1:0")
        web.enter()
        assert web.state()["daemon"]["status"]["tenants"] == 1
        made.daemon.finish()
        until(lambda: web is not None and web.state()["faults"])
        assert "no daemon answers" in web.state()["faults"]["daemon"]
        assert web.state()["daemon"] is None
        assert web.get("/api/explain/1/1")[0] == 503
        errors = web.end()
        assert errors.count("daemon does not answer") == 1, "logged once, not at each poll"
    finally:
        made.kill()
        if web is not None:
            web.kill()
