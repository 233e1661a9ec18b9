"""Reload with real processes: what changes, what may not, how a tenant goes, and that nobody else notices."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused, PeerGone
from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.config import Sources, config_error, lastgood, parse_config
from offpath.dpu_daemon.config.files import file_faults
from offpath.dpu_daemon.operation.reload import Reloader
from offpath.host_helper import RequestFailed, connect

from ..sizes import sized
from ..support.certificates import Authority
from ..support.cluster import TIMEOUT, Cluster, free_port
from ..support.clusters import NARROW, Make, first_pid, seconds
from ..support.processes import until
from ..support.toml import to_toml

RELOADS = 100
PACE = sized(quick=5, fast=6, slow=25, full=1_000)
"""Requests of a witness between two reloads."""


def table(cluster: Cluster, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "token_file": cluster.make_token(name), **more}


def test_a_tenant_that_is_added_gets_in_and_one_that_is_removed_is_told_so(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW, "bob": NARROW})
    cluster.start_helper()
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        assert bob.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        cluster.config["tenant"] = [cluster.config["tenant"][0], table(cluster, "cyd", **NARROW)]
        assert cluster.reload()
        with pytest.raises(PeerGone, match="tenant_removed: the tenant was taken out of the configuration"):
            until(lambda: bob.poll(0.1))
        until(lambda: "tenant bob removed" in cluster.daemon.errors)
        with pytest.raises(NegotiationRefused, match="denied"):
            cluster.connect("bob")
        with cluster.connect("cyd") as cyd:
            assert cyd.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
        assert ada.submit("echo", seconds(3), timeout=TIMEOUT).array == 3
    cluster.config["tenant"].append(table(cluster, "bob", **NARROW))
    assert cluster.reload()
    with cluster.connect("bob") as bob:
        assert bob.submit("echo", seconds(4), timeout=TIMEOUT).array == 4
    counted = cluster.statistics()
    assert (counted["reloads"], counted.get("reloads_failed", 0)) == (2, 0)


def test_what_a_removed_tenant_runs_finishes_what_it_queued_does_not(make_cluster: Make) -> None:
    """Its session hears every answer before the end; while it goes, a new session is refused by name."""
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"lanes": 1})
    cluster.start_helper()
    with cluster.connect("bob") as bob:
        bob.submit("echo", seconds(0), timeout=TIMEOUT)
        running = bob.begin("sleep", seconds(1.0))
        queued = [bob.begin("echo", seconds(n)) for n in range(3)]
        with cluster.connect("ada"):  # by then the daemon has read bob's doorbells
            pass
        cluster.config["tenant"] = cluster.config["tenant"][:1]
        assert cluster.reload()
        with pytest.raises(NegotiationRefused, match="tenant_removed"):
            cluster.connect("bob")
        for pending in queued:
            with pytest.raises(RequestFailed) as failed:
                pending.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.TENANT_REMOVED)
        with pytest.raises(RequestFailed) as failed:
            bob.submit("echo", seconds(9), timeout=TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.REJECTED, Reason.TENANT_REMOVED)
        assert running.result(TIMEOUT).array == 1.0
    until(lambda: "tenant bob removed" in cluster.daemon.errors)


def test_what_a_removed_tenant_runs_past_the_drain_limit_is_lost_with_its_worker(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, limits={"drain_ms": 200})
    cluster.start_helper()
    path = cluster.folder / "endless"
    with cluster.connect("bob") as bob:
        endless = bob.begin("mark", [np.frombuffer(str(path).encode(), np.uint8)])
        pid = first_pid(path)
        cluster.config["tenant"] = cluster.config["tenant"][:1]
        assert cluster.reload()
        with pytest.raises(RequestFailed) as failed:
            endless.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
        until(lambda: not os.path.exists(f"/proc/{pid}"))
    until(lambda: "tenant bob removed" in cluster.daemon.errors)
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", seconds(1), timeout=TIMEOUT).array == 1


def test_a_new_token_counts_for_new_sessions_and_the_old_sessions_stay(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    cluster.start_helper()
    with cluster.connect("ada") as before:
        Path(cluster.config["tenant"][0]["token_file"]).write_text("another-token-of-ada-0123")
        old = cluster.folder / "old.token"
        old.write_text(Cluster.token("ada"))
        old.chmod(0o600)
        assert cluster.reload()
        with pytest.raises(NegotiationRefused, match="denied"):
            connect(cluster.address, tenant="ada", token_file=str(old), payload_bytes=4096, result_bytes=4096)
        with cluster.connect("ada") as after:
            assert after.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        assert before.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_a_broken_reload_changes_nothing_and_every_fault_is_logged(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_sessions": 2}})
    right = to_toml(cluster.config)
    assert not cluster.reload(right + "[limits]\nkernel_ms = -1\nopen_ms = 0\n")
    assert "limits.kernel_ms" in cluster.daemon.errors
    assert "limits.open_ms" in cluster.daemon.errors
    assert not cluster.reload("not toml")
    assert not cluster.reload(right.replace("max_sessions = 2", 'max_sessions = 1\nprofile = "nonsense"'))
    cluster.config["tenant"][0]["token_file"] = str(cluster.folder / "absent")
    assert not cluster.reload()
    with cluster.connect("ada"), cluster.connect("ada"), pytest.raises(NegotiationRefused, match="at most 2 sessions"):
        cluster.connect("ada")
    counted = cluster.statistics()
    assert (counted.get("reloads", 0), counted["reloads_failed"]) == (0, 4)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("leasing", "lanes", 1),
        ("leasing", "landing_bytes", 8192),
        ("leasing", "result_bytes", 8192),
        ("durability", "journal_mib", 64),
        ("operation", "metrics_listen", "127.0.0.1:1"),
        ("host_uids", "", [1]),
    ],
)
def test_what_a_running_daemon_cannot_change_needs_a_restart(
    unchanging: Cluster, name: str, key: str, value: Any
) -> None:
    config = {**unchanging.config, name: {**unchanging.config.get(name, {}), key: value} if key else value}
    assert not unchanging.reload(to_toml(config))
    said = unchanging.daemon.errors.rpartition("stays in force")[2]
    assert f"{name}.{key}".rstrip(".") + ": needs a restart" in said
    assert unchanging.reload()


@pytest.fixture(scope="module")
def unchanging() -> Any:
    made = Cluster({"ada": {}})
    try:
        yield made
        made.close()
    finally:
        made.kill()


def test_new_handshakes_use_the_new_keys_and_running_sessions_stay(make_cluster: Make, tmp_path: Path) -> None:
    """The authority changes with the certificate: who only has the old one is out, but not who is in."""
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    cert, key = before.issue("offpathd", is_server=True)
    port = free_port()
    tls = {"listen": f"127.0.0.1:{port}", "ca_file": before.ca_file, "cert_file": cert, "key_file": key}
    cluster = make_cluster({"ada": NARROW}, tls=tls)
    cluster.start_helper()
    sizes = {"payload_bytes": 4096, "result_bytes": 4096}
    old, new = before.client("old", "offpath://tenant/ada"), after.client("new", "offpath://tenant/ada")
    with connect(f"tls:127.0.0.1:{port}", tls=old, **sizes) as running:
        with pytest.raises(PeerGone):
            connect(f"tls:127.0.0.1:{port}", tls=new, **sizes)
        assert not cluster.reload(to_toml({**cluster.config, "tls": {**tls, "key_file": old.key_file}}))
        cert, key = after.issue("offpathd", is_server=True)
        cluster.config["tls"] = {**tls, "ca_file": after.ca_file, "cert_file": cert, "key_file": key}
        assert cluster.reload()
        with connect(f"tls:127.0.0.1:{port}", tls=new, **sizes) as later:
            assert later.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
        with pytest.raises(PeerGone):
            connect(f"tls:127.0.0.1:{port}", tls=old, **sizes)
        assert running.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_a_pin_that_is_added_opens_and_one_that_is_removed_closes(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, leasing={"keep_warm_ms": 0})
    cluster.start_helper()
    cluster.config["lease"] = [{"tenant": "ada", "profile": "2g.10gb", "start": 4}]
    assert cluster.reload()
    until(lambda: "ada gets 2g.10gb at 4" in cluster.daemon.errors)
    del cluster.config["lease"]
    assert cluster.reload()
    until(lambda: "lease 1 closes" in cluster.daemon.errors)


def test_100_reloads_under_load_fail_no_request(make_cluster: Make) -> None:
    """Other tenants come and go, with work of their own; weights, limits and pins change; every fourth is broken."""
    draw = random.Random(7)
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"keep_warm_ms": 50, "grow_after_ms": 5})
    cluster.start_helper()
    stay = cluster.config["tenant"]
    witnesses = [
        cluster.start(f"witness-{name}", "steady_main.py", cluster.address, name, token, "1", "4", "4", "echo")
        for name, token in ((each["name"], each["token_file"]) for each in stay)
    ]
    assert [witness.hear() for witness in witnesses] == ["ready", "ready"]
    for witness in witnesses:
        until(lambda witness=witness: witness.ask("count").get("completed", 0) > 20)
    broken = done = 0
    for number in range(RELOADS):
        guests = [name for name in ("cyd", "dee", "eve") if draw.random() < 0.5]
        cluster.config["tenant"] = [
            *({**each, "weight": draw.randint(1, 9), "max_jobs": draw.randint(64, 256)} for each in stay),
            *(table(cluster, guest, **NARROW) for guest in guests),
        ]
        cluster.config["lease"] = [
            {"tenant": owner, "profile": "1g.5gb", "start": start}
            for owner, start in zip(draw.sample(["ada", "bob", *guests], 2), (0, 3), strict=True)
        ]
        cluster.config["limits"] = {"drain_ms": draw.choice((0, 50, 1000)), "helper_ms": 10_000}
        if number % 4 == 3:
            broken += 1
            wrong = draw.choice(("max_jobs = 0\n", "[limits]\n", "\0", 'nonsense = "\n'))
            assert not cluster.reload(wrong + to_toml(cluster.config))
            continue
        assert cluster.reload()
        for guest in guests[:1]:
            with cluster.connect(guest, slots=2) as requester:
                requester.begin("echo", seconds(number))
        done += PACE
        until(lambda done=done: witnesses[0].ask("count")["completed"] > done)
    counted = [witness.ask("count") for witness in witnesses]
    assert all(set(each) == {"sent", "completed"} and each["completed"] > 100 for each in counted), counted
    for witness in witnesses:
        until(lambda witness=witness: witness.ask("count")["completed"] > 200)
        witness.tell("stop")
        witness.finish(is_notified=True)
    totals = cluster.statistics()
    assert (totals["reloads"], totals["reloads_failed"]) == (RELOADS - broken, broken)
    print(f"{RELOADS} reloads under load: 0 failed of {sum(each['sent'] for each in counted)} requests")


def test_a_hangup_in_the_middle_of_another_is_served_too(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    for _ in range(20):
        cluster.daemon.signal(signal.SIGHUP)
    assert cluster.reload()
    assert cluster.statistics()["reloads"] >= 1


def test_a_file_made_to_break_its_reader_is_a_refused_reload(make_cluster: Make) -> None:
    """Nesting without end, keys without end, a pipe in the place of a file: the daemon stays, with what it has."""
    cluster = make_cluster({"ada": {}})
    right = to_toml(cluster.config)
    os.mkfifo(pipe := cluster.folder / "pipe", 0o600)
    token = cluster.config["tenant"][0]["token_file"]
    bombs = {
        "dotted": ".".join(["a"] * 3000) + " = 1\n" + right,
        "headers": right + "\n[" + ".".join(["a"] * 3000) + "]\n",
        "lists": "a = " + "[" * 5000 + "]" * 5000 + "\n" + right,
        "tables": "a = " + "{a=" * 3000 + "1" + "}" * 3000 + "\n" + right,
        "one line": "a = [" + "1," * 100_000 + "]\n" + right,
        "many keys": right + "".join(f"[x{n}]\n" for n in range(70_000)),
        "many tenants": right + '[[tenant]]\nname = "Q"\n' * 20_000,
        "a pipe for a token": right.replace(token, str(pipe)),
    }
    for name, text in bombs.items():
        assert not cluster.reload(text), name
        with cluster.connect("ada"):
            pass
    cluster.config_file.unlink()
    os.mkfifo(cluster.config_file, 0o600)
    before = cluster.daemon.errors.count("stays in force")
    cluster.daemon.signal(signal.SIGHUP)
    until(lambda: cluster.daemon.errors.count("stays in force") > before)
    cluster.config_file.unlink()
    assert cluster.reload(right)
    counted = cluster.statistics()
    assert (counted["reloads"], counted["reloads_failed"]) == (1, len(bombs) + 1)


def test_a_thousand_tenants_with_one_token_are_named_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """Counted in lines of Python that run, so that the machine's load has no say."""
    token = tmp_path / "token"
    token.write_text("x" * 24)
    token.chmod(0o600)

    def lines_run(tenants: int) -> int:
        config = parse_config({"tenant": [{"name": f"t{n}", "token_file": str(token)} for n in range(tenants)]}, "x")
        count = 0

        def tracer(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count
            count += event == "line"
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            faults = list(file_faults(config))
        finally:
            sys.settrace(before)
        assert len(faults) == tenants - 1
        assert len(str(config_error("x", faults, {}))) < 20_000
        return count

    assert lines_run(1000) < 10.5 * lines_run(100)


async def test_sources_are_read_beside_the_loop() -> None:
    """The reading waits for the loop to turn a hundred times: on the loop it would wait for ever."""
    loop, turned = asyncio.get_running_loop(), threading.Event()

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        else:
            turned.set()

    class Waiting(Sources):
        def read(self) -> Any:
            loop.call_soon_threadsafe(turn, 100)
            assert turned.wait(30), "the loop stands still while the sources are read"
            raise RecursionError("of whatever kind")

    daemon = SimpleNamespace(
        requests=SimpleNamespace(book_loop=SimpleNamespace(journal=None)),
        counters=Counter(),
        settings=SimpleNamespace(config=None, generation=1),
        plugin=SimpleNamespace(drop=lambda: None),
    )
    reloader = Reloader(daemon, None, Waiting("no file"))  # type: ignore[arg-type]  # it comes to neither
    assert not await reloader.reload()
    assert turned.is_set()
    assert daemon.counters == {"reloads_failed": 1}


async def test_a_configuration_is_kept_for_a_restart_before_anybody_is_told_that_it_is_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[int, str]] = []

    class Taken(Reloader):
        async def _try(self) -> None:
            """All is in force."""

    daemon = SimpleNamespace(
        requests=SimpleNamespace(book_loop=SimpleNamespace(journal="one")),
        counters=Counter(),
        settings=SimpleNamespace(config=None, generation=2),
        identity=SimpleNamespace(lineage="l"),
    )
    monkeypatch.setattr(lastgood, "keep", lambda *_: told.append((daemon.counters["reloads"], caplog.text)))
    taken = Taken(daemon, None, Sources("no file"), "a directory")  # type: ignore[arg-type]  # it comes to none of them
    assert await taken.reload()
    assert told == [(0, "")]
    assert daemon.counters == {"reloads": 1}
    assert "configuration 2 is in force" in caplog.text
