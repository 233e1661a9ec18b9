"""`offpath daemon run --keep`: what survives the daemon, when it is started again, and when it is not."""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.runtime import LAST_GOOD
from offpath.bindings.wire import negotiating
from offpath.dpu_daemon.durability import service_manager
from offpath.dpu_daemon.durability.fdstore import DescriptorStore
from offpath.dpu_daemon.durability.service_manager import ServiceManager, ServiceManagerSettings

from ..support.cluster import Cluster, pids_of
from ..support.peers import Peer, hello
from ..support.processes import BOUND_S, HERE, Process, until


class Kept:
    """``kept_main.py`` under a service manager; `told` is what each of its lives was handed."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.directory = folder / "run"
        command = [sys.executable, str(HERE / "kept_main.py")]
        words = (str(self.directory), json.dumps(settings), *command)
        self.manager = Process("service-manager", folder, "service_manager_main.py", *words)

    def born(self) -> dict[str, Any]:
        """The next life has begun; what it was handed."""
        handed: dict[str, Any] = self.manager.hear()
        return handed

    def ready(self) -> dict[str, Any]:
        """It has begun, and its service manager knows."""
        handed = self.born()
        assert self.manager.ask("ready") == {"ready": True}
        return handed


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def start(**settings: Any) -> Kept:
        made.append(Kept(tmp_path, {"watchdog_s": 0, **settings}))
        return made[-1]

    yield start
    for kept in made:
        kept.manager.kill()


def files_of(cluster: Cluster) -> dict[str, int]:
    """Sockets and journal, which stay the same files; the last good configuration is replaced at each start."""
    return {path.name: path.stat().st_ino for path in cluster.run_folder.iterdir() if path.name != LAST_GOOD}


# -- the real daemon ----------------------------------------------------------------------------------------------
def test_a_connection_made_while_the_daemon_is_dead_is_served_by_the_next(make_cluster: Callable[..., Cluster]) -> None:
    """The service manager is frozen, so that it is surely dead when the peer comes."""
    cluster = make_cluster({"alpha": {}}, keep={})
    sockets = files_of(cluster)
    with cluster.daemon.stopped():
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        peer = Peer(cluster.address)
        peer.send_message(**hello("alpha"))
    with peer:
        welcome = peer.hear()
    assert isinstance(welcome, negotiating.Welcome), welcome
    assert cluster.daemon.hear()["lineage"] == welcome.lineage == cluster.lineage
    assert files_of(cluster) == sockets


def test_the_daemon_ends_in_order_with_its_statistics_and_its_sockets(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster({"alpha": {}}, keep={})
    with Peer(cluster.address) as peer:
        peer.send_message(**hello("alpha"))
        assert isinstance(peer.hear(), negotiating.Welcome)
        assert isinstance(cluster.statistics(), dict)
        assert peer.hear_the_end() == "daemon_restarts"
    left = {path.name for path in cluster.run_folder.iterdir()}
    assert left == {"journal", LAST_GOOD}, "the next start goes on with them"


def test_a_daemon_that_hangs_misses_its_watchdog_and_is_started_again(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster({"alpha": {}}, keep={"watchdog_s": 0.6, "abort_s": 0.2})
    first = pids_of(cluster.daemon)[0]
    os.kill(first, signal.SIGSTOP)
    assert cluster.daemon.hear()["lineage"] == cluster.lineage
    assert "does not feed its watchdog" in cluster.daemon.errors
    assert "ended by SIGKILL" in cluster.daemon.errors  # a stopped process takes no SIGABRT
    assert pids_of(cluster.daemon) != [first]


def test_a_daemon_that_feeds_its_watchdog_lives_through_many_intervals(make_cluster: Callable[..., Cluster]) -> None:
    """Three intervals of two checks each; under a service manager every one of them must be fed."""
    cluster = make_cluster({"alpha": {}}, keep={"watchdog_s": 0.8})
    pid = pids_of(cluster.daemon)
    with pytest.raises(AssertionError, match="said nothing"):
        cluster.daemon.hear(2.4)  # no second ready line
    assert pids_of(cluster.daemon) == pid
    assert "self-check" not in cluster.daemon.errors
    assert cluster.statistics().get("violations", 0) == 0


class Selector:
    """Waits in a time of its own. ``sleeps``: how much longer each wait takes than it should, because this process does
    not run."""

    def __init__(self, sleeps: list[float]) -> None:
        self.now_s = 0.0
        self._sleeps = sleeps

    def select(self, wait_s: float) -> list[Any]:
        self.now_s += wait_s + (self._sleeps.pop(0) if self._sleeps else 0.0)
        return []


@pytest.fixture
def aborted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., float]:
    """When a manager whose waits take so long ends a daemon that says nothing more."""

    def when(*sleeps: float, queued_at_s: float = 1e9) -> float:
        manager = ServiceManager(str(tmp_path), ["/bin/true"], ServiceManagerSettings(watchdog_s=10.0))
        clock = Selector(list(sleeps))
        monkeypatch.setattr(service_manager.time, "monotonic", lambda: clock.now_s)
        queued = [queued_at_s]

        def read() -> None:
            if queued and clock.now_s >= queued[0]:
                queued.clear()
                manager._enter(service_manager._Phase.RUNNING, 10.0)

        ends: list[float] = []
        monkeypatch.setattr(manager, "_selector", clock)
        monkeypatch.setattr(manager, "_remake_notify", lambda: None)
        monkeypatch.setattr(manager, "_read_notifications", read)
        monkeypatch.setattr(manager, "_too_late", lambda: ends.append(clock.now_s))
        manager._enter(service_manager._Phase.RUNNING, 10.0)
        while not ends:
            assert not manager._turn(manager._deadline_s - clock.now_s)
            manager._judge()
        return ends[0]

    return when


def test_a_daemon_is_judged_by_the_time_in_which_its_manager_ran(aborted: Callable[..., float]) -> None:
    assert aborted() == pytest.approx(10.0)
    assert aborted(*[0.3] * 100) == pytest.approx(10.0, abs=0.6), "a loaded machine is no excuse"
    assert aborted(0.0, 0.0, 60.0) == pytest.approx(63.0 + 10.0), "its messages of the 60 s found no room"
    assert aborted(0.0, 5.0) == pytest.approx(7.0 + 10.0), "also where the deadline did not pass meanwhile"
    assert aborted(60.0, 0.0, 60.0) == pytest.approx(123.0 + 10.0)


def test_what_is_queued_at_the_deadline_is_read_before_the_daemon_is_judged(aborted: Callable[..., float]) -> None:
    assert aborted(queued_at_s=10.0) == pytest.approx(20.0)


def test_the_service_ends_when_its_service_manager_is_killed(keep: Callable[..., Kept]) -> None:
    """It is asked to (SIGTERM), so that a daemon can still tell its peers; its standard input stays open meanwhile."""
    kept = keep()
    kept.ready()
    pidfd = os.pidfd_open(pids_of(kept.manager)[0])
    try:
        kept.manager.signal(signal.SIGKILL)
        assert select.select([pidfd], [], [], BOUND_S)[0] == [pidfd]
    finally:
        os.close(pidfd)


def test_a_configuration_that_does_not_hold_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("nonsense = 1\n")
    daemon = [sys.executable, str(HERE / "daemon_main.py"), str(tmp_path / "bad.toml"), str(tmp_path / "run")]
    manager = Process("service-manager", tmp_path, "service_manager_main.py", str(tmp_path / "run"), "{}", *daemon)
    try:
        assert manager.ended() == 1
        assert manager.errors.count("tenant: is missing") == 1
        assert list((tmp_path / "run").iterdir()) == []
    finally:
        manager.kill()


# -- what is handed over ------------------------------------------------------------------------------------------
def test_the_service_is_handed_its_sockets_by_name_and_nothing_leaks(keep: Callable[..., Kept]) -> None:
    kept = keep(watchdog_s=3)
    handed = kept.ready()
    expected = {name: str(kept.directory / f"{name}.sock") for name in ("negotiate", "fabric", "host", "admin")}
    assert handed["listening"] == expected
    assert (handed["stored"], handed["leaks"], handed["variables"]) == ({}, [], [])
    assert handed["watchdog_s"] == 3.0
    kept.manager.finish()


def test_stored_memory_comes_back_with_its_content_after_kill(keep: Callable[..., Kept]) -> None:
    kept = keep()
    kept.ready()
    slots = kept.manager.ask("store session-7-slots one two")["inodes"]
    answers = kept.manager.ask("store session-7-answers three")["inodes"]
    kept.manager.tell("die")
    handed = kept.ready()
    assert handed["stored"] == {"session-7-slots": ["two", "one"], "session-7-answers": ["three"]}, "newest first"
    assert handed["inodes"] == {"session-7-slots": slots[::-1], "session-7-answers": answers}
    assert kept.manager.ask("forget session-7-slots") == {"forgotten": True}
    kept.manager.tell("die")
    assert kept.ready()["stored"] == {"session-7-answers": ["three"]}
    kept.manager.finish()


def test_what_was_said_just_before_death_counts(keep: Callable[..., Kept]) -> None:
    """The service manager is frozen while its daemon stores and dies: it finds the message and the death together."""
    kept = keep()
    kept.ready()
    with kept.manager.stopped():
        kept.manager.ask("store late words")
        child = pids_of(kept.manager)[0]
        kept.manager.tell("die")
        until(lambda: Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert kept.born()["stored"] == {"late": ["words"]}


def test_memory_stored_twice_is_held_once(keep: Callable[..., Kept]) -> None:
    kept = keep()
    kept.ready()
    assert kept.manager.ask("store-twice name text") == {"sent": [True, True], "done": True}
    kept.manager.tell("die")
    assert kept.ready()["stored"] == {"name": ["text"]}


def test_no_more_is_stored_than_the_limit(keep: Callable[..., Kept]) -> None:
    kept = keep(store_max=3)
    kept.ready()
    kept.manager.ask("store two a b")
    kept.manager.ask("store too-many c d")
    kept.manager.ask("store one e")
    kept.manager.tell("die")
    assert kept.ready()["stored"] == {"two": ["b", "a"], "one": ["e"]}


def test_a_strangers_message_is_ignored_and_its_descriptors_are_closed(keep: Callable[..., Kept]) -> None:
    """Neither this process nor a child of the daemon is the daemon."""
    kept = keep()
    kept.ready()
    before = kept.manager.open_fds()
    fd = os.memfd_create("stranger")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(str(kept.directory / "notify.sock"))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        sock.sendmsg([b"FDSTORE=1\nFDNAME=stranger"], rights)
        sock.send(b"STOPPING=1")
        sock.send(b"WATCHDOG=trigger")
        sock.send(b"\xff\x00=\n=\nREADY")
    os.close(fd)
    assert "forked" in kept.manager.ask("fork")
    assert kept.manager.ask("ready") == {"ready": True}
    assert kept.manager.open_fds() == before
    assert kept.manager.errors.count("ignored a message") == 5
    kept.manager.tell("die")
    assert kept.ready()["stored"] == {}


def test_what_was_stored_is_dropped_at_an_orderly_end(keep: Callable[..., Kept]) -> None:
    kept = keep()
    kept.ready()
    kept.manager.ask("store name text")
    kept.manager.tell("exit 0")
    assert kept.manager.ended() == 0
    again = keep()
    assert again.ready()["stored"] == {}
    again.manager.finish()


# -- when it is started again -------------------------------------------------------------------------------------
def test_a_crash_loop_ends_at_the_start_limit(keep: Callable[..., Kept]) -> None:
    kept = keep(starts=4, starts_within_s=60)
    pids = set()
    for _ in range(4):
        pids.add(kept.ready()["pid"])
        kept.manager.tell("die")
    assert kept.manager.ended() == 70
    assert len(pids) == 4
    assert "giving up after 4 restarts" in kept.manager.errors
    assert list(kept.directory.iterdir()) == []


@pytest.mark.parametrize("word", ["exit 3", "die"])
def test_a_service_that_was_ready_once_is_started_again_however_it_ends(keep: Callable[..., Kept], word: str) -> None:
    kept = keep()
    kept.ready()
    kept.manager.tell(word)
    kept.ready()
    kept.manager.finish()


def test_one_that_never_became_ready_ends_the_service_manager_with_its_own_code(keep: Callable[..., Kept]) -> None:
    kept = keep()
    kept.born()
    kept.manager.tell("exit 3")
    assert kept.manager.ended() == 3


def test_one_that_never_says_ready_is_ended_and_started_again(keep: Callable[..., Kept]) -> None:
    kept = keep(start_s=0.5)
    first = kept.born()["pid"]
    assert kept.born()["pid"] != first
    assert "has not become ready" in kept.manager.errors


def test_hangup_is_passed_on_and_one_that_came_too_early_is_not_lost(keep: Callable[..., Kept]) -> None:
    kept = keep()
    kept.born()
    kept.manager.signal(signal.SIGHUP)
    until(lambda: not _is_pending(kept.manager.pid, signal.SIGHUP))
    kept.manager.tell("ready")
    assert sorted(map(str, (kept.manager.hear(), kept.manager.hear()))) == ["{'hangup': True}", "{'ready': True}"]
    kept.manager.signal(signal.SIGHUP)
    assert kept.manager.hear() == {"hangup": True}
    kept.manager.finish()


def _is_pending(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line for line in lines if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


def test_armed_faults_are_for_the_first_life_only(keep: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon that is to die in its recovery would never recover."""
    monkeypatch.setenv("OFFPATH_FAULTS", "daemon.recovered=kill")
    kept = keep()
    assert kept.ready()["faults"] == "daemon.recovered=kill"
    kept.manager.tell("die")
    assert kept.ready()["faults"] == ""


