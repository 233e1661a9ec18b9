"""MPS of the GPU emulator: the control program's answers, and what its clients see."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...support.gpu_emulator import emulator, environment
from .conftest import Cuda, Nvml
from .mig import instance

PREFIX = "OFFPATH_GPU_EMULATOR_"
SLICE = 4 << 20
SMS = 132
Control = Callable[..., str]
BEGIN = "begin(); v.p = ok(d.cuMemAlloc(64)); function('offpath_empty')"
FAULT = "launch('offpath_fault'); result = code(d.cuCtxSynchronize())"
ALIVE = "result = [launch('offpath_empty'), code(d.cuCtxSynchronize())]"


def run(*arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [emulator() / "nvidia-cuda-mps-control", *arguments], input=commands, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip


def pid_of(folder: Path) -> int:
    return int((folder / "nvidia-cuda-mps-control.pid").read_text())


def end(folder: Path) -> None:
    """SIGTERM; returns when the daemon is no more."""
    if not (folder / "nvidia-cuda-mps-control.pid").exists():
        return
    with_signal(folder, signal.SIGTERM)


def with_signal(folder: Path, number: int) -> None:
    """Sends a signal to the daemon and waits for its end."""
    watched = os.pidfd_open(pid_of(folder))
    signal.pidfd_send_signal(watched, number)
    await_end(watched)


def await_end(watched: int) -> None:
    """Waits for the end of the process of a pidfd, and closes it."""
    assert select.select([watched], [], [], 30)[0]
    os.close(watched)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A pipe directory, of this test's processes."""
    with tempfile.TemporaryDirectory(prefix="offpath-mps-") as made, environment(CUDA_MPS_PIPE_DIRECTORY=made):
        yield Path(made)
        end(Path(made))


@pytest.fixture
def control(folder: Path) -> Control:
    """``control(*commands)``: a daemon that runs, and what it answers."""
    assert run("-d").returncode == 0

    def answers(*commands: str) -> str:
        done = run(commands="".join(f"{each}\n" for each in commands))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return answers


# -- the control program ----------------------------------------------------------------------------------------------


def test_without_a_daemon_the_program_fails(folder: Path) -> None:
    done = run(commands="get_server_list\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Cannot find MPS control daemon process\n")


def test_a_daemon_starts_once_and_needs_its_folder(folder: Path) -> None:
    assert run("-d").returncode == 0
    assert (folder / "control").is_socket()
    assert (folder / "log").is_fifo()
    again = run("-d")
    assert (again.returncode, again.stdout) == (1, "An instance of this daemon is already running\n")
    for missing in (folder / "none", folder / ("x" * 120)):
        with environment(CUDA_MPS_PIPE_DIRECTORY=str(missing)):
            done = run("-d")
        assert (done.returncode, done.stdout) == (1, f"Cannot access CUDA_MPS_PIPE_DIRECTORY={missing}\n")
    (folder / ("x" * 120)).mkdir()
    with environment(CUDA_MPS_PIPE_DIRECTORY=str(folder / ("x" * 120))):
        done = run("-d")
    assert (done.returncode, done.stdout) == (1, ""), "a path too long for a socket: no reason is given"


def test_answers_are_the_real_programs(control: Control) -> None:
    for command, answer in [
        ("get_server_list", ""), ("ps", ""), ("get_client_list 4711", "Server 4711 not found\n"),
        ("get_default_active_thread_percentage", "100.0\n"), ("set_default_active_thread_percentage 50", "50.0\n"),
        ("set_default_active_thread_percentage 0", "50.0\n"), ("set_default_active_thread_percentage 100.5", "50.0\n"),
        ("set_default_active_thread_percentage abc", "50.0\n"), ("set_default_active_thread_percentage nan", "50.0\n"),
        ("set_active_thread_percentage 4711 10", "Server 4711 not found\n"),
        ("get_default_device_pinned_mem_limit 0", ""), ("set_default_device_pinned_mem_limit 0 4G", ""),
        ("get_default_device_pinned_mem_limit 0", "4G\n"), ("set_default_client_priority 1", ""),
        ("set_default_client_priority 5", "Invalid priority value - must be 0 or 1!\n"),
        ("get_server_status 1", 'Unknown command "get_server_status 1"\n'), ("", ""),
    ]:  # fmt: skip
        assert control(command) == answer, command
    assert control(f"start_server -uid {os.getuid()}", "get_server_list").strip().isdigit()


