"""The copy engine `cuda` end to end: workers map a session's slots, copy its payloads, and let go of them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason
from offpath.dpu_daemon.config import ConfigError, parse_config
from offpath.dpu_daemon.hosts.payloads import Payloads
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import NARROW, Make, path_array, seconds, until_read
from ..support.gpu_machine import Machine
from ..support.processes import until

MIB = 1 << 20
SIZES = {"payload_bytes": 3 * MIB, "result_bytes": 3 * MIB}
CUDA: dict[str, Any] = {"datapath": {"copy_engine": "cuda"}}
SLOTS = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ (\d+) +/memfd:offpath-slots", re.MULTILINE)


def mapped(pid: int) -> dict[int, str]:
    """Sessions' slots that a process maps: inode -> access."""
    return {int(inode): access for access, inode in SLOTS.findall(Path(f"/proc/{pid}/maps").read_text())}


def workers(cluster: Cluster) -> list[int]:
    assert cluster.helper is not None
    return pids_of(cluster.helper)


def filled(requester: Requester, nbytes: int, value: int) -> bool:
    """A result of that many bytes is right."""
    array = requester.submit("fill", [np.array([nbytes, value])], timeout=TIMEOUT).array
    return array.nbytes == nbytes and bool((array == value).all())


def echoed(requester: Requester, nbytes: int, **options: bool) -> bool:
    content = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
    answer = requester.submit("echo", [content], options=Options(**options), timeout=TIMEOUT)
    return bool((answer.array == content).all())


def works_as_any_engine(cluster: Cluster, earlier: int = 0) -> None:
    """Payloads and results of any size, many at once, each right, after that many ``earlier`` requests."""
    with cluster.connect("ada", **SIZES) as requester:
        for nbytes in (1, 4096, 100_000, 3 * MIB - 64):
            assert echoed(requester, nbytes, with_checksum=True)
        for nbytes in (10, 3073, 3 * MIB):  # up to 3 KiB they travel in the message
            assert filled(requester, nbytes, nbytes % 251)
        many = [requester.begin("sum", [np.full(1000 + n, n)]) for n in range(24)]
        assert [pending.result(TIMEOUT).array[0] for pending in many] == [(1000 + n) * n for n in range(24)]
        answers = requester.stream("count", [np.array([5, 40_000, 0, 0], np.float64)], timeout=TIMEOUT)
        assert [set(each.array.tolist()) for each in answers] == [{1}, {2}, {3}, {4}, {5}]
    counted = cluster.statistics()
    assert counted["ended_completed"] == 32 + earlier
    assert counted["stream_answers"] == 5
    assert "ended_failed" not in counted


def test_payloads_and_results_of_any_size_reach_loopback_lanes(make_cluster: Make) -> None:
    """Visibility is delayed: without `acquire` kernels would compute on stale bytes."""
    cluster = make_cluster({"ada": {}}, **CUDA)
    cluster.start_helper(delayed_visibility=True)
    works_as_any_engine(cluster)


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """``boot(**settings)``: an emulated machine with a whole H100."""
    made: list[Machine] = []

    def start(**settings: str) -> Machine:
        made.append(Machine(tmp_path / "machine", mig="off", models="H100-80GB", slice_bytes=str(8 << 20), **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"read_only_pins": "0", "faults": "cuMemHostRegister:3=2"}])
def test_payloads_and_results_of_any_size_reach_a_gpu(
    make_cluster: Make, boot: Callable[..., Machine], settings: dict[str, str]
) -> None:
    """Also where the driver pins no read-only mappings, and has no memory to pin the second session's slots: one line
    says so, and no request fails."""
    boot(**settings)
    cluster = make_cluster({"ada": {}}, leasing={"lanes": 1, "keep_warm_ms": 60_000}, **CUDA)
    helper = cluster.start_helper(emulate=[], gpus="cuda")
    with cluster.connect("ada") as requester:
        assert echoed(requester, 5000)
        (access,) = [access for pid in workers(cluster) for access in mapped(pid).values()]
        assert access == ("rw-s" if settings.get("read_only_pins") == "0" else "r--s")
    works_as_any_engine(cluster, earlier=1)
    assert helper.errors.count("payloads are copied from unpinned memory") == ("faults" in settings)


def test_a_worker_maps_its_own_tenants_slots_read_only_and_lets_go_of_them(make_cluster: Make) -> None:
    """Two tenants, two sessions of the first: no worker ever maps slots of the other tenant."""
    leasing = {"keep_warm_ms": 60_000, "lanes": 1}
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing=leasing, **CUDA)
    cluster.start_helper()
    with cluster.connect("bob") as bob, cluster.connect("ada") as second:
        with cluster.connect("ada") as first:
            assert all(echoed(each, 50_000) for each in (first, bob, second, first))
            adas, bobs = (said(each.submit("where", seconds(0), timeout=TIMEOUT))["pid"] for each in (first, bob))
            assert (len(mapped(adas)), len(mapped(bobs))) == (2, 1)
            assert not set(mapped(adas)) & set(mapped(bobs))
            assert {*mapped(adas).values(), *mapped(bobs).values()} == {"r--s"}
            assert not any("offpath-answers" in Path(f"/proc/{pid}/maps").read_text() for pid in (adas, bobs))
        until(lambda: len(mapped(adas)) == 1)
        assert all(echoed(each, 60_000) for each in (second, bob))
        assert len(mapped(bobs)) == 1
    until(lambda: not mapped(adas) and not mapped(bobs))


