"""Policy plug-ins with real processes: an installed package decides; what is wrong with one costs nobody a request."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.cli.demo import samples
from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.ring import ReadOnlyFile, Ring
from offpath.dpu_daemon.policy.plugin_output import BURST_BYTES, PER_SECOND, PluginOutput
from offpath.dpu_daemon.policy.plugins import PluginError, PluginProcess
from offpath.sched.gpu.plugin import AdvisorError, PluginDecision
from offpath.sched.gpu.policy import Demand
from offpath.sched.plain import to_plain

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import Make
from ..support.command import offpath
from ..support.processes import until
from ..support.sample_policies import install
from .test_resume import kill_daemon

JOBS = 60
PATIENT_MS = 1_000
"""A good plug-in's deadline here: a machine with other work may not run it for longer than 5 ms."""
STATE: list[Any] = [[], [], 0, 0, ""]
DEMAND = to_plain(Demand(1, "ada", 14, 0))
QUARANTINED = "policy plug-in quarantined, using the built-in policy"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, installed as any other."""
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    return folder


@pytest.fixture
def on_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


def advised(make_cluster: Make, site: Path, name: str, **more: Any) -> Cluster:
    leasing = {"policy": f"plugin:{name}", "plugin_ms": PATIENT_MS, **more.pop("leasing", {})}
    tenants = {"ada": {}, "bob": {}}
    cluster = make_cluster(tenants, leasing=leasing, environment={"PYTHONPATH": str(site)}, **more)
    cluster.start_helper(emulate=["A100-40GB", "A100-40GB"])
    return cluster


def work(cluster: Cluster, jobs: int = JOBS) -> None:
    """Two tenants in turns, each answer looked at."""
    with cluster.connect("ada", slots=8) as ada, cluster.connect("bob", slots=8) as bob:
        for number in range(jobs):
            requester = (ada, bob)[number % 2]
            answer = requester.submit("echo", [np.array([float(number)])], timeout=TIMEOUT)
            assert answer.array == number


def journal_of(cluster: Cluster) -> Path:
    copy = cluster.folder / "copy"
    shutil.copyfile(cluster.run_folder / "journal", copy)
    return copy


def advice_in(path: Path) -> list[PluginDecision]:
    ring = Ring.opened(ReadOnlyFile(str(path)))
    entries = ring.entries(ring.oldest_checkpoint())
    return [
        value
        for entry in entries
        if entry.kind != codec.KIND_CHECKPOINT
        for value in codec.values(entry)
        if isinstance(value, PluginDecision)
    ]


def test_an_installed_plug_in_decides_and_its_journal_replays_without_it(make_cluster: Make, site: Path) -> None:
    cluster = advised(make_cluster, site, "worst-fit")
    work(cluster)
    copy = journal_of(cluster)
    said = advice_in(copy)
    assert not [decision for decision in said if decision.fault]
    assert Counter(decision.query for decision in said)["place"] >= JOBS
    gpus = {decision.decided.plan.gpu for decision in said if decision.decided.plan}
    assert len(gpus) == 2, "the built-in would have put both tenants' leases on one GPU"
    done = offpath("replay", str(copy), "--json")
    assert done.code == 0, done.err
    assert done.document["fault"] == ""


@pytest.mark.parametrize(
    ("name", "code"),
    [("raises", "raised"), ("nonsense", "nonsense"), ("stranger", "nonsense"), ("sleeps", "overrun"), ("dies", "gone")],
)
def test_a_broken_plug_in_is_quarantined_and_nobody_loses_a_request(
    name: str, code: str, make_cluster: Make, site: Path
) -> None:
    cluster = advised(make_cluster, site, name, leasing={"plugin_ms": 200})
    work(cluster)
    assert cluster.daemon.errors.count(QUARANTINED) == 1
    copy = journal_of(cluster)
    said = advice_in(copy)
    (fault,) = [decision for decision in said if decision.fault]
    assert fault is said[-1], "who is quarantined is not asked"
    assert fault.fault.partition(":")[0] == code
    assert fault.decided.placement is not None, "the built-in's decision stands in the journal"
    done = offpath("replay", str(copy), "--json")
    assert (done.code, done.document["fault"]) == (0, ""), done.err
    assert cluster.reload(), "lets it in again"
    until(lambda: cluster.daemon.errors.count(f"active policy: plugin:{name}") == 2)
    work(cluster)
    assert cluster.daemon.errors.count(QUARANTINED) == 2
    counted = cluster.statistics()
    assert counted["plugin_faults"] == 2


def test_a_plug_in_that_cannot_be_had_is_no_configuration(make_cluster: Make, site: Path) -> None:
    cluster = make_cluster({"ada": {}}, environment={"PYTHONPATH": str(site)})
    cluster.start_helper()
    for name, why in (("unmade", "RuntimeError: no licence"), ("absent", "no installed package has the entry point")):
        cluster.config["leasing"]["policy"] = f"plugin:{name}"
        assert not cluster.reload()
        assert why in cluster.daemon.errors
    cluster.config["leasing"]["policy"] = "plugin:../odd"
    assert not cluster.reload()
    assert not list(children_of(cluster))
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", [np.array([1.0])], timeout=TIMEOUT).array == 1
    cluster.config["leasing"] |= {"policy": "plugin:worst-fit", "plugin_ms": PATIENT_MS}
    assert cluster.reload()
    until(lambda: "active policy: plugin:worst-fit" in cluster.daemon.errors)
    (first,) = children_of(cluster)
    assert cluster.reload()
    (second,) = children_of(cluster)
    assert first != second, "a version that was installed meanwhile is in force"
    cluster.config["leasing"]["policy"] = "best-fit"
    assert cluster.reload()
    assert not list(children_of(cluster))
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", [np.array([2.0])], timeout=TIMEOUT).array == 2
    assert QUARANTINED not in cluster.daemon.errors
    done = offpath("replay", str(journal_of(cluster)), "--json")
    assert done.code == 0, done.err
    assert done.document["events"]["ConfigChanged"] == 3, "three policies in one journal"


def children_of(cluster: Cluster) -> list[str]:
    return Path(f"/proc/{cluster.daemon.pid}/task/{cluster.daemon.pid}/children").read_text().split()


def test_a_daemon_that_is_killed_goes_on_with_its_plug_in(make_cluster: Make, site: Path) -> None:
    cluster = advised(make_cluster, site, "worst-fit", keep={}, durability={"resume_ttl_s": 20})
    with cluster.connect("ada", slots=4) as ada:
        for number in range(4):
            assert ada.submit("echo", [np.array([float(number)])], timeout=TIMEOUT).array == number
            until(lambda number=number: cluster.daemon.errors.count("active policy: plugin:worst-fit") == number + 1)
            if number < 3:
                kill_daemon(cluster)
    said = advice_in(journal_of(cluster))
    assert said
    assert not [decision for decision in said if decision.fault]


def test_a_killed_daemon_comes_back_although_its_plug_in_is_gone(
    make_cluster: Make, site: Path, tmp_path: Path
) -> None:
    """What was accepted is worth more than who decides; a first start is refused."""
    mine = tmp_path / "site"
    shutil.copytree(site, mine)
    cluster = advised(make_cluster, mine, "worst-fit", keep={}, durability={"resume_ttl_s": 20})
    with cluster.connect("ada", slots=4) as ada:
        assert ada.submit("echo", [np.array([1.0])], timeout=TIMEOUT).array == 1
        shutil.rmtree(mine)
        kill_daemon(cluster)
        assert ada.submit("echo", [np.array([2.0])], timeout=TIMEOUT).array == 2
    assert "using the built-in policy: plugin:worst-fit cannot be used: LookupError" in cluster.daemon.errors
    assert [decision.fault for decision in advice_in(journal_of(cluster))][-1] == "gone: no plug-in runs"


@pytest.fixture
def process(on_path: Path) -> Iterator[PluginProcess]:
    made = PluginProcess("worst-fit", deadline_s=1.0)
    try:
        made.wait()
        yield made
    finally:
        made.close()


def test_a_process_that_ends_or_stands_still_is_a_fault_within_the_deadline(process: PluginProcess) -> None:
    assert process.query("restore", STATE) == [None, None, None]
    process.begin()
    assert process.query("place", DEMAND, 0)[2] is not None
    process._process.send_signal(signal.SIGSTOP)
    process.deadline_s = 0.01
    process.begin()
    with pytest.raises(AdvisorError, match="overrun: no answer in 10 ms"):
        process.query("place", DEMAND, 0)
    process.deadline_s = 0.001
    while process.is_alive:
        process.notify("gpu_removed", "g" * 60_000)
    with pytest.raises(AdvisorError, match="overrun: it does not read its messages"):
        process.query("place", DEMAND, 0)


def test_what_the_other_side_writes_is_read_as_hostile(process: PluginProcess) -> None:
    assert process.query("restore", STATE) == [None, None, None]
    theirs = process._sock
    process._sock, enemy = socket.socketpair()
    theirs.close()
    for said, code in (
        (b"\xff\xff\xff\xff", "nonsense: a reply of 4294967295 bytes"),
        (b"\4\0\0\0{{{{", "nonsense: a reply that is not JSON"),
        (b"\1\x10\0\0", "nonsense: a reply of 4097 bytes"),
        (b"\2\0\0\0[]", "nonsense: an unknown kind of reply"),
        (b"\1\0\0\x001", "nonsense: an unknown kind of reply"),
        (b"\5\0\0\0[1,2]", "nonsense: an unknown kind of reply"),
        (b"\5\0\0\0[1", "overrun"),
    ):
        enemy.sendall(said)
        process.deadline_s = 0.05
        process.begin()
        with pytest.raises(AdvisorError, match=code):
            process.query("place", DEMAND, 0)
    enemy.close()
    process.begin()
    with pytest.raises(AdvisorError, match="gone"):
        process.query("place", DEMAND, 0)


def test_an_answer_that_comes_byte_by_byte_is_late_all_the_same(process: PluginProcess) -> None:
    process.query("restore", STATE)
    process._sock.close()
    process._sock, enemy = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        enemy.sendall(b"\0\x10\0\0")
        while not stop.wait(0.0005):
            enemy.sendall(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    process.deadline_s = 0.02
    process.begin()
    got = 0
    truly = process._sock.recv
    try:
        with pytest.raises(AdvisorError, match="overrun: no answer in 20 ms"):
            process.query("place", DEMAND, 0)
        while len(truly(4096)) == 4096:
            got += 4096
    finally:
        stop.set()
        dripping.join()
        enemy.close()
    assert got == 0, "it was not read to its end"


def test_the_answers_to_one_event_have_one_time_in_all(process: PluginProcess) -> None:
    process.query("restore", STATE)
    process.deadline_s = 0.001
    process.begin()
    process._left_s = 0.0
    with pytest.raises(AdvisorError, match="overrun: 50 ms for the answers to one event"):
        process.query("place", DEMAND, 0)
    process.deadline_s = 1.0
    process.begin()
    process.query("place", DEMAND, 0)
    assert 0 < process._left_s < 1.0


def test_what_a_plug_in_started_ends_with_it_and_leaves_no_zombie(on_path: Path) -> None:
    process = PluginProcess("forks", deadline_s=1.0)
    try:
        process.wait()
        pid = process._process.pid
        group = [int(found.name) for found in Path("/proc").glob("[0-9]*") if group_of(found) == pid]
        assert len(group) == 2
        process.dismiss()
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in group if one == pid))
        until(lambda: not any(is_running(one) for one in group))
    finally:
        process.close()


def group_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0


def is_running(pid: int) -> bool:
    """A child of a child is reaped by the process that reaps orphans here, in its own time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_lies_in_the_current_directory_is_not_run_and_prints_go_to_the_log(
    on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    process = PluginProcess("forks", deadline_s=1.0)
    try:
        process.wait()
    finally:
        process.close()
    told = capfd.readouterr()
    assert (told.out, "made" in told.err) == ("", True)


def test_what_a_plug_in_prints_is_written_at_a_bounded_rate() -> None:
    """The pipe fills, and the plug-in waits: it is not read further until the rate allows it."""
    log, into = os.pipe()
    output = PluginOutput(into)
    writer = os.dup(output.fd)
    os.set_blocking(writer, False)
    output.begin()
    os.set_blocking(log, False)
    got = sent = 0
    began = time.monotonic()
    while got < BURST_BYTES - 8192:  # what may come at once
        with contextlib.suppress(BlockingIOError):
            sent += os.write(writer, b"x" * 4096)
        with contextlib.suppress(BlockingIOError):
            got += len(os.read(log, 1 << 20))
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += os.write(writer, b"x" * 4096)
    within = BURST_BYTES + (time.monotonic() - began) * PER_SECOND
    with contextlib.suppress(BlockingIOError):
        got += len(os.read(log, 1 << 20))
    assert got <= within
    assert sent < within + (1 << 20), "the rest of what a pipe holds"
    output.end()
    for each in (writer, log, into):
        os.close(each)


def test_a_plug_in_that_prints_without_end_misses_its_time(on_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = PluginProcess("prints", deadline_s=0.2)
    try:
        process.wait()
        process.query("restore", STATE)
        process.begin()
        with pytest.raises(AdvisorError, match="overrun"):
            process.query("place", DEMAND, 0)
    finally:
        process.close()
    assert 0 < len(capfd.readouterr().err) < 1 << 20


def test_a_plug_in_gets_no_secret_from_the_environment(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/nowhere")
    process = PluginProcess("worst-fit")
    try:
        process.wait()
        environment = Path(f"/proc/{process._process.pid}/environ").read_bytes()
        assert b"CREDENTIALS_DIRECTORY" not in environment
        fds = list(Path(f"/proc/{process._process.pid}/fd").iterdir())
        assert len(fds) <= 4, "standard streams and the one socket"
    finally:
        process.close()


def test_one_that_never_comes_up_is_an_error_of_its_name(on_path: Path) -> None:
    with pytest.raises(PluginError, match=r"^plugin:unmade cannot be used: RuntimeError: no licence$"):
        PluginProcess("unmade").wait()
    slow = PluginProcess("worst-fit")
    try:
        with pytest.raises(PluginError, match="did not start: overrun"):
            slow.wait(0.0)
    finally:
        slow.close()


def test_doctor_starts_it_too(on_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "offpathd.toml"
    for name, severity in (("worst-fit", "ok"), ("unmade", "error")):
        file.write_text(f'[[tenant]]\nname = "ada"\n[leasing]\npolicy = "plugin:{name}"\n')
        told = offpath("doctor", "--config", str(file), "--runtime-dir", str(tmp_path / "run"), "--json")
        (finding,) = [each for each in told.document if each["code"] == "plugin"]
        assert finding["severity"] == severity


def test_the_simulator_runs_the_same_plug_in(on_path: Path) -> None:
    trace = str(samples.DATA / "openb_sample.csv")
    done = offpath("whatif", trace, "--policy", "plugin:worst-fit", "--plugin-ms", str(PATIENT_MS), "--json")
    assert done.code == 0, done.err
    found = done.document
    assert (found["policy"], found["plugin_faults"]) == (["conspirator-paper", "plugin:worst-fit"], [[], []])
    assert found["decisions_that_differ"] > 0
    assert found["completed"][0] == found["completed"][1]
    broken = offpath("whatif", trace, "--policy", "plugin:raises", "--plugin-ms", str(PATIENT_MS), "--json")
    assert broken.document["plugin_faults"][1][0].startswith("raised: place: KeyError")
    assert broken.document["completed"] == found["completed"]
    none = offpath("whatif", trace, "--policy", "plugin:absent")
    assert none.code != 0
    assert "no installed package has the entry point 'absent'" in none.err
