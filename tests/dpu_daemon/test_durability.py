"""What the journal is worth when it, or what belongs to it, is damaged, gone, full, or another's."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.wire import negotiating
from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.durability.fdstore import open_notify_socket
from offpath.dpu_daemon.durability.journal.ring import HEADER_PAGE, RECORD_BYTES, ReadOnlyFile, Ring
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.serve import running_daemon
from offpath.host_helper import Options, Requester, RequestFailed
from offpath.host_helper.errors import UnknownKernel
from offpath.host_helper.resume import Way

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import NARROW, Make, path_array, seconds, until_read
from ..support.namespaces import needs_namespaces
from ..support.processes import BOUND_S, Process, until
from ..support.toml import to_toml
from .test_metrics import scraped, watched

DURABLE = {"resume_ttl_s": 20, "adopt_ms": 2000, "journal_mib": 4}
LAST_ENTRY = 1500  # the journal fails here: far behind the entries of timers that fire while slow workers load
OFFPATH = [sys.executable, "-m", "offpath.cli.main", "daemon", "run"]


def lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0


def ring_of(cluster: Cluster) -> Ring:
    return Ring.opened(ReadOnlyFile(str(journal_of(cluster))))


def journal_of(cluster: Cluster) -> Path:
    return cluster.run_folder / "journal"


def next_life(cluster: Cluster) -> str:
    """A process of a daemon that nobody keeps, after one that was killed; its lineage."""
    cluster.daemon.kill()
    files = str(cluster.config_file), str(cluster.run_folder)
    cluster.daemon = Process(f"daemon-{time.monotonic_ns()}", cluster.folder, "daemon_main.py", *files)
    lineage: str = cluster.daemon.hear()["lineage"]
    return lineage


def kill_kept(cluster: Cluster) -> str:
    """kill -9 under the service manager; the lineage of the next life."""
    os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
    lineage: str = cluster.daemon.hear()["lineage"]
    return lineage


def terminal(pending: Any) -> tuple[Status, Reason] | None:
    """How it ended when it failed; None: it completed. Raises: AssertionError: it never ended."""
    try:
        pending.result(TIMEOUT)
    except RequestFailed as failed:
        return failed.status, failed.reason
    return None


@pytest.fixture
def kept(make_cluster: Make) -> Callable[..., Cluster]:
    def make(keep: dict[str, Any] | None = None, **tables: Any) -> Cluster:
        tenants: dict[str, dict[str, Any]] = {"ada": {}, "bob": {}}
        return make_cluster(tenants, keep={"starts": 0, **(keep or {})}, durability=DURABLE, **tables)

    return make


# -- what the book has learnt --------------------------------------------------------------------------------------
def test_how_long_kernels_take_survives_kill_9_and_locks_no_deadline_out_of_an_idle_daemon(make_cluster: Make) -> None:
    """A kernel of half a second; after the kill a budget of half of that is hopeless behind it, and fine on an idle
    lane."""
    cluster = make_cluster({"ada": NARROW}, keep={"starts": 0}, durability=DURABLE, leasing={"lanes": 1})
    cluster.start_helper()
    soon = Options(budget_ms=250)
    with cluster.connect("ada") as ada:
        ada.submit("sleep", seconds(0.5), timeout=TIMEOUT)
        assert kill_kept(cluster) == cluster.lineage
        ada.submit("echo", seconds(0), timeout=TIMEOUT)  # the session is resumed: what follows arrives in order
        running = ada.begin("sleep", seconds(1.5))
        behind = ada.begin("sleep", seconds(0), options=soon)
        assert terminal(behind) == (Status.REJECTED, Reason.DEADLINE_UNREACHABLE)
        assert terminal(running) is None
        on_idle = terminal(ada.begin("sleep", seconds(0), options=soon))
        assert on_idle in (None, (Status.EXPIRED, Reason.DEADLINE_PASSED)), "expired on a machine that is this slow"


# -- the journal cannot be written --------------------------------------------------------------------------------
def test_a_journal_that_fails_ends_the_accepting_and_what_was_accepted_finishes(
    make_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_FAULTS", f"journal.append=raise@{LAST_ENTRY}")
    cluster, port = watched(make_cluster, {"ada": {}, "bob": {}}, durability=DURABLE)
    monkeypatch.delenv("OFFPATH_FAULTS")
    cluster.start_helper()
    with cluster.connect("ada") as requester, cluster.connect("bob") as bob:
        file = cluster.folder / "held"  # a kernel that runs until the file goes, however slow the machine is
        running = bob.begin("held", path_array(file))
        until(file.exists)
        assert accepted_until_the_journal_fails(requester) > 1
        assert not running.done
        file.unlink()
        assert running.result(TIMEOUT).array[0] > 0
        with pytest.raises(RequestFailed, match="journal_failed"):
            requester.submit("echo", seconds(1), timeout=TIMEOUT)
        now = scraped(port)
        assert now["offpath_journal_failed", ()] == 1
        assert now["offpath_journal_records_total", ()] >= LAST_ENTRY - 1, "counters do not fall"
        assert now["offpath_journal_fill_ratio", ()] == 0, "it was retired"
    assert "journal failed, accepting no new requests: [Errno 5] injected" in cluster.daemon.errors
    assert next_life(cluster) != cluster.lineage, "nothing goes on with a journal that lacks the end"
    with cluster.connect("ada") as requester:
        assert submitted(requester) == 1


def accepted_until_the_journal_fails(requester: Requester) -> int:
    """Requests that completed before the first that was rejected for the journal."""
    for count in range(LAST_ENTRY):
        try:
            requester.submit("echo", seconds(count), timeout=TIMEOUT)
        except RequestFailed as failed:
            found = failed.status, failed.reason
            break
    else:
        found = Status.COMPLETED, Reason.NONE
    assert found == (Status.REJECTED, Reason.JOURNAL_FAILED)
    return count


def submitted(requester: Requester) -> float:
    """One request, tried until the helper is back."""

    def attempt() -> Any:
        try:
            return requester.submit("echo", seconds(1), timeout=TIMEOUT)
        except UnknownKernel:
            return None

    value: float = until(attempt).array.item()
    return value


def test_a_daemon_killed_after_its_journal_failed_leaves_outcomes_unknown_and_runs_nothing_twice(
    kept: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_FAULTS", f"journal.append=raise@{LAST_ENTRY}")
    cluster = kept()
    monkeypatch.delenv("OFFPATH_FAULTS")
    cluster.start_helper()
    path = cluster.folder / "mark"
    with cluster.connect("bob") as bob, cluster.connect("ada") as requester:
        running = bob.begin("mark", path_array(path))
        until(lambda: lines(path))
        accepted_until_the_journal_fails(requester)
        assert kill_kept(cluster) != cluster.lineage
        assert terminal(running) == (Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED)
    assert lines(path) == 1
    cluster.kill()  # its complaint about the journal is no fault of the test


@pytest.mark.parametrize("how", ["tmpfs", "limit"])
def test_a_full_disk_is_a_typed_error_at_the_start(tmp_path: Path, how: str) -> None:
    token = tmp_path / "token"
    token.write_text("ada-" + "x" * 24)
    token.chmod(0o600)
    (tmp_path / "c.toml").write_text(f'[[tenant]]\nname = "ada"\ntoken_file = "{token}"\n')
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    command = [*OFFPATH, "--config", str(tmp_path / "c.toml"), "--runtime-dir", str(run)]
    if how == "tmpfs":
        mount = 'mount -t tmpfs -o size=1m,mode=700 none "$1" && shift && exec "$@"'
        needs_namespaces("mount")
        command = ["unshare", "-m", "sh", "-c", mount, "sh", str(run), *command]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=BOUND_S,
        preexec_fn=limited if how == "limit" else None,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert f"offpath: {run}/journal: " in done.stderr
    assert ("No space left on device" if how == "tmpfs" else "File too large") in done.stderr


def test_restarts_of_a_lineage_and_what_its_journal_holds_are_counted(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}}, keep={"starts": 0}, durability=DURABLE)
    cluster.start_helper()
    seen = [scraped(port)]
    with cluster.connect("ada") as requester:
        for n in range(10):
            requester.submit("echo", seconds(n), timeout=TIMEOUT)
        seen.append(scraped(port))
        for _ in range(2):
            assert kill_kept(cluster) == cluster.lineage
            seen.append(scraped(port))
    assert [now["offpath_restarts_total", ()] for now in seen] == [0, 0, 1, 2]
    records = [now["offpath_journal_records_total", ()] for now in seen]
    assert records == sorted(set(records)), "they rise from process to process too"
    assert records[1] >= records[0] + 10 * 3  # a credit travels with the next request
    assert seen[1]["offpath_journal_fill_ratio", ()] > seen[0]["offpath_journal_fill_ratio", ()] > 0
    assert all(now["offpath_journal_checkpoints_total", ()] == 1 for now in seen)
    assert all(now["offpath_journal_failed", ()] == 0 for now in seen)


# -- the journal is damaged, or another's -------------------------------------------------------------------------
def worked(make_cluster: Make, **tables: Any) -> Cluster:
    """A daemon that was killed after some work, and a helper that waits for the next one."""
    cluster = make_cluster({"ada": {}}, durability=DURABLE, **tables)
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        for n in range(20):
            requester.submit("echo", seconds(n), timeout=TIMEOUT)
        cluster.daemon.kill()
    return cluster


def test_a_daemon_refuses_a_journal_damaged_in_the_middle_and_starts_without_it(make_cluster: Make) -> None:
    cluster = worked(make_cluster)
    journal = journal_of(cluster)
    ring = ring_of(cluster)
    first, last = ring.newest_checkpoint() + 1, ring.newest_number()
    bad = Random(5).randrange(first + 20, last - 5)
    at = HEADER_PAGE + bad % ring.records * RECORD_BYTES
    data = bytearray(journal.read_bytes())
    data[at + 20] ^= 4
    journal.write_bytes(data)
    words = [*OFFPATH, "--config", str(cluster.config_file), "--runtime-dir", str(cluster.run_folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.returncode == 1
    assert f"{journal}: record {bad} (byte {at}) is invalid, but the later record" in done.stderr
    assert "offpath replay" in done.stderr
    assert "move it away" in done.stderr
    assert journal.read_bytes() == data, "an operator may want to look at it as it was"
    shutil.move(journal, cluster.folder / "damaged")
    assert next_life(cluster) != cluster.lineage
    with cluster.connect("ada") as requester:
        assert submitted(requester) == 1


def test_a_torn_end_is_cut_off_and_the_daemon_goes_on(make_cluster: Make) -> None:
    cluster = worked(make_cluster)
    ring = ring_of(cluster)
    at = HEADER_PAGE + ring.newest_number() % ring.records * RECORD_BYTES
    with open(journal_of(cluster), "r+b") as file:
        file.seek(at + 24)
        file.write(bytes(RECORD_BYTES - 24))
    assert next_life(cluster) == cluster.lineage
    with cluster.connect("ada") as requester:
        assert submitted(requester) == 1


@pytest.mark.parametrize("what", ["boot", "schema", "size", "rubbish"])
def test_a_journal_of_another_boot_build_or_size_is_not_gone_on_with(make_cluster: Make, what: str) -> None:
    cluster = make_cluster({"ada": {}}, durability=DURABLE)
    cluster.start_helper()
    path = cluster.folder / "mark"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path))
        until(lambda: lines(path))
        cluster.daemon.kill()
        journal = journal_of(cluster)
        if what == "rubbish":
            journal.write_bytes(Random(3).randbytes(journal.stat().st_size))
        elif what == "size":
            cluster.config["durability"]["journal_mib"] = 5
            cluster.config_file.write_text(to_toml(cluster.config))
        else:
            file = ReadOnlyFile(str(journal))
            ring = Ring.opened(file)
            ring.identity = dataclasses.replace(ring.identity, **{what: "0" * len(getattr(ring.identity, what))})
            ring._write_header()
            ring._write_header()  # both copies of it
            journal.write_bytes(file.view())
        assert next_life(cluster) != cluster.lineage
        welcome = requester.welcome
        old = negotiating.Resume(
            session=welcome.session, lineage=welcome.lineage, token=welcome.resume_token, unanswered=[]
        )
        way = Way(cluster.address, tenant="ada", token_file=str(cluster.folder / "ada.token"))
        with pytest.raises(NegotiationRefused, match="resume_unknown"):
            way.open(old)
        assert terminal(running) == (Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED)
    assert lines(path) == 1
    with cluster.connect("ada") as requester:
        assert submitted(requester) == 1


# -- something else changed while no daemon was there -------------------------------------------------------------
def test_a_tenant_taken_out_while_the_daemon_was_dead_is_gone_and_what_it_queued_never_runs(
    kept: Callable[..., Cluster],
) -> None:
    cluster = kept()
    cluster.start_helper()
    path = cluster.folder / "mark"
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        running = bob.begin("where", seconds(0.5), options=Options(demand=100))
        queued = [bob.begin("mark", path_array(path), options=Options(demand=100)) for _ in range(3)]
        mine = ada.begin("where", seconds(0.5))
        until_read(cluster, ada, bob)
        cluster.config["tenant"] = [each for each in cluster.config["tenant"] if each["name"] == "ada"]
        cluster.config_file.write_text(to_toml(cluster.config))
        assert kill_kept(cluster) == cluster.lineage
        for each in (running, *queued):
            assert terminal(each) == (Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED)
        assert said(mine.result(TIMEOUT))["tenant"] == "ada"
        assert ada.submit("echo", seconds(3), timeout=TIMEOUT).array == 3
    with pytest.raises(NegotiationRefused, match="denied"):
        cluster.connect("bob")
    assert lines(path) == 0


def test_sizes_that_changed_while_the_daemon_was_dead_hold_for_what_comes_and_lose_nothing(
    kept: Callable[..., Cluster],
) -> None:
    cluster = kept()
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        running = ada.begin("where", seconds(0.4))
        queued = [ada.begin("echo", seconds(n)) for n in range(6)]
        until_read(cluster, ada)
        cluster.config["leasing"] |= {"landing_bytes": 8 << 20, "lanes": 2}
        cluster.config["max_jobs"] = 64
        cluster.config_file.write_text(to_toml(cluster.config))
        assert kill_kept(cluster) == cluster.lineage
        assert [each.result(TIMEOUT).array.item() for each in queued] == [0, 1, 2, 3, 4, 5]
        assert said(running.result(TIMEOUT))["tenant"] == "ada"
        with cluster.connect("bob") as bob:
            assert bob.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_without_the_memory_of_its_sessions_a_daemon_runs_nothing_twice_and_everybody_is_told(
    kept: Callable[..., Cluster],
) -> None:
    """A manager that keeps no descriptors: the book goes on, the requesters' memory does not."""
    cluster = kept(keep={"store_max": 0})
    cluster.start_helper()
    path, behind = cluster.folder / "mark", cluster.folder / "behind"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path), options=Options(demand=100))
        until(lambda: lines(path))
        queued = [requester.begin("mark", path_array(behind), options=Options(demand=100)) for _ in range(3)]
        until_read(cluster, requester)
        assert kill_kept(cluster) == cluster.lineage
        for each in (running, *queued):
            assert terminal(each) == (Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED)
    with cluster.connect("bob") as bob:
        assert submitted(bob) == 1
    assert (lines(path), lines(behind)) == (1, 0)


