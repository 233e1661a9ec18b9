"""The page's server beside a real daemon: what it reads, how often, and what it does when the daemon is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import BaseModel

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.bindings.errors import OffpathError, RegionError
from offpath.bindings.runtime import CONTROLLER_SOCKET, MANAGER_SOCKET
from offpath.bindings.wire import admin, control
from offpath.bindings.wire.frames import frame
from offpath.cli.admin_client import AdminClient, Refused
from offpath.cli.exits import DaemonUnreachable
from offpath.cli.web import document
from offpath.cli.web.reader import MOST_ENDED, Reader, _Lists, pause_s

from ...support.cluster import TIMEOUT, Cluster
from ...support.clusters import NARROW, seconds
from ...support.processes import BOUND_S, until
from ...support.web_process import Web


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


def test_the_requests_that_ended_last_come_first_whenever_they_began(cluster: Cluster, reader: Reader) -> None:
    with cluster.connect("bob") as bob, cluster.connect("cyd") as cyd:
        early = bob.begin("sleep", seconds(20))
        until(lambda: any(line.running for line in daemon(reader).leases))
        for _ in range(MOST_ENDED + 6):
            cyd.submit("echo", seconds(1), timeout=TIMEOUT)
        early.cancel()
        until(lambda: daemon(reader).ended[0].tenant == "bob")
        session = cyd.welcome.session
    first = daemon(reader).ended
    expected = [(session, MOST_ENDED + 6 - n) for n in range(MOST_ENDED - 1)]
    assert [(line.session, line.request_id) for line in first[1:]] == expected
    assert [line.age_ms for line in first] == sorted(line.age_ms for line in first)
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


@contextlib.contextmanager
def service(folder: Path, name: str, reply: BaseModel) -> Iterator[None]:
    """A service that answers its first peer so, and then hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(folder / name))
        sock.listen()

        def answer() -> None:
            peer, _ = sock.accept()
            with peer:
                peer.sendall(frame(control.encode(reply)))
                peer.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join(BOUND_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(("service_name", "name"), [("controller", CONTROLLER_SOCKET), ("job manager", MANAGER_SOCKET)])
def test_a_service_that_is_there_and_refuses_or_is_dead_is_a_fault_with_its_reason(
    service_name: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="offpath-t-") as made:
        reader = Reader(made, has_daemon=False)
        assert reader.read().faults == {}, "absent"
        with service(Path(made), name, admin.Fault(code="denied", detail="uid 7 is not an operator")):
            assert reader.read().faults == {service_name: "uid 7 is not an operator"}
        assert "no daemon answers" in reader.read().faults[service_name], "its socket is there without a listener"

        def closed(*_: object, **__: object) -> NoReturn:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(os, "stat", closed)
        faults = reader.read().faults
        monkeypatch.undo()
        assert "this user may not connect" in faults[service_name]


def test_lists_beyond_their_bounds_are_cut_and_marked(cluster: Cluster, reader: Reader) -> None:
    def tenants(most: int) -> tuple[int, list[str]]:
        with AdminClient(str(cluster.run_folder)) as client:
            lists = _Lists(client.query)
            kept = lists.read("tenants", admin.StatisticsRequest, admin.Statistics, most, "")
            return len(kept), lists.cut

    assert [tenants(most) for most in (2, 3, 4)] == [(2, ["tenants"]), (3, []), (3, [])]
    assert daemon(reader).cut == frozenset()


def test_identities_out_of_range_are_refused_without_a_daemon(tmp_path: Path) -> None:
    reader = Reader(str(tmp_path))
    for call in (lambda: reader.explain_job("x" * 256), lambda: reader.explain_job("")):
        with pytest.raises(OffpathError) as fault:
            call()
        assert not isinstance(fault.value, DaemonUnreachable)


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
    status, found, _ = web.get("/api/explain/1/99999999")
    assert (status, found["code"]) == (404, "unknown_job")


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
