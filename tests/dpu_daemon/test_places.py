"""A cleaner of temporary files removes the daemon's sockets: they are made anew, and nothing is restarted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.bindings.sockets import SocketFile, listening_socket
from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.listening.places import Places

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make, seconds
from ..support.processes import until

SOCKETS = ("negotiate", "fabric", "host", "admin")
STREAM = socket.SOCK_STREAM


def accepts(path: Path) -> bool:
    """Somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(str(path)) not in (2, 111)


def work(cluster: Cluster, number: int) -> None:
    """Every socket is used: negotiation, fabric and administration here, the host channel by the worker's lease."""
    with cluster.connect("alpha") as requester:
        requester.submit("echo", seconds(number), timeout=TIMEOUT)
    with AdminClient(str(cluster.run_folder)) as client:
        client.query(admin.StatusRequest(), admin.Status)


def remade(cluster: Cluster, name: str) -> int:
    """Lines with the log code ``socket_remade`` for it."""
    return cluster.daemon.errors.count(f"{name}.sock was removed; created it again")


@pytest.mark.parametrize("is_kept", [False, True])
def test_each_socket_that_is_removed_is_made_anew_without_a_restart(make_cluster: Make, is_kept: bool) -> None:
    """One after the other, the daemon's own and those of a service manager; who is connected goes on."""
    cluster = make_cluster({"alpha": {}}, keep={"watchdog_s": 2, "starts": 1} if is_kept else None)
    pids = pids_of(cluster.daemon)
    cluster.start_helper()
    with cluster.connect("alpha") as stays:
        for number, name in enumerate(SOCKETS):
            path = cluster.run_folder / f"{name}.sock"
            mode = path.stat().st_mode
            path.unlink()
            until(lambda name=name: remade(cluster, name) == 1)
            assert path.stat().st_mode == mode
            stays.submit("echo", seconds(number), timeout=TIMEOUT)
            work(cluster, number)
        assert cluster.helper is not None
        cluster.helper.finish()
        cluster.start_helper()
        work(cluster, 9)
        stays.submit("echo", seconds(9), timeout=TIMEOUT)
    assert [remade(cluster, name) for name in SOCKETS] == [1, 1, 1, 1]
    assert pids_of(cluster.daemon) == pids
    assert "not feeding the watchdog" not in cluster.daemon.errors


def test_a_removed_runtime_directory_is_made_anew_and_the_service_manager_can_start_the_daemon_again(
    make_cluster: Make,
) -> None:
    cluster = make_cluster({"alpha": {}}, keep={"watchdog_s": 2, "starts": 2, "starts_within_s": 3600.0})
    (pid,) = pids_of(cluster.daemon)
    cluster.start_helper()
    with cluster.connect("alpha") as stays:
        aside = cluster.run_folder.rename(cluster.folder / "aside")  # at once: half removed it would be refilled
        shutil.rmtree(aside)
        until(lambda: all(remade(cluster, name) == 1 for name in SOCKETS))
        stays.submit("echo", seconds(1), timeout=TIMEOUT)
        work(cluster, 2)
        assert pids_of(cluster.daemon) == [pid]
    until(lambda: "notify.sock was removed; created it again" in cluster.daemon.errors)
    os.kill(pid, signal.SIGKILL)
    cluster.daemon.hear()
    until(lambda: cluster.helper is not None and cluster.helper.errors.count("joined as generation") == 2)
    work(cluster, 3)
    assert len(pids_of(cluster.daemon)) == 1


def test_a_path_that_another_process_took_is_left_to_it_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both listen on; when the other one leaves, the path is taken again. What the other one made is not removed."""
    taken: list[socket.socket] = []
    with listening_socket(path := str(tmp_path / "s"), STREAM):
        file, places = SocketFile(path, is_own=True), Places()
        places.add(file, STREAM, taken.append)
        assert not places.look()
        os.unlink(path)
        with listening_socket(path, STREAM):
            for _ in range(3):
                assert places.look()
            assert list(places.lost) == [path]
            assert len([r for r in caplog.records if "cannot be created again" in r.message]) == 1
            file.remove()
            assert os.path.exists(path)
        assert places.look()
        assert not places.look()
        assert places.lost == {}
        assert len(taken) == 1
        file.remove()
        assert not os.path.exists(path)
        taken.pop().close()


def test_a_socket_in_a_directory_that_others_may_write_is_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with listening_socket(path := str(folder / "s"), STREAM):
        places = Places()
        places.add(SocketFile(path, is_own=True), STREAM, lambda sock: pytest.fail("it is not ours"))
        shutil.rmtree(folder)
        folder.mkdir()
        folder.chmod(0o777)
        assert places.look()
        assert "may be written by others" in places.lost[path]
        assert not os.path.exists(path)


def test_a_handed_down_socket_whose_file_a_dead_process_had_made_anew_is_found(tmp_path: Path) -> None:
    """The manager's socket lost its file, the last daemon made one and was killed: the file is there, and dead."""
    taken: list[socket.socket] = []
    with listening_socket(path := str(tmp_path / "s"), STREAM) as inherited:
        assert SocketFile(path, is_own=False).is_there()
        os.unlink(path)
        listening_socket(path, STREAM).close()
        file, places = SocketFile(path, is_own=False), Places()
        places.add(file, STREAM, taken.append)
        assert places.look()
        assert accepts(Path(path))
        assert taken[0].getsockname() == inherited.getsockname() == path
        taken.pop().close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs another group and another user")
@pytest.mark.parametrize("is_member", [False, True])
def test_a_file_of_another_group_is_made_anew_by_a_member_and_by_nobody_else(tmp_path: Path, is_member: bool) -> None:
    """As root makes it for a helper's group: a daemon of that group connects to it, which its check of itself does, and
    makes it anew with the same rights; one that is not of it logs that it cannot, and widens nothing."""
    program = """
import os, socket, sys
from offpath.bindings.sockets import SocketFile, listening_socket
from offpath.dpu_daemon.listening.places import Places
held = listening_socket("s", socket.SOCK_STREAM)
os.chown("s", -1, 4343)
os.chmod("s", 0o660)
os.chown(".", 4242, -1)
os.setgroups([int(each) for each in sys.argv[1:]]); os.setresgid(4242, 4242, 4242); os.setresuid(4242, 4242, 4242)
places, taken = Places(), []
places.add(SocketFile("s", is_own=False), socket.SOCK_STREAM, taken.append)
def connects():
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex("s") == 0
print(connects())
assert not places.look()
os.unlink("s")
assert places.look()
print(places.lost, os.listdir("."))
if taken:
    print(connects(), oct(os.stat("s").st_mode & 0o777), os.stat("s").st_gid)
"""
    command = [sys.executable, "-W", "ignore", "-c", program, *(["4343"] if is_member else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    refused = "False\n{'s': 'Operation not permitted'} []\n"
    assert done.stdout == ("True\n{} ['s']\nTrue 0o660 4343\n" if is_member else refused), done.stderr