def test_quit_ends_the_daemon_and_clears_its_folder(control: Control, folder: Path) -> None:
    watched = os.pidfd_open(pid_of(folder))
    assert control("quit -t 2") == ""
    await_end(watched)
    assert [path.name for path in folder.iterdir()] == ["control_lock"]
    assert run(commands="get_server_list\n").returncode == 1


# -- clients ----------------------------------------------------------------------------------------------------------


ATTRIBUTES = "begin()\nresult = [ok(d.cuDeviceGetAttribute(d.CUdevice_attribute(a), 0)) for a in (133, 16)]"


def test_a_client_has_the_lower_percentage_and_the_limit(nvml: Nvml, cuda: Cuda, control: Control) -> None:
    nvml(models="H100-80GB", mig="off", slice_bytes=SLICE)
    control("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 4M")
    one = cuda()
    assert one.do(ATTRIBUTES) == [1, SMS // 2]
    assert one.do("result = [code(d.cuMemAlloc(n << 20)) for n in (2, 4, 2)]") == [0, 2, 0]
    assert cuda(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10").do(ATTRIBUTES) == [1, 14]
    assert cuda(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90").do(ATTRIBUTES) == [1, SMS // 2], "never raised"
    assert cuda(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2M").do("begin(); result = code(d.cuMemAlloc(4 << 20))") == 2
    (server,) = control("get_server_list").split()
    clients = control(f"get_client_list {server}").split()
    assert str(one.process.pid) in clients
    assert len(clients) == 4


def test_a_process_without_a_daemon_runs_without_mps_silently(nvml: Nvml, cuda: Cuda, folder: Path) -> None:
    nvml(models="H100-80GB", mig="off", slice_bytes=SLICE)
    assert cuda(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10").do(ATTRIBUTES) == [0, SMS]
    assert run("-d").returncode == 0
    assert cuda(**{PREFIX + "FAULTS": "mps_gone"}).do(ATTRIBUTES) == [0, SMS]
    assert cuda().do(ATTRIBUTES) == [1, SMS]


def test_a_fault_reaches_all_clients_of_the_server_and_no_others(
    nvml: Nvml, cuda: Cuda, control: Control, tmp_path: Path
) -> None:
    device = nvml(slice_bytes=SLICE)
    shared, alone = instance(device, "2g.10gb", 0)[2], instance(device, "2g.10gb", 2)[2]
    one, two = (cuda(CUDA_VISIBLE_DEVICES=shared) for _ in range(2))
    other = cuda(CUDA_VISIBLE_DEVICES=alone, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none"))
    for each in (one, two, other):
        each.do(BEGIN)
    assert one.do(FAULT) == 700
    assert two.do("result = code(d.cuCtxSynchronize())") == 700
    assert other.do(ALIVE) == [0, 0]
    late = cuda(CUDA_VISIBLE_DEVICES=shared)
    assert late.do("result = code(d.cuInit(0))") == 807
    one.kill()
    assert late.do("result = code(d.cuInit(0))") == 807, "until all have exited"
    two.kill()
    assert late.do(BEGIN + "\n" + ALIVE) == [0, 0]


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_client_killed_with_work_outstanding_leaves_an_unusable_server(
    nvml: Nvml, cuda: Cuda, control: Control, folder: Path, is_idle: bool
) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one, late = cuda(), cuda()
    one.do(BEGIN + "; launch('offpath_empty')" + ("; ok(d.cuCtxSynchronize())" if is_idle else ""))
    one.kill()
    assert late.do("result = code(d.cuInit(0))") == (0 if is_idle else 806)
    if not is_idle:
        end(folder)
        assert run("-d").returncode == 0
        assert late.do(BEGIN + "\n" + ALIVE) == [0, 0]


def test_a_terminated_client_gets_810_and_others_continue(nvml: Nvml, cuda: Cuda, control: Control) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one, two = cuda(), cuda()
    for each in (one, two):
        each.do(BEGIN)
    (server,) = control("get_server_list").split()
    assert control(f"terminate_client {server} {one.process.pid}") == ""
    assert one.do("result = [code(d.cuCtxSynchronize()), code(d.cuMemAlloc(4))]") == [810, 810]
    assert two.do(ALIVE) == [0, 0]


def test_the_end_of_the_daemon_ends_its_clients(nvml: Nvml, cuda: Cuda, control: Control, folder: Path) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    one.do(BEGIN)
    with_signal(folder, signal.SIGKILL)
    assert one.do("result = code(d.cuCtxSynchronize())") == 806
    assert run("-d").returncode == 0, "files of a killed daemon are no obstacle"
    assert one.do("result = code(d.cuCtxSynchronize())") == 806
    assert cuda().do(BEGIN + "\n" + ALIVE) == [0, 0]
