"""The controller's metrics and health: numbers that are right, of a real process, and nothing that names a device."""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offpath.bindings.runtime import COLLAB_SOCKET
from offpath.bindings.wire import collab_admin
from offpath.dpu_daemon.collab import counts
from offpath.dpu_daemon.collab.counts import OTHERS, Counts
from offpath.dpu_daemon.collab.metrics import TESTS, Health, take
from offpath.dpu_daemon.collab.running import Running
from offpath.dpu_daemon.listening.checkup import Checkup
from offpath.sched.collab.records import RoundEnd

from ...support.cluster import free_port
from ...support.collab import Controller, controller, message
from .conftest import World


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scraped(port: int) -> dict[str, float]:
    """Each sample by its name and its labels in one text."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    return {
        " ".join((sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Controller, int]]:
    port = free_port()
    with controller(
        tmp_path_factory.mktemp("metrics"), dict(os.environ), operation=f'metrics_listen = "127.0.0.1:{port}"'
    ) as made:
        yield made, port
        assert made.stop() == 0


def test_every_message_job_and_round_is_counted_and_no_device_is_named(here: tuple[Controller, int]) -> None:
    made, port = here
    mine = getpass.getuser()
    for name, demand in (("kb", 2), ("other", 1)):
        made.ask(collab_admin.OpenRequest(job=name, requirement=collab_admin.Requirement(labels=[name])))
        made.ask(collab_admin.DevicesRequest(job=name, round=0, demand=demand, deadline_s=600))
    now_ms = time.time_ns() // 10**6

    def check_in(device: str, at: int, **more: object) -> dict[str, Any]:
        return made.post("/v1/checkin", {**message(device, now_ms + at), **more})

    first = check_in("phone-1", 0, labels=["kb"])
    second = check_in("phone-2", 0, labels=["kb"])
    assert check_in("phone-1", 1, labels=["kb"])["lease"] == first["lease"]
    assert check_in("phone-3", 0, labels=["kb"])["why"] == "idle"
    assert check_in("phone-3", 1, token="0" * 64)["code"] == "forged"
    made.post("/v1/result", {**message("phone-2", now_ms + 1), "lease": second["lease"], "is_good": False})
    assert check_in("phone-2", 2, labels=["kb"])["why"] == "spent"
    now = scraped(port)
    expected = {
        "offpath_collab_check_ins_total outcome=assigned": 2, "offpath_collab_check_ins_total outcome=held": 1,
        "offpath_collab_check_ins_total outcome=idle": 1, "offpath_collab_check_ins_total outcome=spent": 1,
        "offpath_collab_refused_total code=forged": 1, "offpath_collab_leases_ended_total outcome=answered": 0,
        "offpath_collab_leases_ended_total outcome=unanswered": 1, f"offpath_collab_jobs state=waits tenant={mine}": 2,
        f"offpath_collab_devices_wanted tenant={mine}": 2, f"offpath_collab_leases tenant={mine}": 1,
        "offpath_collab_devices_known": 3, "offpath_collab_devices_worked": 2,
        "offpath_collab_answer_duration_seconds_count": 7, "offpath_collab_config_reloads_total": 0,
    }  # fmt: skip
    assert {name: now.get(name) for name in expected} == expected
    assert now["offpath_collab_commits_total"] >= 1
    assert now["offpath_collab_uptime_seconds"] > 0

    made.ask(collab_admin.CloseRequest(job="other"))
    last = check_in("phone-4", 0, labels=["kb"])
    for device, lease in (("phone-1", first), ("phone-4", last)):
        made.post("/v1/result", {**message(device, now_ms + 3), "lease": lease["lease"], "is_good": True})
    now = scraped(port)
    assert now[f"offpath_collab_rounds_total end=closed tenant={mine}"] == 1
    assert now[f"offpath_collab_rounds_total end=complete tenant={mine}"] == 1
    assert now["offpath_collab_leases_ended_total outcome=answered"] == 2
    assert now[f"offpath_collab_jobs state=idle tenant={mine}"] == 1
    text = get(port, "/metrics")[1]
    for secret in ("phone", str(message("phone-1", 0)["token"]), "kb"):
        assert secret not in text


@pytest.mark.parametrize("place", ["devices", "jobs"])
def test_connections_that_find_no_descriptor_are_counted(here: tuple[Controller, int], place: str) -> None:
    made, port = here
    assert made.process is not None
    pid = made.process.pid
    before = scraped(port)["offpath_collab_descriptors_exhausted_total"]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = max(int(each) for each in os.listdir(f"/proc/{pid}/fd")) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, limits[1]))
    family = socket.AF_INET if place == "devices" else socket.AF_UNIX
    with contextlib.ExitStack() as held:
        held.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, limits)
        socks = [held.enter_context(socket.socket(family)) for _ in range(8)]  # below the limit some are free
        for sock in socks:
            sock.connect(made.address if place == "devices" else os.path.join(made.run_folder, COLLAB_SOCKET))
        assert select.select(socks, [], [], 30)[0], "one is closed, for another or with a spare descriptor"
    assert scraped(port)["offpath_collab_descriptors_exhausted_total"] > before


def test_health_is_tried_and_other_pages_are_refused(here: tuple[Controller, int]) -> None:
    _, port = here
    assert get(port, "/healthz") == (200, '{"loop": "ok", "file": "ok"}\n')
    status, text = get(port, "/readyz")
    assert (status, json.loads(text)["ready"]) == (200, "ok")
    assert get(port, "/v1/checkin")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405


async def test_a_disk_that_stands_still_is_no_health_and_gathers_no_checks(tmp_path: Path) -> None:
    """When it works again, the last 64 checks are answered: no more were kept."""
    world = World(tmp_path)
    world.start(writes=False)
    running = Running(world.shell, world.devices)
    health = Health(running)

    def check() -> Checkup:
        checkup = Checkup(TESTS)
        health.check(checkup)
        return checkup

    assert check().is_healthy  # nothing waits for the disk
    world.job()
    checkups = [check() for _ in range(200)]
    assert all("no answer" in each.checks["file"] for each in checkups)
    assert not checkups[0].is_accepting
    await world.write()
    assert [each.is_healthy for each in checkups] == [False] * 136 + [True] * 64
    running.is_open = True
    late = check()
    assert (late.is_healthy, late.is_accepting, late.why_not_ready) == (True, True, "")
    await world.stop()


async def test_the_numbers_are_those_of_the_shell(world: World) -> None:
    world.job("a", demand=3)
    lease = await world.check_in("d1")
    running = Running(world.shell, world.devices)
    found = take(running, 0.25)
    assert found.plain["offpath_collab_loop_lag_seconds"] == 0.25
    assert (found.jobs, found.wanted, found.leases) == ({("t", "waits"): 1}, {"t": 2}, {"t": 1})
    assert sum(found.answer_times[0]) == 1
    world.clock.pass_s(3_600)
    world.shell.advance()
    assert lease.kind == "lease"
    assert take(running, 0.0).rounds == {("t", RoundEnd.ABORTED): 1}


def test_tenants_beyond_the_bound_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_TENANTS", 2)
    made = Counts()
    for tenant in ("a", "b", "c", "d", "a"):
        made.ended(tenant, RoundEnd.COMPLETE)
    assert made.rounds == {("a", RoundEnd.COMPLETE): 2, ("b", RoundEnd.COMPLETE): 1, (OTHERS, RoundEnd.COMPLETE): 2}