# -- an error of ours --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("point", "engine"),
    [("daemon.handle", "loopback"), ("daemon.launch", "loopback"), ("daemon.answer", "loopback"),
     ("daemon.launch", "cuda")],
)  # fmt: skip
def test_an_error_of_ours_ends_the_process_and_the_next_goes_on_from_the_journal(point: str, engine: str) -> None:
    """Half an event is worse than none: what was decided is carried out by the next process, what was not is not in the
    journal and harms nobody twice. The engine `cuda` orders a copy together with the launch behind it."""
    cluster = Cluster(
        {"ada": {}}, keep={"starts": 0}, durability=DURABLE, datapath={"copy_engine": engine},
        environment={"OFFPATH_FAULTS": f"{point}=raise@40"},
    )  # fmt: skip
    try:
        cluster.start_helper()
        with cluster.connect("ada") as requester:
            for number in range(100):
                assert requester.submit("echo", seconds(number), timeout=TIMEOUT).array == number
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        assert cluster.helper is not None
        assert "not_copied" not in cluster.helper.errors
        errors = cluster.daemon.errors
        assert "state may be inconsistent, exiting" in errors
        assert "[Errno 5] injected" in errors
        assert "ended with exit code 70" in errors
        assert errors.count("inconsistent") == 1
        assert "recovered 1 sessions" in errors
    finally:
        cluster.kill()


async def test_what_comes_after_the_end_is_no_error_and_leaves_the_journal_to_the_next_process(tmp_path: Path) -> None:
    """The loop turns on while its threads end, and timers that were armed are due meanwhile."""
    config = parse_config({"tenant": [{"name": "ada"}]}, "test")
    broken: list[bool] = []
    with open_notify_socket(str(tmp_path / "notify")):
        notifier = Notifier(str(tmp_path / "notify"))
        async with running_daemon(config, str(tmp_path / "run"), None, notifier) as (daemon, _):
            daemon.requests.book_loop.on_broken = lambda: broken.append(True)
            daemon.requests.sessions.opened(1, "ada", LoopbackFabricSession(1, 4096, 4096), '[1,4096,4096,""]')
            assert daemon.is_durable
        before = (tmp_path / "run" / "journal").read_bytes()
        daemon.requests.sessions.ended(daemon.requests.sessions.by_number[1], "peer_gone", "nobody came back in time")
        daemon.requests.book_loop._tick()
        assert broken == []
        assert (tmp_path / "run" / "journal").read_bytes() == before
