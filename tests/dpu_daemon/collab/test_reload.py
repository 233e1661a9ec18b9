"""SIGHUP: a good file is in force as a whole, a bad one changes nothing and says why; leases stay in both cases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.wire import collab_admin
from offpath.bindings.zeromq.gateway import BatchEnd
from offpath.bindings.zeromq.keys import make_keys, read_public
from offpath.dpu_daemon.collab.config import NEEDS_RESTART, check_reload, load
from offpath.dpu_daemon.collab.reload import Reloader
from offpath.dpu_daemon.collab.running import Running
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.sched.collab.records import JobSpec
from offpath.sched.collab.requirements import Properties

from ...support.certificates import Authority
from ...support.cluster import free_port
from ...support.collab import Controller, configuration, controller, message
from ...support.processes import BOUND_S, until
from .conftest import Served, World
from .test_metrics import scraped

OTHER_KEY = "n" * 32


@dataclass
class Here:
    controller: Controller
    port: int

    def reload(self, *changes: tuple[str, str]) -> bool:
        """Replace texts of the file and reload it. True: it is in force."""
        text = self.controller.config.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.controller.config.write_text(text)
        before = self._counted()
        assert self.controller.process is not None
        self.controller.process.send_signal(signal.SIGHUP)
        until(lambda: sum(self._counted()) > sum(before))
        return self._counted()[0] > before[0]

    def _counted(self) -> tuple[float, float]:
        now = scraped(self.port)
        return now["offpath_collab_config_reloads_total"], now["offpath_collab_config_reloads_refused_total"]

    def check_in(self, device: str, key: str = "", **more: object) -> dict[str, Any]:
        body = {**message(device, time.time_ns() // 10**6), **more}
        if key:
            body["token"] = Tokens([key.encode()]).of(device)
        return self.controller.post("/v1/checkin", body)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with running(tmp_path / "c") as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """For files that change nothing."""
    with running(tmp_path_factory.mktemp("shared") / "c") as made:
        yield made


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Here]:
    """A controller that complains of nothing."""
    port = free_port()
    more = {"operation": f'metrics_listen = "127.0.0.1:{port}"', "policy": 'name = "venn-paper"'}
    with controller(folder, dict(os.environ), **more) as made:
        yield Here(made, port)
        if made.process is not None:
            assert made.stop() == 0
        assert not [line for line in made.log if "Traceback" in line]


def test_a_good_file_is_in_force_and_leases_stay(here: Here, tmp_path: Path) -> None:
    made = here.controller
    made.ask(collab_admin.OpenRequest(job="kb"))
    made.ask(collab_admin.DevicesRequest(job="kb", round=0, demand=9, deadline_s=6_000))
    held = here.check_in("d1")
    assert here.check_in("d2", OTHER_KEY)["code"] == "forged"
    new = tmp_path / "new.key"
    new.write_text(OTHER_KEY)
    new.chmod(0o600)
    assert here.reload(
        ("device.key", "../new.key"), ("[http]", "per_minute = 2\nburst = 2\n[http]"),
        ('name = "venn-paper"', 'name = "venn-paper"\nepsilon = 2.0\nlease_s = 60'),
    )  # fmt: skip
    assert here.check_in("d1")["code"] == "forged"
    assert here.check_in("d1", OTHER_KEY)["lease"] == held["lease"]
    assert here.check_in("d1", OTHER_KEY)["code"] == "device_rate"
    later = here.check_in("d3", OTHER_KEY)
    assert later["job"] == "kb"
    assert later["expires_ms"] - later["now_ms"] <= 60_000 < held["expires_ms"] - held["now_ms"]
    assert made.ask(collab_admin.PlanRequest(), collab_admin.Plan).epsilon == 2
    found = made.ask(collab_admin.ExplainRequest(job="kb"), collab_admin.Explanation)
    assert "fairness ε = 2" in found.reasons[-1]
    assert scraped(here.port)["offpath_collab_epsilon"] == 2
    assert here.reload(('name = "venn-paper"\nepsilon = 2.0', 'name = "srsf"'))
    assert made.ask(collab_admin.PlanRequest(), collab_admin.Plan).policy == "srsf"
    assert here.check_in("d4", OTHER_KEY)["job"] == "kb"


EARLY = """
import os, signal, sys
from offpath.dpu_daemon.collab import config, serve