def test_the_service_manager_can_be_ended_while_it_waits_to_start_again(keep: Callable[..., Kept]) -> None:
    kept = keep(starts=0)
    lives = 5
    for _ in range(lives):  # the next one would start 0.8 s later
        kept.ready()
        kept.manager.tell("die")
    until(lambda: kept.manager.errors.count("restarting it") == lives)
    kept.manager.finish()
    assert list(kept.directory.iterdir()) == []


def test_a_service_that_does_not_end_when_told_is_killed(keep: Callable[..., Kept]) -> None:
    kept = keep(stop_s=0.3)
    kept.ready()
    os.kill(pids_of(kept.manager)[0], signal.SIGSTOP)
    kept.manager.signal(signal.SIGTERM)
    assert kept.manager.ended() == 128 + signal.SIGKILL
    assert "does not exit; sending SIGKILL" in kept.manager.errors


def test_a_second_service_manager_of_the_same_directory_is_refused(keep: Callable[..., Kept], tmp_path: Path) -> None:
    kept = keep()
    kept.ready()
    second = Process("second", tmp_path, "service_manager_main.py", str(kept.directory), "{}", "/bin/true")
    try:
        assert second.ended() == 1
        assert "another process listens there" in second.errors or "in use" in second.errors
    finally:
        second.kill()
    assert len(list(kept.directory.iterdir())) == 5  # four sockets and the service manager's own, all still there
    kept.manager.finish()


