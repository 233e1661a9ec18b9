"""The admin socket and a hostile peer: it learns nothing it may not, and costs nobody anything."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator

import orjson
import pytest

from offpath.bindings.wire import admin, control
from offpath.bindings.wire.frames import MAX_FRAME_BYTES, frame
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.operation.admin_socket import IDLE_S, AdminSocket

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import Make, seconds
from ..support.processes import BOUND_S, until

PEERS = 16
"""As in `offpath.dpu_daemon.operation.admin`."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


def connect(cluster: Cluster) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(BOUND_S)
    sock.connect(str(cluster.run_folder / "admin.sock"))
    return sock


def is_serving(cluster: Cluster) -> bool:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).has_helper


def hear(sock: socket.socket) -> dict[str, object] | None:
    """The next reply, None when the daemon hung up."""
    try:
        head = sock.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return None
        reply: dict[str, object] = orjson.loads(sock.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL))
    except ConnectionResetError:
        return None
    return reply


def test_only_its_owner_may_connect_to_the_socket(cluster: Cluster) -> None:
    found = os.stat(cluster.run_folder / "admin.sock")
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.getuid())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_a_uid_that_is_not_listed_now_is_turned_away_although_the_socket_lets_it_connect() -> None:
    cluster = Cluster({"ada": {}}, operation={"admin_uids": [12345]})
    try:
        os.chmod(cluster.folder, 0o755)
        os.chmod(cluster.run_folder, 0o755)
        assert [ask_as(uid, cluster) for uid in (12345, 54321)] == ["status", "denied"]
        cluster.config["operation"] = {"admin_uids": [54321]}
        assert cluster.reload()
        assert [ask_as(uid, cluster) for uid in (12345, 54321)] == ["denied", "status"]
        cluster.config["operation"] = {}
        assert cluster.reload()
        assert stat.S_IMODE(os.stat(cluster.run_folder / "admin.sock").st_mode) == 0o600
        cluster.close()
    finally:
        cluster.kill()


def ask_as(uid: int, cluster: Cluster) -> object:
    """What a process of that uid is told: the reply's kind, or the code of a fault."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(uid)
        try:
            with connect(cluster) as sock:
                with contextlib.suppress(BrokenPipeError):  # turned away before it asked
                    sock.sendall(frame(control.encode(admin.StatusRequest())))
                reply = hear(sock) or {}
                os.write(theirs, str(reply.get("code", reply.get("kind"))).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours) as file:
        return file.read()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"nonsense"), "json"),
        (frame(b'{"kind":"become_root"}'), "model"),
        (frame(b'{"kind":"jobs","limit":100000}'), "model"),
        (frame(b'{"kind":"ended","limit":65}'), "model"),
        (frame(b'{"kind":"ended","limit":0}'), "model"),
        (frame(b'{"kind":"jobs","tenant":"' + b"a" * 300 + b'"}'), "model"),
        (frame(b'{"kind":"request","job":-1}'), "model"),
        (frame(b'{"kind":"status","version":9}'), "version"),
        (frame(b'{"kind":"request"}'), "no_id"),
        (struct.pack("<I", MAX_FRAME_BYTES + 1), "frame_length"),
        (struct.pack("<I", 0), "frame_length"),
        (frame(b"[" * 60_000), "json"),
    ],
)
def test_a_message_that_is_none_is_answered_with_a_code(cluster: Cluster, sent: bytes, code: str) -> None:
    with connect(cluster) as sock:
        sock.sendall(sent)
        reply = hear(sock)
        assert reply is not None
        assert (reply["kind"], reply["code"]) == ("fault", code)
    assert is_serving(cluster)


def test_silent_peers_make_room_for_those_that_ask_and_leave_no_descriptor_behind(cluster: Cluster) -> None:
    before = cluster.daemon.fds_at_rest()
    silent = [connect(cluster) for _ in range(3 * PEERS)]
    assert is_serving(cluster)
    try:
        until(lambda: cluster.daemon.open_fds() <= before + PEERS + 1)
    finally:
        for sock in silent:
            sock.close()
    until(lambda: cluster.daemon.open_fds() <= before)


def test_a_peer_that_asks_nothing_more_is_let_go(make_cluster: Make) -> None:
    """Silent from the start, in the middle of a frame, or after an answer."""
    assert IDLE_S == 5.0
    cluster = make_cluster({"ada": {}}, shortened={f"{AdminSocket.__module__}.IDLE_S": 0.5})
    with connect(cluster) as silent, connect(cluster) as cut, until(lambda: answered(cluster)) as sated:
        cut.sendall(struct.pack("<I", 64) + b"{")
        assert [hear(sock) for sock in (silent, cut, sated)] == [None, None, None]


def answered(cluster: Cluster) -> socket.socket | None:
    """A connection with an answer. None: this process was slower than the shortened limit."""
    sock = connect(cluster)
    with contextlib.suppress(BrokenPipeError):
        sock.sendall(frame(control.encode(admin.StatusRequest())))
    if hear(sock) is not None:
        return sock
    sock.close()
    return None


def test_a_peer_that_asks_and_never_reads_is_one_connection_and_no_more(cluster: Cluster) -> None:
    asked = frame(control.encode(admin.StatisticsRequest()))
    before = cluster.daemon.fds_at_rest()
    with connect(cluster) as greedy:
        greedy.setblocking(False)
        sent = 0
        try:
            while sent < 8 << 20:
                sent += greedy.send(asked * 100)
        except BlockingIOError:
            pass
        assert sent < 8 << 20, "the daemon must stop reading what it cannot answer"
        assert is_serving(cluster)
    until(lambda: cluster.daemon.open_fds() <= before)


def test_several_questions_on_one_connection_are_answered_in_order(cluster: Cluster) -> None:
    with connect(cluster) as sock:
        sock.sendall(
            frame(control.encode(admin.StatusRequest()))
            + frame(control.encode(admin.LeasesRequest()))
            + frame(control.encode(admin.HealthRequest()))
        )
        replies = [hear(sock) for _ in range(3)]
    assert [reply["kind"] for reply in replies if reply is not None] == ["status", "leases", "health"]
    assert replies[2] is not None
    assert (replies[2]["is_healthy"], replies[2]["is_ready"]) == (True, True)


def test_the_jobs_that_ended_last_come_first(cluster: Cluster) -> None:
    with cluster.connect("ada") as ada:
        for _ in range(3):
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        session = ada.welcome.session
    until(lambda: ended(cluster, 1)[0].request_id == 3)
    found = ended(cluster, 2)
    assert [(line.session, line.request_id, line.state) for line in found] == [
        (session, 3, "completed"), (session, 2, "completed"),
    ]  # fmt: skip
    assert all(line.is_ended for line in found)


def ended(cluster: Cluster, limit: int) -> list[admin.JobLine]:
    with AdminClient(str(cluster.run_folder)) as client:
        page = client.query(admin.EndedRequest(limit=limit), admin.Jobs)
    assert page.next == 0
    return page.jobs
