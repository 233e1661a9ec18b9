"""The page's server beside a real daemon: what it reads, how often, and what it does when the daemon is gone."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.cli.admin_client import Refused
from offpath.cli.web import document
from offpath.cli.web.reader import MOST_ENDED, Reader, pause_s
from offpath.cli.web.serving import MOST_CONNECTIONS

from ...support.certificates import Authority
from ...support.cluster import TIMEOUT, Cluster
from ...support.clusters import NARROW, seconds
from ...support.command import offpath
from ...support.processes import BOUND_S, until

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


class Web:
    """`offpath web run` as its own process, and a client of it."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-W", "error", "-m", "offpath.cli.main", "web", "run", "--json", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.ready = json.loads(line)
        self.port = int(self.ready["address"].rstrip("/").rpartition(":")[2])
        self.cookie = ""

    def get(self, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers={"Cookie": self.cookie, **given})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        is_json = answer.getheader("content-type", "").startswith("application/json")
        return answer.status, json.loads(body) if is_json else body, dict(answer.getheaders())

    def enter(self) -> None:
        secret = self.ready["link"].partition("#")[2]
        status, _, headers = self.get("/api/session", Authorization=f"Bearer {secret}")
        assert status == 200
        self.cookie = headers["set-cookie"].partition(";")[0]

    def state(self) -> Any:
        """The newest one, once there is one."""
        return until(lambda: self.get("/api/state")[1]["state"])

    def end(self) -> str:
        """By SIGTERM; what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=BOUND_S)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return str(errors)


@pytest.fixture
def web(cluster: Cluster) -> Iterator[Web]:
    made = Web("--runtime-dir", str(cluster.run_folder), "--listen", "127.0.0.1:0")
    try:
        made.enter()
        yield made
        made.end()
    finally:
        made.process.kill()
        made.process.wait()


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


def test_another_host_and_another_method_are_refused_on_the_wire(web: Web) -> None:
    assert web.get("/", Host="evil.example")[0] == 421
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=BOUND_S)
    connection.request("POST", "/api/state", body=b"x" * 1000, headers={"Cookie": web.cookie})
    assert connection.getresponse().status == 405
    connection.close()


def test_connections_that_send_no_whole_request_are_ended(web: Web) -> None:
    parts = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api")
    held = [socket.create_connection(("127.0.0.1", web.port), timeout=BOUND_S) for _ in parts]
    for sock, sent in zip(held, parts, strict=True):
        sock.sendall(sent)
    for sock in held:
        with sock, contextlib.suppress(ConnectionResetError):
            while sock.recv(65536):  # raises TimeoutError if it stays open
                pass


def test_connections_have_a_bound_and_one_that_ends_makes_room(web: Web) -> None:
    held = [socket.create_connection(("127.0.0.1", web.port), timeout=BOUND_S) for _ in range(MOST_CONNECTIONS)]
    until(lambda: web.get("/")[0] == 503)
    for sock in held:
        sock.close()
    until(lambda: web.get("/")[0] == 200)


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
            web.process.kill()
            web.process.wait()


def test_an_address_that_others_reach_needs_https_and_names() -> None:
    refused = offpath("web", "run", "--listen", "0.0.0.0:0")
    assert (refused.code, "SSH tunnel" in refused.err) == (1, True)
    unnamed = offpath("web", "run", "--listen", "0.0.0.0:0", "--plain-http")
    assert (unnamed.code, "--name" in unnamed.err) == (1, True)
    assert "together" in offpath("web", "run", "--certificate", "a.pem").err
    taken = offpath("web", "run", "--listen", "192.0.2.1:1", "--plain-http")
    assert taken.code == 73, taken.err
    assert offpath("web", "run", "--listen", "nowhere").code == 2
    assert offpath("web", "run", "--interval", "0.1").code == 2


def test_with_a_certificate_the_page_is_served_by_https_and_its_cookie_is_for_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("dpu7", is_server=True)
    token = tmp_path / "web.token"
    token.write_text("t" * 24)
    token.chmod(0o600)
    web = Web("--listen", "127.0.0.1:0", "--no-daemon", "--runtime-dir", str(tmp_path), "--token-file", str(token),
              "--certificate", certificate, "--key", key)  # fmt: skip
    try:
        assert re.fullmatch(r"https://127\.0\.0\.1:\d+/", web.ready["address"])
        assert web.ready["link"] is None
        trusted = ssl.create_default_context(cafile=authority.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", web.port, timeout=BOUND_S, context=trusted)
        connection.request("GET", "/api/session", headers={"Authorization": f"Bearer {'t' * 24}"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert "; Secure" in (answer.getheader("set-cookie") or "")
        connection.close()
        web.end()
    finally:
        web.process.kill()
        web.process.wait()


def test_what_cannot_be_used_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("")
    words = ["web", "run", "--listen", "127.0.0.1:0"]
    broken = offpath(*words, "--certificate", str(nothing), "--key", str(nothing))
    assert (broken.code, str(nothing) in broken.err, broken.out) == (73, True, "")
    readable = tmp_path / "web.token"
    readable.write_text("t" * 24)
    readable.chmod(0o644)
    assert "chmod 600" in offpath(*words, "--token-file", str(readable)).err
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = offpath("web", "run", "--listen", f"127.0.0.1:{sock.getsockname()[1]}")
    assert (taken.code, "Address already in use" in taken.err) == (73, True)