def test_the_service_manager_stays_small_and_imports_no_event_loop() -> None:
    """It shall outlive what it keeps: no pydantic, no uvloop, no asyncio in its process."""
    modules = "sys, offpath.cli.commands.daemon_run, offpath.dpu_daemon.durability.service_manager"
    code = f"import {modules}; print(sorted(sys.modules))"
    with os.popen(f"{sys.executable} -c '{code}'") as said:
        loaded = said.read()
    assert "'offpath.dpu_daemon.durability.service_manager'" in loaded
    for heavy in ("pydantic", "uvloop", "asyncio", "orjson", "numpy"):
        assert f"'{heavy}'" not in loaded, heavy


def test_the_store_keeps_eventfds_apart_and_refuses_names_that_cannot_be_passed_on() -> None:
    """All eventfds share one inode; ``:`` separates names in LISTEN_FDNAMES."""
    store = DescriptorStore(10)
    try:
        store.add("bells", [os.eventfd(0), os.eventfd(0)])
        for name in ("a:b", "", "x" * 256, "new\nline", "ä"):
            store.add(name, [spare := os.eventfd(0)])
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(spare)
        assert [name for name, _ in store.entries()] == ["bells", "bells"]
        store.remove("bells")
        store.remove("bells")
        assert len(store) == 0
    finally:
        store.close()
