"""`offpath migd run` and `offpath mig` as processes: a kill -9 under a working client, signals, exit codes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import DeviceError, DriverMissing, InstanceInUse
from offpath.bindings.nvml.session import Nvml
from offpath.cli.main import main
from offpath.host_helper.migd.client import MigdClient, XidStream
from offpath.host_helper.migd.errors import MigdUnreachable
from offpath.host_helper.migd.gpu import InstanceIdentity, InstanceOpener, MigGpu

from ...support.command import Done
from ...support.gpu_machine import Machine
from ...support.processes import until
from .rig import Migd, cut_foreign, places

LAYOUTS = """
version: v1
mig-configs:
  mixed: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2, 3g.20gb: 1}}]
  small: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  none: [{devices: all, mig-enabled: false}]
"""


@pytest.fixture
def offpath(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``offpath(words)``: a command in this process, which is quicker than one of its own."""

    def run(*words: str) -> Done:
        capsys.readouterr()
        code = main(words)
        return Done(code, *capsys.readouterr())

    return run


def test_a_client_survives_kills_of_migd_and_keeps_its_instances(machine: Machine, migd: Any, nvml: Nvml) -> None:
    """Killed while it waits, and in the middle of a creation and of a destruction."""
    running: Migd = migd()
    client = running.client()
    gpu = client.gpus().gpus[0].uuid
    kept = client.create(gpu, "3g.20gb", 4)
    running.end()
    running.start("migd.cut=kill")
    assert client.describe(gpu).instances[0].unheld_ms == -1, "the client holds its lease again"
    with pytest.raises(MigdUnreachable):
        client.create(gpu, "1g.5gb", 0, "0" * 32)
    assert len(places(nvml, gpu)) == 2, "an instance without a compute instance stays behind"
    running.start("migd.stripped=kill@2")  # the first is that of the creation undone
    made = client.create(gpu, "1g.5gb", 0, "0" * 32)
    with pytest.raises(MigdUnreachable):
        client.destroy(made.handle)
    running.start()
    client.destroy(made.handle)
    assert not select.select([client], [], [], 0)[0]
    running.end()
    assert select.select([client], [], [], 20)[0], "who waits for it learns of migd's end"
    with pytest.raises(MigdUnreachable):
        client.restore()
    running.start()
    client.restore()
    assert places(nvml, gpu) == [("3g.20gb", 4)]
    assert [line.handle for line in client.describe(gpu).instances] == [kept.handle]
    assert "Traceback" not in running.log()


def test_a_creation_whose_reply_was_lost_leaves_its_place_free(migd: Any, machine: Machine, nvml: Nvml) -> None:
    running: Migd = migd("migd.ready=kill")
    client = running.client()
    gpu = MigGpu(client, client.gpus().gpus[0].uuid, InstanceOpener(no_memory, no_memory))
    with pytest.raises(DeviceError):
        gpu.create_instance("3g.20gb", 4)
    assert places(nvml, gpu.uuid) == [("3g.20gb", 4)]
    running.start()
    instance = gpu.create_instance("3g.20gb", 4)
    assert gpu.instances() == [(instance, "3g.20gb", 4)]
    assert len(places(nvml, gpu.uuid)) == 1


def test_an_instance_whose_lease_was_lost_is_not_opened(migd: Any, machine: Machine) -> None:
    """Its UUID is that of whatever is cut at its place next."""
    running: Migd = migd()
    client = running.client()
    gpu = MigGpu(client, client.gpus().gpus[0].uuid, InstanceOpener(no_memory, no_memory))
    instance = gpu.create_instance("3g.20gb", 4)
    running.end()
    (running.folder / "ledger").unlink()
    running.start()
    client.restore()
    assert gpu.instances() == []
    with pytest.raises(DeviceError, match="has no instance"):
        gpu.open_instance(instance)
    gpu.destroy_instance(instance)
    assert [line.owner for line in client.describe(gpu.uuid).instances] == ["foreign"]


def no_memory(identity: InstanceIdentity) -> Any:
    raise AssertionError(f"{identity} is not to be opened")


def test_sigterm_ends_it_in_order_and_a_second_one_cannot_start_beside_it(
    migd: Any, machine: Machine, offpath: Callable[..., Done]
) -> None:
    running: Migd = migd()
    second = offpath("migd", "run", "--runtime-dir", str(running.folder))
    assert second.code == 73
    assert "another process listens there" in second.err
    assert running.end(signal.SIGTERM) == 0
    assert not os.path.exists(running.path)
    assert "Traceback" not in running.log()


def test_without_a_driver_it_runs_and_says_so_until_there_is_one(migd: Any, machine: Machine) -> None:
    """The emulator counts the sessions of migd's process; one may be that of the Xid events."""
    machine.set(faults=",".join(f"nvmlInitWithFlags:{n}=9" for n in range(1, 4)))
    client = migd().client()
    with pytest.raises(DriverMissing, match="load the NVIDIA kernel module"):
        client.gpus()
    assert until(lambda: has_driver(client))