async def prime():
    os.kill(os.getpid(), signal.SIGHUP)

serve.prime = prime
path = sys.argv[1]
serve.run(config.load(path), sys.argv[2], lambda running: print("ready", flush=True), path)
"""


def test_a_signal_before_the_controller_is_ready_is_a_reload(tmp_path: Path) -> None:
    """It comes with the first step of the start."""
    path = configuration(tmp_path / "c")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", EARLY, str(path), str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if "configuration 2 is in force" in line:
                process.terminate()
        assert process.wait(60) == 0, "".join(log)
    assert any("configuration 2 is in force" in line for line in log)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[devices]", "[devices", "collab.toml"),
        ("[devices]", "[devices]\nper_minut = 3", "devices.per_minut"),
        ("[devices]", "[devices]\nper_minute = 0", "devices.per_minute"),
        ("device.key", "absent.key", "devices.token_keys.0"),
        ('"venn-paper"', '"venn-paper"\nepsilon = -1.0', "policy.epsilon"),
        ('"venn-paper"', '"venn"\nepsilon = 1.0', "not for venn"),
        ('"venn-paper"', '"venn-paper"\nepsilon = nan', "policy.epsilon"),
        ('"venn-paper"', '"venn-paper"\nperiod_s = 60', "policy.period_s: needs a restart"),
        ("state.db", "other.db", "operation.state: needs a restart"),
        ("127.0.0.1:0", "127.0.0.2:0", "http.listen: needs a restart"),
        ("[devices]", "[devices]\nremembered = 4096", "devices.remembered: needs a restart"),
    ],
)
def test_a_bad_file_changes_nothing_and_says_why(shared: Here, old: str, new: str, text: str) -> None:
    made = shared.controller
    good, before = made.config.read_text(), len(made.log)
    try:
        assert not shared.reload((old, new), ("[http]", "retry_s = 7\n[http]"))
    finally:
        made.config.write_text(good)
    assert shared.check_in(f"d{before}")["retry_ms"] == 60_000
    assert made.ask(collab_admin.PlanRequest(), collab_admin.Plan).policy == "venn-paper"
    until(lambda: text in "".join(made.log[before:]))


def test_every_key_that_needs_a_restart_is_one_of_the_file(tmp_path: Path) -> None:
    found = load(str(configuration(tmp_path, gateways=True)))
    for key in NEEDS_RESTART:
        value: object = found.config
        for name in key.split("."):
            value = getattr(value, name)


def test_another_key_of_the_gateways_needs_a_restart(tmp_path: Path) -> None:
    path = str(configuration(tmp_path, gateways=True))
    first = load(path)
    (tmp_path / "controller.key").unlink()
    (tmp_path / "controller.pub").unlink()
    make_keys("controller", str(tmp_path))
    with pytest.raises(ConfigError, match=r"gateways\.key_file: needs a restart"):
        check_reload(path, first, load(path))


def test_tls_begins_and_ends_with_a_restart_only_and_a_new_certificate_needs_none(tmp_path: Path) -> None:
    def certified(name: str) -> str:
        cert_file, key_file = Authority(tmp_path, name).issue("localhost", is_server=True)
        return f'cert_file = "{cert_file}"\nkey_file = "{key_file}"'

    path = str(configuration(tmp_path))
    plain = load(path)
    configuration(tmp_path, http=certified("one"))
    first = load(path)
    configuration(tmp_path, http=certified("two"))
    second = load(path)
    check_reload(path, first, second)
    for before, after in ((first, plain), (plain, first)):
        with pytest.raises(ConfigError, match=r"http\.cert_file: needs a restart: TLS begins or ends"):
            check_reload(path, before, after)


async def ask(end: BatchEnd) -> None:
    await asyncio.to_thread(end.send, b'{"kind": "batch", "number": 1, "items": []}')


async def answer(end: BatchEnd) -> bytes | None:
    await ask(end)
    return await asyncio.to_thread(end.receive, BOUND_S)


def reload_gateways(served: Served) -> None:
    served.gateways.reload(load(str(served.folder / "collab.toml")).gateways)


async def is_cut(served: Served, end: BatchEnd) -> bool:
    """Its batch is not answered, and its connection is closed: libzmq connects again, which is refused."""
    assert served.gateways.listener.refused == 0
    await ask(end)
    async with asyncio.timeout(BOUND_S):
        while not served.gateways.listener.refused:
            if await asyncio.to_thread(end.receive, 0.05):
                return False
    return True


@pytest.mark.parametrize("name", ["next", "gw"])
async def test_a_gateway_whose_key_is_no_longer_listed_is_cut_off_and_another_one_gets_in(
    served: Served, tmp_path: Path, name: str
) -> None:
    """Of another name, or of the same one: then only its key is new."""
    listed = tmp_path / "allowed"
    first = served.end()
    assert await answer(first)
    (listed / "gw.pub").unlink()
    (listed / "gw.key").unlink()
    secret, _ = make_keys(name, str(listed))
    reload_gateways(served)
    assert await is_cut(served, first)
    assert await answer(served.end(secret))


async def test_a_gateway_that_stays_listed_stays_connected(served: Served, tmp_path: Path) -> None:
    """Also under another name."""
    first = served.end()
    assert await answer(first)
    make_keys("next", str(tmp_path / "allowed"))
    (tmp_path / "allowed" / "gw.pub").rename(tmp_path / "allowed" / "renamed.pub")
    reload_gateways(served)
    assert not await is_cut(served, first)
    assert served.gateways.listener.connections == 1


async def test_keys_of_tokens_that_cannot_be_used_change_nothing(served: Served, tmp_path: Path) -> None:
    running = Running(served.world.shell, served.world.devices, gateways=served.gateways)
    loaded = served.world.loaded
    reloader = Reloader(running, str(tmp_path / "collab.toml"), loaded, Notifier(), asyncio.Event())
    first = served.end()
    assert await answer(first)
    faulty: Any = "text, and not bytes"
    make_keys("next", str(tmp_path / "allowed"))
    next_only = {read_public(str(tmp_path / "allowed" / "next.pub")): "next"}
    with pytest.raises(TypeError):
        reloader._apply(replace(loaded, token_keys=(faulty,), gateways=next_only))
    assert not await is_cut(served, first)


async def test_another_policy_knows_what_waits_and_keeps_leases_and_rounds(world: World) -> None:
    """First come first served: the older job; shortest first: the one that needs fewer devices."""

    def reload(name: str) -> None:
        policy = world.loaded.config.policy.model_copy(update={"name": name})
        world.shell.reload(world.shell.config.model_copy(update={"policy": policy}))

    reload("fifo")
    world.job("long", demand=5)
    world.clock.pass_s(1)
    world.job("short", demand=2)
    assert (await world.check_in("d1")).job == "long"
    reload("srsf")
    assert (await world.check_in("d2")).job == "short"
    assert (await world.check_in("d3")).job == "short"
    assert (await world.check_in("d4")).job == "long"
    reload("fifo")
    assert (await world.check_in("d1")).job == "long"
    assert {name: job.request.leased for name, job in world.shell.book.jobs.items() if job.request} == {
        "long": 2, "short": 2,
    }  # fmt: skip
    world.shell.open(JobSpec("idle", "t", world.shell.book.jobs["long"].spec.requirement))
    reload("venn-paper")
    lease = world.shell.check_in(77, Properties.of({}), world.shell.advance())
    assert lease is not None
    assert lease.job == "long"
