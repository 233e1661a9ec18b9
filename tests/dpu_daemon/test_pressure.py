"""A machine that gives less than it promised: memory that is refused, clocks that jump or differ."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import OffpathError
from offpath.cli.admin_client import AdminClient, all_tenants
from offpath.dpu_daemon.serve import continued_clock
from offpath.host_helper import Options

from ..support.clocks import CLOCK
from ..support.cluster import MIB, TIMEOUT, pids_of, said
from ..support.clusters import NARROW, Make, seconds
from ..support.namespaces import needs_namespaces
from ..support.processes import until

SLEEP_S = 0.5


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def memory_limit(pid: int, room_bytes: int) -> Iterator[None]:
    """The process may map so much more than it has, until the block ends."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (address_space(pid) + room_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """The file of `CLOCK`, at 0 s."""
    needs_namespaces("time")
    file = tmp_path / "clock"
    file.write_text("0")
    return file


@pytest.mark.parametrize("room", [0, 16 * MIB])
def test_a_daemon_without_memory_refuses_sessions_and_serves_those_it_has(make_cluster: Make, room: int) -> None:
    cluster = make_cluster({"ada": {}, "bob": {}})
    cluster.start_helper()
    sizes = {"payload_bytes": 4 * MIB, "result_bytes": MIB}
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        with memory_limit(cluster.daemon.pid, room):
            for _ in range(10):
                with pytest.raises(OffpathError), cluster.connect("bob", **sizes):
                    pass
                assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
        assert "no memory for a session of bob" in cluster.daemon.errors
        with cluster.connect("bob", **sizes) as bob:
            assert bob.submit("echo", seconds(3), timeout=TIMEOUT).array == 3


def test_a_resumed_clock_goes_on_from_the_last_event_and_is_untouched_otherwise() -> None:
    now = [1000]
    ahead = continued_clock(5000, lambda: now[0])
    assert ahead() == 5000
    now[0] = 1007
    assert ahead() == 5007
    assert continued_clock(900, lambda: now[0])() == 1007


def test_a_daemon_restarted_under_an_earlier_clock_finishes_what_it_had_accepted(
    make_cluster: Make, clock: Path
) -> None:
    """A checkpoint restored on another machine, a container in another time namespace: the clock goes back."""
    cluster = make_cluster(
        {"ada": NARROW}, keep={"starts": 0}, environment={CLOCK: str(clock)},
        durability={"resume_ttl_s": 20, "adopt_ms": 5000},
    )  # fmt: skip
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        running = ada.begin("sleep", seconds(1.5))
        queued = [ada.begin("echo", seconds(n)) for n in range(8)]
        late = ada.begin("echo", seconds(9), options=Options(budget_ms=120_000))
        with AdminClient(str(cluster.run_folder)) as admin_client:
            until(lambda: sum(tenant.jobs for tenant in all_tenants(admin_client)[1]) == 10)
        clock.write_text("-600")
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        cluster.daemon.hear()
        assert running.result(TIMEOUT).array == 1.5
        assert [pending.result(TIMEOUT).array for pending in (*queued, late)] == [*range(8), 9]
        assert ada.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
    assert "behind the journal's last event" in cluster.daemon.errors
    assert "internal error handling" not in cluster.daemon.errors


@pytest.mark.parametrize("offset_s", [-600, 1_000_000])
def test_a_kernels_time_is_right_where_the_hosts_clock_is_not_the_daemons(
    make_cluster: Make, clock: Path, offset_s: int
) -> None:
    """A host and its DPU boot at different moments: their monotonic clocks have nothing in common."""
    cluster = make_cluster({"ada": NARROW})
    clock.write_text(str(offset_s))
    cluster.start_helper({CLOCK: str(clock)})
    with cluster.connect("ada") as ada:
        stages = ada.submit("sleep", seconds(SLEEP_S), timeout=TIMEOUT).stages
    assert SLEEP_S * 1e9 <= stages.kernel <= stages.total
    assert stages.queued + stages.copy + stages.launch + stages.kernel + stages.back == stages.total


def test_a_helper_without_memory_opens_no_lease_and_serves_when_it_has_some_again(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, leasing={"landing_bytes": 32 * MIB})
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        with memory_limit(helper.pid, 8 * MIB):
            waiting = ada.begin("echo", seconds(1))
            until(lambda: "Cannot allocate memory" in helper.errors)
            assert not waiting.done
        assert waiting.result(TIMEOUT).array == 1
        assert helper.is_alive
    helper.kill()  # its workers complained, which `finish` would not forgive


def test_an_instance_whose_scrub_fails_is_given_to_nobody_and_the_helper_lives_on(make_cluster: Make) -> None:
    """Before, the failure ended the helper, and with it the leases of every other tenant."""
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"keep_warm_ms": 60_000})
    helper = cluster.start_helper(fail_scrub=3)
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        where = said(bob.submit("where", seconds(0), timeout=TIMEOUT))
        assert ada.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        worker = said(ada.submit("where", seconds(0), timeout=TIMEOUT))["pid"]
        os.kill(worker, signal.SIGKILL)
        until(lambda: "scrub failed, instance quarantined" in helper.errors)
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
        assert said(bob.submit("where", seconds(0), timeout=TIMEOUT))["generation"] == where["generation"]
        assert helper.is_alive
    helper.kill()