def test_a_lease_of_another_tenant_gets_no_copy() -> None:
    """The book never plans it. If it did, the job would fail before its worker got the session's memory."""
    ended: list[Any] = []
    loop = Made(on=lambda *_: None, defer=ended.append, spinner=None, book=Made(ledger=Made(jobs={})))
    order = Made(command=Made(tenant="bob"))
    lanes = Made(links={(1, 0): Made(memory=object(), lease=1)}, awaited=set(), orders={1: order})
    copies = Made(engine=Made(post=lambda *_: pytest.fail("copied")), take_token=lambda: 1)
    ref: Any = Made(job=7, session=Made(tenant="ada"))
    handler: Any = Payloads(loop, copies, {7: ref}, lanes, Made())  # type: ignore[arg-type]
    handler._copy(Made(job=7, lease=1, lane=0, attempt=1))
    assert [event.error for event in ended] == [True]


def test_a_session_that_ends_while_its_payload_is_in_use_harms_nobody(make_cluster: Make) -> None:
    leasing = {"keep_warm_ms": 60_000, "lanes": 1, "grow_after_ms": 60_000}  # one worker, also if the machine is slow
    cluster = make_cluster({"ada": {}}, leasing=leasing, **CUDA)
    cluster.start_helper()
    with cluster.connect("ada", **SIZES) as other:
        for n in range(3):
            path = cluster.folder / f"held-{n}"
            with cluster.connect("ada", **SIZES) as leaving:
                leaving.begin("held", path_array(path))
                until(lambda path=path: path.exists() and path.read_text())
                waiting = leaving.begin("echo", [np.zeros(3 * MIB - 64, np.uint8)])
            assert waiting.outcome is None
            path.unlink()
            assert echoed(other, 2 * MIB)
        (pid,) = workers(cluster)
        until(lambda: len(mapped(pid)) == 1)


def test_a_worker_killed_while_slots_are_pinned_costs_its_own_jobs(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"lanes": 1}, **CUDA)
    cluster.start_helper()
    with cluster.connect("ada", **SIZES) as ada, cluster.connect("bob", **SIZES) as bob:
        assert all(echoed(each, MIB) for each in (ada, bob))
        path = cluster.folder / "mark"
        doomed = ada.begin("mark", path_array(path))
        victim = int(until(lambda: path.exists() and path.read_text()))
        assert mapped(victim)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RequestFailed) as failed:
            doomed.result(TIMEOUT)
        assert failed.value.reason is Reason.WORKER_LOST
        assert all(echoed(each, 2 * MIB) for each in (bob, ada))
        assert victim not in workers(cluster)


def test_a_daemon_that_is_killed_sends_the_sessions_memory_again(make_cluster: Make) -> None:
    lasting = {"resume_ttl_s": 120, "adopt_ms": 60_000, "journal_mib": 4}
    cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=lasting, leasing={"lanes": 1}, **CUDA)
    cluster.start_helper()
    with cluster.connect("ada", **SIZES) as requester:
        assert echoed(requester, MIB)
        before = set(workers(cluster))
        path = cluster.folder / "held"
        running = requester.begin("held", path_array(path))
        until(lambda: path.exists() and path.read_text())
        queued = [requester.begin("sum", [np.full(100_000, n)]) for n in range(4)]
        until_read(cluster, requester)
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear(30)["lineage"] == cluster.lineage
        path.unlink()
        running.result(TIMEOUT)
        assert [each.result(TIMEOUT).array[0] for each in queued] == [100_000 * n for n in range(4)]
        assert echoed(requester, 2 * MIB)
        assert before <= set(workers(cluster)), "it ran on"
        assert all(len(mapped(pid)) <= 1 for pid in workers(cluster))


@pytest.mark.parametrize(("key", "value"), [("host_channel", "zmq"), ("host_channel", "comch"), ("fabric", "verbs")])
def test_it_needs_requesters_and_workers_on_this_machine(key: str, value: str) -> None:
    tables: dict[str, Any] = {"tenant": [{"name": "ada"}]}
    with pytest.raises(ConfigError, match=rf"datapath\.{key}: the copy engine cuda needs (unix|loopback)"):
        parse_config({**tables, "datapath": {"copy_engine": "cuda", key: value}}, "test")
    assert parse_config({**tables, **CUDA}, "test").datapath.copy_engine == "cuda"
