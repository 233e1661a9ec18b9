"""MPS of a helper's leases: what each lane gets, daemons that start, refuse, hang and end, and what is left of them."""

from __future__ import annotations

import os
import selectors
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.share import MpsShare, count_multiprocessors
from offpath.bindings.cuda.whole import WholeGpu, visible
from offpath.bindings.errors import DeviceError, MpsError, MpsMissing, MpsNotInForce, OptionRefused
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.wire import control
from offpath.host_helper import Helper
from offpath.host_helper.doctor import check_mps
from offpath.host_helper.instances import Instance
from offpath.host_helper.mps import LeaseMps, Mps, find_program, open_mps, percentage_of, require
from offpath.host_helper.mps_daemon import MpsDaemon
from offpath.host_helper.supervisor import Supervisor

from ..support.gpu_machine import Machine
from ..support.processes import until
from .mps_rig import control_daemons, end_all, ended, folders

MIB = 1 << 20
SMS = 132
"""Of an H100."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One whole H100."""
    made = Machine(tmp_path / "machine", models="H100-80GB", mig="off", slice_bytes=str(8 * MIB))
    yield made
    made.close()


@pytest.fixture
def root(machine: Machine) -> Iterator[Path]:
    """Where helpers have their control daemons; none is left at the end. Sockets' paths are short: ``tmp_path`` of a
    parallel run is not."""
    with tempfile.TemporaryDirectory(prefix="offpath-") as folder:
        path = Path(folder) / "m"
        yield path
        assert end_all(path) == []


def order(lease: int = 1, lanes: int = 4) -> control.OpenInstance:
    return control.OpenInstance(
        lease=lease, generation=3, tenant="ada", gpu="GPU-0", profile="whole", start=0, lanes=lanes, landing_bytes=4096,
        result_bytes=4096, scrub_first=False, token="t" * 43,
    )  # fmt: skip


def started(mps: Mps, gpu: WholeGpu, lease: int = 1) -> LeaseMps:
    made = mps.start(order(lease), gpu, gpu.instances()[0][0], [14, 30])
    assert made is not None
    return made


@pytest.fixture
def gpu(machine: Machine) -> WholeGpu:
    made = WholeGpu(visible()[0])
    made.create_instance("whole", 0)
    return made


def in_worker(share: MpsShare, uuid: str) -> str:
    """What a process with this share finds. Raises: DeviceError: it refuses to serve."""

    def work() -> str:
        share.enter()
        memory = CudaInstance(uuid)
        require(memory, share)
        try:
            memory.reserve(0, 1, 20 * MIB, 4096)
        except DeviceError:
            return f"{memory._context.multiprocessors} limited"
        return str(memory._context.multiprocessors)

    return forked.call(work, "worker", 30)


# -- what a lane gets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demands", "offered", "percentage"),
    [([14], 14, 100), ([14], 28, 50), ([14], 42, 34), ([14, 100], 28, 50), ([14, 100], 100, 100), ([1], 100, 1),
     ([30, 14], 100, 30), ([100], 28, 100), ([], 100, 100), ([1], 0, 100)],
)  # fmt: skip
def test_a_lane_may_use_what_the_largest_kernel_needs_that_fits_its_instance(
    demands: list[int], offered: int, percentage: int
) -> None:
    assert percentage_of(demands, offered) == percentage


