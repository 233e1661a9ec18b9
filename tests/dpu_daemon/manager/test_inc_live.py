"""Requests for servers and switches with real processes: a job manager with the engine `local`, and a real switch."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from subprocess import Popen

import pytest

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import control, inc_admin
from offpath.bindings.wire.inc_admin import CompositeBody, ConnectionBody, SubmitRequest, TieBody
from offpath.cli import admin_client, inc_client
from offpath.cli.inc_values import Values
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.cli.local.job_manager import JobManager, toml_of
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.manager.config import load
from offpath.dpu_daemon.manager.inc.links import query_switch
from offpath.dpu_daemon.switch.inc import messages

from ...support.command import offpath
from ...support.processes import BOUND_S, until

NODES = [f"n{number}" for number in range(4)]
LEAVES = ["l0", "l1"]


def tables(folder: Path) -> dict[str, object]:
    """Two leaf switches, of which l0 is a process and alone takes R2P2; what l1 runs is only counted."""
    nodes = [{"name": name, "gpus": 1, "switch": LEAVES[at // 2]} for at, name in enumerate(NODES)]
    first_port = Random(str(folder)).randrange(31_000, 32_000)
    switches = [{"name": name, "hosts": NODES[2 * at : 2 * at + 2], "features": ["p4-14"],
                 "control": str(folder / "l0.sock") if name == "l0" else "",
                 "services": ["r2p2"] if name == "l0" else ["netcache"]}
                for at, name in enumerate(LEAVES)]  # fmt: skip
    return {
        "engine": {"kind": "local", "folder": str(folder / "engine"), "poll_ms": 100, "node": nodes},
        "inc": {
            "round_ms": 50, "first_port": first_port, "last_port": first_port + 99,
            "server": [{"name": name, "cpu_milli": 4_000, "memory_mib": 8_192} for name in NODES],
            "switch": [*switches, {"name": "spine", "switches": LEAVES}],
            "tenant": [{"name": "web"}, {"name": "small", "cpu_milli": 1_000, "requests": 1}],
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="offpath-inc-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def switch(folder: Path) -> Iterator[Popen[bytes]]:
    with open(folder / "switch.log", "wb") as log:
        made = start(COMMAND_LINE, "switch", "inc", "--name", "l0", "--control", str(folder / "l0.sock"), "--features",
                     "p4-14", "--services", "r2p2", stdout=log, stderr=log)  # fmt: skip
    until((folder / "l0.sock").exists)
    yield made
    made.terminate()
    assert made.wait(BOUND_S) == 0
    assert "Traceback" not in (folder / "switch.log").read_text()


@pytest.fixture(scope="module")
def manager(folder: Path, switch: Popen[bytes]) -> Iterator[JobManager]:
    with JobManager(str(folder / "manager"), tables(folder)) as made:
        yield made
        assert "Traceback" not in made.log


@pytest.fixture
def here(manager: JobManager) -> Iterator[JobManager]:
    yield manager
    names = [each.name for each in inc_client.all_requests(manager.runtime_dir, is_ended=False)]
    for name in names:
        cancel(manager, name)
    until(lambda: all(not inc_client.shown(name, manager.runtime_dir).tasks for name in names))


def submit(here: JobManager, request: SubmitRequest) -> inc_admin.Shown:
    with inc_client.client(here.runtime_dir) as client:
        return client.query(request, inc_admin.Shown)


def cancel(here: JobManager, name: str) -> None:
    with inc_client.client(here.runtime_dir) as client:
        client.query(inc_admin.CancelRequest(name=name), inc_admin.Shown)


def restart(here: JobManager) -> None:
    here.kill()
    here.start()


def request(name: str, *composites: CompositeBody, tenant: str = "web", **more: object) -> SubmitRequest:
    return SubmitRequest(name=name, tenant=tenant, composite=list(composites) or [plain("c")], **more)  # type: ignore[arg-type]


def plain(name: str, instances: int = 1, command: str = "sleep 900", **more: object) -> CompositeBody:
    return CompositeBody(name=name, instances=instances, argv=["sh", "-c", command], **more)  # type: ignore[arg-type]


def is_running(here: JobManager, name: str) -> bool:
    shown = inc_client.shown(name, here.runtime_dir)
    return shown.request.state == "running" and all(task.state == "running" for task in shown.tasks)


def at_switch(folder: Path) -> messages.Status:
    found = asyncio.run(query_switch(str(folder / "l0.sock"), messages.StatusRequest(), messages.Status))
    assert isinstance(found, messages.Status)
    return found


def test_a_job_manager_killed_at_any_moment_loses_and_doubles_no_task(here: JobManager, folder: Path) -> None:
    draw = Random(20261124)
    marks = folder / "marks"
    names = [f"r{number}" for number in range(3)]
    mark = f"echo $OFFPATH_JOB >> {marks}; exec sleep 900"
    for number, name in enumerate(names):
        body = [plain("c", 2, mark), CompositeBody(name="b", template="balance", among=["r2p2"],
                                                   demand={"r2p2": {"stages": 1, "recirculation": 2}})]  # fmt: skip
        wanted = request(name, *body, gang=number % 2 == 0)
        submit(here, wanted)
        time.sleep(draw.random() * 0.4)
        restart(here)
        submit(here, wanted)  # the answer may have been lost: the same request is one
    until(lambda: all(is_running(here, name) for name in names))
    tasks = [task for name in names for task in inc_client.shown(name, here.runtime_dir).tasks]
    assert Counter(task.group for task in tasks) == {"c.server": 6, "b.r2p2": 3}
    once = Counter({task.identity: 1 for task in tasks if not task.is_inc})
    until(lambda: Counter(marks.read_text().split()) >= once)  # a process runs before its shell has written
    assert Counter(marks.read_text().split()) == once, "started twice"
    assert set(at_switch(folder).tasks) == {task.identity for task in tasks if task.where == "l0"}
    for name in names:
        cancel(here, name)
    until(lambda: all(not inc_client.shown(name, here.runtime_dir).tasks for name in names))
    assert at_switch(folder).tasks == []
    assert at_switch(folder).free == [100, 48, 22 * 1024]
    assert Counter(marks.read_text().split()) == once, "a task started after its request was cancelled"


def test_the_commands_submit_explain_and_cancel(here: JobManager, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\ntenant = "web"\n[[composite]]\nname = "store"\nservice = "store"\n'
        '[[composite]]\nname = "edge"\ntemplate = "balance"\nargv = ["sleep", "900"]\n'
        'demand.r2p2 = {stages = 1, recirculation = 2}\n'
        '[[connection]]\nsource = "edge"\ntarget = "store"\n'
    )  # fmt: skip
    where = ["--runtime-dir", here.runtime_dir]
    done = offpath("inc", "submit", str(file), *where, "--json")
    assert done.code == 0, done.err
    until(lambda: is_running(here, "shop"))
    assert "every task has its place" in offpath("inc", "show", "shop", *where).out
    assert "edge: r2p2 is chosen" in offpath("inc", "explain", "shop", *where).out
    assert "shop" in offpath("inc", "list", *where).out
    assert "netchain" in offpath("inc", "templates", *where).out
    with Values("shop", "store", here.runtime_dir) as values:
        assert values.get("k") is None
        assert values.put("k", b"v") == 1
        assert values.get("k") == (b"v", 1)
    assert offpath("inc", "cancel", "shop", *where).code == 0
    until(lambda: not inc_client.shown("shop", here.runtime_dir).tasks)
    assert "shop" not in offpath("inc", "list", *where).out
    assert "cancelled" in offpath("inc", "list", "--ended", *where).out


def test_a_task_whose_process_dies_is_placed_again(here: JobManager) -> None:
    submit(here, request("r", CompositeBody(name="s", service="store")))
    until(lambda: is_running(here, "r"))
    (before,) = inc_client.shown("r", here.runtime_dir).tasks
    with Values("r", "s", here.runtime_dir) as values:
        values.put("k", b"v")
        pids = [int(each) for each in os.listdir("/proc") if each.isdecimal() and _has(each, before.identity)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: [task.identity for task in inc_client.shown("r", here.runtime_dir).tasks] != [before.identity])
        until(lambda: is_running(here, "r"))
        assert values.get("k") is None, "a store keeps nothing on a disk"
    assert "placed again" in " ".join(inc_client.shown("r", here.runtime_dir).history)


def test_tasks_of_a_switch_that_stands_still_go_to_servers_and_what_it_runs_then_is_stopped(
    here: JobManager, switch: Popen[bytes], folder: Path
) -> None:
    demand = {"r2p2": {"stages": 1, "recirculation": 2}}
    submit(here, request("r", CompositeBody(name="b", template="balance", argv=["sleep", "900"], demand=demand)))
    until(lambda: is_running(here, "r"))
    (before,) = inc_client.shown("r", here.runtime_dir).tasks
    assert (before.where, before.flavor) == ("l0", "r2p2")
    switch.send_signal(signal.SIGSTOP)
    try:
        until(lambda: is_on_a_server(here, "r"))
        assert "inc_switch_away" in here.log
        assert "is taken back" in " ".join(inc_client.shown("r", here.runtime_dir).history)
    finally:
        switch.send_signal(signal.SIGCONT)
    until(lambda: at_switch(folder).tasks == [])
    until(lambda: is_running(here, "r"))
    assert is_on_a_server(here, "r"), "what runs stays"
    submit(here, request("s", CompositeBody(name="b", template="balance", argv=["sleep", "900"], demand=demand)))
    until(lambda: is_running(here, "s"))
    assert [task.where for task in inc_client.shown("s", here.runtime_dir).tasks] == ["l0"], "it takes tasks again"


def is_on_a_server(here: JobManager, name: str) -> bool:
    tasks = [task for task in inc_client.shown(name, here.runtime_dir).tasks if task.state != "stopping"]
    return bool(tasks) and all(task.flavor == "server" and task.state == "running" for task in tasks)


def _has(pid: str, identity: str) -> bool:
    try:
        return f"OFFPATH_JOB={identity}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


HOSTILE = [
    ("unknown_template", request("x", plain("c", template="no-such"))),
    ("unknown_template", request("x", plain("c", template="cache", among=["no-such"]))),
    ("unknown_template", request("x", connection=[ConnectionBody(source="c", target="gone")])),
    ("unknown_template", request("x", tie=[TieBody(composite="c", request="gone", to="c")])),
    ("request_cyclic", request("x", plain("c"), plain("d"), connection=[
        ConnectionBody(source="c", target="d"), ConnectionBody(source="d", target="c")])),
    ("flavors_contradict", request("x", plain("c", template="cache", among=["server"], without=["server"]))),
    ("demand_invalid", request("x", plain("c", cpu_milli=-1))),
    ("demand_invalid", request("x", plain("c", memory_mib=1 << 61))),
    ("demand_invalid", request("x", plain("c", template="balance", demand={"r2p2": {"stages": 99}}))),
    ("request_too_large", request("x", plain("c", 1_000_000))),
    ("request_too_large", request("x", plain("c", 5_000, cpu_milli=1, memory_mib=1))),
    ("unhostable", request("x", plain("c", cpu_milli=5_000))),
    ("unhostable", request("x", CompositeBody(name="c", template="cache", among=["netcache"]))),
    ("program_missing", request("x", CompositeBody(name="c"))),
    ("quota_exceeded", request("x", plain("c", 2, cpu_milli=600), tenant="small")),
    ("tenant_unknown", request("x", tenant="nobody")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "wrong"), HOSTILE, ids=[f"{code}-{at}" for at, (code, _) in enumerate(HOSTILE)])
def test_a_bad_request_is_refused_with_its_code_and_delays_nobody(
    here: JobManager, code: str, wrong: SubmitRequest
) -> None:
    with pytest.raises(admin_client.Refused) as refused:
        submit(here, wrong)
    assert refused.value.code == code
    assert list(inc_client.all_requests(here.runtime_dir, is_ended=False)) == []


@pytest.mark.parametrize(
    "text",
    ["", "name = ", "name = 'a'", "a.b = 1\n" * 3, "[" * 50_000, "name = 'a'\ntenant = 't'\ncomposite = 3",
     "name = 'a'\ntenant = 't'\n[[composite]]\nname = '../x'", "name = 'a'\ntenant = 't'\nmore = 1\n[[composite]]\n",
     "name = 'a'\ntenant = 't'\n[[composite]]\nname = 'c'\ninstances = 1e6", "\0", "name = '\ud800'",
     "name = 'a'\ntenant = 't'\n" + "[[composite]]\nname = 'c'\n" * 65, '"a-b" = 1'],
)  # fmt: skip
def test_a_file_that_is_no_request_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(OffpathError):
        inc_client.read(str(file))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"kind":"inc_submit"}', b'{"kind":"inc_list","limit":1e9}', b'{"kind":"inc_show","name":"../x"}',
     b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[]}',
     b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[{"name":"c","argv":["a\\u0000"]}]}',
     b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[{"name":"c","instances":1.5}]}'],
)  # fmt: skip
def test_messages_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(control.ControlError):
        control.decode(inc_admin.TO_MANAGER, body)


@pytest.mark.parametrize(
    "wrong",
    [{"server": []}, {"server": [{"name": "n0", "cpu_milli": 1, "memory_mib": 1}]}, {"first_port": 5, "last_port": 4},
     {"switch": [{"name": "l0", "switches": ["l0"], "hosts": NODES}]}, {"more": 1}],
)  # fmt: skip
def test_a_configuration_with_a_fault_is_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    made = tables(tmp_path)
    inc = {**made["inc"], **wrong}  # type: ignore[dict-item]
    file = tmp_path / "manager.toml"
    whole = {"engine": made["engine"], "inc": inc, "operation": {"state": str(tmp_path / "jobs.sqlite")}}
    file.write_text(toml_of(whole))
    with pytest.raises(ConfigError, match=r"manager\.toml"):
        load(str(file))