def has_driver(client: MigdClient) -> bool:
    try:
        return len(client.gpus().gpus) == 1
    except DriverMissing:
        return False


def test_an_xid_event_reaches_who_watches(migd: Any, machine: Machine, nvml: Nvml) -> None:
    """It is posted again until migd's own watch has begun."""
    stream = XidStream(migd().path)

    def event() -> Any:
        for faults in ("xid=31@nvmlDeviceGetCount", ""):  # it counts anew where the text changed between two calls
            machine.set(faults=faults)
            nvml.call("nvmlDeviceGetCount")
        return stream.poll()

    found = until(event, 10.0)
    assert (found.xid, found.gpu, found.handle) == (31, nvml.gpus()[0].uuid, "")
    stream.close()


WORKER = """
import ctypes, os, signal
ctypes.CDLL(os.environ["OFFPATH_GPU_PATH"] + "/libcuda.so.1", os.RTLD_NOW | os.RTLD_GLOBAL)
from cuda.bindings import driver
for call, words in ((driver.cuInit, (0,)), (driver.cuDeviceGet, (0,)), (driver.cuDevicePrimaryCtxRetain, (0,))):
    assert call(*words)[0] == 0, call
print("computes", flush=True)
signal.pause()
"""


def test_an_instance_that_a_process_computes_on_is_kept_until_its_end_and_the_process_named(
    migd: Any, machine: Machine
) -> None:
    client = migd(destroy_wait_ms=20).client()
    gpu = client.gpus().gpus[0].uuid
    made = client.create(gpu, "3g.20gb", 0)
    neighbour = client.create(gpu, "1g.5gb", 4)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, env={**os.environ, "CUDA_VISIBLE_DEVICES": made.uuid}
    )
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == b"computes\n"
        with pytest.raises(InstanceInUse) as refused:
            client.destroy(made.handle)
        assert refused.value.pids == (worker.pid,)
        client.destroy(neighbour.handle)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    client.destroy(made.handle)
    assert client.describe(gpu).instances == []


def test_layouts_are_shown_planned_asserted_and_applied(
    migd: Any, machine: Machine, nvml: Nvml, tmp_path: Path, offpath: Callable[..., Done]
) -> None:
    running: Migd = migd()
    (tmp_path / "mig.yaml").write_text(LAYOUTS)

    def mig(verb: str, *words: str) -> Any:
        return offpath("mig", verb, *words, "--runtime-dir", str(running.folder))

    def layout(verb: str, label: str, *words: str) -> Any:
        return mig(verb, "-f", str(tmp_path / "mig.yaml"), "-c", label, *words)

    gpu = running.client().gpus().gpus[0].uuid
    assert layout("assert", "mixed").code == 1
    assert len(json.loads(layout("plan", "mixed", "--json").out)[0]["create"]) == 3
    assert places(nvml, gpu) == [], "a plan changes nothing"
    assert layout("apply", "mixed").code == 0
    done = layout("assert", "mixed")
    assert (done.code, done.out) == (0, "Selected MIG configuration currently applied\n")
    shown = json.loads(mig("show", "--json").out)["gpus"][0]
    assert sorted(line["profile"] for line in shown["instances"]) == ["1g.5gb", "1g.5gb", "3g.20gb"]
    assert layout("assert", "none").code == 1
    assert "nvidia-smi -i 0 -mig 0" in layout("apply", "none").err

    cut_foreign(nvml, gpu, "1g.5gb", 6)
    refused = layout("apply", "mixed")
    assert (refused.code, "--replace-foreign" in refused.err) == (1, True)
    leased = running.client()
    lease = next(line for line in leased.describe(gpu).instances if line.profile == "3g.20gb")
    handle = leased.create(gpu, "3g.20gb", lease.start).handle
    refused = layout("apply", "small", "--replace-foreign")
    assert (refused.code, "is leased" in refused.err) == (1, True)
    assert len(places(nvml, gpu)) == 4, "nothing was changed"
    leased.destroy(handle)
    assert layout("apply", "small", "--replace-foreign").code == 0
    assert places(nvml, gpu) == [("1g.5gb", start) for start in range(7)]
    assert "1g.5gb" in mig("show", "--profiles").out


def test_the_commands_say_when_no_migd_runs(tmp_path: Path, offpath: Callable[..., Done]) -> None:
    (tmp_path / "mig.yaml").write_text(LAYOUTS)
    where = ("--runtime-dir", str(tmp_path))
    assert offpath("mig", "show", *where).code == 69
    words = ("-f", str(tmp_path / "mig.yaml"), "-c", "mixed")
    assert offpath("mig", "assert", *words, *where).code == 1
    assert offpath("mig", "assert", *words, "--valid-config").code == 0
    assert offpath("mig", "plan", *words, *where).code == 69
    assert offpath("migd", "run", "--gpu", "all", *where).code == 1
    assert offpath("migd", "run", "--gpu", "all=cut", *where).code == 78
    (tmp_path / "migd.toml").write_text("hold_ms = -1\n")
    assert offpath("migd", "run", "--config", str(tmp_path / "migd.toml"), *where).code == 78