def test_a_lease_has_a_daemon_of_its_own_whose_clients_have_percentage_and_limit(gpu: WholeGpu, root: Path) -> None:
    mps = Mps(find_program(), str(root))
    lease = started(mps, gpu)
    folder = Path(lease.share.pipes).parent
    assert folder.name == "1-3"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())} == {0o700}
    assert (lease.share.percentage, lease.share.limit_mib, lease.share.multiprocessors) == (30, 8 * 8 // 4, SMS)
    assert in_worker(lease.share, gpu.uuid) == "40 limited", "30 % of 132, in pairs"
    assert not lease.daemon.has_ended()
    assert lease.daemon.stop()
    assert lease.daemon.stop(), "again"
    mps.close()
    assert folders(root) == []


def test_a_worker_without_its_daemon_or_with_another_share_refuses_to_serve(gpu: WholeGpu, root: Path) -> None:
    """CUDA itself runs on without MPS, and says nothing."""
    mps = Mps(find_program(), str(root))
    lease = started(mps, gpu)
    wide = MpsShare(lease.share.pipes, lease.share.logs, 100, 16, SMS)
    with pytest.raises(DeviceError, match="40 of 132 multiprocessors are enabled, not 100 %"):
        in_worker(wide, gpu.uuid)
    (pid,) = control_daemons(root)
    os.kill(pid, signal.SIGKILL)
    until(lease.daemon.has_ended)
    with pytest.raises(DeviceError, match="CUDA runs without MPS: no control daemon answers"):
        in_worker(lease.share, gpu.uuid)
    assert lease.daemon.stop()
    mps.close()
    assert folders(root) == []


def test_memory_that_is_not_cudas_is_no_share(machine: Machine) -> None:
    with pytest.raises(MpsNotInForce, match="not CUDA's"):
        require(SimpleNamespace(), MpsShare("", "", 50, 1, SMS))  # type: ignore[arg-type]


def test_multiprocessors_are_counted_without_mps_also_beside_a_daemon(
    gpu: WholeGpu, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps = Mps(find_program(), str(root))
    lease = started(mps, gpu)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", lease.share.pipes)
    assert count_multiprocessors(gpu.uuid) == SMS
    lease.daemon.stop()
    mps.close()


def test_a_gpu_that_cuda_does_not_name_has_no_daemon(root: Path) -> None:
    mps = Mps(find_program(), str(root))
    emulated = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 16)
    assert mps.start(order(), emulated, emulated.create_instance("7g.40gb", 0), [14]) is None
    emulated.close()
    mps.close()


# -- a control program that is not as it should be --------------------------------------------------------------------


def program(tmp_path: Path, daemon: str, answers: str) -> str:
    """A control program: what it does with ``-d``, and with commands."""
    path = tmp_path / "nvidia-cuda-mps-control"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then {daemon}; exit; fi\ncat >/dev/null; {answers}\n')
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("daemon", "answers", "reason"),
    [
        ("true", "echo 100.0; echo 64M", "keeps '100.0 64M' instead of 50 % and 64M"),
        ("true", "echo 50.0; echo 64G", "keeps '50.0 64G'"),
        ("true", "echo 50.0", "keeps '50.0'"),
        ("true", "echo nan; echo x", "keeps 'nan x'"),
        ("true", "echo 50.0; echo 64M", "not the one which was started"),
        ("echo no room; exit 1", "exit 1", "no MPS control daemon: no room"),
        ("exit 1", "echo nobody >&2; exit 1", "nobody"),
    ],
)
def test_a_daemon_that_does_not_take_its_settings_is_an_error_and_leaves_nothing(
    tmp_path: Path, daemon: str, answers: str, reason: str
) -> None:
    with pytest.raises(MpsError, match=reason):
        MpsDaemon.start(program(tmp_path, daemon, answers), str(tmp_path / "lease"), "GPU-0", 50, 64)
    assert not (tmp_path / "lease").exists()


def test_a_program_that_is_gone_and_a_path_too_long_are_errors_that_say_so(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match="No such file"):
        MpsDaemon.start(str(tmp_path / "none"), str(tmp_path / "lease"), "GPU-0", 50, 64)
    with pytest.raises(MpsError, match="too long for a socket"):
        MpsDaemon.start("/bin/true", str(tmp_path / ("x" * 100)), "GPU-0", 50, 64)
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_that_hangs_is_killed(gpu: WholeGpu, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpath.host_helper.mps_daemon._ASK_S", 0.2)
    monkeypatch.setattr("offpath.host_helper.mps_daemon._QUIT_S", 0.1)
    mps = Mps(find_program(), str(root))
    monkeypatch.setattr("offpath.host_helper.mps_daemon._ASK_S", 20.0)
    lease = started(mps, gpu)
    (pid,) = control_daemons(root)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("offpath.host_helper.mps_daemon._ASK_S", 0.2)
    lease.daemon.terminate([4711])
    assert lease.daemon.stop()
    assert ended(pid)
    mps.close()


def test_clients_are_terminated_at_every_server_before_they_are_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    path = tmp_path / "control"
    path.write_text(f"#!/bin/sh\ntee -a {said} >/dev/null; echo 77; echo 88\n")
    path.chmod(0o700)
    daemon = MpsDaemon(str(path), str(tmp_path / "lease"))
    daemon.terminate([1, 2])
    assert said.read_text().split("\n")[1:-1] == [f"terminate_client {s} {c}" for s in (77, 88) for c in (1, 2)]


def test_a_leases_workers_are_told_killed_and_reaped_before_its_daemon_stops() -> None:
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    made = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), [], table)
    reading, writing = os.pipe()
    worker = os.fork()
    if not worker:
        signal.pause()
    pidfd = os.pidfd_open(worker)
    for fd in (pidfd, reading):
        made._selector.register(fd, selectors.EVENT_READ)
    seen: list[object] = []
    daemon = SimpleNamespace(
        pidfd=reading,
        terminate=lambda pids: seen.append((list(pids), ended(worker))),
        stop=lambda: seen.append(os.path.exists(f"/proc/{worker}")),
    )
    held: Any = SimpleNamespace(workers={pidfd: (worker, 0)}, mps=SimpleNamespace(daemon=daemon))
    made._end_workers(held)
    assert (seen, held.workers, held.mps) == ([([worker], False), False], {}, None)
    made._selector.close()
    for fd in (reading, writing, made._stop_read, made._stop_write):
        os.close(fd)


def test_a_worker_killed_on_order_takes_the_other_lanes_of_its_lease_with_it() -> None:
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    made = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), [], table)
    reading, writing = os.pipe()
    made._selector.register(reading, selectors.EVENT_READ)
    workers: dict[int, tuple[int, int]] = {}
    for lane in range(2):
        if not (pid := os.fork()):
            signal.pause()
        workers[pidfd := os.pidfd_open(pid)] = pid, lane
        made._selector.register(pidfd, selectors.EVENT_READ)
    daemon = SimpleNamespace(pidfd=reading, terminate=lambda pids: None, stop=lambda: True)
    nothing: Any = None
    mps: Any = SimpleNamespace(daemon=daemon)
    made._instances[7] = Instance(order(7), nothing, 1, nothing, workers, mps)
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        send=lambda body: sent.append(control.decode(control.HOST_TO_DAEMON, body)) or True
    )
    made._kill(connection, control.KillWorker(lease=7, lane=1, generation=2))
    assert (len(workers), sent) == (2, []), "another generation's"
    made._kill(connection, control.KillWorker(lease=7, lane=1, generation=3))
    assert (workers, [(each.lease, each.lane) for each in sent]) == ({}, [(7, 0), (7, 1)])
    made._selector.close()
    for fd in (reading, writing, made._stop_read, made._stop_write):
        os.close(fd)


# -- several helpers, one after another -------------------------------------------------------------------------------


def test_a_new_helper_ends_what_a_dead_one_left_and_nothing_of_a_living_one(gpu: WholeGpu, root: Path) -> None:
    living = Mps(find_program(), str(root))
    kept = started(living, gpu)

    def dies() -> str:
        """A helper that ends without a word; its daemon stays."""
        started(Mps(find_program(), str(root)), gpu, lease=2)
        return ""

    forked.call(dies, "helper", 30)
    assert (len(control_daemons(root)), len(folders(root))) == (2, 4)

    def follows() -> str:
        Mps(find_program(), str(root)).close()
        return " ".join(map(str, control_daemons(root)))

    (left,) = forked.call(follows, "helper", 30).split()
    assert f"/{1}-3/" in Path(f"/proc/{left}/environ").read_text()
    assert not kept.daemon.has_ended()
    kept.daemon.stop()
    living.close()
    assert folders(root) == []


def test_a_helper_without_mps_ends_what_one_with_it_left(
    gpu: WholeGpu, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies() -> str:
        started(Mps(find_program(), str(root)), gpu)
        return ""

    forked.call(dies, "helper", 30)
    monkeypatch.setenv("OFFPATH_GPU_PATH", "/nowhere")
    assert open_mps("off", is_cuda=True, root=str(root)) is None
    assert (control_daemons(root), folders(root)) == ([], [])


def test_a_directory_that_others_may_write_to_is_not_used(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(DeviceError, match="may be written by others"):
        open_mps("on", is_cuda=True, root=str(root))
    assert open_mps("off", is_cuda=True, root=str(root)) is None


# -- whether there is MPS ---------------------------------------------------------------------------------------------


def test_mps_is_on_where_it_is_asked_for_or_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("on", "auto"):
        made = open_mps(mode, is_cuda=True, root=str(root))
        assert made is not None
        made.close()
    assert open_mps("off", is_cuda=True, root=str(root)) is None
    assert open_mps("auto", is_cuda=False, root=str(root)) is None
    assert check_mps().severity.value == "ok"
    with pytest.raises(OptionRefused, match="needs an NVIDIA GPU"):
        open_mps("on", is_cuda=False, root=str(root))
    with pytest.raises(OptionRefused, match="'yes'; use auto, on, off"):
        open_mps("yes", is_cuda=True, root=str(root))
    monkeypatch.setenv("OFFPATH_GPU_PATH", "/nowhere")
    assert open_mps("auto", is_cuda=True, root=str(root)) is None
    assert "take turns" in check_mps().what
    helper = Helper()
    helper.kernel("nothing", demand=1)(lambda: None)
    with pytest.raises(MpsMissing, match="install the driver's compute utilities"):
        helper.run("/nowhere/host.sock", mps="on")
